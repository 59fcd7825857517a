"""Over costs of any kind the policy is hardly slower than no drafts, or than the best depth."""

import random
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.workers.speculation.simulated import (
    Costs,
    best_pace,
    pace_of,
    pace_without,
    simulate,
)

SIZES = (2, 5, 24)


def _rates(rng: random.Random) -> list[float]:
    """Chances of drafts: alike, falling, or any."""
    count, chance = rng.choice((1, 3, 7, 15)), rng.random()
    kind = rng.randrange(3)
    if kind == 0:
        return [chance] * count
    if kind == 1:
        return [chance * 0.8**place for place in range(count)]
    return [rng.random() for _ in range(count)]


def _costs(rng: random.Random) -> Costs:
    """Flat for some rows, then rising; perhaps in steps; with any cost of waiting."""
    base, flat = rng.uniform(0.5, 30), rng.choice((0, 8, 64, 200))
    slope, step = rng.choice((0.001, 0.003, 0.02, 0.1, 0.5)) * base, rng.choice((1, 1, 4, 16, 64))
    looks_ahead = rng.random() < 0.7
    wait_s = 1e-3 * base * rng.choice((0.0, 0.05, 0.2, 0.5)) if looks_ahead else 0.0

    def ahead(rows: int) -> float:
        held = -(-rows // step) * step
        return 1e-3 * (base + 0.001 * base * held + slope * max(0, held - flat))

    return Costs(ahead, lambda rows: ahead(rows) + wait_s, looks_ahead)


@given(seed=st.integers(0, 2**32 - 1))
def test_it_is_near_the_best_of_all_depths_and_never_far_under_none(seed: int) -> None:
    """After a few hundred steps the policy is near the best of all depths and never far under none;
    while it learns it may lose a little more.
    """
    rng = random.Random(seed)
    rates, costs, num_sequences = _rates(rng), _costs(rng), rng.choice(SIZES)
    run = simulate(rates, costs, num_sequences, noise=0.05, seed=seed).run(300)
    assert run.pace > 0.93 * pace_without(costs, num_sequences)
    run.forget().run(500)
    assert run.pace > 0.98 * pace_without(costs, num_sequences)
    assert run.pace > 0.95 * best_pace(rates, costs, num_sequences)


def test_a_third_draft_that_costs_more_than_it_brings_is_left_out() -> None:
    """Operators found fixed 3 slower than fixed 2 by 8 %: the third was right one time in four."""
    rates = (0.89, 0.64 / 0.89, 0.16 / 0.64)
    step_ms = {1: 10.0, 2: 11.0, 3: 12.0, 4: 13.9}

    def awaiting(rows: int) -> float:
        return 1e-3 * step_ms[min(rows, 4)]

    costs = Costs(awaiting, awaiting, looks_ahead=False)
    assert pace_of(3, rates, costs, 1) < 0.93 * pace_of(2, rates, costs, 1)
    run = simulate(rates, costs, 1, noise=0.03).run(100).forget().run(400)
    assert sum(depth > 2 for depth in run.depths) <= 10
    assert run.pace > 0.96 * pace_of(2, rates, costs, 1)


@pytest.mark.parametrize("rates", [(0.0,) * 7, (0.05,) * 7])
def test_drafts_that_are_wrong_cost_next_to_nothing(rates: Sequence[float]) -> None:
    """Wrong drafts cost next to nothing, whatever chances they claim: chances are learned
    elsewhere, so the right ones are given here.
    """
    costs = Costs(lambda rows: 4e-3 + 1e-5 * rows, lambda rows: 4.4e-3 + 1e-5 * rows)
    run = simulate(rates, costs, 8).run(100).forget().run(400)
    assert run.pace > 0.995 * pace_without(costs, 8)
    assert sum(depth > 0 for depth in run.depths) <= 5


def test_it_follows_when_drafts_become_good_or_bad() -> None:
    """The policy follows when drafts become good or bad, on within some hundred steps of the
    change, and off again; with few changes in between.
    """
    costs = Costs(lambda rows: 4e-3 + 1e-5 * rows, lambda rows: 4.4e-3 + 1e-5 * rows)
    run = simulate((0.05,) * 7, costs, 4).run(300)
    run.source.rates, run.source.told = [0.8] * 7, (0.8,) * 7
    run.run(200).forget().run(200)
    assert run.pace > 0.95 * best_pace(run.source.rates, costs, 4)
    changes = sum(
        (one > 0) != (other > 0) for one, other in zip(run.depths, run.depths[1:], strict=False)
    )
    assert changes <= 10
    run.source.rates, run.source.told = [0.05] * 7, (0.05,) * 7
    run.run(50).forget().run(200)
    assert run.pace > 0.98 * pace_without(costs, 4)


def test_chances_that_are_no_numbers_are_none() -> None:
    """A network's confidence may be anything."""
    costs = Costs(lambda rows: 4e-3 + 1e-5 * rows, lambda rows: 4.4e-3 + 1e-5 * rows)
    run = simulate((0.9,) * 4, costs, 2, told=(float("nan"),) * 4).run(100)
    assert set(run.depths) == {0}
