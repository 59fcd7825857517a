"""The one owner of fleet state.

Owns `Dispatch` and is its only caller: passes trio's time in, carries the returned effects out in
order and wakes the turns that wait for a place. Must not know frames or text. All methods but the
waiting ones are synchronous, so that every change of the fleet is whole before another starts.
"""

import itertools
from collections import deque
from collections.abc import Callable
from typing import Final, Protocol, assert_never

import msgspec
import trio

from gateway.api import ApiError
from gateway.routing.dispatch import Dispatch, FleetMessage
from gateway.routing.effects import (
    Accept,
    AskFiles,
    AskSnapshot,
    Assign,
    Effect,
    Effects,
    Moved,
    Notice,
    Probe,
    Refuse,
    RefuseWorker,
    RouteRequest,
    UseProvider,
)
from gateway.routing.fallback import ProbeResult
from gateway.routing.lease import Lease
from gateway.routing.quarantine import Suspect
from gateway.routing.route_preview import RoutePreview
from gateway.runtime import Wakeup, next_tick
from gateway.telemetry import EventFeed, FleetEvent, WorkerBack, WorkerReady
from protocol.ids import WorkerId
from protocol.messages import Register, RejectReason

TICK_S: Final = 0.1
IDLE_TICK_S: Final = 0.2
"""While nobody waits."""
REST_TICK_S: Final = 0.4
"""While nothing runs either: a process that rests wakes for 0.4 ms of CPU each time."""
MAX_PROBES: Final = 64
"""Health probes that wait to be sent: at most one per model, so that many models fall back at
once.
"""

Answer = Lease | UseProvider


class FleetPort(Protocol):
    """What the dispatcher asks of the link to the workers."""

    def welcome(self, worker_id: WorkerId) -> None:
        """Tell the worker that it is part of the fleet."""

    def refuse(self, worker_id: WorkerId, reason: str) -> None:
        """Have nothing more to do with the worker for now."""

    def ask_snapshot(self, worker_id: WorkerId) -> None:
        """Ask for all block digests."""

    def ask_files(self, worker_id: WorkerId, digest: bytes) -> None:
        """Ask for the model's text files unless they are here or asked for already."""


class _Waiter(msgspec.Struct):
    """`answered` is there once somebody has to wait: most answers come at once."""

    answer: Answer | ApiError | None = None
    answered: Wakeup | None = None


