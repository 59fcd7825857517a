"""A prefix that is being computed: others wait for it while that is cheaper than computing it."""

from gateway.routing.fleet_state import FleetState
from tests.fakes.fleet import W1, W2, chain, dispatch, facts, load, placed, request

DOCUMENT = ("a document of 64,000 tokens", 2000)
PREFILL_S = 6.4


def reading() -> FleetState:
    """Two workers of 10k tokens/s; W1 begins to read the document at 0."""
    fleet = dispatch((W1, facts()), (W2, facts()))
    for worker_id in (W1, W2):
        fleet.heard(worker_id, load(rate=10_000.0), 0.0)
    first = request(1, chain(DOCUMENT, ("question 1", 2)), prefer=W1)
    assert placed(fleet.tickets.ask(first, 0.0)) == {1: W1}
    return fleet


def test_a_second_question_waits_for_the_document() -> None:
    """4.4 s until it is there against 6.4 s on the idle worker. It waits in the queue, where it
    can still be moved, until the worker is nearly done.
    """
    fleet = reading()
    question = request(2, chain(DOCUMENT, ("question 2", 2)))
    assert fleet.tickets.ask(question, 2.0) == ()
    assert placed(fleet.tickets.started(1, PREFILL_S)) == {2: W1}


def test_others_use_the_idle_worker_meanwhile() -> None:
    fleet = reading()
    fleet.tickets.ask(request(2, chain(DOCUMENT, ("question 2", 2))), 2.0)
    other = request(3, chain(("another document", 1000)))
    assert placed(fleet.tickets.ask(other, 2.1)) == {3: W2}


def test_the_wait_for_a_document_that_has_just_begun_buys_nothing() -> None:
    """The idle worker takes as long, and later questions have two workers to choose from."""
    fleet = reading()
    question = request(2, chain(DOCUMENT, ("question 2", 2)))
    assert placed(fleet.tickets.ask(question, 0.1)) == {2: W2}


def test_a_whole_fanout_computes_the_document_once() -> None:
    """Eight questions within a second; the idle worker gets none of them."""
    fleet = reading()
    at = 1.5
    for ticket in range(2, 10):
        assert fleet.tickets.ask(request(ticket, chain(DOCUMENT, (f"q{ticket}", 2))), at) == ()
        at += 0.1
    assert set(placed(fleet.tickets.started(1, PREFILL_S)).values()) == {W1}
    assert not any(worker.running for worker in fleet.workers() if worker.worker_id == W2)
