"""Preview of a routing decision, for the debug page.

Owns the decision that the dispatcher would take for a request now, with the cost of every worker
that it weighs. Changes nothing. Must not know HTTP.
"""

from collections.abc import Sequence
from typing import Literal

import msgspec

from gateway.routing.effects import RouteRequest
from gateway.routing.models import Model
from gateway.routing.placement_cost import PlacementScore
from gateway.routing.prefix_index import PrefixIndex
from gateway.routing.queue_pick import decide
from gateway.routing.worker import Worker
from gateway.telemetry import CandidateWorker

Outcome = Literal["placed", "waits", "provider", "held"]


class ReadyWorker(CandidateWorker, frozen=True, kw_only=True):
    """A candidate, and whether it has room for the request and time for its prefill."""

    has_room: bool
    has_prefill_headroom: bool


class RoutePreview(msgspec.Struct, frozen=True):
    """What would happen to a request: it would be placed at once, wait behind `num_waiting` others,
    go to a provider, or be held or refused because no worker is ready. `why` and `reason` are those
    that a placed request gets.
    """

    model: str
    outcome: Outcome
    why: str
    reason: str
    session: str
    prompt_tokens: int
    num_waiting: int
    candidates: tuple[ReadyWorker, ...]


def preview(
    model: Model,
    ready: Sequence[Worker],
    eligible: Sequence[Worker],
    index: PrefixIndex,
    request: RouteRequest,
    now: float,
) -> RoutePreview:
    """The decision for `request` on the `eligible` ones of the `ready` workers, with the cost of
    all `ready` ones.
    """
    session = model.conversations.recognise(
        request.key, request.session, request.digests, request.ticket
    )
    expected = model.expected_output(request.max_tokens)
    roomy = [worker for worker in eligible if worker.has_room(request, expected)]
    outcome: Outcome = "waits"
    chosen, why, reason = None, "full", "no worker has room for it"
    if roomy:
        choice = decide(index, model, request, session, roomy, expected, now, num_ready=len(ready))
        chosen, why, reason = choice.worker, choice.why, choice.reason
        has_prefill_headroom = chosen.has_prefill_headroom(now, choice.best.fresh_tokens)
        outcome = "placed" if has_prefill_headroom and not len(model.queue) else "waits"
    if not ready:
        why, reason = "unready", f"no worker of {model.name} is ready"
        outcome = "provider" if model.chain(request) else "held"
    elif model.fallback.is_on and model.chain(request):
        why, reason = "unproven", f"no worker of {model.name} has proved itself yet"
        outcome = "provider"
    scores: Sequence[PlacementScore] = ()
    if ready:
        whole = decide(index, model, request, session, ready, expected, now, num_ready=len(ready))
        scores = whole.scores
    return RoutePreview(
        model=model.name,
        outcome=outcome,
        why=why,
        reason=reason,
        session=session,
        prompt_tokens=request.prompt_tokens,
        num_waiting=len(model.queue),
        candidates=tuple(_ready_worker(score, chosen, request, expected, now) for score in scores),
    )


def _ready_worker(
    score: PlacementScore, chosen: Worker | None, request: RouteRequest, expected: int, now: float
) -> ReadyWorker:
    worker = score.option.worker
    return ReadyWorker(
        **msgspec.structs.asdict(score.candidate(is_chosen=worker is chosen)),
        has_room=worker.has_room(request, expected),
        has_prefill_headroom=worker.has_prefill_headroom(now, score.fresh_tokens),
    )
