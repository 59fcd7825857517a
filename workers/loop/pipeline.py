"""The steps that are launched and not collected yet, in order.

Owns the runner's interface, the clock around a step and the meaning of an exception in a step. Must
not know scheduling, frames or tensors.
"""

import sys
import time
import traceback
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final, Generic, NamedTuple, Protocol, TypeVar, final

from protocol.errors import HermaError
from protocol.messages import EngineFacts
from workers.loop.heartbeat import EngineStatus
from workers.scheduler import StepCost, StepMeter, StepPlan, StepResult

MAX_FAULTS_IN_A_ROW: Final = 3
"""Failed steps in a row after which the engine ends. One failed step can be the fault of one
request; three in a row are a fault of the engine.
"""

T = TypeVar("T")
InFlight = TypeVar("InFlight")
"""A runner's own record of a step that it launched."""


class Runner(Protocol[InFlight]):
    """Computes plans: the native one with torch, or the synthetic one.

    Steps are launched in the order of their plans, take effect in that order and are collected in
    that order. An exception of either method fails the sequences of that step's plan; `ended` of a
    plan holds even then.
    """

    facts: EngineFacts
    eos_ids: frozenset[int]
    model_dir: Path

    @property
    def lookahead(self) -> int:
        """How many steps may be launched beyond the one that is collected next: 0 or 1."""

    @property
    def has_pending_captures(self) -> bool:
        """Whether a step lacked a graph that `prepare` can capture."""

    def prepare(self, *, pending_only: bool) -> bool:
        """Do one piece of work that makes later steps faster; False if there was none to do.

        With `pending_only`, only what a step has missed already: the next steps wait for it.
        """

    def launch(self, plan: StepPlan) -> InFlight:
        """Start a step; returns at once if the runner looks ahead."""

    def collect(self, step: InFlight) -> StepResult:
        """Wait for the step's tokens."""


class EngineBroken(HermaError):
    """The engine cannot go on; the text is the cause for people."""


@dataclass(frozen=True, slots=True)
class _Fault:
    """An exception of the runner, kept until its step is collected."""

    error: Exception


@dataclass(slots=True)
class _Step(Generic[InFlight]):
    """A launched step. It `is_overshadowed` if it was in flight when another step failed: one
    request may have spoilt both, so its failure does not count as one more fault in a row.
    """

    plan: StepPlan
    num_tokens: int
    prefill_tokens: int
    launched_at: float
    expected_s: float
    launched: InFlight | _Fault
    is_overshadowed: bool = False


class Cycle(NamedTuple):
    """Seconds from one result to the next. `is_ahead`: the step of the second result was launched
    before the first result was there.
    """

    seconds: float
    is_ahead: bool


@final
class Pipeline(Generic[InFlight]):
    """Launches and collects the steps of one runner; `clock` gives monotonic seconds. `cycle`
    describes the last result.

    `meter` and `step_cost` learn the time from one result to the next, or from the launch if
    nothing was in flight. `has_failed`: the last launch failed. Then collect that step before
    making a plan, because its sequences have failed.
    """

    def __init__(
        self,
        runner: Runner[InFlight],
        status: EngineStatus,
        step_cost: StepCost,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.meter = StepMeter()
        self.has_failed = False
        self._step_cost = step_cost
        self._runner = runner
        self._status = status
        self._clock = clock
        self._steps: deque[_Step[InFlight]] = deque()
        self._faults_in_a_row = 0
        self._result_at = 0.0
        self.cycle = Cycle(0.0, False)

    def __len__(self) -> int:
        """How many steps are in flight."""
        return len(self._steps)

    @property
    def expected_s(self) -> float:
        """The expected time of the step that was launched last; 0 while unknown."""
        return self._status.expected_step_s

    @property
    def has_pending_captures(self) -> bool:
        """Whether `prepare` would make the next steps faster."""
        return self._runner.has_pending_captures

    def prepare(self, *, pending_only: bool) -> bool:
        """Do one piece of the runner's own work, declared as a phase, because compiling may take
        seconds.
        """
        self._status.phase = "prepare"
        try:
            return self._runner.prepare(pending_only=pending_only)
        finally:
            self._status.phase = ""

    def launch(self, plan: StepPlan) -> None:
        """Start a step. If it cannot start, `collect` reports the error in its turn."""
        lengths = [chunk.length for chunk in plan.chunks]
        num_tokens = sum(lengths)
        expected_s = self.meter.expected_s(num_tokens)
        # A launch may block for as long as the step before it, so the watch allows for both.
        in_flight_s = max((step.expected_s for step in self._steps), default=0.0)
        self._status.expected_step_s = max(expected_s, in_flight_s)
        launched_at = self._clock()
        launched = _attempt(partial(self._runner.launch, plan))
        self.has_failed = isinstance(launched, _Fault)
        prefill_tokens = num_tokens - lengths.count(1)
        self._steps.append(
            _Step(plan, num_tokens, prefill_tokens, launched_at, expected_s, launched)
        )

    def collect(self) -> tuple[StepPlan, StepResult]:
        """Wait for the oldest step. An exception becomes the failure of its plan's sequences.

        Raises `EngineBroken` when steps fail again and again.
        """
        step = self._steps.popleft()
        result = self._result(step)
        now = self._clock()
        duration_s = now - max(step.launched_at, self._result_at)
        self.cycle = Cycle(now - self._result_at, step.launched_at < self._result_at)
        self._result_at = now
        self.meter.add(duration_s, step.num_tokens, step.prefill_tokens, now)
        # The time of a failed step says nothing about other steps.
        if not self._faults_in_a_row:
            self._step_cost.add(step.plan.chunks, step.prefill_tokens, duration_s)
        self._status.step = step.plan.step
        self._status.phase = ""
        self._status.longest_step_s = self.meter.longest_s
        return step.plan, result

    def _result(self, step: _Step[InFlight]) -> StepResult:
        result: StepResult | _Fault
        if isinstance(step.launched, _Fault):
            result = step.launched
        else:
            result = _attempt(partial(self._runner.collect, step.launched))
        if isinstance(result, _Fault):
            return self._failure(step, result.error)
        self._faults_in_a_row = 0
        return result

    def _failure(self, step: _Step[InFlight], error: Exception) -> StepResult:
        reason = _one_line(error)
        if not step.is_overshadowed:
            self._faults_in_a_row += 1
            for later in self._steps:
                later.is_overshadowed = True
        if self._faults_in_a_row >= MAX_FAULTS_IN_A_ROW:
            raise EngineBroken(
                f"{MAX_FAULTS_IN_A_ROW} steps in a row failed, the last with {reason}"
            ) from error
        traceback.print_exception(error, file=sys.stderr)
        failed = tuple((chunk.seq, f"the step failed: {reason}") for chunk in step.plan.chunks)
        return StepResult(step.plan.step, (), failed)


def _attempt(call: Callable[[], T]) -> T | _Fault:
    try:
        return call()
    except Exception as error:  # noqa: BLE001 -- one request's fault must not end the others
        return _Fault(error)


def _one_line(error: Exception) -> str:
    text = str(error).strip().partition("\n")[0]
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
