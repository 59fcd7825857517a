"""The order of waiting and the time to come again."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.routing.admission_queue import (
    AdmissionQueue,
    Waiting,
    retry_after_s,
    start_retry_after_s,
)
from gateway.routing.effects import RouteRequest
from gateway.routing.fair_shares import FairShares
from tests.fakes.fleet import request


def _room(*asked: tuple[RouteRequest, bool], charges: dict[str, float]) -> list[int]:
    room, shares = AdmissionQueue(), FairShares()
    for arrival, (each, first) in enumerate(asked):
        shares.enter(each.key, each.session or "")
        room.add(Waiting(each, each.session or "", arrival, first=first))
    for each, _ in asked:
        shares.charge(each.key, each.session or "", 1.0, charges.pop(each.key, 0.0))
    return [waiting.request.ticket for waiting in room.in_order(shares)]


def test_auxiliary_then_returned_then_fair_then_arrival() -> None:
    """Each rule decides only where the ones before it do not."""
    order = _room(
        (request(1, key="heavy"), False),
        (request(2, key="light"), False),
        (request(3, key="light"), False),
        (request(4, key="heavy"), True),
        (request(5, key="heavy", auxiliary=True), False),
        charges={"heavy": 1000.0},
    )
    assert order == [5, 4, 2, 3, 1]


def test_a_room_knows_its_tickets() -> None:
    """Tickets come and go by number."""
    room = AdmissionQueue()
    room.add(Waiting(request(1, auxiliary=True), "s", 0))
    assert 1 in room
    assert len(room) == 1
    assert room.any_auxiliary()
    assert room.get(1) is room.pop(1)
    assert 1 not in room
    assert not room.any_auxiliary()


_asked = st.tuples(
    st.booleans(),
    st.booleans(),
    st.sampled_from("abc"),
    st.sampled_from([0.0, 5.0, 7.0]),
    st.sampled_from([math.inf, 0.0, 300.0, 900.0, 1000.0, 1001.0]),
)


@given(
    asked=st.lists(_asked, max_size=20),
    leaving=st.sets(st.integers(0, 19)),
    served=st.dictionaries(st.sampled_from("abc"), st.sampled_from([0.0, 1000.0])),
)
def test_lines_are_in_the_order_of_the_rules(
    asked: list[tuple[bool, bool, str, float, float]], leaving: set[int], served: dict[str, float]
) -> None:
    """The queue has the order of the rules. Requests that come and go change nothing for the
    others; keys that tie are treated as one. A request that is overdue goes before one that is due.
    """
    room, shares, left = AdmissionQueue(), FairShares(), []
    for ticket, (auxiliary, first, key, due, overdue_at) in enumerate(asked):
        shares.enter(key, "s")
        each = request(ticket, key=key, auxiliary=auxiliary)
        room.add(Waiting(each, "s", ticket, due, first=first, overdue_at=overdue_at))
    for key in served.keys() & {key for _, _, key, _, _ in asked}:
        shares.charge(key, "s", 1.0, served[key])
    for ticket, (auxiliary, first, key, due, overdue_at) in enumerate(asked):
        if ticket in leaving:
            room.pop(ticket)
        elif first:
            left.append((not auxiliary, False, 0.0, False, 0.0, ticket))
        else:
            is_overdue = overdue_at <= shares.total(key)
            at = overdue_at if is_overdue else due
            left.append((not auxiliary, True, shares.served(key), not is_overdue, at, ticket))
    order = [waiting.request.ticket for waiting in room.in_order(shares)]
    assert order == [rank[-1] for rank in sorted(left)]
    assert room.any_auxiliary() == any(not rank[0] for rank in left)


@given(
    st.lists(
        st.tuples(st.integers(1, 100), st.integers(0, 900), st.booleans()), min_size=1, max_size=20
    ),
    st.integers(0, 300),
)
def test_what_is_expected_is_what_leaves(asked: list[tuple[int, int, bool]], begun: int) -> None:
    """With one key: charging the first of `in_order` again and again leads to the same order."""
    room, shares = AdmissionQueue(), FairShares()
    for ticket, (cost, overdue_at, first) in enumerate(asked):
        shares.enter("a", "s")
        due, late = float(cost), float(overdue_at)
        room.add(
            Waiting(request(ticket, key="a"), "s", ticket, due, first, cost=cost, overdue_at=late)
        )
    shares.charge("a", "s", 1.0, begun)
    expected = [one.request.ticket for one in room.expected_order(shares, lambda one: one.cost)]
    left: list[int] = []
    while len(room):
        waiting = room.in_order(shares)[0]
        left.append(room.pop(waiting.request.ticket).request.ticket)
        if not waiting.first:
            shares.charge("a", "s", 1.0, waiting.cost)
    assert left == expected


def test_the_work_of_a_key_is_what_waits() -> None:
    """Auxiliary requests are work too; another key's is not, and nor is what goes first."""
    room = AdmissionQueue()
    room.add(Waiting(request(1, key="a"), "s", 0, cost=5.0))
    room.add(Waiting(request(2, key="a", auxiliary=True), "s", 1, cost=7.0))
    room.add(Waiting(request(3, key="b"), "s", 2, cost=11.0))
    room.add(Waiting(request(4, key="a"), "s", 3, first=True, cost=13.0))
    assert (room.work("a"), room.work("b"), room.work("c")) == (12.0, 11.0, 0.0)
    room.pop(2)
    assert room.work("a") == 5.0


def test_keys_take_turns_in_what_is_expected() -> None:
    """Each that goes is charged 10: the key that was served less catches up, then they alternate,
    a key of twice the weight twice as often. `in_order` knows the present account only.
    """
    room, shares = AdmissionQueue(), FairShares()
    for ticket in range(8):
        key = "heavy" if ticket < 5 else "light"
        shares.enter(key, "s")
        weight = 2.0 if key == "heavy" else 1.0
        room.add(Waiting(request(ticket, key=key, weight=weight), "s", ticket))
    shares.charge("heavy", "s", 2.0, 24.0)
    order = room.expected_order(shares, lambda _: 10.0)
    assert [waiting.request.ticket for waiting in order] == [5, 6, 0, 1, 7, 2, 3, 4]
    assert [one.request.ticket for one in room.in_order(shares)] == [5, 6, 7, 0, 1, 2, 3, 4]


@pytest.mark.parametrize(
    ("wait_s", "expected"), [(0.0, 1), (1.0, 1), (4.2, 5), (61.0, 60), (math.inf, 60)]
)
def test_retry_after_is_in_whole_seconds(wait_s: float, expected: int) -> None:
    """Between 1 and 60."""
    assert retry_after_s(wait_s) == expected


@pytest.mark.parametrize(
    ("elapsed_s", "fraction", "expected"),
    [(3, 0.0, 5), (30, 0.75, 10), (600, 0.01, 60), (5, 1, 1), (5, 1e15, 1), (5, 5e-324, 60)],
)
def test_a_start_is_awaited_by_its_progress(
    elapsed_s: float, fraction: float, expected: int
) -> None:
    """The rest of a start takes as long in proportion as what is done."""
    assert start_retry_after_s(elapsed_s, fraction) == expected
