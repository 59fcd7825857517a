"""One request, explained."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from gateway.dashboard import OverviewSource, explain
from gateway.routing import QueuePosition
from gateway.telemetry import AttemptTrace, CandidateWorker, RequestTrace

NOW = 1_000.0


class Decided:
    """A decision between two workers."""

    def __init__(self, why: str, chosen: str) -> None:
        self.why = why
        self.candidates = tuple(
            CandidateWorker(name, name == chosen, 1, 64, 36, 1.0, 2.0, 3.0, 6.0)
            for name in ("a", "b")
        )


def source() -> OverviewSource:
    return OverviewSource("1", None, 1e9, 9e8, NOW)


def test_a_resumed_request_shows_both_workers_and_why_it_moved() -> None:
    """A resumed request shows both workers and why it moved, with each decision, the place in time,
    and what became of it.
    """
    trace = RequestTrace(id="x", received_at=990.0, ended_at=998.0, status=200, first_at=993.0)
    turn = trace.turn
    turn.names = (bytes.fromhex("0123456789abcdef"),)
    first = AttemptTrace("a", 990.5, 992.0, "a: why", Decided("cached", "a"), first_at=993.0)
    turn.begin(first)
    first.fail(995.0, "its engine died", 40)
    turn.begin(AttemptTrace("b", 995.0, 995.25, "b: why", Decided("only", "b"), first_at=996.0))
    told = explain(trace, source())
    assert told.names == ("01234567",)
    assert [(span.stage, span.start_ms, span.end_ms, span.server) for span in told.spans] == [
        ("preparing", 0.0, 500.0, ""),
        ("queued", 500.0, 2000.0, ""),
        ("prefill", 2000.0, 3000.0, "a"),
        ("decode", 3000.0, 5000.0, "a"),
        ("queued", 5000.0, 5250.0, ""),
        ("prefill", 5250.0, 6000.0, "b"),
        ("decode", 6000.0, 8000.0, "b"),
    ]
    one, other = told.attempts
    assert (one.end, one.output_tokens, one.queued_ms, one.first_ms) == (
        "its engine died", 40, 1500.0, 1000.0,
    )  # fmt: skip
    assert "cached" in one.why
    assert [each.is_chosen for each in one.candidates] == [True, False]
    assert other.why == "It was the only worker with room."


def test_an_open_request_ends_now() -> None:
    """Wherever it is."""
    trace = RequestTrace(received_at=999.0)
    assert [(one.stage, one.end_ms) for one in explain(trace, source()).spans] == [
        ("preparing", 1000.0)
    ]
    trace.turn.ticket = 1
    waits = OverviewSource("1", None, 1e9, 9e8, NOW, positions={1: QueuePosition(1, 999.25)})
    assert [(one.stage, one.end_ms) for one in explain(trace, waits).spans] == [
        ("preparing", 250.0),
        ("queued", 1000.0),
    ]
    trace.turn.begin(AttemptTrace("sky", 999.25, 999.5, "no worker is ready", is_cloud=True))
    told = explain(trace, source())
    assert [one.stage for one in told.spans] == ["preparing", "queued", "cloud"]
    assert told.spans[-1].end_ms == 1000.0
    assert told.attempts[0].why == "no worker is ready"
    assert told.attempts[0].candidates == ()


steps = st.sampled_from(("ask", "begin", "cloud", "first", "over", "wait"))


@given(path=st.lists(st.tuples(steps, st.floats(0, 2)), max_size=25), is_over=st.booleans())
def test_spans_fill_the_time_without_gaps(path: list[tuple[str, float]], is_over: bool) -> None:
    """The spans of any request are in order, each begins where another ends, and none outlasts the
    request.
    """
    trace, now = RequestTrace(received_at=0.0), 0.0
    attempt: Any = None
    asked_at = 0.0
    for step, seconds in path:
        now += seconds
        if step == "ask":
            trace.turn.ticket, asked_at = 1, now
        elif step in {"begin", "cloud"}:
            if attempt is not None and attempt.ended_at is None:
                attempt.fail(now, "lost")
            attempt = AttemptTrace("w", asked_at, now, "", is_cloud=step == "cloud")
            trace.turn.begin(attempt)
        elif attempt is not None and attempt.ended_at is None:
            if step == "first" and attempt.first_at is None:
                attempt.first_at = now
            elif step == "over":
                attempt.fail(now, "lost")
    trace.ended_at = now if is_over else None
    positions = {1: QueuePosition(1, asked_at)}
    spans = explain(trace, OverviewSource("1", None, 1e9, 9e8, now, positions=positions)).spans
    at = 0.0
    for span in spans:
        assert span.start_ms == at
        assert span.end_ms >= at
        at = span.end_ms
    assert at <= round(1000 * now, 2) + 0.01
