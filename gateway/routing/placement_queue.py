"""Tickets: from the question for a place to its release.

Owns every ticket from `ask` to its end, waiting or placed. Must not know how workers join or leave:
`FleetState` calls `evict` for a worker that is gone.
"""

from collections import Counter
from collections.abc import Iterable, Sequence

from config import FallbackConfig
from gateway.api import errors
from gateway.routing.admission_queue import (
    QueuePosition,
    Waiting,
    retry_after_s,
)
from gateway.routing.effects import (
    Assign,
    Effect,
    Effects,
    Moved,
    Notice,
    Probe,
    Refuse,
    RouteRequest,
    UseProvider,
)
from gateway.routing.fair_shares import OUTPUT_COST, cost_of
from gateway.routing.limit_hit import full_text, late_text, queue_limit
from gateway.routing.models import Model, Models
from gateway.routing.prefix_index import PrefixIndex
from gateway.routing.quarantine import Quarantine
from gateway.routing.queue_pick import Pick, eligible, first_that_fits, kv_capacity, pick_next
from gateway.routing.route_preview import RoutePreview, preview
from gateway.routing.unserved import asleep_error, unserved_error
from gateway.routing.wait_forecast import NOTE_S, REFRESH_S
from gateway.routing.worker import PlaceReservation, Worker
from gateway.routing.worker_registry import WorkerRegistry
from gateway.telemetry import BreakerClosed, BreakerOpen, WorkerProven, WorkerUnproven
from protocol.messages import RejectReason


