"""The debug page's decision is the one that the dispatcher takes."""

from gateway.routing.effects import Assign
from tests.fakes.fleet import (
    BLOCK,
    CLOUD,
    W1,
    W2,
    chain,
    dispatch,
    facts,
    load,
    only,
    placed,
    request,
    stored,
)

PROMPT = chain(("p", 100))


def test_the_preview_is_what_then_happens() -> None:
    """Same worker, same words, same expectation; asking first changes nothing."""
    fleet = dispatch((W1, facts()), (W2, facts()))
    for worker_id in (W1, W2):
        fleet.heard(worker_id, load(), 0.0)
    fleet.heard(W2, stored(1, PROMPT[:90]), 0.0)
    before = fleet.statistics()
    told = fleet.tickets.preview(request(1, PROMPT), 1.0)
    assert told is not None
    assert fleet.statistics() == before
    done = only(fleet.tickets.ask(request(1, PROMPT), 1.0), Assign)
    (chosen,) = (each for each in told.candidates if each.is_chosen)
    assert (chosen.worker, told.reason, told.outcome) == ("w2", done.reason, "placed")
    assert chosen.cached_tokens == done.cached_tokens == 90 * BLOCK
    assert done.worker_id == W2


def test_the_preview_says_that_a_request_would_wait() -> None:
    """Full workers have no room; a worker with prefill enough ahead has no headroom, but for a
    short prompt, which it computes beside a long one.
    """
    fleet = dispatch((W1, facts(max_seqs=1)))
    fleet.tickets.ask(request(1), 0.0)
    full = fleet.tickets.preview(request(2), 0.0)
    assert full is not None
    assert (full.outcome, full.why, full.candidates[0].has_room) == ("waits", "full", False)
    busy = dispatch((W1, facts()))
    busy.tickets.ask(request(1, chain(("long", 1000))), 0.0)
    other = chain(("other", 1000))
    later, short = (
        busy.tickets.preview(request(2, other), 0.0),
        busy.tickets.preview(request(3), 0.0),
    )
    assert later is not None
    assert short is not None
    assert (later.outcome, later.candidates[0].has_prefill_headroom) == ("waits", False)
    assert (short.outcome, short.candidates[0].has_prefill_headroom) == ("placed", True)
    assert placed(busy.tickets.ask(request(2, other), 0.0)) == {}
    assert placed(busy.tickets.started(1, 1.0)) == {2: W1}


def test_without_workers_it_goes_to_providers_or_is_held() -> None:
    """What the fleet cannot serve is told by where it would go; unknown models by nothing."""
    cloudy, alone = dispatch(fallback=CLOUD), dispatch()
    assert [fleet.tickets.preview(request(1), 0.0).outcome for fleet in (cloudy, alone)] == [  # type: ignore[union-attr]
        "provider",
        "held",
    ]
    assert alone.tickets.preview(request(1, model="nobody"), 0.0) is None
