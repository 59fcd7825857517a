"""Tickets and their places.

Owns every ticket from `ask` to its end: waiting, placed or answered. Must not know how workers
join or leave: `Dispatch` tells it.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Final

from config import FallbackConfig
from gateway.core import errors
from gateway.core.admission import Waiting, retry_after_s, start_retry_after_s
from gateway.core.candidates import Candidates
from gateway.core.effects import (
    Assign,
    Effect,
    Moved,
    Refuse,
    RouteRequest,
    UseProvider,
)
from gateway.core.fairness import OUTPUT_COST, cost_of
from gateway.core.fleet import Fleet
from gateway.core.models import Model, Models
from gateway.core.prefix_index import PrefixIndex
from gateway.core.preview import RoutePreview, preview
from gateway.core.route import Choice
from gateway.core.worker_state import Reservation, Worker
from protocol.ids import WorkerId

DOWN_RETRY_AFTER_S: Final = 10
"""Nothing can serve and nothing starts: an operator is needed, so no hurry."""

LOOKED_AT: Final = 16
"""Requests that are weighed when a worker has room, from the head of the queue: those behind wait
for the next event, at most a tick."""


class Placement:
    """Waiting rooms and reservations; every method returns what follows from it."""

    def __init__(
        self,
        models: Models,
        fleet: Fleet,
        index: PrefixIndex,
        *,
        max_queue: int,
        resume_wait_s: float,
    ) -> None:
        self._models = models
        self._fleet = fleet
        self._candidates = Candidates(index)
        self._max_queue = max_queue
        self._resume_wait_s = resume_wait_s
        self._model_of: dict[int, Model] = {}
        self._placed: dict[int, Reservation] = {}
        self._num_arrivals = 0
        self.decisions: Counter[str] = Counter()

    @property
    def num_placed(self) -> int:
        """Tickets with a place."""
        return len(self._placed)

    @property
    def num_waiting(self) -> int:
        """Tickets without one."""
        return len(self._model_of) - len(self._placed)

    def ask(self, request: RouteRequest, now: float) -> list[Effect]:
        """A new ticket: it waits, and whoever is first gets the room that there is."""
        ticket = request.ticket
        if ticket in self._model_of:
            raise ValueError(f"ticket {ticket} asks twice")
        model = self._models.find(request.model)
        if model is None:
            return [Refuse(ticket, errors.model_not_found(request.model))]
        session = model.conversations.recognise(
            request.key, request.session, request.digests, ticket
        )
        self._enqueue(model, request, session, first=request.resumed)
        effects = self.settle(model, now)
        if ticket in model.queue and self._is_hopeless(model, request, now):
            effects += self._give_up(model, ticket, now)
            effects += self.settle(model, now)
        return effects

    def preview(self, request: RouteRequest, now: float) -> RoutePreview | None:
        """What would happen to the request now; None for a model that nobody knows."""
        model = self._models.find(request.model)
        if model is None:
            return None
        ready = self._fleet.ready(model)
        eligible = self._eligible(ready, request, now)
        return preview(model, ready, eligible, self._candidates, request, now)

    def started(self, ticket: int, now: float) -> list[Effect]:
        """Its prefill is over: its worker may have time for another."""
        reservation = self._placed.get(ticket)
        if reservation is None:
            return []
        reservation.worker.started(reservation, now)
        return self.settle_all(reservation.worker.models, now)

    def worker_of(self, ticket: int) -> Worker | None:
        """The worker on which the ticket has its place, if it has one."""
        reservation = self._placed.get(ticket)
        return reservation.worker if reservation is not None else None

    def proven(self, ticket: int, now: float) -> list[Effect]:
        """It is no suspect any more: the next one may be tried."""
        model = self._model_of[ticket]
        if model.trial != ticket:
            return []
        model.trial = None
        return self.settle(model, now)

    def release(self, ticket: int, now: float, output_tokens: int | None) -> list[Effect]:
        """The ticket is over, by whatever cause."""
        model = self._model_of.get(ticket)
        if model is None:
            return []
        if ticket in model.queue:
            self._dequeue(model, ticket)
            return self.settle(model, now)
        reservation = self._placed[ticket]
        if output_tokens is not None:
            _learn(model, reservation, output_tokens, now)
        self._vacate(model, reservation, now)
        return self.settle_all(reservation.worker.models, now)

    def busy(self, ticket: int, now: float, *, draining: bool) -> list[Effect]:
        """The worker refused for load: back to the front; the worker counts as full."""
        reservation = self._placed.get(ticket)
        if reservation is None:
            return []
        model, worker = self._model_of[ticket], reservation.worker
        _refund(model, reservation)
        self._vacate(model, reservation, now)
        worker.full_since = now
        worker.draining = worker.draining or draining
        self._enqueue(model, reservation.request, reservation.session, first=True)
        return self.settle_all(worker.models, now)

    def evict(self, worker: Worker, now: float, *, died: bool = False) -> list[Effect]:
        """The worker's engine is gone and with it its tickets' sequences."""
        tickets = tuple(worker.reservations)
        for ticket in tickets:
            model = self._model_of[ticket]
            _refund(model, self._placed[ticket])
            self._vacate(model, self._placed[ticket], now)
        epoch = worker.epoch if died else None
        return [Moved(tickets, worker.worker_id, epoch)] if tickets else []

    def settle_all(self, names: Iterable[str], now: float) -> list[Effect]:
        """`settle` for the models of these names."""
        effects: list[Effect] = []
        for name in names:
            model = self._models.find(name)
            if model is not None:
                effects += self.settle(model, now)
        return effects

    def settle(self, model: Model, now: float) -> list[Effect]:
        """Give room to those who wait; or, when no worker is ready, send away who cannot wait."""
        if not len(model.queue) and not model.fallback.is_on:
            return []
        ready = self._fleet.ready(model)
        effects = model.fallback.step(ready, now)
        if not ready:
            for waiting in model.queue:
                effects += self._unserved(model, waiting, now)
            return effects
        for waiting in model.queue:
            waiting.held_since = None
            if model.fallback.is_on and (chain := model.chain(waiting.request)):
                reason = f"no worker of {model.name} has proved itself yet"
                effects.append(self._send_away(model, waiting, chain, reason))
        while len(model.queue) and (placed := self._place_next(model, ready, now)):
            effects.append(placed)
        return effects

    def tick(self, now: float) -> list[Effect]:
        """Deadlines and the patience of those who are held."""
        effects: list[Effect] = []
        for model in self._models:
            for waiting in model.queue:
                since = waiting.held_since
                is_held_long = since is not None and now - since >= self._resume_wait_s
                if is_held_long or _is_late(waiting.request, now):
                    effects += self._give_up(model, waiting.request.ticket, now)
            effects += self.settle(model, now)
        return effects

    def _place_next(self, model: Model, ready: Sequence[Worker], now: float) -> Assign | None:
        """Place the first in order whose best worker can take it now.

        Whoever does not fit keeps the workers that it could use from those behind it: small
        requests must not starve a large one. Whoever fits best where enough prefill is ahead waits
        here, with its own prefill promised to it: it may be better off elsewhere by then.
        """
        auxiliary = model.queue.any_auxiliary()
        hungry = {
            worker.worker_id
            for worker in ready
            if worker.open_for(auxiliary=auxiliary) and worker.is_hungry(now)
        }
        if not hungry:
            return None
        kept: set[WorkerId] = set()
        promised_s: dict[WorkerId, float] = {}
        num_looked_at = 0
        for waiting in model.queue.in_order(model.shares):
            request = waiting.request
            if request.suspect and model.trial is not None:
                continue
            usable = [w for w in self._eligible(ready, request, now) if w.worker_id not in kept]
            expected = model.expected_output(request.max_tokens)
            roomy = [worker for worker in usable if worker.has_room(request, expected)]
            if not roomy:
                kept.update(worker.worker_id for worker in usable)
                if len(kept) == len(ready):
                    break
                continue
            choice = self._candidates.choose(
                model,
                request,
                waiting.session,
                roomy,
                now,
                promised_s=promised_s,
                num_ready=len(ready),
            )
            worker_id = choice.worker.worker_id
            if worker_id in hungry and worker_id not in promised_s:
                return self._place(model, waiting, choice, expected, now)
            promised_s[worker_id] = promised_s.get(worker_id, 0.0) + choice.best.prefill_s
            num_looked_at += 1
            if num_looked_at >= LOOKED_AT:
                break
        return None

    def _place(
        self, model: Model, waiting: Waiting, choice: Choice, expected: int, now: float
    ) -> Assign:
        request, session, best = waiting.request, waiting.session, choice.best
        charged = cost_of(best.uncached_tokens, expected)
        reservation = Reservation(
            request=request,
            session=session,
            worker=choice.worker,
            cached_tokens=best.cached_tokens,
            uncached_tokens=best.uncached_tokens,
            expected_output=expected,
            charged=charged,
            assigned_at=now,
            prefill_s=best.prefill_s,
        )
        model.queue.pop(request.ticket)
        self._placed[request.ticket] = reservation
        self.decisions[choice.why] += 1
        if request.suspect:
            model.trial = request.ticket
        self._fleet.record(choice.worker).breaker.asked(now)
        worker_id = choice.worker.worker_id
        choice.worker.take(reservation)
        model.shares.charge(request.key, session, request.weight, charged)
        model.conversations.record(session, request.digests, worker_id, now)
        return Assign(request.ticket, worker_id, best.cached_tokens, choice.reason)

    def _unserved(self, model: Model, waiting: Waiting, now: float) -> list[Effect]:
        """No worker of the model is ready: a provider, patience or a refusal."""
        request = waiting.request
        if chain := model.chain(request):
            reason = f"no worker of {model.name} is ready"
            away = self._send_away(model, waiting, chain, reason)
            return [*model.fallback.turn_on(reason), away]
        if request.resumed or self._fleet.starting(model) or now < model.awaited_until:
            waiting.held_since = now if waiting.held_since is None else waiting.held_since
            return []
        return [self._refuse_unserved(model, request.ticket, now)]

    def _is_hopeless(self, model: Model, request: RouteRequest, now: float) -> bool:
        """Whether a newcomer cannot stay. A resumed answer always may: its text is out already."""
        if _is_late(request, now):
            return True
        if request.resumed:
            return False
        # Who waits although there are free places only waits for its turn to prefill.
        ready = self._fleet.ready(model)
        num_free = sum(worker.num_free_places for worker in ready)
        return len(model.queue) - num_free > self._max_queue

    def _give_up(self, model: Model, ticket: int, now: float) -> list[Effect]:
        """Waiting is hopeless: a provider if one may answer, else the refusal that fits."""
        ready = self._fleet.ready(model)
        if chain := model.chain(model.queue.get(ticket).request):
            self._dequeue(model, ticket)
            return [UseProvider(ticket, chain, f"the queue of {model.name} is too long")]
        if not ready:
            return [self._refuse_unserved(model, ticket, now)]
        self._dequeue(model, ticket)
        num_places = sum(worker.engine.max_seqs for worker in ready if worker.engine is not None)
        wait_s = retry_after_s(len(model.queue), num_places, model.service_s.value)
        text = f"All places for {model.name} are taken and {len(model.queue)} requests are queued."
        return [Refuse(ticket, errors.busy(text, wait_s))]

    def _refuse_unserved(self, model: Model, ticket: int, now: float) -> Refuse:
        request = self._dequeue(model, ticket).request
        starting = self._fleet.starting(model)
        if request.resumed:
            return Refuse(ticket, errors.connection_lost())
        if not starting:
            text = f"No worker serves {model.name} now and none is starting."
            return Refuse(ticket, errors.unavailable(text, DOWN_RETRY_AFTER_S))
        wait_s = min(
            start_retry_after_s(now - w.since, w.progress.fraction if w.progress else 0.0)
            for w in starting
        )
        # Not why an earlier engine died: that holds paths, and words on which clients act.
        progress = self._fleet.start_progress(model)
        how_far = f" ({progress})" if progress else ""
        text = f"The workers of {model.name} are still starting{how_far}."
        return Refuse(ticket, errors.unavailable(text, wait_s))

    def _enqueue(self, model: Model, request: RouteRequest, session: str, *, first: bool) -> None:
        self._num_arrivals += 1
        model.shares.enter(request.key, session)
        cost = self._candidates.least_uncached(model, request)
        due = model.shares.due(request.key, session, cost)
        model.queue.add(Waiting(request, session, self._num_arrivals, due, first=first))
        self._model_of[request.ticket] = model

    def _dequeue(self, model: Model, ticket: int) -> Waiting:
        del self._model_of[ticket]
        waiting = model.queue.pop(ticket)
        model.shares.leave(waiting.request.key, waiting.session)
        return waiting

    def _send_away(
        self, model: Model, waiting: Waiting, chain: tuple[FallbackConfig, ...], reason: str
    ) -> UseProvider:
        ticket = waiting.request.ticket
        self._dequeue(model, ticket)
        return UseProvider(ticket, chain, reason)

    def _eligible(
        self, ready: Sequence[Worker], request: RouteRequest, now: float
    ) -> Sequence[Worker]:
        """Those that have not failed this request; of them those that have not failed lately. Who
        has is asked last, not never.
        """
        others = ready
        if request.excluded:
            others = [w for w in ready if w.worker_id not in request.excluded] or ready
        return [w for w in others if self._fleet.is_good(w, now)] or others

    def _vacate(self, model: Model, reservation: Reservation, now: float) -> None:
        """Free the place; the key's account stands as it is."""
        request = reservation.request
        del self._model_of[request.ticket], self._placed[request.ticket]
        if model.trial == request.ticket:
            model.trial = None
        reservation.worker.drop(reservation, now)
        model.shares.leave(request.key, reservation.session)


def _learn(model: Model, reservation: Reservation, output_tokens: int, now: float) -> None:
    """Settle the key's account by what was really generated, and remember how long it took."""
    request, over = reservation.request, output_tokens - reservation.expected_output
    model.shares.charge(request.key, reservation.session, request.weight, OUTPUT_COST * over)
    model.output_tokens.add(output_tokens)
    model.service_s.add(now - reservation.assigned_at)


def _refund(model: Model, reservation: Reservation) -> None:
    """The key pays nothing for what a worker refused or lost."""
    request = reservation.request
    model.shares.charge(request.key, reservation.session, request.weight, -reservation.charged)


def _is_late(request: RouteRequest, now: float) -> bool:
    return request.deadline_at is not None and now >= request.deadline_at
