"""What agents find again of their prompts on engines that keep states, beside full attention."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.micro.reuse import (
    H200,
    LONG,
    MOST_AGAIN,
    MOST_POINTS,
    fleet,
    lost_by_parting,
    reused,
)


@pytest.mark.parametrize("strips", [False, True])
def test_agents_find_nearly_as_much_as_with_full_attention(strips: bool) -> None:
    """One system prompt of 12k tokens, growing turns, forks; with and without their reasoning."""
    waves = list(fleet(8, 6, strips=strips, seed=3))
    assert any(len(turns) > 8 for turns in waves)  # some were forked
    full, states = reused(H200.reference(), waves), reused(H200, waves)
    assert full.percent > 80
    assert full.percent - states.percent <= MOST_POINTS


@pytest.mark.parametrize("strips", [False, True])
def test_turns_behind_long_answers_compute_little_again(strips: bool) -> None:
    """Less than a state every 256 tokens leaves of an answer, and of a prompt 256; where reasoning
    is left out too, because what remains is a prompt's.
    """
    waves = list(fleet(3, 3, strips=strips, seed=3, lengths=LONG))
    full, states = reused(H200.reference(), waves), reused(H200, waves)
    assert (full.num_cached - states.num_cached) / states.num_turns <= 256
    prompts = reused(H200.prompts_only(), waves)
    assert prompts.num_cached <= states.num_cached


@given(st.lists(st.integers(1, 20_000), min_size=1, max_size=3).map(sorted), st.data())
def test_a_prompt_that_parts_earlier_loses_little(ends: list[int], data: st.DataObject) -> None:
    """Off the grid of blocks and of states, behind turns of any length."""
    parts_at = data.draw(st.integers(0, ends[-1]))
    assert 0 <= lost_by_parting(ends, parts_at) <= MOST_AGAIN


def test_no_state_lies_within_a_short_prompt() -> None:
    """What full attention has of it is lost whole."""
    assert lost_by_parting((250,), 150) == 128
