"""The first steps of a process, before requests come.

Owns the steps that are run. Thread pools, allocators and first runs of code cost their time here,
not in the first request, nor in the prefill rate that routers use. Must not know where the model
came from.
"""

from array import array
from collections.abc import Iterator, Sequence
from typing import Final

from protocol.errors import ConfigError
from protocol.messages import EngineFacts
from protocol.sampling import SamplingParams
from workers.engine.drafting.captured import SIZES
from workers.engine.runner import ModelRunner
from workers.engine.step.batch import Follower
from workers.scheduler import ON_CARD, Chunk, SequenceStart, StepPlan

_PROMPTS: Final = (512, 512, 3)
"""Tokens. A long prompt twice, because the second run shows the rate; and a short one, like the
supervisor's first request, which needs kernels with other tiles."""

DRAFTS: Final = 3
"""How many drafts the decodes of a warm-up verify, if steps verify."""

_SAMPLING: Final = SamplingParams(max_tokens=2)

_FIRST_GRAPHS: Final = 1
"""How many graphs are captured at the start: the one that the decodes of the warm-up missed. The
others are captured when the engine is idle, the largest first."""


def warm_up(runner: ModelRunner) -> None:
    """Prefill and decode imagined sequences. Raises `ConfigError` if memory is short."""
    for plan in warm_up_plans(runner.facts, num_drafts=DRAFTS if runner.verifies else 0):
        result = runner.run(plan)
        if result.failed:
            raise ConfigError(f"the first step failed: {result.failed[0][1]}")
    prepare_first(runner)


def warm_up_plans(
    facts: EngineFacts,
    sampling: SamplingParams = _SAMPLING,
    prompts: Sequence[int] = _PROMPTS,
    grammar: Follower | None = None,
    num_drafts: int = 0,
) -> Iterator[StepPlan]:
    """Plans for each imagined sequence: its prompt, a decode with `num_drafts` drafts, its end."""
    longest = min(facts.token_budget, facts.context_length - 1)
    for seq, wanted in enumerate(prompts):
        length = min(wanted, longest)
        length = max(1, min(length, facts.context_length - 1 - num_drafts))
        blocks = tuple(range(-(-(length + 1 + num_drafts) // facts.block_size)))
        tokens = array("I", bytes(4 * length))
        start = SequenceStart(seq, tokens, length, sampling, seed=0, grammar=grammar)
        prefill = Chunk(seq, 0, length, blocks, samples=True, window_ids=blocks)
        decode = Chunk(
            seq, length, 1, blocks, samples=True, drafts=(0,) * num_drafts, window_ids=blocks
        )
        yield StepPlan(0, (start,), (prefill,), ended=())
        yield StepPlan(0, (), (decode,), ended=())
        yield StepPlan(0, (), (), ended=(seq,))


def draft_plans(facts: EngineFacts, depth: int) -> Iterator[StepPlan]:
    """Plans for each size of captured draft passes, with that number of imagined sequences: prompts
    with drafts behind them, the verification of these with drafts behind it, the sequences' end.
    """
    length = _PROMPTS[-1]
    num_blocks = -(-(length + 2 * depth + 2) // facts.block_size)
    blocks = tuple([0] * num_blocks)
    most = min(facts.max_seqs, facts.token_budget // (depth + 1))
    for count in [size for size in SIZES if size <= most]:
        tokens = array("I", bytes(4 * (length + 1)))
        seqs = range(count)
        starts = tuple([SequenceStart(seq, tokens, length, _SAMPLING, seed=0) for seq in seqs])
        prompts = [Chunk(seq, 0, length, blocks, True, (), depth) for seq in seqs]
        drafts = (ON_CARD,) * depth
        later = [Chunk(seq, length, 1, blocks, True, drafts, depth) for seq in seqs]
        yield StepPlan(0, starts, tuple(prompts), ended=())
        yield StepPlan(0, (), tuple(later), ended=())
        yield StepPlan(0, (), (), ended=tuple(seqs))


def prepare_first(runner: ModelRunner) -> None:
    """Capture what the first request would wait for."""
    for _ in range(_FIRST_GRAPHS):
        runner.prepare(pending_only=False)
