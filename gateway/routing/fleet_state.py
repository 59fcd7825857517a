"""The state of the whole fleet: workers, models, cached blocks, tickets and quarantine.

Owns every decision about places on workers. Its only caller is the dispatcher, which passes the
time in and performs the returned effects in order. Must not know sockets, tokens or HTTP.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final, assert_never

from config import GatewayConfig, ModelConfig
from gateway.routing.admission_queue import QueuePosition
from gateway.routing.effects import (
    Accept,
    AskFiles,
    AskSnapshot,
    Effect,
    Effects,
    EndEngine,
    Notice,
    Probe,
    ProbeResult,
    RefuseWorker,
)
from gateway.routing.models import RECOVERY_PROBES, Models, ModelView
from gateway.routing.placement_queue import PlacementQueue, count_failure
from gateway.routing.prefix_index import BlockEventResult, PrefixIndex
from gateway.routing.quarantine import Quarantine, RequestIdentity
from gateway.routing.sleepers import Sleepers
from gateway.routing.worker import Worker
from gateway.routing.worker_registry import WorkerRegistry
from gateway.routing.worker_view import WorkerView
from gateway.telemetry import (
    EngineFault,
    HealthProbeFailed,
    IndexGap,
    PoisonedRequest,
    SpeedBack,
    SpeedLost,
    WorkerBack,
    WorkerLost,
    WorkerReady,
    WorkerStarting,
)
from protocol.ids import WorkerId
from protocol.messages import (
    BACK_SOON,
    BlockEvent,
    BlocksDropped,
    BlocksSnapshot,
    BlocksStored,
    Bye,
    EngineFacts,
    Fault,
    Load,
    Progress,
    Register,
    Residency,
    SpeedLoss,
    StatesForgotten,
    StatesSaved,
)

FULL_AT_MOST_S: Final = 1.0
"""A full worker that has sent no `Load` for this time (it sends one per change) is tried again."""

MAX_CAUSE_CHARS: Final = 300
"""The most characters of a fault's cause in its event; the address of an engine stands at its
beginning.
"""

FleetMessage = Progress | BlockEvent | BlocksSnapshot | Load | SpeedLoss | Residency | Fault | Bye


@dataclass(frozen=True, slots=True)
class DispatchStatistics:
    """Counters and gauges for metrics. `decisions` counts placed sequences by the reason."""

    workers: int
    ready_workers: int
    running: int
    queued: int
    stale_messages: int
    index_gaps: int
    index_blocks: int
    index_bytes: int
    decisions: Mapping[str, int]


class FleetState:
    """Fleet, index, queues and policy in one synchronous state machine. The dispatcher calls its
    parts `fleet`, `tickets` and `quarantine` directly for what concerns only them.
    """

    def __init__(
        self,
        models: tuple[ModelConfig, ...],
        *,
        max_queue: int | None,
        resume_wait_s: float,
        rejoin_s: float = 0.0,
        max_pause_s: float = 0.0,
        recovery_probes: int = RECOVERY_PROBES,
    ) -> None:
        """For `rejoin_s` requests wait for a worker that has vanished without a `Bye` or whose
        attached engine is away, and after `start` for workers that have yet to dial in. A model
        that only workers have named is kept for as long without a worker. `recovery_probes`
        successes in a row end a fallback. Conversations wait for at most `max_pause_s` while others
        keep their place, with 0 not at all.
        """
        self._models = Models(models, recovery_probes)
        self.fleet = WorkerRegistry(self._models)
        self._index = PrefixIndex()
        self.quarantine = Quarantine()
        self.tickets = PlacementQueue(
            self._models,
            self.fleet,
            self._index,
            self.quarantine,
            max_queue=max_queue,
            resume_wait_s=resume_wait_s,
            max_pause_s=max_pause_s,
        )
        self._sleepers = Sleepers(self._models, self.fleet)
        self._rejoin_s = rejoin_s
        self._num_stale = 0
        self._num_gaps = 0
        # Their engine died, and the next start has not begun.
        self._start_due: set[WorkerId] = set()

    def start(self, now: float) -> None:
        """The gateway starts. If it was restarted, its workers dial in within a second."""
        for model in self._models:
            model.awaited_until = now + self._rejoin_s

    def stop(self) -> None:
        """The gateway stops: a request that no worker can serve any more gets an error."""
        self.tickets.is_stopping = True

    def refusal_of(self, configs: Iterable[ModelConfig]) -> str | None:
        """Why the fleet cannot take these configurations of models; None if it can."""
        return self.fleet.conflict(configs)

    def reconfigure(
        self, gateway: GatewayConfig, configs: Iterable[ModelConfig], now: float
    ) -> None:
        """Apply the configurations; the next tick judges the requests that wait. The workers of a
        model that is new have yet to dial in, as after `start`.
        """
        known = {model.name for model in self._models}
        self.fleet.configure(configs, gateway.recovery_probes)
        self.tickets.set_limits(gateway.max_queue, gateway.resume_wait_s, gateway.max_pause_s)
        self._rejoin_s = gateway.rejoin_wait_s
        for model in self._models:
            if model.name not in known:
                model.awaited_until = now + self._rejoin_s

    def register(self, worker_id: WorkerId, message: Register, now: float) -> Effects:
        """A worker registers; the first effect is `Accept` or `RefuseWorker`.

        A worker registers when it connects and when its engine changes. In both cases the sequences
        that it ran for this gateway are lost: `Moved`.
        """
        refusal = self.fleet.refusal(worker_id, message)
        if refusal is not None:
            left = self._leave(worker_id, now, f"refused: {refusal}")
            return RefuseWorker(worker_id, refusal), *left
        effects: list[Effect] = [Accept(worker_id)]
        previous = self.fleet.get(worker_id)
        if previous is not None:
            is_same = message.epoch == previous.epoch
            why = "its link was restarted" if is_same else "its engine was restarted"
            effects += self.tickets.evict(previous, now, why)
            for name in previous.models:
                if (model := self._models.by_name.get(name)) is not None:
                    model.fallback.worker_restarted(previous, now)
        self._models.add(message.models)
        worker = Worker(worker_id, message, now)
        self.fleet.put(worker)
        self._index.remove(worker_id)
        effects += self._sleepers.registered(worker, previous, now)
        was_due = worker_id in self._start_due
        self._start_due.discard(worker_id)
        if message.engine is not None:
            effects += self._engine_ready(worker, message.engine, previous, now)
        elif not worker.is_asleep:
            # After a fault the supervisor waits, up to 30 s; its first report of progress is the
            # start.
            if previous is not None and (previous.fault or was_due):
                self._start_due.add(worker_id)
            else:
                effects.append(Notice(WorkerStarting(worker.name, worker.epoch)))
        names = {*message.models, *(previous.models if previous is not None else ())}
        return *effects, *self._settle(sorted(names), now)

    def heard(self, worker_id: WorkerId, message: FleetMessage, now: float) -> Effects:
        """A worker reports. Reports of unregistered workers are counted and ignored."""
        worker = self.fleet.get(worker_id)
        if worker is None:
            self._num_stale += 1
            return ()
        match message:
            case Load():
                return self._load(worker, message, now)
            case SpeedLoss() | Residency() | Progress():
                return self._of_engine(worker, message, now)
            case (
                BlocksStored()
                | BlocksDropped()
                | StatesSaved()
                | StatesForgotten()
                | BlocksSnapshot()
            ):
                return self._block_event(worker, message, now)
            case Fault():
                return self._fault(worker, message, now)
            case Bye(reason=reason) if reason in BACK_SOON:
                return self.lost(worker_id, now, reason)
            case Bye():
                return self._leave(worker_id, now, f"left: {message.reason}")
            case _:
                assert_never(message)

    def _of_engine(
        self, worker: Worker, message: SpeedLoss | Residency | Progress, now: float
    ) -> Effects:
        match message:
            case SpeedLoss():
                return self._speed_loss(worker, message)
            case Residency():
                return self._residency(worker, message, now)
            case _:
                return self._progress(worker, message, now)

    def lost(self, worker_id: WorkerId, now: float, why: str = "its link is gone") -> Effects:
        """The link to the worker is gone, and with it the sequences on it. Its engine may live."""
        worker = self.fleet.get(worker_id)
        for name in worker.models if worker is not None else ():
            if (model := self._models.by_name.get(name)) is not None:
                model.awaited_until = now + self._rejoin_s
        return self._leave(worker_id, now, why)

    def strike(
        self,
        request: RequestIdentity,
        engine: tuple[WorkerId, int],
        name: str,
        model: str,
        now: float,
    ) -> Effects:
        """An engine (worker and epoch) died while it ran the request `name` of `model`."""
        if not self.quarantine.strike(request, engine, now):
            return ()
        deaths = self.quarantine.strikes(request, now)
        return (Notice(PoisonedRequest(name, model, request[0], deaths)),)

    def probe_ended(
        self, model: str, serial: int, result: ProbeResult, worker: str, why: str, now: float
    ) -> Effects:
        """The result of a fallback's health probe, with the number `serial`, on the worker of that
        name.
        """
        found = self._models.by_name.get(model)
        if found is None:
            return ()
        effects = found.fallback.probe_ended(serial, result, worker, why, now)
        return self._settle([model], now) if result == "passed" else tuple(effects)

    def trust_probe_ended(self, probe: Probe, result: ProbeResult, why: str, now: float) -> Effects:
        """The result of the health probe of a worker that is not trusted."""
        worker = self.fleet.get(probe.worker_id)
        if worker is None or worker.engine is None:
            return ()
        trust = worker.trust
        is_moving = worker.has_stepped_since(trust.probed_at)
        has_changed = trust.probe_ended(
            probe.serial, result, now, is_moving=is_moving, is_idle=worker.is_idle
        )
        if has_changed and trust.state == "trusted":
            return self.tickets.trusted_again(worker, now)
        effects: Effects = ()
        if result in ("late", "failed"):
            effects = (Notice(HealthProbeFailed(probe.model, worker.name, why)),)
        if has_changed:
            effects += (EndEngine(worker.worker_id, worker.epoch, trust.why),)
        return effects

    def ask_files(self, name: str) -> Effects:
        """Ask a ready worker of the model for its files, if there is one."""
        model = self._models.by_name.get(name)
        ready = self.fleet.ready(model) if model is not None else []
        return tuple(one for worker in ready[:1] for one in _ask_files(worker))

    def tick(self, now: float) -> Effects:
        """Apply deadlines and clean up. Call it every 50 to 250 ms, half as often when
        `is_at_rest`.
        """
        self._index.sweep()
        overdue = self._index.overdue_snapshots(now)
        for worker in self.fleet:
            if worker.full_since is not None and now - worker.full_since >= FULL_AT_MOST_S:
                worker.full_since = None
            if worker.engine is None:
                self.fleet.note_absence(worker, now, self._rejoin_s)
        effects = self.tickets.tick(now)
        for worker in self.fleet:
            if worker.trust.state != "trusted":
                effects += self.tickets.probe_trust(worker, now)
        self.fleet.forget_models(now, self._rejoin_s)
        if self._sleepers.has_any:
            effects += self._sleepers.demands(now)
        return *(AskSnapshot(worker_id) for worker_id in overdue), *effects

    def is_awaited(self, name: str, now: float) -> bool:
        """Whether a worker of the model has vanished and is expected to dial in again."""
        model = self._models.by_name.get(name)
        if model is None or model.block_size is None:
            return False
        return now < model.awaited_until

    def models(self) -> tuple[ModelView, ...]:
        """All models, configured ones first."""
        return tuple(self.fleet.view(model) for model in self._models)

    def workers(self) -> tuple[WorkerView, ...]:
        index = self._index
        return tuple(
            worker.view(index.num_blocks(worker.worker_id), index.num_on_host(worker.worker_id))
            for worker in self.fleet
        )

    def positions(self, now: float) -> dict[int, QueuePosition]:
        """The position of each waiting ticket in the queue of its model."""
        found: dict[int, QueuePosition] = {}
        for model in self._models:
            if model.queue.by_ticket:
                found |= self.tickets.positions(model, now)
        return found

    @property
    def num_waiting(self) -> int:
        """How many tickets wait for a place."""
        return self.tickets.num_waiting

    @property
    def is_at_rest(self) -> bool:
        """Whether there is no ticket, no fallback and no unproven worker: then no deadline is less
        than a second.
        """
        if self.tickets.num_placed or self.num_waiting:
            return False
        if any(worker.trust.state != "trusted" for worker in self.fleet):
            return False
        return not any(model.fallback.is_on for model in self._models)

    def statistics(self) -> DispatchStatistics:
        return DispatchStatistics(
            workers=len(self.fleet),
            ready_workers=sum(worker.ready for worker in self.fleet),
            running=self.tickets.num_placed,
            queued=self.num_waiting,
            stale_messages=self._num_stale,
            index_gaps=self._num_gaps,
            index_blocks=self._index.num_distinct(),
            index_bytes=self._index.num_bytes(),
            decisions=dict(self.tickets.decisions),
        )

    def _engine_ready(
        self, worker: Worker, engine: EngineFacts, previous: Worker | None, now: float
    ) -> list[Effect]:
        self._index.add(worker.worker_id, now, needs_states=engine.snapshots is not None)
        record = self.fleet.record(worker)
        kind = WorkerBack if record.was_ready else WorkerReady
        record.was_ready = True
        if worker.is_asleep:
            return list(_ask_files(worker))
        asked: list[Effect] = [AskSnapshot(worker.worker_id), *_ask_files(worker)]
        if previous is not None and previous.residency is not None and not previous.fault:
            return asked  # a worker that wakes was not away
        return [*asked, Notice(kind(worker.name, worker.epoch, worker.models, engine.device))]

    def _block_event(
        self, worker: Worker, event: BlockEvent | BlocksSnapshot, now: float
    ) -> Effects:
        match self._index.apply(worker.worker_id, event, now):
            case BlockEventResult.APPLIED:
                return ()
            case BlockEventResult.STALE:
                self._num_stale += 1
                return ()
            case BlockEventResult.GAP:
                self._num_gaps += 1
                return AskSnapshot(worker.worker_id), Notice(IndexGap(worker.name, event.seq))

    def _load(self, worker: Worker, load: Load, now: float) -> Effects:
        if worker.engine is None or load.epoch != worker.epoch:
            self._num_stale += 1
            return ()
        was_full, num_places = worker.full_since is not None, worker.places
        worker.report(load, now)
        has_news = was_full or worker.places > num_places
        return self._settle(worker.models, now) if has_news else ()

    def _speed_loss(self, worker: Worker, loss: SpeedLoss) -> Effects:
        """Publish the loss, or its end. A worker that registers again repeats its report, which is
        not published twice.
        """
        if loss.epoch != worker.epoch:
            self._num_stale += 1
            return ()
        record = self.fleet.record(worker)
        before, record.speed_loss = record.speed_loss, loss if loss.figures else None
        if not loss.figures:
            return (Notice(SpeedBack(worker.name)),) if before is not None else ()
        if before is not None and before.epoch == loss.epoch:
            return ()
        return (Notice(SpeedLost(worker.name, loss.figures, loss.num_changes)),)

    def _residency(self, worker: Worker, message: Residency, now: float) -> Effects:
        if message.epoch != worker.epoch or worker.residency is None:
            self._num_stale += 1
            return ()
        effects = self._sleepers.moved(worker, message, now)
        self.fleet.trust_changed()
        return *effects, *self._settle(worker.models, now)

    def demands(self, now: float) -> Effects:
        """The messages that tell workers that take turns of the work for them."""
        return self._sleepers.demands(now)

    @property
    def has_sleepers(self) -> bool:
        """Whether a worker takes turns with others."""
        return self._sleepers.has_any

    def _progress(self, worker: Worker, progress: Progress, now: float) -> Effects:
        if progress.epoch == worker.epoch and (worker.engine is None or worker.is_asleep):
            worker.progress = progress
            self.fleet.note_absence(worker, now, self._rejoin_s)
            if worker.worker_id in self._start_due:
                self._start_due.remove(worker.worker_id)
                return (Notice(WorkerStarting(worker.name, worker.epoch)),)
        else:
            self._num_stale += 1
        return ()

    def _fault(self, worker: Worker, fault: Fault, now: float) -> Effects:
        if fault.epoch != worker.epoch or fault.worker != worker.name:
            self._num_stale += 1
            return ()
        # An engine that is ended because it answered nothing did not die of its requests.
        has_died = fault.kind not in ("left", "no_answers")
        why = "its engine left" if fault.kind == "left" else "its engine died"
        moved = self.tickets.evict(worker, now, why, died=has_died)
        self.fleet.fail(worker, fault, now)
        self._index.remove(worker.worker_id)
        cause = " ".join(fault.cause.split())[:MAX_CAUSE_CHARS]
        died = EngineFault(
            worker.name, fault.epoch, fault.kind, fault.exit_code, fault.is_final, cause
        )
        notice = Notice(died)
        failed = count_failure(worker, now, f"engine fault: {fault.kind}")
        return *moved, notice, *failed, *self._settle(worker.models, now)

    def _leave(self, worker_id: WorkerId, now: float, why: str) -> Effects:
        worker = self.fleet.remove(worker_id, now)
        if worker is None:
            return ()
        moved = self.tickets.evict(worker, now, why)
        self._index.remove(worker_id)
        self._start_due.discard(worker_id)
        self._sleepers.left()
        notice = Notice(WorkerLost(worker.name, why))
        return *moved, notice, *self._settle(worker.models, now)

    def _settle(self, names: Iterable[str], now: float) -> Effects:
        for name in names:
            if (model := self._models.by_name.get(name)) is not None:
                self.fleet.refresh(model)
        return self.tickets.settle_all(names, now)


def _ask_files(worker: Worker) -> tuple[AskFiles, ...]:
    """Ask for the text files of the worker's model; a text-level engine has none."""
    if worker.engine is None or worker.engine.relay is not None:
        return ()
    return (AskFiles(worker.worker_id, worker.engine.files_digest),)
