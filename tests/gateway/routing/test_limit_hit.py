"""A 429 names the limit that was hit and the setting that raises it; choices count one by one."""

import pytest

from gateway.routing.effects import Assign, Refuse
from tests.fakes.fleet import W1, W2, dispatch, facts, load, only, placed, request


def test_a_full_queue_names_both_settings() -> None:
    """What waits and what runs, of how many, and where each number stands."""
    fleet = dispatch((W1, facts(max_seqs=2)), max_queue=1)
    for ticket in (1, 2, 3):
        fleet.tickets.ask(request(ticket), 0.0)
    text = only(fleet.tickets.ask(request(9), 0.0), Refuse).error.message
    assert "The queue of m is full: 1 of 1 sequences wait (`max_queue` in [gateway])." in text
    assert "2 of 2 sequences run (`max_seqs` in [[workers]]" in text


def test_memory_is_named_where_it_is_the_limit() -> None:
    """Sequences could run, but all keys and values are promised."""
    fleet = dispatch((W1, facts(max_seqs=64, kv_tokens=1000)), max_queue=1)
    assert placed(fleet.tickets.ask(request(1, tail=900, max_tokens=90), 0.0))
    fleet.heard(W1, load(running=1, places=1), 0.0)
    fleet.tickets.ask(request(2, tail=900), 0.0)
    text = only(fleet.tickets.ask(request(9, tail=900), 0.0), Refuse).error.message
    assert "1 of 64 sequences run, with 990 of 1000 tokens of keys and values" in text
    assert "`kv_tokens` in [[workers]]" in text


@pytest.mark.parametrize("num_choices", [1, 2, 3])
def test_choices_count_as_sequences(num_choices: int) -> None:
    """Two more may wait: a request with three choices may not, though it is one request."""
    fleet = dispatch((W1, facts(max_seqs=1)), max_queue=2)
    fleet.tickets.ask(request(1), 0.0)
    effects = fleet.tickets.ask(request(2, num_sequences=num_choices), 0.0)
    assert bool(effects) == (num_choices == 3)
    if effects:
        assert "asks for 3 more (n = 3)" in only(effects, Refuse).error.message
        assert fleet.tickets.ask(request(3, num_sequences=2), 0.0) == ()
    else:
        only(fleet.tickets.ask(request(3, num_sequences=2), 0.0), Refuse)


def test_a_deadline_says_so() -> None:
    """A deadline says so, and not that a queue is full."""
    fleet = dispatch((W1, facts(max_seqs=1)))
    fleet.tickets.ask(request(1), 0.0)
    fleet.tickets.ask(request(2, deadline_at=1.0), 0.0)
    text = only(fleet.tick(1.0), Refuse).error.message
    assert text.startswith("The deadline passed before a place for m was free. 1 of 1 sequences")


def test_the_queue_follows_what_the_workers_take() -> None:
    """The queue follows what the workers take unless it is configured: 256, or as many as run where
    that is more.
    """
    fleet = dispatch((W1, facts(max_seqs=300)), (W2, facts(max_seqs=300)), max_queue=None)
    for ticket in range(1, 1_200):
        fleet.tickets.ask(request(ticket, tail=1, max_tokens=1), 0.0)
        fleet.tickets.started(ticket, 0.0)
    assert fleet.statistics().queued == 599
    assert fleet.tickets.ask(request(1_200, tail=1), 0.0) == ()
    only(fleet.tickets.ask(request(1_201, tail=1), 0.0), Refuse)


def test_places_follow_the_engines_estimate() -> None:
    """An engine that takes fewer now gets no more; it never gets more than its cap."""
    fleet = dispatch((W1, facts(max_seqs=4)))
    fleet.heard(W1, load(places=1), 0.0)
    assert placed(fleet.tickets.ask(request(1, tail=1), 0.0))
    assert fleet.tickets.ask(request(2, tail=1), 0.0) == ()
    only(fleet.heard(W1, load(running=1, places=2), 1.0), Assign)
    fleet.heard(W1, load(running=2, places=99), 2.0)
    for ticket in (3, 4):
        assert placed(fleet.tickets.ask(request(ticket, tail=1), 2.0))
    assert fleet.tickets.ask(request(5, tail=1), 2.0) == ()
