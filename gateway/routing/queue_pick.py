"""The pick: which waiting request gets a place next, and on which worker.

Owns the walk through the queue (which request may pass which) and the collection of the inputs of
one decision: index, running prompts, conversations. Changes nothing but the line of conversations
that wait for a place (`programs.py`). Must not know how tickets end, providers or refusals.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import msgspec

from gateway.routing.admission_queue import Waiting
from gateway.routing.effects import RouteRequest
from gateway.routing.models import Model
from gateway.routing.placement_cost import (
    PRIOR_STEP_MS,
    Option,
    PlacementWork,
    RouteDecision,
    choose,
)
from gateway.routing.prefix_index import PrefixIndex
from gateway.routing.programs import Claim
from gateway.routing.worker import Worker
from protocol.ids import WorkerId

LOOKED_AT: Final = 16
"""How many requests from the head of the queue are considered when a worker has room. The others
wait for the next event, at most a tick.
"""

NOTHING_PROMISED: Final[Mapping[WorkerId, float]] = {}


class Pick(msgspec.Struct, frozen=True):
    """The request to place, and where; its cost assumes `expected_output` tokens."""

    waiting: Waiting
    choice: RouteDecision
    expected_output: int


def pick_next(model: Model, ready: Sequence[Worker], index: PrefixIndex, now: float) -> Pick | None:
    """The first request in the queue whose best worker can take it now."""
    # Skip the walk if no worker may take any request.
    auxiliary = model.queue.any_auxiliary()
    if not any(
        worker.has_prefill_headroom(now) and worker.open_for(auxiliary=auxiliary)
        for worker in ready
    ):
        return None
    return first_that_fits(model, model.queue.in_order(model.shares), ready, index, now)


def eligible(ready: Sequence[Worker], request: RouteRequest, now: float) -> Sequence[Worker]:
    """The workers that have not failed this request (all if there is none), and of these the ones
    whose breaker lets a request through (again all if there is none).
    """
    others = _not_in(ready, request.excluded) if request.excluded else ready
    for worker in others:
        if worker.breaker.is_open:
            return _good(others, now)
    return others


def kv_capacity(workers: Iterable[Worker]) -> int:
    """Tokens of keys and values that the workers have room for together."""
    return sum([one.engine.kv_tokens for one in workers if one.engine is not None])


def _not_in(ready: Sequence[Worker], excluded: frozenset[WorkerId]) -> Sequence[Worker]:
    return [w for w in ready if w.worker_id not in excluded] or ready


def _good(workers: Sequence[Worker], now: float) -> Sequence[Worker]:
    return [w for w in workers if w.breaker.is_good(now)] or workers


def decide(
    index: PrefixIndex,
    model: Model,
    request: RouteRequest,
    session: str,
    workers: Sequence[Worker],
    expected_output: int,
    now: float,
    *,
    promised_s: Mapping[WorkerId, float] = NOTHING_PROMISED,
    num_ready: int = 1,
) -> RouteDecision:
    """The best of `workers`. `expected_output` is in tokens. `promised_s` has, by worker, the
    seconds of prefill that other waiting requests will take there.
    """
    digests, conversations = request.digests, model.conversations
    held = index.match(digests)
    options: list[Option] = []
    for worker in workers:
        worker_id, expected = worker.worker_id, worker.coming_depth(digests)
        stored = held.get(worker_id, 0)
        matched, coming = (expected, expected - stored) if expected > stored else (stored, 0)
        promised = promised_s.get(worker_id, 0.0) if promised_s else 0.0
        to_load = 0
        if index.has_tiers and stored > expected:
            to_load = stored - max(expected, index.num_on_card(worker_id, digests, stored))
        num_held = index.num_blocks(worker_id)
        options.append(Option(worker, matched, num_held, promised, coming, to_load))
    queue = model.queue.by_ticket
    work = PlacementWork(
        session,
        request.prompt_tokens,
        model.block_size or 0,
        expected_output,
        conversations.sharing(session, digests, now),
        conversations.homes.get(session),
        request.prefer,
        (len(queue) - 1) / num_ready if queue else 0.0,
    )
    return choose(work, options, now)


def first_that_fits(
    model: Model,
    order: Iterable[Waiting],
    ready: Sequence[Worker],
    index: PrefixIndex,
    now: float,
) -> Pick | None:
    """The first of `order` (a queue, or one new request while the queue is empty) that is placed.

    A request for which no worker has room reserves all its eligible workers, so that smaller
    requests cannot starve it. One whose best worker is full, while others have room, reserves only
    that worker, which holds its cache. A request whose best worker has enough prefill ahead stays
    in the queue, with its own prefill promised to that worker: another worker may be better by the
    time it can start.
    """
    kept: set[WorkerId] = set()
    promised_s: dict[WorkerId, float] = {}
    num_looked_at = 0
    for waiting in order:
        request = waiting.request
        may_be_held = waiting.is_on_probation or model.programs.is_full
        if may_be_held and not _may_start(model, waiting, ready, index, now):
            continue
        usable = eligible(ready, request, now)
        expected = model.expected_output(request.max_tokens)
        roomy = [w for w in usable if w.worker_id not in kept and w.has_room(request, expected)]
        if not roomy:
            kept.update([worker.worker_id for worker in usable])
            if len(kept) == len(ready):
                break
            continue
        full: list[Worker] = []
        ahead_s = promised_s
        if len(roomy) < len(usable):
            full = _without(usable, roomy)
            ahead_s = {**promised_s, **_until_room(model, full, promised_s)}
        choice = decide(
            index,
            model,
            request,
            waiting.session,
            usable,
            expected,
            now,
            promised_s=ahead_s,
            num_ready=len(ready),
        )
        worker = choice.best.option.worker
        worker_id = worker.worker_id
        if worker in full:
            kept.add(worker_id)
        elif worker_id not in promised_s and worker.has_prefill_headroom(
            now, choice.best.fresh_tokens
        ):
            return Pick(waiting, choice, expected)
        promised_s[worker_id] = choice.best.option.promised_s + choice.best.prefill_s
        num_looked_at += 1
        if num_looked_at >= LOOKED_AT:
            break
    return None


def _without(workers: Iterable[Worker], others: Sequence[Worker]) -> list[Worker]:
    return [worker for worker in workers if worker not in others]


def _may_start(
    model: Model, waiting: Waiting, ready: Sequence[Worker], index: PrefixIndex, now: float
) -> bool:
    """Whether no other request is on probation with it, and its conversation is resident or becomes
    so now. A request whose answer has begun and short auxiliary ones are never held for memory.
    """
    if waiting.is_on_probation and model.probation_ticket is not None:
        return False
    request = waiting.request
    if not model.programs.is_full or waiting.first or request.auxiliary:
        return True
    num_before = min(request.prompt_tokens, model.programs.tokens_of(waiting.session))
    if not num_before:
        return True
    num_expected = model.expected_output(request.max_tokens)
    num_found: Mapping[WorkerId, int] = {}
    if any(index.num_on_host(worker.worker_id) for worker in ready):
        num_found = index.match(request.digests)
    size = model.block_size or 0
    claim = Claim(
        waiting.asked_at,
        request.prompt_tokens + num_expected,
        kv_capacity(ready),
        len(ready),
        min([_switch_s(w, num_before, size * num_found.get(w.worker_id, 0)) for w in ready]),
        num_expected * min([_token_s(worker) for worker in ready]),
    )
    return model.programs.may_start(waiting.session, claim, now)


def _switch_s(worker: Worker, num_before: int, num_found: int) -> float:
    """Seconds to bring what a conversation had in memory back to the worker's card: computed, or
    loaded from its host, where `num_found` tokens of it are.
    """
    num_loaded = min(num_found, num_before)
    computed_s = worker.prefill_rate.seconds(num_loaded, max(1, num_before - num_loaded))
    return computed_s + num_loaded * worker.load_token_s


def _token_s(worker: Worker) -> float:
    """Seconds of a token of an answer. Steps beside long prompts take longer, so a measured step
    counts only while it is shorter than what is assumed of any worker.
    """
    measured_ms = worker.load.step_ms if worker.load is not None else 0.0
    return min(measured_ms or PRIOR_STEP_MS, PRIOR_STEP_MS) / 1000 / worker.pass_tokens


def _until_room(
    model: Model, full: Iterable[Worker], promised_s: Mapping[WorkerId, float]
) -> dict[WorkerId, float]:
    """Seconds until each full worker should have room, plus the prefill promised there. With n
    answers running, the next one ends after about 1/n of their usual time.
    """
    return {
        worker.worker_id: promised_s.get(worker.worker_id, 0.0)
        + model.service_s.value / max(1, len(worker.reservations))
        for worker in full
    }
