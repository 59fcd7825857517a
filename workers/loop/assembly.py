"""The scheduler that a runner gets.

Owns what of a runner's facts limits it, for the engine process and for its benchmark alike. Must
not know torch, nor where submissions come from.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable
from typing import Any

from workers.loop.pipeline import Runner
from workers.scheduler import BlockManager, Scheduler, SchedulerLimits


def scheduler_for(
    runner: Runner[Any],
    model: str,
    *,
    max_waiting: int,
    vocab_size: int | None,
    largest: Callable[[array[int]], int],
) -> Scheduler:
    """For the model's public name; the rest as in `SchedulerLimits` and `Scheduler`."""
    facts = runner.facts
    limits = SchedulerLimits(
        max_seqs=facts.max_seqs,
        token_budget=facts.token_budget,
        context_length=facts.context_length,
        max_waiting=max_waiting,
        vocab_size=vocab_size,
    )
    blocks = BlockManager(facts.kv_tokens // facts.block_size, facts.block_size)
    lookahead = runner.lookahead
    return Scheduler(limits, blocks, (model,), runner.eos_ids, lookahead=lookahead, largest=largest)
