"""What a step takes, learned from steps that a hidden rule times."""

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workers.scheduler.plan import Chunk
from workers.scheduler.prompt_budget import LEAST_SHARE, PromptBudget
from workers.scheduler.step_cost import FIRST_TOKENS, StepCost

TOKEN_S, CONTEXT_S, DECODE_S = 24e-6, 1.2e-9, 7e-3


def chunks(num_decodes: int, *prompts: tuple[int, int]) -> list[Chunk]:
    """Decodes, then prompt chunks of (start, length)."""
    decodes = [Chunk(seq, 100, 1, (), True) for seq in range(num_decodes)]
    parts = [Chunk(num_decodes + n, *part, (), False) for n, part in enumerate(prompts)]
    return decodes + parts


def true_s(num_decodes: int, *prompts: tuple[int, int]) -> float:
    """An 8B on a card: 7 ms for decodes, 24 us for a token, 1.2 ns more for each of its context."""
    depth = sum(length * (start + length / 2) for start, length in prompts)
    return DECODE_S + TOKEN_S * sum(length for _, length in prompts) + CONTEXT_S * depth


def add(cost: StepCost, num_decodes: int, *prompts: tuple[int, int], slower: float = 1.0) -> None:
    """A step was measured."""
    step = chunks(num_decodes, *prompts)
    num_prompt = sum(length for _, length in prompts)
    cost.add(step, num_prompt, slower * true_s(num_decodes, *prompts))


def test_nothing_is_known_at_first() -> None:
    """At first nothing is known of costs: every step counts as free, and only the bound on tokens
    holds.
    """
    cost = StepCost()
    assert cost.decode_s(5) == cost.prompt_s(100, 1000) == 0.0
    assert cost.tokens_within(0.01, 0) == math.inf
    assert cost.most_tokens == FIRST_TOKENS


def test_decodes_are_known_by_their_number() -> None:
    """Numbers that were not measured lie on lines between those that were, and on the last line."""
    cost = StepCost()
    cost.add(chunks(4), 0, 0.004)
    assert cost.decode_s(200) == 0.004
    cost.add(chunks(40), 0, 0.008)
    assert cost.decode_s(0) == cost.decode_s(4) == 0.004
    assert cost.decode_s(22) == pytest.approx(0.006)
    assert cost.decode_s(40) == 0.008
    assert cost.decode_s(76) == pytest.approx(0.012)


def test_two_numbers_side_by_side_do_not_make_many_decodes_dear() -> None:
    """The line through them may be as steep as their noise."""
    cost = StepCost()
    cost.add(chunks(127), 0, 0.006)
    cost.add(chunks(128), 0, 0.0066)
    assert cost.decode_s(256) == pytest.approx(0.0066 + 128 * 0.006 / 127)


def test_a_late_step_of_more_decodes_bends_the_line_of_fewer_little() -> None:
    """Twenty decodes waited for a compiler, and no step since has had as many alone."""
    cost = StepCost()
    cost.add(chunks(10), 0, 0.003)
    cost.add(chunks(20), 0, 2.0)
    assert cost.decode_s(12) == pytest.approx(0.0036)
    assert cost.decode_s(19) == pytest.approx(0.0057)
    cost.add(chunks(20), 0, 0.0035)
    assert cost.decode_s(20) == 0.0035


def test_a_number_that_changes_within_its_power_of_two_is_followed() -> None:
    """A crowd grows from 130 to 250 decodes, of which no power of two lies between."""
    cost = StepCost()
    for number in (64, 130, *[250] * 40):
        cost.add(chunks(number), 0, 1e-3 + 40e-6 * number)
    assert cost.decode_s(250) == pytest.approx(11e-3, rel=0.01)
    assert cost.decode_s(157) == pytest.approx(7.28e-3, rel=0.01)


def test_a_slow_first_decode_is_forgotten_at_once_and_a_late_one_hardly_counts() -> None:
    """Compiling takes seconds; a host that was busy for once says little."""
    cost = StepCost()
    cost.add(chunks(4), 0, 5.0)
    cost.add(chunks(4), 0, 0.004)
    assert cost.decode_s(4) == 0.004
    cost.add(chunks(4), 0, 3.0)
    assert cost.decode_s(4) == pytest.approx(0.0048)


