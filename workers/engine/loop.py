"""frames in -> scheduler -> runner -> frames out: the engine's one loop.

Owns the order of a turn, the waiting, and what an exception in a step means. Must not know
tensors (the runner does) nor who reads the frames (the supervisor relays them).
"""

import sys
import time
import traceback
from collections.abc import Callable, Sequence
from typing import Final, Generic, Protocol, TypeVar, assert_never, final

from protocol import wire
from protocol.errors import HermaError, WireError
from protocol.messages import (
    Abort,
    Drain,
    EngineFacts,
    GetFiles,
    Load,
    Ping,
    Rejected,
    Snapshot,
    Submit,
    Welcome,
)
from workers.core.control import (
    Drained,
    DrainEngine,
    DropLink,
    EngineStart,
    Shutdown,
    decode_to_engine,
    encode_control,
)
from workers.core.framing import BROADCAST, SUPERVISOR
from workers.core.meters import StepMeter
from workers.core.plan import StepPlan, StepResult
from workers.core.salvage import salvage_submit
from workers.core.scheduler import Outgoing, Scheduler
from workers.engine.beats import EngineStatus

LOAD_EVERY_S: Final = 0.1
MAX_FAULTS_IN_A_ROW: Final = 3
"""One bad step can be the fault of one request; three in a row are the engine's own."""

_FIRST_CONTROL_TAG: Final = 64


InFlight = TypeVar("InFlight")
"""A runner's own note of a step that it launched."""


class Runner(Protocol[InFlight]):
    """Computes plans: the native one with torch, or the synthetic one.

    Steps are launched in the order of their plans, take effect in that order and are collected in
    that order. An exception of either method fails the sequences of that step's plan.
    """

    facts: EngineFacts
    eos_ids: frozenset[int]

    @property
    def lookahead(self) -> int:
        """How many steps may be launched beyond the one that is collected next: 0 or 1."""

    def launch(self, plan: StepPlan) -> InFlight:
        """Start a step; returns at once if the runner looks ahead."""

    def collect(self, step: InFlight) -> StepResult:
        """Wait for the step's tokens."""


class Channel(Protocol):
    """Where frames come from and go to; a frame is a link and a payload."""

    def take(self, timeout_s: float | None) -> list[tuple[int, bytes]]:
        """All frames that are there; waits for the first up to `timeout_s` (None: for ever)."""

    def send(self, frames: list[tuple[int, bytes]]) -> None:
        """Send frames in order."""


class EngineBroken(HermaError):
    """The engine cannot go on; the text is the cause for people."""


