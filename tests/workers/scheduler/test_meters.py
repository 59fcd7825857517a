"""Averages of steps and the longest recent one."""

import pytest

from workers.scheduler.meters import StepMeter


def test_averages_follow_slowly_and_start_at_the_first_value() -> None:
    """The first step is the average; later ones count a tenth. Decodes have no prefill rate."""
    meter = StepMeter()
    assert meter.step_ms == meter.prefill_tokens_per_s == 0.0
    meter.add(0.010, 4, 0, now=0.0)
    assert meter.step_ms == pytest.approx(10.0)
    assert meter.prefill_tokens_per_s == 0.0
    meter.add(0.020, 1004, 1000, now=0.1)
    assert meter.step_ms == pytest.approx(11.0)
    assert meter.prefill_tokens_per_s == pytest.approx(50_000.0)


def test_the_longest_step_is_forgotten_after_two_minutes() -> None:
    """One slow step (a first compile) must not make the hang watch patient for ever."""
    meter = StepMeter()
    meter.add(5.0, 4, 0, now=0.0)
    meter.add(0.01, 4, 0, now=50.0)
    assert meter.longest_s == 5.0
    meter.add(0.01, 4, 0, now=70.0)
    assert meter.longest_s == 5.0
    meter.add(0.01, 4, 0, now=140.0)
    assert meter.longest_s == pytest.approx(0.01)


def test_a_larger_step_is_expected_in_proportion() -> None:
    """Sizes seen before are known; larger ones are scaled up by powers of two, never down."""
    meter = StepMeter()
    assert meter.expected_s(4096) == 0.0
    meter.add(0.1, 4, 4, now=0.0)
    assert meter.expected_s(4) == meter.expected_s(7) == pytest.approx(0.1)
    assert meter.expected_s(64) == pytest.approx(1.6)
    meter.add(0.2, 64, 64, now=1.0)
    assert meter.expected_s(64) == pytest.approx(0.2)
    assert meter.expected_s(128) == pytest.approx(0.4)
    assert meter.expected_s(1) == 0.0


def test_short_prefills_do_not_hide_the_rate_of_long_ones() -> None:
    """Cached prompts of a few tokens measure fixed costs: they neither make nor move a rate."""
    meter = StepMeter()
    meter.add(0.002, 10, 10, now=0.0)
    assert meter.prefill_tokens_per_s == 0.0
    meter.add(0.1, 4000, 4000, now=1.0)
    meter.add(0.002, 10, 10, now=2.0)
    assert meter.prefill_tokens_per_s == pytest.approx(40_000)


def test_the_prefill_rate_follows_a_change() -> None:
    """Once 8,192 new tokens have been prefilled, older ones no longer count."""
    meter = StepMeter()
    meter.add(10.0, 1000, 1000, now=0.0)
    meter.add(0.5, 8192, 8192, now=1.0)
    assert meter.prefill_tokens_per_s == pytest.approx(16_384)
