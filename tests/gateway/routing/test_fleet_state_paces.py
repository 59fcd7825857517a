"""Workers of truly different speed: how often the slow one is asked while the other has time."""

from collections import Counter

import pytest

from gateway.routing.fleet_state import FleetState
from protocol.ids import WorkerId
from tests.fakes.fleet import W1, W2, dispatch, facts, load, placed, request

PROMPT_TOKENS = 1_000
FAST_TOKENS_PER_S = 10_000.0
EVERY_S = 5.0
NUM_REQUESTS = 720


def _ask(fleet: FleetState, ticket: int, now: float, slow_tokens_per_s: float) -> WorkerId:
    """One request from its arrival to its end; who answered."""
    session = f"session {ticket}"
    ((_, worker_id),) = placed(
        fleet.tickets.ask(request(ticket, tail=PROMPT_TOKENS, session=session), now)
    ).items()
    rate = slow_tokens_per_s if worker_id == W2 else FAST_TOKENS_PER_S
    fleet.tickets.started(ticket, now + PROMPT_TOKENS / rate)
    fleet.heard(worker_id, load(rate=rate), now + PROMPT_TOKENS / rate)
    fleet.tickets.release(ticket, now + PROMPT_TOKENS / rate + 0.1, output_tokens=10)
    return worker_id


@pytest.mark.parametrize(("slower", "most"), [(3.0, 0.05), (10.0, 0.02)])
def test_the_slower_a_worker_is_the_more_rarely_it_is_tried(slower: float, most: float) -> None:
    """One request every five seconds for an hour, each alone: nearly all go to the fast one. Each
    that does not takes `slower` times as long.
    """
    fleet = dispatch((W1, facts()), (W2, facts()))
    asked = Counter(
        _ask(fleet, ticket, ticket * EVERY_S, FAST_TOKENS_PER_S / slower)
        for ticket in range(NUM_REQUESTS)
    )
    assert 2 <= asked[W2] <= most * NUM_REQUESTS, asked


def test_a_worker_that_is_slow_no_more_has_its_half_again() -> None:
    """Soon after it was tried, however long it had been slow."""
    fleet = dispatch((W1, facts()), (W2, facts()))
    for ticket in range(NUM_REQUESTS):
        _ask(fleet, ticket, ticket * EVERY_S, FAST_TOKENS_PER_S / 3)
    again = range(NUM_REQUESTS, NUM_REQUESTS + 240)
    asked = [_ask(fleet, ticket, ticket * EVERY_S, FAST_TOKENS_PER_S) for ticket in again]
    assert 0.3 < Counter(asked[120:])[W2] / 120 < 0.7
