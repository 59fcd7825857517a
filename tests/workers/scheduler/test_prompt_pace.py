"""Which steps take prompts beside decodes, and how much of them, by times that are known."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workers.scheduler.plan import Chunk
from workers.scheduler.prompt_budget import LEAST_SHARE, LEAST_TOKENS
from workers.scheduler.prompt_pace import CROWD, PromptPace
from workers.scheduler.step_cost import StepCost

TOKEN_S, DECODE_S, GAP_S = 28e-6, 4.2e-3, 80e-3
ROOM = 4096


def cost_of(decode_s: float, num_decodes: int) -> StepCost:
    """An engine whose `num_decodes` decodes take `decode_s` alone, and whose prompts take 28 us a
    token.
    """
    cost = StepCost()
    decodes = [Chunk(seq, 100, 1, (), True) for seq in range(num_decodes)]
    cost.add(decodes, 0, decode_s)
    for length in (400, 800, 1600, 3200, 3300, 3400):
        prompt = Chunk(num_decodes, 0, length, (), False)
        cost.add([*decodes, prompt], length, decode_s + TOKEN_S * length)
    assert cost.token_s == pytest.approx(TOKEN_S, rel=0.05)
    return cost


def steps_of(pace: PromptPace, cost: StepCost, num_decodes: int, length: int) -> list[int]:
    """The chunks of one lone prompt of `length` tokens, step after step."""
    chunks: list[int] = []
    while sum(chunks) < length:
        budget = pace.budget(num_decodes, 1, ROOM)
        assert budget is not None
        start = sum(chunks)
        chunks.append(budget.fit(start, length - start, LEAST_TOKENS))
        budget.take(start, chunks[-1])
        taken_s = cost.prompt_s(start, chunks[-1])
        pace.take(num_decodes, taken_s, leaves_some=sum(chunks) < length)
        assert len(chunks) < 100
    return chunks


@pytest.mark.parametrize(
    ("length", "expected"),
    [(250, [250]), (536, [268, 268]), (1000, [1000])],
    ids=["within a usual share", "within two", "beyond two"],
)
def test_a_lone_prompt_of_two_usual_shares_goes_in_two_halves(
    length: int, expected: list[int]
) -> None:
    """536 tokens take 15 ms beside decodes of 4.2: two gaps of 12 ms instead of one of 19. One that
    would need more steps goes at once, as far as half of the gap holds it.
    """
    cost = cost_of(DECODE_S, 7)
    assert steps_of(PromptPace(cost, GAP_S), cost, 7, length) == pytest.approx(expected, abs=3)


def test_prompts_that_come_together_are_not_cut_in_halves() -> None:
    """Each step beside decodes is a long gap for all of these, so few long steps beat many."""
    cost = cost_of(DECODE_S, 4)
    budget = PromptPace(cost, GAP_S).budget(4, 4, ROOM)
    assert budget is not None
    assert budget.seconds > 0.7 * (GAP_S - DECODE_S)
    assert budget.fit(0, 536) == 536


def test_a_crowd_rests_behind_a_step_of_prompts_unless_some_are_left() -> None:
    """A crowd's decodes take a tenth of the gap alone; then at most half of its tokens are late."""
    num_decodes = 256
    cost = cost_of(13e-3, num_decodes)
    pace = PromptPace(cost, GAP_S)
    assert pace.budget(num_decodes, 3, ROOM) is not None
    pace.take(num_decodes, 40e-3, leaves_some=True)
    assert pace.budget(num_decodes, 3, ROOM) is not None
    pace.take(num_decodes, 40e-3, leaves_some=False)
    assert pace.budget(num_decodes, 1, ROOM) is None
    budget = pace.budget(num_decodes, 1, ROOM)
    assert budget is not None
    assert budget.seconds == pytest.approx(GAP_S - 13e-3)


def test_a_short_prompt_in_a_crowd_is_followed_by_prompts() -> None:
    """A step that its prompts lengthen by less than its decodes is no late one."""
    cost = cost_of(13e-3, 256)
    pace = PromptPace(cost, GAP_S)
    pace.take(256, 12e-3, leaves_some=False)
    assert pace.budget(256, 1, ROOM) is not None


@given(
    decode_s=st.floats(1e-3, 30e-3),
    num_decodes=st.integers(1, 256),
    length=st.integers(1, 20_000),
    gap_s=st.sampled_from([25e-3, 80e-3, 120e-3, math.inf]),
)
def test_a_lone_prompt_ends_and_no_step_is_longer_than_its_gap(
    decode_s: float, num_decodes: int, length: int, gap_s: float
) -> None:
    """A lone prompt ends and no step is longer than its gap, whatever decodes take; with many
    decodes prompts pause at most every other step.
    """
    cost = cost_of(decode_s, num_decodes)
    pace = PromptPace(cost, gap_s)
    start, rested = 0, False
    for _ in range(2 * length + 2):
        if start == length:
            break
        budget = pace.budget(num_decodes, 1, ROOM)
        assert budget is not None or not rested
        rested = budget is None
        if budget is None:
            assert cost.decode_s(num_decodes) >= CROWD * gap_s
            continue
        chunk = budget.fit(start, length - start, LEAST_TOKENS)
        assert chunk > 0
        took_s = cost.prompt_s(start, chunk)
        most_s = max(gap_s - decode_s, LEAST_SHARE * decode_s)
        assert took_s <= most_s + 1e-9 or chunk <= LEAST_TOKENS
        start += chunk
        pace.take(num_decodes, took_s, leaves_some=start < length)
    assert start == length
