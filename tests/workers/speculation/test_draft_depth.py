"""Drafts of a network: the depth follows what passes take and how many drafts are right, and none
are made where they do not pay."""

from bisect import bisect_left
from collections.abc import Sequence

import pytest

from tests.workers.speculation.simulated import (
    Costs,
    Simulation,
    best_pace,
    pace_of,
    pace_without,
    simulate_card,
)
from workers.speculation import DraftTimes

SIZES = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 4096)
VERIFY_MS = ((1, 4.0), (16, 4.87), (128, 6.06), (512, 13.91), (1024, 26.16), (4096, 104.0))
"""An 8B on an H200, by rows."""

CONSTANT = (0.854,) * 15
"""Chances that give 6.3 tokens a pass, as DFlash has."""

MTP = (0.89, 0.64 / 0.89, 0.16 / 0.64)
"""What operators measured of a 27B: 0.89, 0.64 and 0.16 of the drafts at each place."""

BATCHES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
SHORT = (1, 16, 128)
LONG = [pytest.param(batch, marks=() if batch in SHORT else pytest.mark.slow) for batch in BATCHES]


def _verify_s(rows: int) -> float:
    """In a graph of one of `SIZES`."""
    rows = SIZES[bisect_left(SIZES, rows)]
    at = max(1, bisect_left([size for size, _ in VERIFY_MS], rows))
    (few, few_ms), (many, many_ms) = VERIFY_MS[at - 1], VERIFY_MS[at]
    return 1e-3 * (few_ms + (many_ms - few_ms) * (rows - few) / (many - few))


def _costs(draft_ms: float, each_ms: float, *, looks_ahead: bool = True) -> Costs:
    """One pass for all drafts, or with `each_ms` one for each."""

    def draft(num_sequences: int, depth: int) -> float:
        blocks_ms = 0.004 * num_sequences * (depth + 1)
        return 1e-3 * (draft_ms + each_ms * depth + blocks_ms)

    return Costs(lambda rows: _verify_s(rows) - 2e-4, _verify_s, looks_ahead, draft)


ONE_PASS = _costs(0.8, 0.0)
PASS_EACH = _costs(0.0, 0.4)


def _settled(rates: Sequence[float], costs: Costs, batch: int) -> Simulation:
    """The more sequences, the sooner it is known."""
    run = simulate_card(rates, costs, batch, sizes=SIZES)
    return run.run(300 if batch < 32 else 150).forget().run(400 if batch < 32 else 150)


@pytest.mark.parametrize("batch", LONG)
def test_it_is_near_the_best_fixed_depth_at_every_batch(batch: int) -> None:
    """Within 3 %, from 15 drafts of one sequence to none of 256, and hardly under none."""
    run = _settled(CONSTANT, ONE_PASS, batch)
    assert run.fair_pace > 0.97 * best_pace(CONSTANT, ONE_PASS, batch)
    assert run.fair_pace > 0.98 * pace_without(ONE_PASS, batch)


def test_the_best_depth_is_another_one_at_other_batches() -> None:
    """The best depth differs between batches, so that the test above proves something."""
    depths = range(16)
    best = [max(depths, key=lambda d: pace_of(d, CONSTANT, ONE_PASS, b)) for b in BATCHES]
    assert best[0] == 15
    assert best[-1] == 0
    assert len(set(best)) > 4


@pytest.mark.parametrize("looks_ahead", [True, False])
def test_a_third_draft_that_costs_more_than_it_brings_is_left_out(looks_ahead: bool) -> None:
    """Operators found fixed 3 slower than fixed 2 by 8 %: the third was right one time in four."""
    step_ms = {1: 10.0, 2: 10.6, 3: 11.2, 4: 12.6}

    def verify(rows: int) -> float:
        return 1e-3 * step_ms[min(rows, 4)]

    costs = Costs(verify, verify, looks_ahead, lambda _, depth: 0.4e-3 * depth)
    assert pace_of(3, MTP, costs, 1) < 0.98 * pace_of(2, MTP, costs, 1)
    run = simulate_card(MTP, costs, 1, noise=0.03).run(200).forget().run(600)
    assert sum(depth > 2 for depth in run.depths) <= 0.04 * len(run.depths)
    assert run.fair_pace > 0.97 * pace_of(2, MTP, costs, 1)


