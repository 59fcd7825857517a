"""A worker that refuses because other gateways fill it: when it is tried again, with how much."""

from gateway.routing.fleet_state import FULL_AT_MOST_S, FleetState
from tests.fakes.fleet import W1, dispatch, facts, load, placed, request

MAX_SEQS = 4


def refused(num_there: int) -> FleetState:
    """A gateway whose tickets 1 to `num_there` are on its worker, which had no room for the others
    up to 4; 5 and 6 have come since.
    """
    fleet = dispatch((W1, facts(max_seqs=MAX_SEQS)))
    for ticket in range(1, MAX_SEQS + 1):
        assert placed(fleet.tickets.ask(request(ticket), 0.0)) == {ticket: W1}
    for ticket in range(num_there + 1, MAX_SEQS + 1):
        assert fleet.tickets.busy(ticket, 0.1) == ()
    for ticket in (5, 6):
        assert fleet.tickets.ask(request(ticket), 0.2) == ()
    return fleet


def test_a_first_token_lets_one_more_try() -> None:
    """Where that one waited, at the worker, another of ours may wait."""
    fleet = refused(2)
    assert placed(fleet.tickets.started(1, 0.3)) == {3: W1}
    assert fleet.tickets.started(1, 0.4) == ()
    assert placed(fleet.tickets.started(2, 0.5)) == {4: W1}


def test_an_end_lets_one_more_try() -> None:
    """The place may be another gateway's by now: the others of ours are not sent in vain."""
    fleet = refused(2)
    assert placed(fleet.tickets.release(1, 0.3)) == {3: W1}
    assert fleet.tickets.busy(3, 0.4) == ()
    assert placed(fleet.tickets.release(2, 0.5)) == {3: W1}  # it has kept its turn


def test_a_load_lets_one_more_try_while_it_shows_no_place() -> None:
    """A `Load` without a free place lets one more request try; a `Load` with free places lets all
    try, up to our own cap.
    """
    fleet = refused(1)
    full = load(running=MAX_SEQS, waiting=2)
    assert placed(fleet.heard(W1, full, 0.3)) == {2: W1}
    assert placed(fleet.heard(W1, full, 0.4)) == {3: W1}
    assert fleet.tickets.busy(3, 0.5) == ()
    assert list(placed(fleet.heard(W1, load(running=MAX_SEQS - 1), 0.6))) == [3, 4]


def test_a_newcomer_may_be_the_one() -> None:
    """The one request that may try can be a newcomer: it does not wait, and those after it do."""
    fleet = refused(2)
    for ticket in (3, 4, 5, 6):
        assert fleet.tickets.release(ticket, 0.3) == ()
    assert fleet.tickets.started(1, 0.4) == ()
    assert placed(fleet.tickets.ask(request(7), 0.5)) == {7: W1}
    assert fleet.tickets.ask(request(8), 0.6) == ()


def test_without_news_all_are_tried_after_a_while() -> None:
    """What is not heard of keeps nobody out for ever."""
    fleet = refused(1)
    assert fleet.tick(FULL_AT_MOST_S) == ()
    assert list(placed(fleet.tick(0.1 + FULL_AT_MOST_S))) == [2, 3, 4]
