"""Asking for a place: rooms, queues, fairness, fallback, deadlines."""

import pytest

from gateway.routing.effects import Assign, Moved, Notice, Probe, Refuse, UseProvider
from gateway.routing.fleet_state import FleetState
from gateway.telemetry.fleet_events import FallbackOff, FallbackOn
from protocol.messages import Bye, Fault, Progress
from tests.fakes.fleet import (
    CLOUD,
    W1,
    W2,
    chain,
    dispatch,
    facts,
    hello,
    load,
    only,
    placed,
    request,
    stored,
)


def test_a_free_worker_takes_the_ticket_at_once() -> None:
    """One effect: the place, what is cached there and why."""
    fleet = dispatch((W1, facts()))
    (assign,) = fleet.tickets.ask(request(1, chain(("a", 4))), 0.0)
    assert isinstance(assign, Assign)
    assert (assign.ticket, assign.worker_id, assign.cached_tokens) == (1, W1, 0)
    assert assign.reason.isascii()
    assert assign.reason.isprintable()


def test_the_reported_blocks_decide() -> None:
    """The ticket goes where the engine's events say that its prompt is."""
    fleet, prompt = dispatch((W1, facts()), (W2, facts())), chain(("a", 40))
    fleet.heard(W2, stored(1, prompt), 0.0)
    assign = only(fleet.tickets.ask(request(1, prompt), 0.0), Assign)
    assert (assign.worker_id, assign.cached_tokens) == (W2, 40 * 32)


def test_an_unknown_model_is_a_404() -> None:
    """Aliases are known, other names are refused."""
    fleet = dispatch((W1, facts()))
    assert only(fleet.tickets.ask(request(1, model="other"), 0.0), Refuse).error.status == 404
    assert placed(fleet.tickets.ask(request(2, model="alias"), 0.0)) == {2: W1}


def test_a_ticket_asks_once() -> None:
    """Using a ticket twice is a mistake of the caller."""
    fleet = dispatch((W1, facts()))
    fleet.tickets.ask(request(1), 0.0)
    with pytest.raises(ValueError, match="asks twice"):
        fleet.tickets.ask(request(1), 0.0)


def test_over_the_cap_requests_wait_and_follow() -> None:
    """A release gives the place to the next one, in the same call."""
    fleet = dispatch((W1, facts(max_seqs=1)))
    assert placed(fleet.tickets.ask(request(1), 0.0)) == {1: W1}
    assert fleet.tickets.ask(request(2), 0.0) == ()
    assert fleet.statistics().queued == 1
    assert placed(fleet.tickets.release(1, 1.0)) == {2: W1}
    assert fleet.tickets.release(1, 1.0) == ()


def test_a_waiting_ticket_may_leave() -> None:
    """A client that goes away while it waits leaves no trace."""
    fleet = dispatch((W1, facts(max_seqs=1)))
    fleet.tickets.ask(request(1), 0.0)
    fleet.tickets.ask(request(2), 0.0)
    assert fleet.tickets.release(2, 0.5) == ()
    assert fleet.tickets.release(1, 1.0) == ()
    assert fleet.statistics().running == fleet.statistics().queued == 0


def test_auxiliary_requests_go_first_and_use_one_place_more() -> None:
    """A title call does not wait behind a long answer; a second one does."""
    fleet = dispatch((W1, facts(max_seqs=1)))
    fleet.tickets.ask(request(1), 0.0)
    fleet.tickets.ask(request(2), 0.0)
    assert placed(fleet.tickets.ask(request(3, auxiliary=True), 0.0)) == {3: W1}
    assert fleet.tickets.ask(request(4, auxiliary=True), 0.0) == ()
    assert placed(fleet.tickets.release(3, 1.0)) == {4: W1}
    assert fleet.tickets.release(4, 1.0) == ()
    assert placed(fleet.tickets.release(1, 1.0)) == {2: W1}