@pytest.mark.parametrize("batch", LONG)
@pytest.mark.parametrize("costs", [ONE_PASS, PASS_EACH], ids=["one pass", "a pass each"])
def test_a_drafter_that_is_always_wrong_costs_little(costs: Costs, batch: int) -> None:
    """Under 5 % of the first 400 steps, in which it is found out, and of later ones 2 %."""
    run = simulate_card((0.0,) * 15, costs, batch, sizes=SIZES).run(400)
    assert run.pace > 0.95 * pace_without(costs, batch)
    run.forget().run(200)
    assert run.pace > 0.98 * pace_without(costs, batch)


@pytest.mark.parametrize("costs", [ONE_PASS, PASS_EACH], ids=["one pass", "a pass each"])
def test_it_follows_when_drafts_become_good_or_bad(costs: Costs) -> None:
    """Trials find out that they pay; and it notices soon that they do not."""
    run = simulate_card((0.05,) * 7, costs, 4, sizes=SIZES).run(400)
    run.source.rates = [0.8] * 7
    run.run(200).forget().run(200)
    assert run.fair_pace > 0.95 * best_pace(run.source.rates, costs, 4)
    run.source.rates = [0.05] * 7
    run.run(100).forget().run(200)
    assert run.fair_pace > 0.97 * pace_without(costs, 4)


def test_trials_are_rarer_where_they_cost_much() -> None:
    """Trials are rarer where they cost much. With 256 sequences a step that waits for the host
    takes half as long again: trials every 96 steps were 2 % of the time.
    """
    costs = Costs(ONE_PASS.ahead, lambda rows: _verify_s(rows) + 5e-3, draft=ONE_PASS.draft)
    run = simulate_card(CONSTANT, costs, 256, sizes=SIZES).run(150).forget().run(600)
    assert 1 <= sum(depth > 0 for depth in run.depths) <= 3
    assert run.fair_pace > 0.99 * pace_without(costs, 256)


@pytest.mark.parametrize("seed", range(4))
def test_a_depth_that_was_not_measured_is_tried_soon(seed: int) -> None:
    """A depth that was not measured is tried soon: it took 64 steps with drafts, and answers of 96
    tokens end after some 20 steps of 7 drafts.
    """
    run = simulate_card(CONSTANT, ONE_PASS, 32, sizes=SIZES, noise=0.02, seed=seed).run(48)
    assert max(run.depths) >= 7


def test_it_changes_seldom() -> None:
    """The policy seldom changes its depth: of two that are equally good it stays with one."""
    run = simulate_card(CONSTANT, PASS_EACH, 16, noise=0.03, sizes=SIZES).run(300).forget().run(400)
    changes = sum(one != other for one, other in zip(run.depths, run.depths[1:], strict=False))
    assert changes <= len(run.depths) / 20


def test_times_of_passes_that_were_not_measured() -> None:
    """Fewer drafts in proportion, more at the price of those that are known."""
    times = DraftTimes()
    assert times.seconds(4, 3) == 0.0
    times.add(4, 8, 0.8)
    assert times.seconds(4, 2) == pytest.approx(0.2)
    assert times.seconds(4, 12) == pytest.approx(1.2)
    times.add(4, 2, 0.6)
    assert times.seconds(4, 5) == pytest.approx(0.7)
    assert times.export() == {8: {3: 0.8}, 2: {3: 0.6}}
    assert DraftTimes(times.export()).seconds(4, 5) == pytest.approx(0.7)
