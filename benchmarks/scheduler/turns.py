"""Whole turns of the engine's loop, frames included, without a model and without a socket.

Owns the doubles at the loop's two seams; the time spent in the runner's is not counted.
"""

import time
from typing import Final

from benchmarks.scheduler.steps import BLOCK_SIZE, LINK, TOKEN, WARM_STEPS, filled
from protocol.messages import EngineFacts
from workers.ipc.framing import SUPERVISOR
from workers.ipc.messages import Shutdown, encode_control
from workers.loop.heartbeat import EngineStatus
from workers.loop.loop import EngineLoop
from workers.scheduler.plan import Sampled, StepPlan, StepResult

_FACTS: Final = EngineFacts("none", "none", "none", 0, BLOCK_SIZE, 0, 0, 0, bytes(16))


def turn_times(num_seqs: int, num_steps: int, lookahead: int) -> list[float]:
    """Seconds of CPU that each of `num_steps` turns needs beside the runner; all decode."""
    runner = _NoRunner(lookahead)
    channel = _NoChannel(runner, WARM_STEPS + num_steps)
    scheduler = filled(num_seqs, WARM_STEPS + num_steps + 2, lookahead)
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

    def prepare(self, *, wished_only: bool) -> bool:  # noqa: ARG002 - the seam's
        return False

    def launch(self, plan: StepPlan) -> StepPlan:
        return plan

    def collect(self, plan: StepPlan) -> StepResult:
        started_at = time.perf_counter()
        sampled = tuple(Sampled(chunk.seq, (TOKEN,)) for chunk in plan.chunks if chunk.samples)
        self.spent_s += time.perf_counter() - started_at
        return StepResult(plan.step, sampled)


class _NoChannel:
    """Nothing comes in until `num_turns` are over; what goes out to the link is counted."""

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
        self.num_bytes += sum(len(payload) for link, payload in frames if link == LINK)
