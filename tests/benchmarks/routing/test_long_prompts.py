"""Generated traces of long prompts are what their description says."""

import statistics

import pytest

from benchmarks.routing.long_prompts import LONG_KINDS, OVERLOAD_KINDS, long_trace
from benchmarks.routing.trace import RoutingTrace

NUM_SESSIONS = 400


@pytest.fixture(name="trace", params=LONG_KINDS, scope="module")
def _trace(request: pytest.FixtureRequest) -> RoutingTrace:
    return long_trace(request.param, NUM_SESSIONS, 1)


def test_lengths_have_a_heavy_tail(trace: RoutingTrace) -> None:
    """Few prompts hold most tokens; none is longer than the window."""
    lengths = sorted(turn.prompt_tokens for turn in trace.turns)
    assert lengths[-1] <= 120_000
    assert sum(lengths[len(lengths) // 2 :]) > 3 * sum(lengths[: len(lengths) // 2])
    assert trace.name in ("long_documents", "long_bursts")


def test_a_turn_continues_its_conversation(trace: RoutingTrace) -> None:
    last: dict[str | None, tuple[bytes, ...]] = {}
    for turn in trace.turns:
        before = last.get(turn.session, ())
        assert turn.digests[: len(before)] == before
        last[turn.session] = turn.digests


def test_documents_are_long_and_wait_for_their_answers() -> None:
    trace = long_trace("documents", NUM_SESSIONS, 1)
    assert min(turn.prompt_tokens for turn in trace.turns) >= 8_000
    assert all(bool(turn.after) == (turn.pause_s > 0) for turn in trace.turns)


@pytest.mark.parametrize("kind", OVERLOAD_KINDS)
def test_overloads_are_long_and_begin_with_some_of_the_turn_before(kind: str) -> None:
    trace = long_trace(kind, NUM_SESSIONS, 1)
    assert all(8_000 <= turn.prompt_tokens <= 120_000 for turn in trace.turns)
    last: dict[str | None, tuple[bytes, ...]] = {}
    shared = []
    for turn in trace.turns:
        if (before := last.get(turn.session)) is not None:
            shared.append(turn.digests[:1] == before[:1])
        last[turn.session] = turn.digests
    assert 0.2 < statistics.mean(shared) < 0.95
    assert any(turn.after for turn in trace.turns) == (kind == "weak")


def test_bursts_wait_for_nothing() -> None:
    trace = long_trace("bursts", NUM_SESSIONS, 1)
    assert not any(turn.after for turn in trace.turns)
    assert 4 < statistics.mean(turn.prompt_tokens for turn in trace.turns) / 1_000 < 20


def test_equal_seeds_make_equal_traces(trace: RoutingTrace) -> None:
    kind = trace.name.removeprefix("long_")
    assert long_trace(kind, NUM_SESSIONS, 1) == trace
    assert long_trace(kind, NUM_SESSIONS, 2) != trace
