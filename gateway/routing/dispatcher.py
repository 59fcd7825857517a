"""The dispatcher: the only writer of the fleet's state.

Owns `FleetState` and is its only caller: it passes trio's time in, performs the returned effects in
order and wakes the turns that wait for a place. Must not know frames or text. All methods except
`route`, `route_again` and `run` are synchronous, so that each change of the fleet is complete
before another starts.
"""

import itertools
from collections import deque
from collections.abc import Callable, Container, Sequence
from functools import partial
from typing import Final, Protocol, assert_never

import msgspec
import trio

from config import GatewayConfig, ModelConfig
from gateway.api import ApiError
from gateway.routing.admission_queue import QueuePosition
from gateway.routing.effects import (
    Accept,
    AskFiles,
    AskSnapshot,
    Assign,
    Demand,
    Effect,
    Effects,
    EndEngine,
    Moved,
    Notice,
    Probe,
    ProbeResult,
    Refuse,
    RefuseWorker,
    RouteRequest,
    UseProvider,
)
from gateway.routing.fleet_state import DispatchStatistics, FleetMessage, FleetState
from gateway.routing.lease import Lease
from gateway.routing.models import ModelView
from gateway.routing.quarantine import RequestIdentity
from gateway.routing.route_preview import RoutePreview
from gateway.routing.worker_view import WorkerView
from gateway.runtime import Wakeup
from gateway.telemetry import (
    EventFeed,
    FleetEvent,
    WorkerAsleep,
    WorkerAwake,
    WorkerBack,
    WorkerReady,
)
from housekeeping.tick import next_tick
from protocol.ids import WorkerId
from protocol.messages import Register, RejectReason, RelayFacts
from protocol.prefill import PrefillForm, form_in

TICK_S: Final = 0.1
IDLE_TICK_S: Final = 0.2
"""The interval of ticks while no ticket waits."""
REST_TICK_S: Final = 0.4
"""The interval of ticks while no ticket waits or runs: each wake-up of an idle process takes 0.4 ms
of CPU.
"""
MAX_PROBES: Final = 64
"""Health probes that wait to be sent. There is at most one per model, so this bounds how many
models can be in fallback and probed at the same moment; a further probe counts as busy.
"""

Answer = Lease | UseProvider


class FleetPort(Protocol):
    """What the dispatcher asks of the link to the workers."""

    def welcome(self, worker_id: WorkerId) -> None:
        """Tell the worker that it is part of the fleet."""

    def refuse(self, worker_id: WorkerId, reason: str) -> None:
        """Disconnect the worker and send it the reason."""

    def ask_snapshot(self, worker_id: WorkerId) -> None:
        """Ask the worker for the digests of all blocks that it holds."""

    def ask_files(self, worker_id: WorkerId, digest: bytes) -> None:
        """Ask the worker for the model's text files, unless they are here or requested already."""

    def end_engine(self, worker_id: WorkerId, epoch: int, why: str) -> None:
        """Tell the worker that its engine of this epoch answers no request."""

    def demand(self, demand: Demand) -> None:
        """Tell a worker that takes turns how much work there is for it."""


class _Waiter(msgspec.Struct):
    """A ticket whose answer is not returned yet. `answered` exists only once the turn waits: most
    answers come at once.
    """

    answer: Answer | ApiError | None = None
    answered: Wakeup | None = None