@final
class EngineLoop(Generic[InFlight]):
    """Turns until `Shutdown`. `clock` gives monotonic seconds; `epoch` counts engine starts."""

    def __init__(
        self,
        runner: Runner[InFlight],
        scheduler: Scheduler,
        channel: Channel,
        status: EngineStatus,
        *,
        epoch: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._runner = runner
        self._scheduler = scheduler
        self._channel = channel
        self._status = status
        self._epoch = epoch
        self._clock = clock
        self._meter = StepMeter()
        self._out: list[tuple[int, bytes]] = []
        self._faults_in_a_row = 0
        self._load_at = -LOAD_EVERY_S
        self._load_was_busy: bool | None = None
        self._draining = False
        self._leaving = False

    def run(self) -> None:
        """Serve until `Shutdown`. Raises `EngineBroken` when steps fail again and again."""
        while True:
            # With work the next step must not wait; without, nothing can happen but a frame.
            for link, payload in self._channel.take(0.0 if self._scheduler.has_work else None):
                self._take_frame(link, payload)
            if self._leaving:
                return
            self._turn()

    def _turn(self) -> None:
        self._say(self._scheduler.expire(self._clock()))
        self._say(self._scheduler.take_events())
        self._status.busy = self._scheduler.has_work
        if (plan := self._scheduler.plan()) is not None:
            self._report_load(busy=True)
            self._flush()
            self._step(plan)
        self._status.busy = self._scheduler.has_work
        self._report_load(busy=self._scheduler.has_work)
        if self._draining and not self._scheduler.has_work:
            self._draining = False
            self._out.append((SUPERVISOR, encode_control(Drained())))
        self._flush()

    def _step(self, plan: StepPlan) -> None:
        num_tokens = sum(chunk.length for chunk in plan.chunks)
        prefill_tokens = sum(chunk.length for chunk in plan.chunks if chunk.length > 1)
        self._status.expected_step_s = self._meter.expected_s(num_tokens)
        started_at = self._clock()
        result = self._compute(plan)
        now = self._clock()
        self._meter.add(now - started_at, num_tokens, prefill_tokens, now)
        self._say(self._scheduler.commit(plan, result))
        self._status.step = plan.step
        self._status.phase = ""
        self._status.longest_step_s = self._meter.longest_s

    def _compute(self, plan: StepPlan) -> StepResult:
        """The runner's answer; an exception becomes the failure of the plan's sequences."""
        try:
            result = self._runner.collect(self._runner.launch(plan))
        except Exception as error:  # the edge: one request's fault must not end the others
            reason = _one_line(error)
            self._faults_in_a_row += 1
            if self._faults_in_a_row >= MAX_FAULTS_IN_A_ROW:
                raise EngineBroken(
                    f"{MAX_FAULTS_IN_A_ROW} steps in a row failed, the last with {reason}"
                ) from error
            traceback.print_exc(file=sys.stderr)
            failed = tuple((chunk.seq, f"the step failed: {reason}") for chunk in plan.chunks)
            return StepResult(plan.step, (), failed)
        self._faults_in_a_row = 0
        return result

    def _take_frame(self, link: int, payload: bytes) -> None:
        try:
            if link == SUPERVISOR and (wire.peek_tag(payload) or 0) >= _FIRST_CONTROL_TAG:
                self._control(payload)
            else:
                self._message(link, payload)
        except WireError as error:
            # Counted and named; the request is answered if the frame still tells which it is.
            print(f"bad frame on link {link}: {error}", file=sys.stderr)
            if (ids := salvage_submit(payload)) is not None:
                self._say([Outgoing(link, Rejected(*ids, "invalid", str(error)))])

    def _control(self, payload: bytes) -> None:
        match message := decode_to_engine(payload):
            case DropLink(link=link):
                self._scheduler.drop_link(link)
            case Shutdown():
                self._leaving = True
            case DrainEngine():
                self._draining = True
            case EngineStart():
                raise WireError("a second EngineStart")
            case _:
                assert_never(message)

    def _message(self, link: int, payload: bytes) -> None:
        match message := wire.decode_to_worker(payload):
            case Submit():
                self._say(self._scheduler.submit(link, message, self._clock()))
            case Abort(request_id=request_id, attempt=attempt):
                self._say(self._scheduler.abort(link, request_id, attempt))
            case Snapshot():
                self._say(self._scheduler.take_events())
                self._say([Outgoing(link, self._scheduler.snapshot())])
                self._say([Outgoing(link, self._load())])
            case Welcome() | Drain() | Ping() | GetFiles():
                raise WireError(f"{type(message).__name__} is not for an engine")
            case _:
                assert_never(message)

    def _report_load(self, *, busy: bool) -> None:
        """At most one per 100 ms, and at each change between idle and busy."""
        now = self._clock()
        if busy == self._load_was_busy and (not busy or now - self._load_at < LOAD_EVERY_S):
            return
        self._load_was_busy, self._load_at = busy, now
        self._say([Outgoing(BROADCAST, self._load())])

    def _load(self) -> Load:
        return self._scheduler.load(
            self._epoch, self._meter.step_ms, self._meter.prefill_tokens_per_s
        )

    def _say(self, messages: Sequence[Outgoing]) -> None:
        self._out += [(link, wire.encode(message)) for link, message in messages]

    def _flush(self) -> None:
        out, self._out = self._out, []
        self._channel.send(out)


def _one_line(error: Exception) -> str:
    text = str(error).strip().partition("\n")[0]
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
