"""The CPU's part of a decode step, by number of running sequences.

`plan` and `commit` are the scheduler's, messages included; `loop turn` is all that the engine's
loop does between two results, encoded frames included, without the runner and the socket.
"""

import itertools
import statistics
import time
from collections import deque
from collections.abc import Iterator
from typing import Final

from benchmarks.micro.figures import MicroFigure
from protocol.messages import EngineFacts, Submit
from protocol.sampling import SamplingParams
from protocol.tokens import pack_tokens
from workers.ipc.framing import SUPERVISOR
from workers.ipc.messages import Shutdown, encode_control
from workers.loop.heartbeat import EngineStatus
from workers.loop.loop import EngineLoop
from workers.scheduler.block_manager import BlockManager
from workers.scheduler.plan import Sampled, StepPlan, StepResult
from workers.scheduler.scheduler import Scheduler, SchedulerLimits

BLOCK_SIZE: Final = 32
WARM_STEPS: Final = 64
_PROMPT: Final = 512
_MODEL: Final = "model"
_LINK: Final = 1
_TOKEN: Final = 7
_FACTS: Final = EngineFacts("none", "none", "none", 0, BLOCK_SIZE, 0, 0, 0, bytes(16))


def measure(quick: bool) -> Iterator[MicroFigure]:
    """Medians: on a shared machine means are worthless."""
    num_steps = 40 if quick else 1000
    for lookahead, num_seqs in itertools.product((0, 1), (1, 64, 256)):
        case = f"{num_seqs} sequences, lookahead {lookahead}"
        plans_s, commits_s = _decode_steps(num_seqs, num_steps, lookahead)
        both_s = [sum(times) for times in zip(plans_s, commits_s, strict=True)]
        turns_s = _loop_turns(num_seqs, num_steps, lookahead)
        named = {"plan": plans_s, "commit": commits_s, "both": both_s, "loop turn": turns_s}
        for what, times_s in named.items():
            yield MicroFigure(case, what, 1e6 * statistics.median(times_s))


def _decode_steps(num_seqs: int, num_steps: int, lookahead: int) -> tuple[list[float], list[float]]:
    """Seconds of each `plan` and `commit` when every sequence gets one token per step.

    Prompts differ in length, so that block boundaries are spread over the steps.
    """
    scheduler = _filled(num_seqs, WARM_STEPS + num_steps + 2, lookahead)
    in_flight: deque[StepPlan] = deque()
    plans_s, commits_s = [], []
    for _ in range(WARM_STEPS + num_steps):
        started_at = time.perf_counter()
        plan = scheduler.plan()
        plans_s.append(time.perf_counter() - started_at)
        if plan is None:
            raise RuntimeError(f"{scheduler!r} has nothing to do")
        in_flight.append(plan)
        if len(in_flight) > lookahead:
            done = in_flight.popleft()
            result = _sampled(done)
            started_at = time.perf_counter()
            scheduler.commit(done, result)
            commits_s.append(time.perf_counter() - started_at)
    return plans_s[-num_steps:], commits_s[-num_steps:]


def _filled(num_seqs: int, num_outputs: int, lookahead: int) -> Scheduler:
    """A scheduler with `num_seqs` sequences that the first step prefills."""
    context_length = _PROMPT + BLOCK_SIZE + num_outputs
    limits = SchedulerLimits(num_seqs, num_seqs * context_length, context_length, 0)
    blocks = BlockManager(num_seqs * (context_length // BLOCK_SIZE + 2), BLOCK_SIZE)
    scheduler = Scheduler(limits, blocks, (_MODEL,), frozenset(), lookahead=lookahead)
    sampling = SamplingParams(max_tokens=num_outputs, temperature=0.0)
    for number in range(num_seqs):
        prompt = pack_tokens([number] * (_PROMPT + number % BLOCK_SIZE))
        request_id = number.to_bytes(16, "little")
        submit = Submit(request_id, 0, _MODEL, prompt, b"", sampling, seed=number)
        if refused := scheduler.submit(_LINK, submit, 0.0):
            raise RuntimeError(f"refused: {refused}")
    return scheduler


def _sampled(plan: StepPlan) -> StepResult:
    sampled = (Sampled(chunk.seq, (_TOKEN,)) for chunk in plan.chunks if chunk.samples)
    return StepResult(plan.step, tuple(sampled))


def _loop_turns(num_seqs: int, num_steps: int, lookahead: int) -> list[float]:
    """Seconds that each turn of the loop needs beside the runner; all sequences decode."""
    runner = _NoRunner(lookahead)
    channel = _NoChannel(runner, WARM_STEPS + num_steps)
    scheduler = _filled(num_seqs, WARM_STEPS + num_steps + 2, lookahead)
    EngineLoop(runner, scheduler, channel, EngineStatus(), epoch=1).run()
    if channel.num_bytes == 0:
        raise RuntimeError("nothing was sent")
    return channel.turns_s[-num_steps:]


class _NoRunner:
    """Samples the same token everywhere. `spent_s` is its own time so far."""

    def __init__(self, lookahead: int) -> None:
        self.facts = _FACTS
        self.eos_ids: frozenset[int] = frozenset()
        self.lookahead = lookahead
        self.spent_s = 0.0

    @property
    def has_pending_captures(self) -> bool:
        return False

    def prepare(self, *, pending_only: bool) -> bool:  # noqa: ARG002 - the runner's interface
        return False

    def launch(self, plan: StepPlan) -> StepPlan:
        return plan

    def collect(self, plan: StepPlan) -> StepResult:
        started_at = time.perf_counter()
        result = _sampled(plan)
        self.spent_s += time.perf_counter() - started_at
        return result


class _NoChannel:
    """Receives nothing until `num_turns` are over; counts the bytes sent to the link."""

    def __init__(self, runner: _NoRunner, num_turns: int) -> None:
        self.turns_s: list[float] = []
        self.num_bytes = 0
        self._runner = runner
        self._num_turns = num_turns
        self._turn_at = time.perf_counter()
        self._spent_s = 0.0

    def take(self, timeout_s: float | None) -> list[tuple[int, bytes]]:
        now, spent_s = time.perf_counter(), self._runner.spent_s
        self.turns_s.append(now - self._turn_at - (spent_s - self._spent_s))
        self._turn_at, self._spent_s = now, spent_s
        if timeout_s is None or len(self.turns_s) > self._num_turns:
            return [(SUPERVISOR, encode_control(Shutdown()))]
        return []

    def send(self, frames: list[tuple[int, bytes]]) -> None:
        self.num_bytes += sum(len(payload) for link, payload in frames if link == _LINK)