def test_keys_take_turns_however_many_requests_they_send() -> None:
    """A key with six waiting requests does not keep a key with two from its half."""
    fleet = dispatch((W1, facts(max_seqs=1)))
    fleet.tickets.ask(request(1, key="many"), 0.0)
    for ticket in range(2, 8):
        fleet.tickets.ask(request(ticket, key="many", session=f"agent {ticket}"), 0.0)
    for ticket in (8, 9):
        fleet.tickets.ask(request(ticket, key="few"), 0.0)
    order, running = [], 1
    while following := placed(fleet.tickets.release(running, 1.0)):
        (running,) = following
        order.append(running)
    assert order.index(8) == 0
    assert order.index(9) <= 3
    assert sorted(order) == list(range(2, 10))


def test_sessions_of_one_key_take_turns() -> None:
    """Within a key a conversation that was served more waits longer."""
    fleet = dispatch((W1, facts(max_seqs=1)))
    fleet.tickets.ask(request(1, session="greedy"), 0.0)
    fleet.tickets.ask(request(2, session="modest"), 0.0)
    assert placed(fleet.tickets.release(1, 1.0, output_tokens=500)) == {2: W1}
    fleet.tickets.ask(request(3, session="greedy"), 1.0)
    fleet.tickets.ask(request(4, session="modest"), 1.0)
    assert placed(fleet.tickets.release(2, 2.0, output_tokens=10)) == {4: W1}


def test_a_large_prompt_is_not_starved_by_small_ones() -> None:
    """Small ones pass it for a while; then who does not fit keeps the room that it waits for."""
    fleet = dispatch((W1, facts(kv_tokens=1000)), max_queue=100)
    fleet.tickets.ask(request(1, tail=500), 0.0)
    assert fleet.tickets.ask(request(2, tail=800), 0.0) == ()
    running, num_passed = [1], 0
    for ticket in range(3, 40):
        running += placed(fleet.tickets.ask(request(ticket, tail=10), float(ticket)))
        running += placed(fleet.tickets.release(running.pop(0), float(ticket)))
        num_passed += 2 not in running
        if 2 in running or not running:
            break
    assert 2 in running
    assert 1 <= num_passed < 20


def test_a_full_queue_is_a_429_with_whole_seconds() -> None:
    """The newcomer is told when to come again; nobody else is touched."""
    fleet = dispatch((W1, facts(max_seqs=1)), max_queue=2)
    for ticket in (1, 2, 3):
        fleet.tickets.ask(request(ticket), 0.0)
    error = only(fleet.tickets.ask(request(4), 0.0), Refuse).error
    assert error.status == 429
    assert isinstance(error.retry_after_s, int)
    assert error.retry_after_s == 15  # three ahead of it or itself, one place, 5 s each
    assert fleet.statistics().queued == 2


def test_a_full_queue_spills_to_the_providers_that_are_allowed() -> None:
    """The model's chain is used in order; a key that may not use the cloud gets the 429."""
    fleet = dispatch((W1, facts(max_seqs=1)), fallback=CLOUD, max_queue=1)
    fleet.tickets.ask(request(1), 0.0)
    fleet.tickets.ask(request(2), 0.0)
    assert only(fleet.tickets.ask(request(3), 0.0), UseProvider).chain == CLOUD
    assert only(fleet.tickets.ask(request(4, cloud=False), 0.0), Refuse).error.status == 429
    assert fleet.tickets.ask(request(5, resumed=True), 0.0) == ()


def test_a_deadline_ends_the_wait() -> None:
    """A late ticket is spilled if it may be, else refused; others stay."""
    fleet = dispatch((W1, facts(max_seqs=1)), fallback=CLOUD)
    fleet.tickets.ask(request(1), 0.0)
    fleet.tickets.ask(request(2, deadline_at=1.0), 0.0)
    fleet.tickets.ask(request(3, deadline_at=1.0, cloud=False), 0.0)
    fleet.tickets.ask(request(4), 0.0)
    assert fleet.tick(0.9) == ()
    effects = fleet.tick(1.0)
    assert only(effects, UseProvider).ticket == 2
    assert only(effects, Refuse).error.status == 429
    assert fleet.statistics().queued == 1