class Dispatcher:
    """Finds places for sequences and keeps the fleet's books. What only looks is the core's own:
    `model`, `models`, `workers` and `statistics`.
    """

    def __init__(self, core: Dispatch, feed: EventFeed) -> None:
        self._core = core
        self._feed = feed
        self._port: FleetPort | None = None
        self._waiters: dict[int, _Waiter] = {}
        self._placed: dict[int, Lease] = {}
        self._effects: deque[Effect] = deque()
        self._performing = False
        self._until_tick = trio.CancelScope()
        self._now: Callable[[], float] = trio.current_time
        self._probes, self.probes = trio.open_memory_channel[Probe](MAX_PROBES)
        self.has_ready = trio.Event()
        self.next_ticket: Final = itertools.count(1).__next__
        """A ticket that was never used."""
        self.model: Final = core.model
        self.models: Final = core.models
        self.workers: Final = core.workers
        self.statistics: Final = core.statistics

    def attach(self, port: FleetPort) -> None:
        """Workers are reached through `port` from now on."""
        self._port = port

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Tell the core the time until cancelled."""
        # What `trio.current_time` asks at the end of three calls.
        self._now = trio.lowlevel.current_clock().current_time
        self._core.start(self._now())
        task_status.started()
        while True:
            due = next_tick(trio.current_time(), self._tick_s())
            with trio.CancelScope(deadline=due) as self._until_tick:
                await trio.sleep_forever()
            self._perform(self._core.tick(self._now()))

    # What turns ask.

    async def route(self, request: RouteRequest) -> Answer:
        """Wait for a place, or for leave to use a provider. Raises `ApiError` for a refusal.

        The ticket must be released, however this ends, except when it raises.
        """
        ticket = request.ticket
        effects = self._core.ask(request, self._now())
        if len(effects) == 1 and type(first := effects[0]) is Assign and first.ticket == ticket:
            # As nearly always: nobody else is concerned.
            return self._place(first)
        waiter = self._waiters[ticket] = _Waiter()
        self._perform(effects)
        return await self._answer(ticket, waiter)

    async def route_again(self, placement: Lease, reason: RejectReason) -> Answer:
        """As `route`, for a ticket whose worker had no room. It is not counted as a failure."""
        if placement.is_lost:
            raise ValueError(f"{placement} has no place to give back")
        self._placed.pop(placement.ticket, None)
        waiter = self._waiters[placement.ticket] = _Waiter()
        self._perform(self._core.busy(placement.ticket, self._now(), reason))
        return await self._answer(placement.ticket, waiter)

    def preview(self, request: RouteRequest) -> RoutePreview | None:
        """What would happen to the request now; None for a model that nobody knows."""
        return self._core.preview(request, self._now())

    def is_missed(self, model: str) -> bool:
        """Whether a worker of the model has vanished and may dial in again."""
        return self._core.is_missed(model, self._now())

    def started(self, ticket: int) -> None:
        """The ticket's first token came."""
        if effects := self._core.started(ticket, self._now()):
            self._perform(effects)

    def proven(self, ticket: int) -> None:
        """The ticket's worker does what it should, and the ticket does no harm."""
        if effects := self._core.proven(ticket, self._now()):
            self._perform(effects)

    def failed(self, ticket: int, reason: str) -> None:
        """The ticket's worker failed it, and lives."""
        self._perform(self._core.failed(ticket, self._now(), reason))

    def strike(self, suspect: Suspect, placement: Lease, name: str, model: str) -> int:
        """The engine of `placement` died while the request `name` of `model` was on it. At how
        many deaths the request was if it must not be served any more; else 0.
        """
        assert placement.died is not None
        engine, now = (placement.worker_id, placement.died), self._now()
        self._perform(self._core.strike(suspect, engine, name, model, now))
        return self._core.poison(suspect, now)

    def poison(self, suspect: Suspect) -> int:
        """At how many deaths of engines the request was if it must not be served; else 0."""
        return self._core.poison(suspect, self._now())

    def probe_ended(
        self, probe: Probe, result: ProbeResult, worker: str = "", why: str = ""
    ) -> None:
        """What became of a health probe on the worker of that name."""
        now = self._now()
        self._perform(self._core.probe_ended(probe.model, probe.serial, result, worker, why, now))

    def release(
        self, ticket: int, output_tokens: int | None = None, *, is_proven: bool = False
    ) -> None:
        """The turn is done with the ticket, whose end was its proof if it `is_proven`. Unknown
        tickets are ignored.
        """
        if ticket in self._waiters:
            del self._waiters[ticket]
        if ticket in self._placed:
            del self._placed[ticket]
        if effects := self._core.release(ticket, self._now(), output_tokens, is_proven=is_proven):
            self._perform(effects)

    # What the link reports.

    def register(self, worker_id: WorkerId, message: Register) -> None:
        """A worker says who it is."""
        self._perform(self._core.register(worker_id, message, self._now()))

    def heard(self, worker_id: WorkerId, message: FleetMessage) -> None:
        """A worker reports."""
        if effects := self._core.heard(worker_id, message, self._now()):
            self._perform(effects)

    def lost(self, worker_id: WorkerId, why: str) -> None:
        """A worker is gone."""
        self._perform(self._core.lost(worker_id, self._now(), why))

    def ask_files(self, model: str) -> None:
        """The text files of the model are not here."""
        self._perform(self._core.ask_files(model))

    def _tick_s(self) -> float:
        if self._core.num_waiting:
            return TICK_S
        return REST_TICK_S if self._core.is_at_rest else IDLE_TICK_S

    async def _answer(self, ticket: int, waiter: _Waiter) -> Answer:
        if waiter.answer is None:
            waiter.answered = Wakeup()
            # A rest may have begun just now.
            sleep, soon = self._until_tick, next_tick(self._now(), TICK_S)
            sleep.deadline = min(sleep.deadline, soon)
            try:
                await waiter.answered.wait()
            except (trio.Cancelled, ApiError):
                self.release(ticket)
                raise
        answer = waiter.answer
        assert answer is not None
        if isinstance(answer, ApiError):
            raise answer
        return answer

    def _perform(self, effects: Effects) -> None:
        """Carry effects out in order; those that carrying out brings about come after them."""
        if self._performing:
            self._effects.extend(effects)
            return
        if not effects:
            return
        self._performing = True
        try:
            first, *others = effects
            if others:
                self._effects.extend(others)
            self._perform_one(first)
            while self._effects:
                self._perform_one(self._effects.popleft())
        finally:
            self._performing = False

    def _perform_one(self, effect: Effect) -> None:
        match effect:
            case Assign():
                self._resolve(effect.ticket, self._place(effect))
            case UseProvider(ticket=ticket):
                self._resolve(ticket, effect)
            case Refuse(ticket=ticket, error=error):
                self._resolve(ticket, error)
            case Moved():
                self._move(effect)
            case Probe():
                self._probe(effect)
            case Notice(event=event):
                self._notice(event)
            case Accept() | RefuseWorker() | AskSnapshot() | AskFiles():
                self._tell_worker(effect)
            case _:
                assert_never(effect)

    def _tell_worker(self, effect: Accept | RefuseWorker | AskSnapshot | AskFiles) -> None:
        port = self._port
        if port is None:
            raise RuntimeError("the dispatcher has no link to the workers")
        match effect:
            case Accept(worker_id=worker_id):
                port.welcome(worker_id)
            case RefuseWorker(worker_id=worker_id, reason=reason):
                port.refuse(worker_id, reason)
            case AskSnapshot(worker_id=worker_id):
                port.ask_snapshot(worker_id)
            case AskFiles(worker_id=worker_id, digest=digest):
                port.ask_files(worker_id, digest)
            case _:
                assert_never(effect)

    def _place(self, effect: Assign) -> Lease:
        ticket = effect.ticket
        placement = Lease(
            ticket, effect.worker_id, effect.cached_tokens, effect.reason, effect.files_digest
        )
        self._placed[ticket] = placement
        return placement

    def _resolve(self, ticket: int, answer: Answer | ApiError) -> None:
        waiter = self._waiters.pop(ticket, None)
        if waiter is None:
            # The turn left while this decision was on its way.
            self._placed.pop(ticket, None)
            self._perform(self._core.release(ticket, self._now()))
            return
        waiter.answer = answer
        if waiter.answered is not None:
            waiter.answered.ring()

    def _move(self, moved: Moved) -> None:
        for ticket in moved.tickets:
            placement = self._placed.pop(ticket, None)
            if placement is not None:
                placement.lose(moved.why, moved.died)

    def _probe(self, probe: Probe) -> None:
        try:
            self._probes.send_nowait(probe)
        except trio.WouldBlock:
            self.probe_ended(probe, "busy")

    def _notice(self, event: FleetEvent) -> None:
        self._feed.publish(event)
        if isinstance(event, WorkerReady | WorkerBack):
            self.has_ready.set()
