"""The loop of tries on scripted places: what is asked, released and counted."""

from collections.abc import Sequence
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.api import ApiError
from gateway.turn.retry_policy import MAX_FRUITLESS_LOSSES
from gateway.turn.tries import TryEvent, TryState
from tests.fakes.scripted_places import (
    NUM_WORKERS,
    PROVIDERS,
    REFUSED,
    ScriptedPlaces,
    ScriptedTries,
    scripted_services,
)

Try = tuple[TryEvent | str, ...]
BEFORE = ((), (TryEvent.PART,), (TryEvent.PART, TryEvent.PROOF))
ENDS = ((TryEvent.LAST,), (TryEvent.LOSE, TryEvent.SUFFICE), ("error",))


def _tries(ends: Sequence[Try]) -> st.SearchStrategy[Try]:
    return st.builds(
        lambda before, end: (TryEvent.SUBMIT, *before, *end), st.sampled_from(BEFORE),
        st.sampled_from(ends),
    )  # fmt: skip


FAILED = _tries(((TryEvent.REJECT,), (TryEvent.LOSE,)))
SCRIPTS = st.tuples(st.lists(FAILED, max_size=6), st.none() | _tries(ENDS))


def _is_proven(tried: Try) -> bool:
    return TryEvent.LAST in tried


async def _run(script: Sequence[Try], last: str) -> tuple[ScriptedPlaces, ScriptedTries, object]:
    places = ScriptedPlaces(len(script), last)
    tries = ScriptedTries(scripted_services(places), script)
    try:
        return places, tries, await tries.run()
    except ApiError as error:
        return places, tries, error


@settings(max_examples=max(200, settings().max_examples), deadline=None)
@given(script=SCRIPTS, last=st.sampled_from((PROVIDERS, REFUSED)))
async def test_any_script_of_tries(script: tuple[list[Try], Try | None], last: str) -> None:
    """A lost place is given back and another one is asked for, a busy one keeps its ticket; at the
    end nothing is held, and only a whole answer has proven its worker.
    """
    failed, end = script
    whole = [*failed, *([] if end is None else [end])]
    places, tries, result = await _run(whole, last)
    assert places.num_placed == len(whole)
    lost = [tried for tried in whole if TryEvent.LOSE in tried and TryEvent.SUFFICE not in tried]
    busy = [tried for tried in whole if TryEvent.REJECT in tried]
    assert len(places.asked) == 1 + len(lost)
    assert len(places.busy) == len(busy)
    assert {reason for _, reason in places.busy} <= {"busy"}
    # Every ticket that was asked for is released, once, before the next one is.
    assert [ticket for ticket, *_ in places.released] == [one.ticket for one in places.asked]
    assert not places.held
    assert [proven for *_, proven in places.released][:-1] == [False] * len(lost)
    assert places.released[-1][2] == (end is not None and _is_proven(end))
    assert tries.state is TryState.ENDED
    if end is None:
        assert isinstance(result, ApiError) == (last == REFUSED)
        assert result is not None
    elif "error" in end:
        assert isinstance(result, ApiError)
    else:
        assert result is None


@settings(max_examples=max(100, settings().max_examples), deadline=None)
@given(failed=st.lists(FAILED, min_size=1, max_size=6))
async def test_a_place_that_was_lost_is_asked_last(failed: list[Try]) -> None:
    """A place that was lost is asked last, and a worker that was busy is not excluded."""
    places, tries, _ = await _run(failed, PROVIDERS)
    excluded = [frozenset[bytes]()]
    for number, tried in enumerate(failed):
        if TryEvent.LOSE in tried:
            excluded.append(frozenset({bytes([number % NUM_WORKERS])}))
    assert [one.excluded for one in places.asked] == excluded
    counters = tries._services.counters
    assert counters.sequences_resumed == len(excluded) - 1
    assert counters.busy_requeued == len(failed) + 1 - len(excluded)
    tickets = [one.ticket for one in places.asked]
    assert all(before < after for before, after in pairwise(tickets))
    ends = [step.end for step in tries._trace.attempts]
    assert ends[-1] == ("busy" if TryEvent.REJECT in failed[-1] else "it is out of reach")


@settings(max_examples=max(100, settings().max_examples), deadline=None)
@given(
    ends=st.lists(
        st.sampled_from((TryEvent.DISTRUST, TryEvent.LOSE, TryEvent.REJECT)), min_size=1, max_size=6
    )
)
async def test_a_worker_that_broke_the_protocol_is_not_tried_again(ends: list[TryEvent]) -> None:
    """It is asked last behind every later loss, too. If it is the one that is left, the request
    ends.
    """
    places, tries, result = await _run([(TryEvent.SUBMIT, end) for end in ends], PROVIDERS)
    distrusted, excluded = frozenset[bytes](), [frozenset[bytes]()]
    num_tried = 0
    for number, end in enumerate(ends):
        worker = frozenset({bytes([number % NUM_WORKERS])})
        if worker <= distrusted:
            break
        num_tried += 1
        if end is TryEvent.DISTRUST:
            distrusted |= worker
        if end is not TryEvent.REJECT:
            excluded.append(distrusted | worker)
    assert [one.excluded for one in places.asked] == excluded
    assert len(tries.tried) == num_tried
    assert not places.held
    if num_tried < len(ends):
        assert isinstance(result, ApiError)
        assert result.message == "upstream connection lost"
    else:
        assert not isinstance(result, ApiError)


@pytest.mark.parametrize("cloud", [True, False])
async def test_whether_providers_may_answer_is_said_with_each_place(cloud: bool) -> None:
    """Behind a loss as well."""
    places = ScriptedPlaces(1, PROVIDERS)
    tries = ScriptedTries(scripted_services(places), [(TryEvent.SUBMIT, TryEvent.LOSE)])
    await tries.run(cloud=cloud)
    assert [one.cloud for one in places.asked] == [cloud, cloud]


@pytest.mark.parametrize("before", BEFORE)
async def test_losses_without_progress_end_the_request(before: Try) -> None:
    """The eighth loss in a row without progress ends the request. The loss of a proven place is no
    such loss, and what has come is passed on.
    """
    script = [(TryEvent.SUBMIT, *before, TryEvent.LOSE)] * MAX_FRUITLESS_LOSSES
    places, tries, result = await _run(script, PROVIDERS)
    is_proven = TryEvent.PROOF in before
    assert isinstance(result, ApiError) == (not is_proven)
    assert len(tries.tried) == MAX_FRUITLESS_LOSSES - (not is_proven)
    tokens = [len(before) * number for number in range(1, MAX_FRUITLESS_LOSSES + 1)]
    released = [tokens for _, tokens, _ in places.released]
    assert released == (tokens + tokens[-1:] if is_proven else tokens)