def test_without_workers_the_chain_serves_and_is_announced_once() -> None:
    """Falling back is told once, coming back once."""
    fleet = dispatch(fallback=CLOUD)
    first = fleet.tickets.ask(request(1), 0.0)
    assert isinstance(only(first, Notice).event, FallbackOn)
    assert only(first, UseProvider).chain == CLOUD
    assert [type(effect) for effect in fleet.tickets.ask(request(2), 0.0)] == [UseProvider]
    probe = only(fleet.register(W1, hello("w1", facts()), 1.0), Probe)
    assert [type(effect) for effect in fleet.tickets.ask(request(3), 1.0)] == [UseProvider]
    assert placed(fleet.tickets.ask(request(4, cloud=False), 1.0)) == {4: W1}
    for _ in range(2):
        probe = only(fleet.probe_ended("m", probe.serial, "passed", "", "", 1.1), Probe)
    effects = fleet.probe_ended("m", probe.serial, "passed", "", "", 1.2)
    assert [e.event for e in effects if isinstance(e, Notice)] == [FallbackOff("m", 3)]
    assert placed(fleet.tickets.ask(request(5), 1.2)) == {5: W1}


def test_the_fleet_rests_without_tickets_and_due_probes() -> None:
    """Without tickets and due probes the fleet rests, whether it has free places or not."""
    fleet = dispatch((W1, facts(max_seqs=1)), fallback=CLOUD)
    assert fleet.is_at_rest
    fleet.tickets.ask(request(1), 0.0)
    assert not fleet.is_at_rest
    fleet.tickets.release(1, 0.1)
    assert fleet.is_at_rest
    fleet.lost(W1, 0.2)
    fleet.tickets.ask(request(2, resumed=True), 0.3)
    assert fleet.statistics().queued == 1
    assert not fleet.is_at_rest
    fleet.tickets.release(2, 0.4)
    assert fleet.is_at_rest
    fleet.tickets.ask(request(3), 0.5)
    assert not fleet.is_at_rest


def test_nothing_serves_and_nothing_starts_is_a_503_at_once() -> None:
    """If nothing serves and nothing starts, the answer is a 503 at once, with Retry-After in whole
    seconds.
    """
    error = only(dispatch().tickets.ask(request(1), 0.0), Refuse).error
    assert (error.status, error.retry_after_s) == (503, 10)


def test_a_starting_worker_is_waited_for() -> None:
    """The request is held and served when the engine is ready."""
    fleet = dispatch()
    fleet.register(W1, hello("w1"), 0.0)
    assert fleet.tickets.ask(request(1), 0.0) == ()
    assert placed(fleet.register(W1, hello("w1", facts()), 60.0)) == {1: W1}


def test_an_engine_that_is_not_there_is_named_at_once() -> None:
    """A wrong port is no start to wait for; an engine that was there before is."""
    fleet = dispatch()
    fleet.register(W1, hello("w1"), 0.0)
    fleet.heard(W1, Progress(epoch=1, phase="attach", fraction=0.0), 0.1)
    error = only(fleet.tickets.ask(request(1), 1.0), Refuse).error
    assert (error.status, error.retry_after_s) == (503, 10)
    assert "No engine answers at the address of w1" in error.message
    fleet.heard(W1, Progress(epoch=1, phase="health probe", fraction=0.0), 2.0)
    assert fleet.tickets.ask(request(2), 2.0) == ()


