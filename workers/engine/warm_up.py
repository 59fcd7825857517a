"""The first steps of a process, before anybody measures them.

Owns what is run: thread pools, allocators and code paths are paid for here, not by the first
request, and not by the prefill rate that routers go by. Must not know where the model came from.
"""

from array import array
from typing import Final

from protocol.errors import ConfigError
from protocol.sampling import SamplingParams
from workers.core.plan import Chunk, SequenceStart, StepPlan
from workers.engine.runner import Runner

WARM_UP_TOKENS: Final = 512
_ROUNDS: Final = 2
_FIRST_GRAPHS: Final = 1
"""That of one row, which the rounds miss. The others are captured when the engine is idle, the
largest first: to compile what it needs takes 5 s at a card's first start."""


def warm_up(runner: Runner) -> None:
    """Prefill and decode one imagined sequence, twice. Raises `ConfigError` if memory is short."""
    facts = runner.facts
    length = min(WARM_UP_TOKENS, facts.token_budget, facts.context_length - 1)
    num_blocks = -(-(length + 1) // facts.block_size)
    blocks = tuple(range(num_blocks))
    sampling = SamplingParams(max_tokens=2)
    for seq in range(_ROUNDS):
        start = SequenceStart(seq, array("I", bytes(4 * length)), length, sampling, seed=0)
        prefill = Chunk(seq, 0, length, blocks, samples=True)
        decode = Chunk(seq, length, 1, blocks, samples=True)
        for plan in (
            StepPlan(0, (start,), (prefill,), ended=()),
            StepPlan(0, (), (decode,), ended=()),
            StepPlan(0, (), (), ended=(seq,)),
        ):
            result = runner.run(plan)
            if result.failed:
                raise ConfigError(f"the first step failed: {result.failed[0][1]}")
    for _ in range(_FIRST_GRAPHS):
        runner.prepare(wished_only=False)
