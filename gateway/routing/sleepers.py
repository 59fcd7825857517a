"""Workers that take turns with others of their device: where they are, how much they are wanted.

Owns the moves that they report, the demand that they are told, and the finding that they change too
often. Must not know how a worker sleeps or who decides about it: that is for the supervisors.
"""

from collections import deque
from typing import Final

from gateway.routing.effects import Demand, Effect, Effects, Notice
from gateway.routing.worker_registry import Models, WorkerRegistry
from gateway.routing.worker_view import Worker
from gateway.telemetry import SleepTrouble, TurnsThrash, WorkerAsleep, WorkerAwake, WorkerWaking
from protocol.messages import Residency, ResidencyState

WATCHED_S: Final = 600.0
THRASHING_WAKES: Final = 4
THRASHING_SHARE: Final = 0.5
"""A worker thrashes that has woken so often in the watched time, and was neither awake nor asleep
for this share of the time since the first of these wakes began.
"""
TOLD_AGAIN_S: Final = 3600.0


class ChangeWatch:
    """The changes of one worker. Times are arguments."""

    def __init__(self) -> None:
        self.changing_since: float | None = None
        self._spans: deque[tuple[float, float, bool]] = deque()
        self._told_at = float("-inf")

    def began(self, now: float) -> None:
        """The worker begins to fall asleep or to wake."""
        if self.changing_since is None:
            self.changing_since = now

    def ended(self, now: float, *, is_wake: bool) -> tuple[int, int] | None:
        """The change is over. Returns the number of wakes and the percentage of time that changes
        took, if that is too much and was not told within the hour.
        """
        if self.changing_since is None:
            return None
        self._spans.append((self.changing_since, now, is_wake))
        self.changing_since = None
        while self._spans and self._spans[0][1] < now - WATCHED_S:
            self._spans.popleft()
        wakes = sum(woke for _, _, woke in self._spans)
        first = self._spans[0][0]
        share = sum(end - begin for begin, end, _ in self._spans) / max(1e-9, now - first)
        if wakes < THRASHING_WAKES or share < THRASHING_SHARE or now < self._told_at + TOLD_AGAIN_S:
            return None
        self._told_at = now
        return wakes, round(100 * share)


class Sleepers:
    """All workers that take turns. Only `FleetState` calls it."""

    def __init__(self, models: Models, fleet: WorkerRegistry) -> None:
        self._models = models
        self._fleet = fleet
        self._watches: dict[str, ChangeWatch] = {}
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
                worker.residency = before  # more than that a registration does not say
        else:
            before = "awake"
        return self._moved(worker, before, now)

    def left(self) -> None:
        """A worker has gone."""
        self.has_any = any(worker.residency is not None for worker in self._fleet)

    def moved(self, worker: Worker, message: Residency, now: float) -> Effects:
        """A worker says where it is."""
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
        """Waiting requests are those of a worker that serves, or of a model without such a one."""
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
            if model.missed.is_waiting(now) and not worker.ready:
                waiting += 1
                waited_s += model.missed.waited_s(now)
                came.append(model.missed.since)
        running = len(worker.reservations)
        oldest_s = now - min(came) if came else 0.0
        return Demand(worker.worker_id, waiting, running, waited_s, oldest_s)

    def _moved(self, worker: Worker, before: ResidencyState, now: float) -> Effects:
        after = worker.residency
        if after == before:
            return ()
        watch = self._watches.setdefault(worker.name, ChangeWatch())
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
    """When something of that age came, to a millisecond."""
    return round(now - age_s, 3) if age_s else None