def test_waiting_for_a_start_ends_after_the_patience() -> None:
    """After `resume_wait_s` a 503 says how far the start is and when to come again."""
    fleet = dispatch(resume_wait_s=30.0)
    fleet.register(W1, hello("w1"), 0.0)
    fleet.heard(W1, Progress(epoch=1, phase="weights", fraction=0.5), 1.0)
    fleet.tickets.ask(request(1), 10.0)
    assert fleet.tick(39.9) == ()
    error = only(fleet.tick(40.0), Refuse).error
    assert (error.status, error.retry_after_s) == (503, 40)
    assert "w1: weights 50%" in error.message
    assert fleet.statistics().queued == 0


def test_a_resumed_answer_waits_for_a_worker_and_never_goes_to_a_provider() -> None:
    """A resumed answer whose text was sent waits for a worker, since no provider can continue it;
    then it is cut with the text that makes clients retry.
    """
    fleet = dispatch(fallback=CLOUD, resume_wait_s=30.0)
    assert fleet.tickets.ask(request(1, resumed=True), 0.0) == ()
    assert fleet.tick(29.9) == ()
    assert only(fleet.tick(30.0), Refuse).error.message == "upstream connection lost"


def test_a_busy_answer_is_load_not_failure() -> None:
    """The ticket goes back to the front; the worker is full until it reports or frees a place."""
    fleet = dispatch((W1, facts(max_seqs=3)))
    fleet.tickets.ask(request(1), 0.0)
    fleet.tickets.ask(request(2), 0.0)
    assert fleet.tickets.busy(2, 0.1) == ()
    assert fleet.tickets.ask(request(3), 0.2) == ()
    assert list(placed(fleet.heard(W1, load(), 0.3))) == [2, 3]


def test_a_busy_worker_is_not_asked_while_another_has_room() -> None:
    """The ticket moves on at once."""
    fleet = dispatch((W1, facts()), (W2, facts()))
    (first,) = placed(fleet.tickets.ask(request(1), 0.0)).values()
    (second,) = placed(fleet.tickets.busy(1, 0.1)).values()
    assert {first, second} == {W1, W2}


def test_a_full_mark_ends_with_time_at_the_latest() -> None:
    """A `Load` that does not come does not keep a worker out for ever."""
    fleet = dispatch((W1, facts()))
    fleet.tickets.ask(request(1), 0.0)
    assert fleet.tickets.busy(1, 0.0) == ()
    assert fleet.tick(0.9) == ()
    assert placed(fleet.tick(1.0)) == {1: W1}


def test_a_draining_worker_gets_nothing_more() -> None:
    """Draining ends with a new registration only."""
    fleet = dispatch((W1, facts()), (W2, facts()))
    fleet.tickets.ask(request(1, prefer=W1), 0.0)
    assert placed(fleet.tickets.busy(1, 0.0, "draining")) == {1: W2}
    fleet.heard(W1, load(), 0.1)
    assert placed(fleet.tickets.ask(request(2, prefer=W1), 0.2)) == {2: W2}


def test_excluded_workers_are_the_last_resort() -> None:
    """A worker that failed a request is avoided while another is ready."""
    fleet = dispatch((W1, facts()), (W2, facts()))
    excluded = frozenset({W1})
    assert placed(fleet.tickets.ask(request(1, prefer=W1, excluded=excluded), 0.0)) == {1: W2}
    fleet.lost(W2, 1.0)
    assert placed(fleet.tickets.ask(request(2, excluded=excluded), 1.0)) == {2: W1}


def test_a_lost_worker_moves_its_tickets_to_another() -> None:
    """The places of a lost worker are free before its turns ask again, with the same tickets or new
    ones.
    """
    fleet = dispatch((W1, facts()), (W2, facts()))
    fleet.tickets.ask(request(1, prefer=W1), 0.0)
    moved = only(fleet.lost(W1, 1.0), Moved)
    assert (moved.tickets, moved.worker_id) == ((1,), W1)
    assert fleet.tickets.release(1, 1.0) == ()
    assert placed(fleet.tickets.ask(request(1, resumed=True), 1.0)) == {1: W2}


