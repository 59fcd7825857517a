"""A scheduler that only decodes, without a model.

Owns the imagined requests and the clock around each call. Must not know what a runner does with a
plan: its answers are made up outside the measured time.
"""

import time
from collections import deque
from typing import Final, NamedTuple

from protocol.messages import Submit
from protocol.sampling import SamplingParams
from protocol.tokens import pack_tokens
from workers.scheduler.block_manager import BlockManager
from workers.scheduler.plan import Sampled, StepPlan, StepResult
from workers.scheduler.scheduler import Scheduler, SchedulerLimits

BLOCK_SIZE: Final = 32
_PROMPT: Final = 512
WARM_STEPS: Final = 64
MODEL: Final = "model"
LINK: Final = 1
TOKEN: Final = 7


class StepCost(NamedTuple):
    """Seconds of each `plan` and of each `commit`, its messages included, of the same steps."""

    plan_s: list[float]
    commit_s: list[float]


def decode_steps(num_seqs: int, num_steps: int, lookahead: int) -> StepCost:
    """Time `num_steps` steps in which `num_seqs` sequences of one link get one token each.

    Prompts differ in length, so that block boundaries are spread over the steps.
    """
    scheduler = filled(num_seqs, WARM_STEPS + num_steps + 2, lookahead)
    in_flight: deque[StepPlan] = deque()
    cost = StepCost([], [])
    for _ in range(WARM_STEPS + num_steps):
        started_at = time.perf_counter()
        plan = scheduler.plan()
        cost.plan_s.append(time.perf_counter() - started_at)
        if plan is None:
            raise RuntimeError(f"{scheduler!r} has nothing to do")
        in_flight.append(plan)
        if len(in_flight) > lookahead:
            cost.commit_s.append(_commit_s(scheduler, in_flight.popleft()))
    return StepCost(cost.plan_s[-num_steps:], cost.commit_s[-num_steps:])


def _commit_s(scheduler: Scheduler, plan: StepPlan) -> float:
    sampled = tuple(Sampled(chunk.seq, (TOKEN,)) for chunk in plan.chunks if chunk.samples)
    result = StepResult(plan.step, sampled)
    started_at = time.perf_counter()
    scheduler.commit(plan, result)
    return time.perf_counter() - started_at


def filled(num_seqs: int, num_outputs: int, lookahead: int) -> Scheduler:
    """A scheduler with `num_seqs` sequences that are all prefilled by the first step."""
    context_length = _PROMPT + BLOCK_SIZE + num_outputs
    limits = SchedulerLimits(num_seqs, num_seqs * context_length, context_length, 0)
    num_blocks = num_seqs * (context_length // BLOCK_SIZE + 2)
    blocks = BlockManager(num_blocks, BLOCK_SIZE)
    scheduler = Scheduler(limits, blocks, (MODEL,), frozenset(), lookahead=lookahead)
    sampling = SamplingParams(max_tokens=num_outputs, temperature=0.0)
    for number in range(num_seqs):
        prompt = [number] * (_PROMPT + number % BLOCK_SIZE)
        request_id = number.to_bytes(16, "little")
        submit = Submit(request_id, 0, MODEL, pack_tokens(prompt), b"", sampling, seed=number)
        if refused := scheduler.submit(LINK, submit, 0.0):
            raise RuntimeError(f"refused: {refused}")
    return scheduler
