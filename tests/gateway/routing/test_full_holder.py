"""A worker that holds a prompt and has no room: the prompt waits for it while that is cheaper."""

import pytest

from gateway.routing.fleet_state import FleetState
from protocol.ids import BlockDigest
from tests.fakes.fleet import W1, W2, chain, dispatch, facts, load, placed, request, stored

MAX_SEQS = 2
RATE = 10_000.0
LONG = chain(("a document of 64,000 tokens", 2000))
WARM = chain(("what W1 is working on", 500))
OTHER = chain(("another", 2000))


def full_holder(*held: tuple[BlockDigest, ...]) -> FleetState:
    """Tickets 1 and 2 have all places of W1, which holds the prompts `held`; W2 is empty. Answers
    take a second each.
    """
    fleet = dispatch((W1, facts(max_seqs=MAX_SEQS)), (W2, facts(max_seqs=MAX_SEQS)))
    for worker_id in (W1, W2):
        fleet.heard(worker_id, load(rate=RATE), 0.0)
    for ticket in (101, 102, 103):
        for place in placed(fleet.tickets.ask(request(ticket), 0.0)):
            fleet.tickets.started(place, 0.1)
            fleet.tickets.release(place, 1.0, output_tokens=50)
    for number, digests in enumerate((WARM, *held), start=1):
        fleet.heard(W1, stored(number, digests), 1.0)
    for ticket in (1, 2):
        assert placed(fleet.tickets.ask(request(ticket, WARM), 1.0)) == {ticket: W1}
        fleet.tickets.started(ticket, 1.1)
    return fleet


def test_a_cached_prompt_waits_for_its_worker() -> None:
    """6.4 s to compute it again on W2, a place on W1 within a second."""
    fleet = full_holder(LONG)
    assert fleet.tickets.ask(request(3, LONG), 1.2) == ()
    assert placed(fleet.tickets.release(1, 1.5, output_tokens=50)) == {3: W1}


def test_a_prompt_that_no_worker_holds_takes_the_free_place() -> None:
    fleet = full_holder(LONG)
    assert placed(fleet.tickets.ask(request(3, OTHER), 1.2)) == {3: W2}


def test_others_pass_a_prompt_that_waits_for_its_worker() -> None:
    """A prompt that waits for its full worker reserves that worker alone, so others pass it to the
    free one.
    """
    fleet = full_holder(LONG)
    assert fleet.tickets.ask(request(3, LONG), 1.2) == ()
    assert placed(fleet.tickets.ask(request(4, OTHER), 1.3)) == {4: W2}
    assert placed(fleet.tickets.release(1, 1.5, output_tokens=50)) == {3: W1}


def test_a_second_prompt_of_that_worker_waits_behind_it() -> None:
    """The first one's turn at the full worker is no reason to compute the second elsewhere."""
    fleet = full_holder(LONG, OTHER)
    assert fleet.tickets.ask(request(3, LONG), 1.2) == ()
    assert fleet.tickets.ask(request(4, OTHER), 1.2) == ()
    assert placed(fleet.tickets.release(1, 1.5, output_tokens=50)) == {3: W1}
    assert placed(fleet.tickets.release(2, 1.6, output_tokens=50)) == {4: W1}


@pytest.mark.parametrize("num_cached", [0, 10])
def test_a_short_wait_is_not_worth_a_few_blocks(num_cached: int) -> None:
    """A short wait is not worth a few blocks: to compute 320 tokens takes 32 ms, less than the next
    end on W1.
    """
    fleet = full_holder(LONG)
    short = LONG[:num_cached]
    assert placed(fleet.tickets.ask(request(3, short), 1.2)) == {3: W2}
