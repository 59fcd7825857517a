"""Workers that take turns with others of their device: whether they sleep, and the demand for them.

Owns the moves that they report and the demand that they are told. Must not know how a worker sleeps
or who decides about it: that is for the supervisors.
"""

from gateway.routing.effects import Demand, Effect, Effects, Notice
from gateway.routing.models import Models
from gateway.routing.worker import Worker
from gateway.routing.worker_registry import WorkerRegistry
from gateway.telemetry import SleepTrouble, TurnsThrash, WorkerAsleep, WorkerAwake, WorkerWaking
from protocol.messages import Residency, ResidencyState


class Sleepers:
    """All workers that take turns. Only `FleetState` calls it."""

    def __init__(self, models: Models, fleet: WorkerRegistry) -> None:
        self._models = models
        self._fleet = fleet
        self.has_any = False

    def registered(self, worker: Worker, previous: Worker | None, now: float) -> Effects:
        """A worker has come, or has begun its next epoch."""
        if worker.residency is None:
            return ()
        self.has_any = True
        if previous is not None and previous.residency is not None:
            worker.due_s, worker.sleep_trouble = previous.due_s, previous.sleep_trouble
            before = previous.residency
            if worker.is_asleep and previous.is_asleep:
                worker.residency = before  # a registration says no more than that
        else:
            before = "awake"
        return self._moved(worker, before, now)

    def left(self) -> None:
        """A worker has gone."""
        self.has_any = any(worker.residency is not None for worker in self._fleet)

    def moved(self, worker: Worker, message: Residency, now: float) -> Effects:
        """A worker reports its state: awake, asleep, or on the way."""
        assert worker.residency is not None
        before, worker.residency = worker.residency, message.state
        worker.due_s = message.due_s
        effects: list[Effect] = []
        if message.trouble and message.trouble != worker.sleep_trouble:
            effects.append(Notice(SleepTrouble(worker.name, message.trouble)))
        worker.sleep_trouble = message.trouble
        return *effects, *self._moved(worker, before, now)

    def demands(self, now: float) -> Effects:
        """The demand of each worker for which it has changed."""
        effects: list[Effect] = []
        for worker in self._fleet:
            if worker.residency is None:
                continue
            demand = self._demand(worker, now)
            seen = demand.waiting, demand.running, _at(now, demand.oldest_s)
            if seen != worker.told:  # first after each registration: it may know an older demand
                worker.told = seen
                effects.append(demand)
        return tuple(effects)

    def _demand(self, worker: Worker, now: float) -> Demand:
        """The demand for a worker. Waiting requests count for a worker that serves their model, or
        if no worker serves it.
        """
        waiting, waited_s = 0, 0.0
        came = [one.assigned_at for one in worker.reservations.values()]
        for name in worker.models:
            model = self._models.by_name.get(name)
            if model is None or (not worker.ready and self._fleet.ready(model)):
                continue
            for one in model.queue:
                waiting += 1
                waited_s += now - one.asked_at
                came.append(one.asked_at)
            if model.diverted.is_waiting(now) and not worker.ready:
                waiting += 1
                waited_s += model.diverted.waited_s(now)
                came.append(model.diverted.since)
        running = len(worker.reservations)
        oldest_s = now - min(came) if came else 0.0
        return Demand(worker.worker_id, waiting, running, waited_s, oldest_s)

    def _moved(self, worker: Worker, before: ResidencyState, now: float) -> Effects:
        after = worker.residency
        if after == before:
            return ()
        watch = self._fleet.record(worker).changes
        match after:
            case "falling asleep":
                watch.began(now)
                return ()
            case "waking":
                watch.began(now)
                return (Notice(WorkerWaking(worker.name, worker.models)),)
            case "asleep":
                watch.ended(now, is_wake=False)
                return (Notice(WorkerAsleep(worker.name, worker.models)),)
            case _:
                since = watch.changing_since
                took_s = 0.0 if since is None else round(now - since, 3)
                worker.full_since = None
                told = Notice(WorkerAwake(worker.name, worker.models, took_s))
                if (found := watch.ended(now, is_wake=True)) is None:
                    return (told,)
                return told, Notice(TurnsThrash(worker.name, *found))


def _at(now: float, age_s: float) -> float | None:
    """The time at which something of that age came, to a millisecond."""
    return round(now - age_s, 3) if age_s else None