class Dispatcher:
    """Finds places for sequences and keeps the fleet state. `next_ticket()` is a new number."""

    def __init__(self, core: FleetState, feed: EventFeed) -> None:
        self._core = core
        self._tickets = core.tickets
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
        self.next_ticket: Callable[[], int] = partial(next, itertools.count(1))

    def attach(self, port: FleetPort) -> None:
        """Use `port` to reach the workers."""
        self._port = port

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Call `FleetState.tick` until cancelled."""
        # trio's clock is called directly: `trio.current_time` takes three calls to reach it.
        self._now = trio.lowlevel.current_clock().current_time
        self._core.start(self._now())
        task_status.started()
        while True:
            due = next_tick(trio.current_time(), self._tick_s())
            with trio.CancelScope(deadline=due) as self._until_tick:
                await trio.sleep_forever()
            self._perform(self._core.tick(trio.current_time()))

    def stop(self) -> None:
        """The gateway stops: see `FleetState.stop`."""
        self._core.stop()

    # Reading the state.

    def model(self, name: str) -> ModelView | None:
        return self._core.fleet.find(name)

    def models(self) -> tuple[ModelView, ...]:
        return self._core.models()

    def workers(self) -> tuple[WorkerView, ...]:
        return self._core.workers()

    @property
    def num_waiting(self) -> int:
        """How many tickets wait for a place."""
        return self._core.num_waiting

    def positions(self) -> dict[int, QueuePosition]:
        """The queue position of each ticket that waits."""
        return self._core.positions(trio.current_time())

    def relay_facts(self, worker_id: WorkerId) -> RelayFacts | None:
        """The facts of a worker's text-level engine; None if its engine takes tokens or is gone."""
        worker = self._core.fleet.get(worker_id)
        return worker.engine.relay if worker is not None and worker.engine is not None else None

    def prefill_form(self, worker_id: WorkerId) -> PrefillForm | None:
        """How the text-level engine of a worker goes on with an answer; None if it does not."""
        worker = self._core.fleet.get(worker_id)
        engine = None if worker is None else worker.engine
        return None if engine is None else form_in(engine.capabilities)

    def prefill_forms(self, name: str) -> dict[WorkerId, PrefillForm | None]:
        """For each ready worker of a model, how its text-level engine goes on with an answer; None
        if it does not.
        """
        return {one: self.prefill_form(one) for one in self._core.fleet.ready_ids(name)}

    def has_stepped_since(self, at: float, worker_id: WorkerId) -> bool:
        """Whether the engine of the worker has reported a step later than `at`."""
        worker = self._core.fleet.get(worker_id)
        return worker is not None and worker.has_stepped_since(at)

    def statistics(self) -> DispatchStatistics:
        return self._core.statistics()

    def is_awaited(self, model: str) -> bool:
        """Whether a worker of the model has vanished and is expected to dial in again."""
        return self._core.is_awaited(model, trio.current_time())

    def poison_deaths(self, request: RequestIdentity) -> int:
        """The number of engines that died while they ran the request, if it must not be served for
        that reason; else 0.
        """
        quarantine = self._core.quarantine
        return quarantine.poison_deaths(request, trio.current_time()) if quarantine.records else 0

    # What turns ask and report.

    async def route(self, request: RouteRequest) -> Answer:
        """Wait for a place on a worker, or for the providers to ask. Raises `ApiError` if refused.

        The caller must `release` the ticket unless this raises.
        """
        ticket = request.ticket
        effects = self._tickets.ask(request, self._now())
        if len(effects) == 1:
            # The usual case: an answer at once, and no effect for another ticket.
            first = effects[0]
            if type(first) is Assign and first.ticket == ticket:
                return self._place(first)
            if type(first) is UseProvider and first.ticket == ticket:
                return first
        waiter = self._waiters[ticket] = _Waiter()
        self._perform(effects)
        if self._core.has_sleepers and waiter.answer is None:
            self._perform(self._core.demands(trio.current_time()))
        return await self._answer(ticket, waiter)

    async def route_again(self, placement: Lease, reason: RejectReason) -> Answer:
        """Like `route`, for a ticket whose worker had no room. The refusal does not count as a
        failure. Raises `ValueError` for a place that is lost.
        """
        if placement.is_lost:
            raise ValueError(f"{placement} has no place to give back")
        self._placed.pop(placement.ticket, None)
        waiter = self._waiters[placement.ticket] = _Waiter()
        self._perform(self._tickets.busy(placement.ticket, trio.current_time(), reason))
        return await self._answer(placement.ticket, waiter)

    def preview(self, request: RouteRequest) -> RoutePreview | None:
        """What `route` would do with the request now; None for an unknown model."""
        return self._tickets.preview(request, trio.current_time())

    def started(self, ticket: int) -> float:
        """The ticket's first token has arrived. Returns the time."""
        now = self._now()
        if effects := self._tickets.started(ticket, now):
            self._perform(effects)
        return now

    def proven(self, ticket: int) -> None:
        """The ticket got enough tokens to clear its request and its worker."""
        if effects := self._tickets.proven(ticket, self._now()):
            self._perform(effects)

    def failed(self, ticket: int, reason: str) -> None:
        """The ticket's worker failed on it, but its engine lives."""
        self._perform(self._tickets.failed(ticket, trio.current_time(), reason))

    def strike(self, request: RequestIdentity, lease: Lease, name: str, model: str) -> int:
        """The engine of `lease` died while it ran `request`, whose name in logs is `name`. Returns
        `poison_deaths` of the request.
        """
        assert lease.died is not None
        engine, now = (lease.worker_id, lease.died), trio.current_time()
        self._perform(self._core.strike(request, engine, name, model, now))
        return self._core.quarantine.poison_deaths(request, now)

    def probe_ended(
        self, probe: Probe, result: ProbeResult, worker: str = "", why: str = ""
    ) -> None:
        """Report the result of a health probe on the worker of that name."""
        now = trio.current_time()
        if probe.is_of_trust:
            self._perform(self._core.trust_probe_ended(probe, result, why, now))
            return
        self._perform(self._core.probe_ended(probe.model, probe.serial, result, worker, why, now))

    def release(
        self, ticket: int, output_tokens: int | None = None, *, is_proven: bool = False
    ) -> None:
        """The turn no longer needs the ticket. `is_proven`: the sequence ended well, which clears
        its request and its worker. Unknown tickets are ignored.
        """
        if ticket in self._waiters:
            del self._waiters[ticket]
        if ticket in self._placed:
            del self._placed[ticket]
        if effects := self._tickets.release(
            ticket, self._now(), output_tokens, is_proven=is_proven
        ):
            self._perform(effects)

    # What a reload changes.

    def refusal_of(self, models: Sequence[ModelConfig]) -> str | None:
        """Why the fleet cannot take these configurations of models; None if it can."""
        return self._core.refusal_of(models)

    def note_workerless(self, names: Container[str]) -> None:
        """The models for which the file has no worker, but providers."""
        self._core.fleet.note_workerless(names)

    def reconfigure(self, gateway: GatewayConfig, models: Sequence[ModelConfig]) -> None:
        """Apply the configurations; a tick follows at once and judges the requests that wait."""
        self._core.reconfigure(gateway, models, self._now())
        self._until_tick.cancel()

    # What the link reports.

    def register(self, worker_id: WorkerId, message: Register) -> None:
        self._perform(self._core.register(worker_id, message, trio.current_time()))

    def heard(self, worker_id: WorkerId, message: FleetMessage) -> None:
        if effects := self._core.heard(worker_id, message, trio.current_time()):
            self._perform(effects)

    def lost(self, worker_id: WorkerId, why: str) -> None:
        self._perform(self._core.lost(worker_id, trio.current_time(), why))

    def ask_files(self, model: str) -> None:
        """Ask a ready worker for the text files of the model."""
        self._perform(self._core.ask_files(model))

    def _tick_s(self) -> float:
        if self._core.num_waiting:
            return TICK_S
        return REST_TICK_S if self._core.is_at_rest else IDLE_TICK_S

    async def _answer(self, ticket: int, waiter: _Waiter) -> Answer:
        if waiter.answer is None:
            waiter.answered = Wakeup()
            # While a ticket waits, the next tick comes within `TICK_S`.
            sleep, soon = self._until_tick, next_tick(trio.current_time(), TICK_S)
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
        """Perform the effects in order; effects that follow from one are performed after these."""
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
            case Accept() | RefuseWorker() | AskSnapshot() | AskFiles() | EndEngine() | Demand():
                self._send_to_worker(effect)
            case _:
                assert_never(effect)

    def _send_to_worker(
        self, effect: Accept | RefuseWorker | AskSnapshot | AskFiles | EndEngine | Demand
    ) -> None:
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
            case EndEngine(worker_id=worker_id, epoch=epoch, why=why):
                port.end_engine(worker_id, epoch, why)
            case Demand():
                port.demand(effect)
            case _:
                assert_never(effect)

    def _place(self, effect: Assign) -> Lease:
        ticket = effect.ticket
        placement = Lease(
            ticket,
            effect.worker_id,
            effect.cached_tokens,
            effect.reason,
            effect.files_digest,
            decision=effect.decision,
            asked_at=effect.asked_at,
            placed_at=effect.placed_at,
        )
        self._placed[ticket] = placement
        return placement

    def _resolve(self, ticket: int, answer: Answer | ApiError) -> None:
        waiter = self._waiters.pop(ticket, None)
        if waiter is None:
            # The turn was cancelled before it got this answer.
            self._placed.pop(ticket, None)
            self._perform(self._tickets.release(ticket, trio.current_time()))
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
        if isinstance(event, WorkerReady | WorkerBack | WorkerAsleep | WorkerAwake):
            self.has_ready.set()
