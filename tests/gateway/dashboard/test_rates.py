"""How fast requests are answered right now."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.dashboard.rates import LEAST_S, Rates, RequestProgress


def test_a_rate_follows_what_comes() -> None:
    """The first look gives the average; afterwards a stream that stands still falls to nothing."""
    rates = Rates()
    rates.look([RequestProgress(1, 100, 8.0)], 10.0)
    assert rates.by_number == {1: 50.0}
    for second in range(1, 20):
        rates.look([RequestProgress(1, 100, 8.0)], 10.0 + second)
    assert rates.by_number[1] < 0.1
    for second in range(20):
        rates.look([RequestProgress(1, 100 + 80 * (second + 1), 8.0)], 30.0 + second)
    assert rates.by_number[1] == pytest.approx(80, rel=0.01)


def test_looks_close_together_see_the_same() -> None:
    """Two who look at once do not disturb each other."""
    rates = Rates()
    rates.look([RequestProgress(1, 10, 0.0)], 1.0)
    rates.look([RequestProgress(1, 500, 0.0)], 1.0 + LEAST_S / 2)
    assert rates.by_number == {1: 10.0}


def test_who_is_gone_is_forgotten() -> None:
    """A request that has ended is forgotten, and one without a token has no rate."""
    rates = Rates()
    rates.look([RequestProgress(1, 10, 0.0), RequestProgress(2, 0, None)], 1.0)
    assert rates.by_number == {1: 10.0, 2: 0.0}
    rates.look([RequestProgress(2, 3, 1.5)], 2.0)
    assert rates.by_number == {2: 6.0}


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 1000), st.floats(0, 5)), max_size=30))
def test_rates_are_never_negative(looks: list[tuple[int, int, float]]) -> None:
    """Rates are never negative, however counts change: a resumed request can show fewer tokens than
    before.
    """
    rates, now = Rates(), 0.0
    for number, tokens, step_s in looks:
        now += step_s
        rates.look([RequestProgress(number, tokens, 0.0)], now)
        assert all(rate >= 0 for rate in rates.by_number.values())