@given(st.integers(0, 2**32), st.none() | st.integers(0, 15))
def test_the_rule_is_found_beside_a_slow_step(seed: int, slow: int | None) -> None:
    """The rule is found beside a slow step, with noise of 3 %. One step of 16 that takes many times
    as long does not spoil it.
    """
    rng = random.Random(seed)
    cost = StepCost()
    cost.add(chunks(8), 0, DECODE_S)
    for number in range(16):
        part = (rng.choice((0, 500, 4000, 16_000)), rng.randrange(600, 4000))
        slower = rng.uniform(3, 50) if number == slow else rng.uniform(0.97, 1.03)
        add(cost, 8, part, slower=slower)
    for start in (0, 2000, 16_000):
        expected = true_s(8, (start, 2000)) - DECODE_S
        tolerance = 0.2 if slow is None else 0.5
        assert cost.prompt_s(start, 2000) == pytest.approx(expected, rel=tolerance)


def test_equal_contexts_do_not_unlearn_what_context_costs() -> None:
    """Equal contexts do not unlearn what context costs: after many prompts without a past, one
    behind a long past is still known.
    """
    cost = StepCost()
    cost.add(chunks(8), 0, DECODE_S)
    for number in range(16):
        add(cost, 8, (1000 * number, 2000))
    for number in range(40):
        add(cost, 8, (0, 400 + number))
    expected = true_s(8, (16_000, 2000)) - DECODE_S
    assert cost.prompt_s(16_000, 2000) == pytest.approx(expected, rel=0.1)


def test_an_engine_whose_tokens_cost_nothing() -> None:
    """A synthetic step takes as long whatever it holds: only the doubling bounds a chunk."""
    cost = StepCost()
    for _ in range(20):
        cost.add(chunks(3), 0, 0.02)
        cost.add(chunks(3, (0, 500)), 500, 0.02)
    assert cost.tokens_within(0.001, 0) == math.inf
    assert cost.most_tokens == 1000


def test_what_is_tried_doubles() -> None:
    """A step ten times as large as any that was measured may be of another kind."""
    cost = StepCost()
    add(cost, 4, (0, 40))
    assert cost.most_tokens == FIRST_TOKENS
    add(cost, 4, (0, 900), (0, 100))
    assert cost.most_tokens == 2000


@given(
    token_s=st.floats(0, 1e-2),
    context=st.floats(0, 1 / 64),
    start=st.integers(0, 200_000),
    seconds=st.floats(-1, 10),
)
def test_what_fits_costs_no_more(
    token_s: float, context: float, start: int, seconds: float
) -> None:
    """What fits costs no more than the bound, and one token more does not fit."""
    cost = StepCost()
    cost.token_s, cost.context_s = token_s, token_s * context
    most = cost.tokens_within(seconds, start)
    if most == math.inf:
        assert token_s < 1e-300
        return
    assert cost.prompt_s(start, int(most)) <= max(0.0, seconds) * (1 + 1e-9)
    assert cost.prompt_s(start, int(most) + 1) >= seconds * (1 - 1e-9)


@given(
    num_decodes=st.integers(0, 300),
    token_budget=st.integers(300, 20_000),
    max_gap_s=st.floats(1e-3, 1.0),
    wanted=st.lists(st.tuples(st.integers(0, 50_000), st.integers(1, 9000)), max_size=8),
)
def test_a_budget_is_kept(
    num_decodes: int, token_budget: int, max_gap_s: float, wanted: list[tuple[int, int]]
) -> None:
    """Tokens always; seconds if there are decodes; then no more than the model can vouch for."""
    cost = StepCost()
    for size in (1, 40, 200):
        cost.add(chunks(size), 0, DECODE_S * (1 + size / 100))
    add(cost, 8, (0, 3000))
    budget = PromptBudget.beside(num_decodes, len(wanted), token_budget, max_gap_s, cost)
    taken = []
    for start, most in wanted:
        length = budget.fit(start, most)
        assert 0 <= length <= most
        budget.take(start, length)
        taken.append((start, length))
    num_tokens = sum(length for _, length in taken)
    assert num_decodes + num_tokens <= token_budget
    if num_decodes:
        decode_s = cost.decode_s(num_decodes)
        spent_s = sum(cost.prompt_s(*part) for part in taken)
        assert spent_s <= max(max_gap_s - decode_s, LEAST_SHARE * decode_s) * (1 + 1e-9)
        assert num_tokens <= cost.most_tokens
    elif sum(most for _, most in wanted) >= token_budget:
        assert num_tokens == token_budget
