"""For whom answers that have begun go on waiting when a worker has given up."""

import pytest

from gateway.routing.effects import Refuse
from gateway.routing.fleet_state import FleetState
from protocol.messages import Bye, Fault
from tests.fakes.fleet import W1, W2, W3, dispatch, facts, hello, only, placed, request

PATIENCE_S = 20.0


def gives_up(number: int, epoch: int = 1) -> Fault:
    """The worker `w1`, `w2` ... starts no more."""
    return Fault(f"w{number}", epoch, "stopped after 5 starts", 1, is_final=True)


def two_workers() -> FleetState:
    """Two workers of one model."""
    return dispatch((W1, facts()), (W2, facts()), resume_wait_s=PATIENCE_S)


def test_another_one_that_starts_is_waited_for() -> None:
    """Another worker that starts is waited for, until it gives up too."""
    fleet = two_workers()
    fleet.heard(W2, Fault("w2", 1, "killed", 137), 0.0)
    assert fleet.heard(W1, gives_up(1), 1.0)
    assert fleet.tickets.ask(request(1, resumed=True), 1.0) == ()
    assert only(fleet.heard(W2, gives_up(2), 2.0), Refuse).error.code == "upstream_connection_lost"


def test_another_one_that_is_replaced_is_waited_for() -> None:
    """Another worker whose engine is being replaced is waited for: it takes nothing while it
    drains, and its next engine does.
    """
    fleet = two_workers()
    fleet.tickets.ask(request(1, prefer=W2), 0.0)
    fleet.tickets.busy(1, 0.0, "draining")
    fleet.heard(W1, gives_up(1), 1.0)
    fleet.tickets.ask(request(2, resumed=True), 1.0)
    assert fleet.tick(2.0) == ()
    assert 2 in placed(fleet.register(W2, hello("w2", facts(), epoch=2), 3.0))


@pytest.mark.parametrize("says_bye", [False, True])
def test_another_one_that_has_vanished_may_dial_in_again(says_bye: bool) -> None:
    """Another worker that has vanished may dial in again, as where none has given up: it is waited
    for during the whole patience, and no longer.
    """
    fleet = two_workers()
    for number, now in ((1, 0.0), (2, 100.0)):
        if says_bye:
            fleet.heard(W2, Bye("its host restarts"), now)
        else:
            fleet.lost(W2, now)
        fleet.heard(W1, gives_up(1), now + 5.0)
        assert fleet.tickets.ask(request(number, resumed=True), now + 5.0) == ()
        assert fleet.tick(now + PATIENCE_S - 0.1) == ()
        if number == 1:
            back = fleet.register(W2, hello("w2", facts()), now + PATIENCE_S)
            assert placed(back) == {1: W2}
            fleet.tickets.release(1, now + PATIENCE_S)
    assert only(fleet.tick(100.0 + PATIENCE_S), Refuse).ticket == 2


def test_one_that_is_back_and_gives_up_is_waited_for_no_more() -> None:
    """A worker that is back and gives up is waited for no more, nor is one that left after it gave
    up; workers of other models do not count.
    """
    fleet = two_workers()
    fleet.lost(W2, 0.0)
    fleet.register(W3, hello("w3", facts(files=b"g" * 16), models=("n",)), 0.0)
    fleet.lost(W3, 0.5)
    fleet.register(W2, hello("w2"), 1.0)
    fleet.heard(W2, gives_up(2), 1.0)
    fleet.lost(W2, 2.0)
    fleet.heard(W1, gives_up(1), 3.0)
    assert only(fleet.tickets.ask(request(1, resumed=True), 3.0), Refuse).ticket == 1


def test_without_workers_none_has_given_up() -> None:
    """Without workers none has given up: a worker of any name may come, so the patience stays the
    same.
    """
    fleet = dispatch((W1, facts()), resume_wait_s=PATIENCE_S)
    fleet.heard(W1, gives_up(1), 0.0)
    fleet.lost(W1, 0.0)
    assert fleet.tickets.ask(request(1, resumed=True), 0.0) == ()
    assert fleet.tick(PATIENCE_S - 0.1) == ()
    assert placed(fleet.register(W2, hello("new", facts()), PATIENCE_S)) == {1: W2}