class PlacementQueue:
    """Admission queues and reservations; every method returns the effects that follow from it."""

    def __init__(
        self,
        models: Models,
        fleet: WorkerRegistry,
        index: PrefixIndex,
        quarantine: Quarantine,
        *,
        max_queue: int | None,
        resume_wait_s: float,
        max_pause_s: float,
    ) -> None:
        self._models = models
        self._fleet = fleet
        self._index = index
        self._quarantine = quarantine
        self.set_limits(max_queue, resume_wait_s, max_pause_s)
        self._model_of: dict[int, Model] = {}
        self._placed: dict[int, PlaceReservation] = {}
        self._num_arrivals = 0
        self.is_stopping = False
        self.decisions: Counter[str] = Counter()

    def set_limits(self, max_queue: int | None, resume_wait_s: float, max_pause_s: float) -> None:
        """Apply new limits, to waiting requests too."""
        self._models.limit_pauses(max_pause_s)
        self._max_queue = max_queue
        self._resume_wait_s = resume_wait_s

    @property
    def num_placed(self) -> int:
        return len(self._placed)

    @property
    def num_waiting(self) -> int:
        """How many tickets wait for a place."""
        return len(self._model_of) - len(self._placed)

    def ask(self, request: RouteRequest, now: float) -> Effects:
        """Find a place for the request. Its effect is `Assign`, `UseProvider` or `Refuse`; without
        one of these the ticket waits.

        Other effects may concern other tickets. Raises `ValueError` if the ticket is in use.
        """
        ticket = request.ticket
        if ticket in self._model_of:
            raise ValueError(f"ticket {ticket} asks twice")
        model = self._models.by_name.get(request.model)
        if model is None:
            return (Refuse(ticket, errors.model_not_found(request.model)),)
        ready = self._fleet.ready(model)
        if not ready and (away := self._away(model, request, now)):
            return away
        if request.has_failed and (chain := _instead(model, request, ready)):
            return (UseProvider(ticket, chain, f"the worker of {model.name} failed on it"),)
        session = model.conversations.recognise(
            request.key, request.session, request.digests, ticket
        )
        waiting = self._enter(model, request, session, now, first=request.resumed)
        if self._quarantine.records:
            identity = request.key, request.fingerprint
            waiting.is_on_probation = self._quarantine.is_on_probation(identity, now)
        is_quiet = not model.queue.by_ticket and not model.fallback.is_on
        if is_quiet and ready:
            # The usual case: an empty queue and a free place.
            if pick := first_that_fits(model, (waiting,), ready, self._index, now):
                return (self._place(model, pick, now),)
            self._enqueue(model, waiting, now)
            effects: Effects = ()
        else:
            self._enqueue(model, waiting, now)
            effects = self.settle(model, now)
        if ticket in model.queue.by_ticket and self._is_hopeless(model, request, now):
            effects += self._give_up(model, ticket, now)
            effects += self.settle(model, now)
        return effects

    def _away(self, model: Model, request: RouteRequest, now: float) -> Effects:
        """The effects that send the request to a provider, because no worker is ready; () if the
        request has to wait for a worker. Requests that are in the queue may not use a provider.
        """
        if not (chain := model.chain(request)):
            return ()
        if not self._fleet.sleepers(model):
            reason, changes = _no_worker(model), model.fallback.step((), now)
            changes += self._outage(model, reason, now)
            return (*changes, UseProvider(request.ticket, chain, reason))
        if model.config.while_waking == "wait":
            return ()
        model.diverted.another(now)  # sleep is not an outage: no fallback begins
        return (UseProvider(request.ticket, chain, f"{model.name} is asleep"),)

    def preview(self, request: RouteRequest, now: float) -> RoutePreview | None:
        """What would happen to the request now; None for an unknown model."""
        model = self._models.by_name.get(request.model)
        if model is None:
            return None
        ready = self._fleet.ready(model)
        first_asked = eligible(ready, request, now)
        return preview(model, ready, first_asked, self._index, request, now)

    def started(self, ticket: int, now: float) -> Effects:
        """The ticket's first token has arrived: its prefill no longer delays others, and its worker
        may have time for another one. Until this is reported, the estimated end of the prefill
        counts.
        """
        if ticket not in self._placed:
            return ()
        reservation = self._placed[ticket]
        reservation.worker.started(reservation, now)
        return self.settle_all(reservation.worker.models, now)

    def failed(self, ticket: int, now: float, reason: str) -> Effects:
        """The ticket's worker failed on it, but lives. Unknown tickets are ignored."""
        if ticket not in self._placed:
            return ()
        reservation = self._placed[ticket]
        worker, request = reservation.worker, reservation.request
        self._fleet.judge_by_user(worker, is_well=False)
        effects = tuple(count_failure(worker, now, reason))
        if worker.trust.failed((request.key, request.fingerprint), reason):
            effects += self._distrusted(worker, now)
        return effects

    def proven(self, ticket: int, now: float) -> Effects:
        """The ticket got enough tokens to clear its request and its worker; the next request on
        probation may run. Unknown tickets are ignored.
        """
        if ticket not in self._placed:
            return ()
        worker, model = self._placed[ticket].worker, self._model_of[ticket]
        effects: Effects = ()
        if worker.breaker.succeeded():
            effects = (Notice(BreakerClosed("worker", worker.name)),)
        if worker.trust.is_suspect:
            effects += self.restore_trust(worker, now)
        may_end_fallback = self._judge_well(self._placed[ticket])
        if model.probation_ticket == ticket:
            model.probation_ticket = None
        elif not may_end_fallback:
            return effects
        return effects + self.settle_all(worker.models, now)

    def release(
        self, ticket: int, now: float, output_tokens: int | None = None, *, is_proven: bool = False
    ) -> Effects:
        """The turn no longer needs the ticket, placed or waiting. Unknown tickets are ignored.

        The key is charged for `output_tokens`; without it, for the estimate. `is_proven`: see
        `proven`.
        """
        if ticket not in self._model_of:
            return ()
        model = self._model_of[ticket]
        if ticket in model.queue.by_ticket:
            self._dequeue(model, ticket)
            return self.settle(model, now)
        reservation = self._placed[ticket]
        if output_tokens is not None:
            _learn(model, reservation, output_tokens, now)
        if is_proven:
            self._judge_well(reservation)
        self._vacate(model, reservation, now)
        worker = reservation.worker
        if not is_proven:
            return self.settle_all(worker.models, now)
        effects: Effects = ()
        if worker.trust.is_suspect:
            effects += self.restore_trust(worker, now)
        if worker.breaker.succeeded():
            # Close the breaker before others are placed: an open one lets only a trial through.
            effects += (Notice(BreakerClosed("worker", worker.name)),)
        return effects + self.settle_all(worker.models, now)

    def busy(self, ticket: int, now: float, reason: RejectReason = "busy") -> Effects:
        """The worker had no room: the ticket goes back to the front of the queue.

        Until its `Load` shows free places, the worker gets only one request per change there; a
        draining worker gets none.
        """
        reservation = self._placed.get(ticket)
        if reservation is None:
            return ()
        model, worker = self._model_of[ticket], reservation.worker
        was_on_probation = model.probation_ticket == ticket
        _refund(model, reservation)
        self._vacate(model, reservation, now)
        worker.refused(now)
        worker.breaker.refused()
        if reason == "draining":
            self._fleet.drain(worker)
        effects: Effects = ()
        if reason == "busy" and worker.trust.refused(now, is_idle=worker.is_idle):
            effects = self._distrusted(worker, now)
        waiting = self._enter(model, reservation.request, reservation.session, now, first=True)
        waiting.is_on_probation = was_on_probation
        # The ticket must not fall behind requests that came later and were not sent.
        waiting.arrival = reservation.arrival
        self._enqueue(model, waiting, now)
        return effects + self.settle_all(worker.models, now)

    def restore_trust(self, worker: Worker, now: float) -> Effects:
        """A request or a probe got tokens from the worker, of which something was suspected."""
        if not worker.trust.succeeded():
            return ()
        return self.trusted_again(worker, now)

    def trusted_again(self, worker: Worker, now: float) -> Effects:
        """An unproven worker takes requests again."""
        self._fleet.trust_changed()
        proven = Notice(WorkerProven(worker.name))
        return proven, *self.settle_all(worker.models, now)

    def probe_trust(self, worker: Worker, now: float) -> Effects:
        """The health probe of a worker that is not trusted, if one is due."""
        if worker.engine is None or worker.draining or worker.is_asleep:
            return ()
        serial = worker.trust.next_probe(now)
        if serial is None:
            return ()
        return (Probe(worker.models[0], worker.worker_id, serial, is_of_trust=True),)

    def _distrusted(self, worker: Worker, now: float) -> Effects:
        """The worker gets no more requests until a probe, or one of those that run, gets tokens."""
        self._fleet.trust_changed()
        unproven = Notice(WorkerUnproven(worker.name, worker.trust.full_why))
        probes = self.probe_trust(worker, now)
        return unproven, *probes, *self.settle_all(worker.models, now)

    def evict(self, worker: Worker, now: float, why: str, *, died: bool = False) -> Effects:
        """The worker's engine is gone, and with it the sequences of its tickets."""
        tickets = tuple(worker.reservations)
        for ticket in tickets:
            model = self._model_of[ticket]
            _refund(model, self._placed[ticket])
            self._vacate(model, self._placed[ticket], now)
        epoch = worker.epoch if died else None
        return (Moved(tickets, worker.worker_id, why, epoch),) if tickets else ()

    def settle_all(self, names: Iterable[str], now: float) -> Effects:
        """`settle` for the models of these names."""
        effects: Effects = ()
        for name in names:
            model = self._models.by_name.get(name)
            if model is not None and (model.queue.by_ticket or model.fallback.is_on):
                effects += self.settle(model, now)
        return effects

    def settle(self, model: Model, now: float) -> Effects:
        """Place waiting requests; when no worker is ready, send away those that cannot wait."""
        ready = self._fleet.ready(model)
        effects = self._fleet.step_fallback(model, ready, now)
        if not ready:
            if model.queue.by_ticket:
                effects += self._unserved(model, now)
            return tuple(effects)
        if model.queue.is_any_held or model.fallback.is_on:
            effects += self._wake(model)
        while model.queue.by_ticket:
            pick = pick_next(model, ready, self._index, now)
            if pick is None:
                break
            model.queue.pop(pick.waiting.request.ticket)
            model.forecast.placed(pick.waiting, now)
            effects.append(self._place(model, pick, now))
        if model.fallback.is_on:
            effects += model.fallback.next_probe(ready, now)
        return tuple(effects)

    def _wake(self, model: Model) -> list[Effect]:
        """A worker is ready: no request is held any more. During a fallback, those that may use
        providers go to a provider until the worker's health probes have passed.
        """
        effects: list[Effect] = []
        model.queue.is_any_held = False
        for waiting in model.queue:
            waiting.held_since = None
            if model.fallback.is_on and (chain := model.chain(waiting.request)):
                reason = f"no worker of {model.name} has proved itself yet"
                effects.append(self._send_away(model, waiting, chain, reason))
        return effects

    def tick(self, now: float) -> Effects:
        """Apply deadlines and the time limit of held requests, and clean up."""
        effects: Effects = ()
        for model in self._models:
            model.conversations.sweep()
            patience_s = self._resume_wait_s
            if model.queue.is_any_held:  # requests wait for a start or wake that should end in time
                patience_s += max((w.due_s for w in self._fleet.sleepers(model)), default=0.0)
            for waiting in model.queue:
                since = waiting.held_since
                is_held_long = since is not None and now - since >= patience_s
                if is_held_long or _is_late(waiting.request, now):
                    effects += self._give_up(model, waiting.request.ticket, now)
            effects += self.settle(model, now)
            if model.queue.by_ticket and model.forecast.age_s(now) >= NOTE_S:
                model.forecast.note(self._played(model, now), model.shares, now)
        return effects

    def _place(self, model: Model, pick: Pick, now: float) -> Assign:
        choice, expected = pick.choice, pick.expected_output
        request, session, best = pick.waiting.request, pick.waiting.session, choice.best
        ticket, worker = request.ticket, best.option.worker
        charged = cost_of(best.uncached_tokens, expected)
        reservation = PlaceReservation(
            request,
            session,
            worker,
            best.cached_tokens,
            best.uncached_tokens,
            expected,
            charged,
            now,
            best.prefill_s,
            best.fresh_tokens,
            host_tokens=best.host_tokens,
            arrival=pick.waiting.arrival,
            asked_at=pick.waiting.asked_at,
        )
        self._placed[ticket] = reservation
        self.decisions[choice.why] += 1
        if pick.waiting.is_on_probation:
            model.probation_ticket = ticket
        if worker.breaker.is_open:
            worker.breaker.asked(now)
        worker.take(reservation)
        model.shares.charge(request.key, session, request.weight, charged)
        model.conversations.record(session, request.digests, worker.worker_id, now)
        return Assign(
            ticket,
            worker.worker_id,
            best.cached_tokens,
            choice.reason,
            model.files_digest,
            choice,
            pick.waiting.asked_at,
            now,
        )

    def _unserved(self, model: Model, now: float) -> list[Effect]:
        """No worker of the model is ready: each waiting request goes to a provider, is held or is
        refused. A request whose answer has begun is held even if no worker is expected, unless all
        workers have given up.
        """
        effects: list[Effect] = []
        is_awaited = self._fleet.is_coming(model) or now < model.awaited_until
        is_awaited = is_awaited and not self._fleet.is_absent(model)
        may_resume = is_awaited or not self._fleet.has_given_up(model, now, self._resume_wait_s)
        sleepers = self._fleet.sleepers(model)
        for waiting in model.queue:
            request = waiting.request
            if (chain := model.chain(request)) and not sleepers:
                reason = _no_worker(model)
                away = self._send_away(model, waiting, chain, reason)
                effects += *self._outage(model, reason, now), away
            elif may_resume if request.resumed else is_awaited:
                waiting.held_since = now if waiting.held_since is None else waiting.held_since
                model.queue.is_any_held = True
            else:
                effects.append(self._refuse_unserved(model, request.ticket, now))
        return effects

    def _is_hopeless(self, model: Model, request: RouteRequest, now: float) -> bool:
        """Whether the request may not wait: its deadline is over, or the queue is full. A resumed
        one may always wait, because its client has text already.
        """
        if _is_late(request, now):
            return True
        if request.resumed:
            return False
        # The first requests, as many as there are free places, wait only for their turn to prefill.
        ready = self._fleet.ready(model)
        num_free = sum(worker.num_free_places for worker in ready)
        return model.queue.num_sequences - num_free > queue_limit(ready, self._max_queue)

    def _give_up(self, model: Model, ticket: int, now: float) -> Effects:
        """End the wait of a ticket: with a provider if one may answer, else with a refusal."""
        ready = self._fleet.ready(model)
        if chain := model.chain(model.queue.get(ticket).request):
            self._fleet.note_diverted(model, now)
            self._dequeue(model, ticket)
            return (UseProvider(ticket, chain, f"the queue of {model.name} is too long"),)
        if not ready:
            return (self._refuse_unserved(model, ticket, now),)
        request = model.queue.get(ticket).request
        if _is_late(request, now):
            # Its retry will be a new request, behind those that are due earlier, so forecast that
            # one's wait for Retry-After.
            session = self._dequeue(model, ticket).session
            self._enqueue(model, self._enter(model, request, session, now, first=False), now)
        wait_s = retry_after_s(self.wait_s(ticket, now))
        self._dequeue(model, ticket)
        num_waiting = model.queue.num_sequences
        if _is_late(request, now):
            text = late_text(model.name, ready)
        else:
            text = full_text(model.name, request, ready, num_waiting, self._max_queue)
        return (Refuse(ticket, errors.busy(text, wait_s)),)

    def positions(self, model: Model, now: float) -> dict[int, QueuePosition]:
        """The position of each ticket in the queue of the model."""
        waits_s = model.waits_s(self._played(model, now), now)
        return {
            waiting.request.ticket: QueuePosition(number, waiting.asked_at, wait_s)
            for number, (waiting, wait_s) in enumerate(waits_s, start=1)
        }

    def wait_s(self, ticket: int, now: float) -> float:
        """The forecast of seconds until the ticket, which must be waiting, has a place."""
        model = self._model_of[ticket]
        waits_s = model.waits_s(self._played(model, now), now)
        return next(wait_s for waiting, wait_s in waits_s if waiting.request.ticket == ticket)

    def _played(self, model: Model, now: float) -> list[Waiting]:
        """The queue in its expected order. Refreshes the forecast if it is old."""

        def charge(waiting: Waiting) -> int:
            expected = model.expected_output(waiting.request.max_tokens)
            return cost_of(waiting.fresh_tokens, expected)

        order = model.queue.expected_order(model.shares, charge)
        if model.forecast.age_s(now) >= REFRESH_S:
            model.forecast.play(
                order,
                self._fleet.ready(model),
                model.block_size or 0,
                round(model.output_tokens.value),
                model.service_s.value,
                now,
            )
        return order

    def _refuse_unserved(self, model: Model, ticket: int, now: float) -> Refuse:
        request = self._dequeue(model, ticket).request
        if self.is_stopping:
            return Refuse(ticket, errors.stopping(has_begun=request.resumed))
        if not request.resumed and (
            asleep := [w for w in self._fleet.serving(model) if w.is_asleep]
        ):
            return Refuse(ticket, asleep_error(model.name, asleep))
        starting = self._fleet.starting(model)
        return Refuse(ticket, unserved_error(model.name, starting, now, resumed=request.resumed))

    def _enter(
        self, model: Model, request: RouteRequest, session: str, now: float, *, first: bool
    ) -> Waiting:
        """Register the ticket, which from now on waits or runs."""
        self._num_arrivals += 1
        model.shares.enter(request.key, session)
        self._model_of[request.ticket] = model
        return Waiting(request, session, self._num_arrivals, first=first, asked_at=now)

    def _enqueue(self, model: Model, waiting: Waiting, now: float) -> None:
        request = waiting.request
        waiting.held = self._index.match(request.digests)
        num_held = max(waiting.held.values(), default=0)
        cost = max(1, request.prompt_tokens - num_held * (model.block_size or 0))
        waiting.fresh_tokens = cost
        waiting.due = model.shares.due(request.key, waiting.session, cost)
        waiting.cost = cost_of(cost, model.expected_output(request.max_tokens))
        ahead = model.queue.work(request.key)
        waiting.overdue_at = model.shares.overdue_at(request.key, ahead, waiting.cost)
        model.queue.add(waiting)
        clock, _ = model.shares.clock(request.key)
        model.forecast.arrived(waiting, waiting.due - clock, now)

    def _dequeue(self, model: Model, ticket: int) -> Waiting:
        del self._model_of[ticket]
        waiting = model.queue.pop(ticket)
        model.programs.left(waiting.session)
        model.shares.leave(waiting.request.key, waiting.session)
        return waiting

    def _outage(self, model: Model, reason: str, now: float) -> list[Effect]:
        """The effects of a request that goes to providers because no worker is ready. For a model
        that has no workers this is not a fallback.
        """
        self._fleet.note_diverted(model, now)
        return [] if model.is_providers_alone else model.fallback.turn_on(reason)

    def _send_away(
        self, model: Model, waiting: Waiting, chain: tuple[FallbackConfig, ...], reason: str
    ) -> UseProvider:
        ticket = waiting.request.ticket
        self._dequeue(model, ticket)
        return UseProvider(ticket, chain, reason)

    def _judge_well(self, reservation: PlaceReservation) -> bool:
        """Clear the request of suspicion and, once per ticket, count a success of its worker. True
        if that may end a fallback.
        """
        if self._quarantine.records:
            request = reservation.request
            self._quarantine.clear((request.key, request.fingerprint))
        is_first, reservation.is_proof = not reservation.is_proof, True
        return is_first and self._fleet.judge_by_user(reservation.worker, is_well=True)

    def _vacate(self, model: Model, reservation: PlaceReservation, now: float) -> None:
        """Free the place; what the key was charged stays."""
        request = reservation.request
        del self._model_of[request.ticket], self._placed[request.ticket]
        if model.probation_ticket == request.ticket:
            model.probation_ticket = None
        reservation.worker.drop(reservation, now)
        if model.programs.max_pause_s:
            model.programs.ended(
                reservation.session,
                request.key,
                request.weight,
                request.prompt_tokens + reservation.expected_output,
                reservation.cached_tokens,
                kv_capacity(self._fleet.ready(model)),
                reservation.asked_at,
                now,
            )
        model.shares.leave(request.key, reservation.session)


