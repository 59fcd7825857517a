"""How long prefills take, learned."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.routing.prefill_rate import PrefillRateEstimator

TOKEN_S, CONTEXT_S = 20e-6, 1e-9


def _truth(num_cached: int, num_tokens: int) -> float:
    return num_tokens * (TOKEN_S + CONTEXT_S * (num_cached + num_tokens / 2))


def _taught(*prompts: tuple[int, int], rounds: int = 1) -> PrefillRateEstimator:
    estimate = PrefillRateEstimator()
    estimate.report(30_000.0, 0.0)
    for _ in range(rounds):
        for num_cached, num_tokens in prompts:
            depth = num_tokens * (num_cached + num_tokens / 2)
            estimate.learn(num_tokens, depth, _truth(num_cached, num_tokens), 0.0)
    return estimate


def test_before_the_first_prefill_the_workers_own_rate_counts() -> None:
    """A reported rate holds for every token; unknown is 0; what cannot be stays finite."""
    estimate = PrefillRateEstimator()
    assert estimate.tokens_per_s == 0.0
    estimate.report(0.0, 0.0)
    assert estimate.tokens_per_s == 0.0
    estimate.report(10_000.0, 0.0)
    assert estimate.seconds(50_000, 1_000) == pytest.approx(0.1)
    estimate.report(5e-324, 0.0)
    assert estimate.seconds(0, 1_000) == pytest.approx(1_000.0)
    estimate.report(float("inf"), 0.0)
    estimate.learn(1_000, 0.0, 1.0, 0.0)
    assert 0 < estimate.seconds(0, 1_000) < 1.0


def test_long_prompts_are_dearer_than_their_tokens() -> None:
    """Both parts of the rate are learned from prompts of many lengths: later tokens of a long
    prompt cost more.
    """
    estimate = _taught((0, 1_000), (30_000, 2_000), (0, 60_000), (5_000, 12_000), rounds=40)
    for num_cached, num_tokens in ((0, 2_000), (0, 20_000), (0, 100_000), (60_000, 1_000)):
        assert estimate.seconds(num_cached, num_tokens) == pytest.approx(
            _truth(num_cached, num_tokens), rel=0.15
        )
    assert estimate.seconds(0, 100_000) > 1.3 * 100_000 / estimate.tokens_per_s


def test_prompts_of_one_length_still_give_their_rate() -> None:
    """Nothing tells tokens from context then, and their sum is right all the same."""
    estimate = _taught((0, 4_000), rounds=200)
    assert estimate.seconds(0, 4_000) == pytest.approx(_truth(0, 4_000), rel=0.1)


def test_a_change_of_speed_is_learned() -> None:
    """Half a minute of prefills decides, so a throttled card is known as one."""
    estimate = _taught((0, 4_000), (0, 40_000), rounds=100)
    before_s = estimate.seconds(0, 40_000)
    for _ in range(100):
        estimate.learn(40_000, 40_000 * 20_000, 3 * _truth(0, 40_000), 0.0)
        estimate.learn(4_000, 4_000 * 2_000, 3 * _truth(0, 4_000), 0.0)
    assert estimate.seconds(0, 40_000) == pytest.approx(3 * before_s, rel=0.2)


def test_what_was_learned_long_ago_is_trusted_less() -> None:
    """What was learned long ago is trusted less, from the last prefill on: half after a third of a
    minute, hardly after an hour. The worker's own report counts from its time on, until there is a
    prefill.
    """
    estimate = PrefillRateEstimator()
    estimate.report(10_000.0, 100.0)
    assert estimate.trust(100.0) == 1.0
    estimate.learn(1_000, 0.0, 0.1, 200.0)
    estimate.report(9_000.0, 300.0)
    assert estimate.trust(200.0) == 1.0
    assert estimate.trust(220.0) == pytest.approx(0.5)
    assert 0 < estimate.trust(3_800.0) < 1e-6
    assert estimate.trust(300.0, slower=5.0) == pytest.approx(0.5)
    assert estimate.trust(220.0, slower=0.2) == pytest.approx(0.5)


def test_what_was_learned_long_ago_gives_way_to_what_is_measured() -> None:
    """Half a minute of slow prefills needs no half minute of others, at one in ten minutes."""
    estimate = PrefillRateEstimator()
    estimate.report(2_000.0, 0.0)
    for _ in range(20):
        estimate.learn(1_000, 0.0, 5.0, 0.0)
    assert estimate.tokens_per_s < 250.0
    estimate.learn(1_000, 0.0, 0.5, 1.0)
    assert estimate.tokens_per_s < 300.0
    estimate.learn(1_000, 0.0, 0.5, 600.0)
    assert estimate.tokens_per_s > 1_900.0


@given(
    st.lists(
        st.tuples(
            st.integers(0, 200_000),
            st.integers(0, 200_000),
            st.floats(-1.0, 1e5, allow_nan=False),
        )
    )
)
def test_whatever_is_learned_is_a_time(samples: list[tuple[int, int, float]]) -> None:
    """Noise gives no negative and no infinite time; more tokens never take less."""
    estimate = PrefillRateEstimator()
    estimate.report(10_000.0, 0.0)
    for num_cached, num_tokens, seconds in samples:
        estimate.learn(num_tokens, num_tokens * (num_cached + num_tokens / 2), seconds, 0.0)
    assert estimate.token_s > 0
    assert estimate.context_s >= 0
    assert 0 < estimate.seconds(0, 100) < estimate.seconds(0, 200) < 1e9
