"""How long requests that wait are expected to go on waiting."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.routing.admission_queue import Waiting
from gateway.routing.fair_shares import FairShares
from gateway.routing.prefill_rate import PrefillRateEstimator
from gateway.routing.wait_forecast import ForecastPrompt, Lane, WaitForecast, passed_s, starts
from gateway.routing.worker import Worker
from tests.fakes.fleet import W1, dispatch, facts, hello, load, placed, request

RATE = 10_000.0


def lane(
    *,
    long_s: float = 0.0,
    short_s: float = 0.0,
    free_tokens: float = 1e6,
    tokens_per_s: float = 0.0,
    free_places: float = 100.0,
    places_per_s: float = 0.0,
) -> Lane:
    """A worker of 10k tokens/s that takes 4k tokens beside a long prompt."""
    rate = PrefillRateEstimator()
    rate.report(RATE, 0.0)
    return Lane(
        rate=rate,
        long_s=long_s,
        short_s=short_s,
        most_beside=4096,
        ahead_s=0.5,
        free_tokens=free_tokens,
        tokens_per_s=tokens_per_s,
        free_places=free_places,
        places_per_s=places_per_s,
    )


def prompt(ticket: int, tokens: int, *, cached: tuple[int, ...] = (0,)) -> ForecastPrompt:
    """A prompt of the key `k`, with an answer of 100 tokens."""
    resident = (0,) * len(cached)
    return ForecastPrompt(ticket, "k", tokens, 100, cached, resident, float(tokens))


def test_prompts_start_one_after_the_other() -> None:
    """Each half a second before the one ahead of it is over."""
    found = starts([lane()], [prompt(n, 20_000) for n in (1, 2, 3)])
    assert [found[n].at_s for n in (1, 2, 3)] == pytest.approx([0.0, 1.5, 3.5])
    assert [found[n].charged for n in (1, 2, 3)] == [0.0, 20_000.0, 40_000.0]


def test_workers_share_the_queue() -> None:
    """A long prompt ahead holds one worker up, not both."""
    found = starts([lane(), lane()], [prompt(n, n * 10_000, cached=(0, 0)) for n in (9, 1, 2)])
    assert [found[n].at_s for n in (9, 1, 2)] == pytest.approx([0.0, 0.0, 0.5])


def test_a_cached_prompt_follows_its_cache() -> None:
    """5 s on the free worker, 1 s behind the prompt on the other."""
    found = starts([lane(long_s=1.5), lane()], [prompt(1, 50_000, cached=(49_000, 0))])
    assert found[1].at_s == pytest.approx(0.0)  # it begins beside the long one
    found = starts([lane(long_s=3.0), lane()], [prompt(1, 50_000, cached=(40_000, 0))])
    assert found[1].at_s == pytest.approx(2.5)


def test_a_full_worker_is_awaited() -> None:
    """A full worker is awaited for a place, and for keys and values, as its answers free them."""
    found = starts([lane(free_places=0, places_per_s=0.5)], [prompt(1, 10), prompt(2, 10)])
    assert [found[n].at_s for n in (1, 2)] == pytest.approx([2.0, 4.0])
    found = starts([lane(free_tokens=1000, tokens_per_s=100)], [prompt(1, 1900), prompt(2, 900)])
    assert [found[n].at_s for n in (1, 2)] == pytest.approx([10.0, 20.0])
    assert found[2].lacks_room


def test_newcomers_pass_until_the_clock_has_moved() -> None:
    """Newcomers delay a waiting request by half of the time; after 4 s they are due later and no
    longer pass.
    """
    newcomers = [(600.0, 0.5)]
    assert passed_s(1.0, 1000.0, 100.0, newcomers) == pytest.approx(2.0)
    assert passed_s(10.0, 1000.0, 100.0, newcomers) == pytest.approx(12.0)
    assert passed_s(10.0, 500.0, 100.0, newcomers) == pytest.approx(10.0)
    # More comes than is served: only the clock ends the wait.
    assert passed_s(1.0, 1000.0, 100.0, [(600.0, 3.0)]) == pytest.approx(13.0)
    assert passed_s(3.0, 1000.0, 0.0, newcomers) == 3.0


@given(
    start_s=st.floats(0.01, 1e4),
    late=st.floats(1, 1e6),
    rate=st.floats(0.1, 1e5),
    kinds=st.lists(st.tuples(st.floats(0, 1e6), st.floats(0, 3)), max_size=8),
)
def test_a_wait_is_what_is_ahead_and_what_passes(
    start_s: float, late: float, rate: float, kinds: list[tuple[float, float]]
) -> None:
    """The defining equation, for any newcomers."""
    wait_s = passed_s(start_s, late, rate, sorted(kinds, reverse=True))
    delays_s = [delay * min(wait_s, (late - own) / rate) for own, delay in kinds if own < late]
    assert wait_s == pytest.approx(start_s + sum(delays_s), rel=1e-6)


def test_places_in_the_queue_come_with_their_waits() -> None:
    """One place, a second each: the third of three waits three seconds. Keys take turns."""
    fleet = dispatch((W1, facts(max_seqs=1)))
    for number in range(30):
        assert placed(fleet.tickets.ask(request(number), float(number))) == {number: W1}
        fleet.tickets.started(number, number + 0.1)
        fleet.tickets.release(number, number + 1.0, output_tokens=50)
    for ticket, key in ((50, "k"), (51, "k"), (52, "k"), (53, "other")):
        fleet.tickets.ask(request(ticket, key=key), 30.0)
    positions = fleet.positions(30.0)
    assert [one.number for one in positions.values()] == [1, 2, 3]
    assert list(positions) == [53, 51, 52]
    assert [one.wait_s for one in positions.values()] == pytest.approx([1, 2, 3], rel=0.05)
    fleet.tickets.release(50, 31.0, output_tokens=50)
    assert [one.wait_s for one in fleet.positions(31.0).values()] == pytest.approx([1, 2], rel=0.1)


def test_a_queue_without_workers_has_no_forecast() -> None:
    """The only worker is lost under streams, which wait for it to return."""
    fleet = dispatch((W1, facts(max_seqs=12)), max_queue=16)
    for number in range(12):
        assert placed(fleet.tickets.ask(request(number), 0.0)) == {number: W1}
    fleet.lost(W1, 1.0)
    for number in range(12):
        fleet.tickets.release(number, 1.0)
        assert fleet.tickets.ask(request(100 + number, resumed=True), 1.1 + 0.1 * number) == ()
    for now in (3.0, 4.0, 5.0):
        assert fleet.tick(now) == ()
        assert [one.wait_s for one in fleet.positions(now).values()] == [0.0] * 12


def test_forecasts_learn_from_how_they_turned_out() -> None:
    """After waits of twice the forecast, forecasts are twice as long. Short waits teach nothing."""
    worker, shares = Worker(W1, hello("w1", facts()), 0.0), FairShares()
    worker.report(load(rate=RATE), 0.0)
    queue = [Waiting(request(n, tail=50_000), "s", n, fresh_tokens=50_000) for n in (1, 2)]
    for _ in queue:
        shares.enter("k", "s")

    def second_s(real_s: float) -> float:
        forecast = WaitForecast()
        for n in range(2000):
            placed = Waiting(request(n), "s", n, forecast=(0.0, 4.0))
            forecast.placed(placed, real_s)
        forecast.play(queue, [worker], 32, 100, 1.0, 0.0)
        return [wait_s for _, wait_s in forecast.waits_s(queue, shares)][1]

    assert second_s(4.0) == pytest.approx(5.0 - 2 * 0.4096)
    assert second_s(8.0) == pytest.approx(2 * second_s(4.0), rel=0.01)
    assert second_s(0.5) == second_s(4.0)