def count_failure(worker: Worker, now: float, reason: str) -> list[Effect]:
    """Count a failure of the worker. Returns an event if that opened its breaker."""
    breaker = worker.breaker
    if not breaker.failed(now):
        return []
    return [Notice(BreakerOpen("worker", worker.name, breaker.open_s, reason))]


def _learn(model: Model, reservation: PlaceReservation, output_tokens: int, now: float) -> None:
    """Charge the key for the tokens generated, and learn the usual length and duration."""
    request, over = reservation.request, output_tokens - reservation.expected_output
    model.shares.charge(request.key, reservation.session, request.weight, OUTPUT_COST * over)
    model.output_tokens.add(output_tokens)
    model.service_s.add(now - reservation.assigned_at)


def _refund(model: Model, reservation: PlaceReservation) -> None:
    """Give the key back its charge for a sequence that a worker refused or lost."""
    request = reservation.request
    model.shares.charge(request.key, reservation.session, request.weight, -reservation.charged)


def _instead(
    model: Model, request: RouteRequest, ready: Sequence[Worker]
) -> tuple[FallbackConfig, ...]:
    """The providers for a request on which all ready workers have failed."""
    if all(worker.worker_id in request.excluded for worker in ready):
        return model.chain(request)
    return ()


def _is_late(request: RouteRequest, now: float) -> bool:
    return request.deadline_at is not None and now >= request.deadline_at


def _no_worker(model: Model) -> str:
    return f"no worker of {model.name} is ready"