def test_measured_outputs_shape_reservations_and_retry_after() -> None:
    """What past answers were is what the next ones are expected to be."""
    fleet = FleetState((), max_queue=0, resume_wait_s=1.0)
    fleet.register(W1, hello("w1", facts(max_seqs=1)), 0.0)
    for ticket in range(20):
        fleet.tickets.ask(request(ticket, max_tokens=5000), float(ticket))
        fleet.tickets.release(ticket, ticket + 0.5, output_tokens=40)
    fleet.tickets.ask(request(30, max_tokens=5000), 30.0)
    (view,) = fleet.workers()
    assert view.kv_reserved_tokens < 300
    error = only(fleet.tickets.ask(request(31), 30.0), Refuse).error
    assert error.retry_after_s == 1


def away(*, epoch: int = 2, rejoin_s: float = 15.0) -> FleetState:
    """A fleet whose only engine, an attached one, answers no more since 100.0."""
    fleet = dispatch((W1, facts()), rejoin_s=rejoin_s)
    fleet.heard(W1, Fault("w1", 1, "the connection was refused", None), 100.0)
    fleet.register(W1, hello("w1", epoch=epoch), 100.0)
    fleet.heard(W1, Progress(epoch=epoch, phase="attach", fraction=0.0), 100.0)
    return fleet


def test_an_attached_engine_that_has_gone_is_waited_for_as_for_a_lost_link() -> None:
    """A gone attached engine is waited for as for a lost link, because it may be restarting; one
    that stays away is not waited for.
    """
    fleet = away()
    assert fleet.tickets.ask(request(1), 101.0) == ()
    fleet.tickets.ask(request(2, resumed=True), 101.0)
    assert fleet.tick(114.9) == ()
    assert fleet.models()[0].state == "starting"
    refused = only(fleet.tick(115.0), Refuse)
    assert (refused.ticket, refused.error.status) == (1, 503)
    assert "No engine answers at the address of w1" in refused.error.message
    assert fleet.models()[0].state == "down"
    assert only(fleet.tickets.ask(request(3), 190.0), Refuse).error.status == 503


def test_an_attached_engine_that_is_back_is_a_start_again() -> None:
    """An attached engine that is back is a start again, from its first sign of life, and a later
    absence counts anew.
    """
    fleet = away()
    fleet.tick(190.0)
    assert fleet.models()[0].state == "down"
    fleet.heard(W1, Progress(epoch=2, phase="health probe", fraction=0.0), 191.0)
    assert fleet.models()[0].state == "starting"
    assert fleet.tickets.ask(request(1), 191.0) == ()
    assert placed(fleet.register(W1, hello("w1", facts(), epoch=2), 192.0)) == {1: W1}


def test_of_two_workers_the_one_that_starts_is_waited_for() -> None:
    """The other's attached engine is away; if the first gives up, nobody is coming."""
    fleet = away()
    fleet.register(W2, hello("w2"), 150.0)
    fleet.tick(190.0)
    assert fleet.models()[0].state == "starting"
    assert fleet.tickets.ask(request(1), 190.0) == ()
    gives_up = Fault("w2", 1, "stopped after 5 starts", 1, is_final=True)
    assert only(fleet.heard(W2, gives_up, 191.0), Refuse).error.status == 503


@pytest.mark.parametrize("is_away", [False, True])
def test_a_gateway_that_stops_says_so_to_those_that_wait(is_away: bool) -> None:
    """A gateway that stops says so to requests that wait, and not that no worker is starting."""
    fleet = away() if is_away else dispatch((W1, facts()))
    fleet.register(W1, hello("w1"), 102.0)
    fleet.tickets.ask(request(1), 102.0)
    fleet.tickets.ask(request(2, resumed=True), 102.0)
    fleet.stop()
    effects = fleet.heard(W1, Bye("stopping"), 103.0)
    errors = {one.ticket: one.error for one in effects if isinstance(one, Refuse)}
    assert errors[1].status == 503
    assert errors[1].message == "The gateway is stopping."
