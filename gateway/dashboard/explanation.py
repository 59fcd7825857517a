"""One request, explained: where its time went, which workers were weighed, why this one.

Owns the stages on the request's time line and the words for a decision. Pure. Must not know HTTP.
Times are milliseconds from the request's arrival.
"""

from collections.abc import Iterator
from typing import Final, Literal

import msgspec

from gateway.dashboard.overview import OverviewSource, request_row
from gateway.dashboard.rows import RequestRow
from gateway.telemetry import AttemptTrace, CandidateWorker, RequestTrace

Stage = Literal["preparing", "queued", "prefill", "decode", "cloud"]

_WHY: Final = {
    "only": "It was the only worker with room.",
    "prefer": "Equal costs; its sibling choices run there.",
    "own": "Equal costs; it holds most of the conversation.",
    "home": "Equal costs; the conversation was there before.",
    "even": "Equal costs; it was used least.",
    "cached": "The least delay for everybody, with as much of the prompt cached as anywhere.",
    "moved": "The least delay for everybody, although another has more of the prompt cached.",
}


class StageSpan(msgspec.Struct, frozen=True):
    """A stage of the request on its way; `end_ms` is now for the last one of an open request."""

    stage: Stage
    start_ms: float
    end_ms: float
    server: str = ""


class AttemptRow(msgspec.Struct, frozen=True):
    """One server that had the request. `queued_ms`: how long it waited for that place. `first_ms`:
    until its first token. `why` in a sentence; `reason` as in the header `x-herma-route`.
    """

    server: str
    is_cloud: bool
    choice: int
    began_ms: float
    queued_ms: float
    first_ms: float | None
    took_ms: float
    end: str
    output_tokens: int
    cached_tokens: int
    num_busy: int
    why: str
    reason: str
    candidates: tuple[CandidateWorker, ...]


class Explanation(msgspec.Struct, frozen=True):
    """All that is known of a request. `names` are what events call it. `num_missing` attempts are
    not shown.
    """

    request: RequestRow
    names: tuple[str, ...]
    spans: tuple[StageSpan, ...]
    attempts: tuple[AttemptRow, ...]
    num_missing: int


def explain(trace: RequestTrace, source: OverviewSource) -> Explanation:
    """The request's way, as of `source`."""
    waiting = source.positions.get(trace.turn.ticket)
    return Explanation(
        request=request_row(trace, source),
        names=tuple(name.hex()[:8] for name in trace.turn.names),
        spans=tuple(_spans(trace, source.now, None if waiting is None else waiting.since)),
        attempts=tuple(_attempt_row(trace, one, source.now) for one in trace.turn.attempts),
        num_missing=max(0, trace.turn.num_attempts - len(trace.turn.attempts)),
    )


def _spans(
    trace: RequestTrace, now: float, waits_since: float | None = None
) -> Iterator[StageSpan]:
    """The stages of the first choice, one after the other; those that took no time are left out."""
    start, turn = trace.received_at, trace.turn
    end = now if trace.ended_at is None else trace.ended_at
    at = start

    def span(stage: Stage, until: float, server: str = "") -> Iterator[StageSpan]:
        nonlocal at
        if until > at:
            yield StageSpan(stage, _ms(at - start), _ms(until - start), server)
            at = until

    for attempt in turn.attempts:
        if attempt.choice:
            continue
        yield from span("preparing", attempt.asked_at)
        yield from span("queued", attempt.began_at)
        over = end if attempt.ended_at is None else attempt.ended_at
        if attempt.is_cloud:
            yield from span("cloud", over, attempt.server)
            continue
        yield from span(
            "prefill", over if attempt.first_at is None else attempt.first_at, attempt.server
        )
        yield from span("decode", over, attempt.server)
    if turn.ticket and trace.ended_at is None:
        yield from span("preparing", now if waits_since is None else waits_since)
        yield from span("queued", end)
    elif not turn.attempts:
        yield from span("preparing", end)


def _attempt_row(trace: RequestTrace, attempt: AttemptTrace, now: float) -> AttemptRow:
    start = trace.received_at
    end = attempt.ended_at if attempt.ended_at is not None else trace.ended_at or now
    decision = attempt.decision
    why = "" if decision is None else _WHY.get(decision.why, decision.why)
    if attempt.is_cloud:
        why = attempt.reason
    first_at = attempt.first_at
    return AttemptRow(
        server=attempt.server,
        is_cloud=attempt.is_cloud,
        choice=attempt.choice,
        began_ms=_ms(attempt.began_at - start),
        queued_ms=_ms(attempt.began_at - attempt.asked_at),
        first_ms=None if first_at is None else _ms(first_at - attempt.began_at),
        took_ms=_ms(end - attempt.began_at),
        end=attempt.end,
        output_tokens=attempt.output_tokens if attempt.end else trace.output_tokens,
        cached_tokens=attempt.cached_tokens,
        num_busy=attempt.num_busy,
        why=why,
        reason=attempt.reason,
        candidates=() if decision is None else decision.candidates,
    )


def _ms(seconds: float) -> float:
    return round(1000 * seconds, 2)
