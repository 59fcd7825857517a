"""What agents find again of their prompts on engines that keep states, beside full attention."""

import pytest

from benchmarks.micro.reuse import H200, MOST_AGAIN, MOST_POINTS, fleet, lost_by_a_shift, reused


@pytest.mark.parametrize("strips", [False, True])
def test_agents_find_nearly_as_much_as_with_full_attention(strips: bool) -> None:
    """One system prompt of 12k tokens, growing turns, forks; with and without their reasoning."""
    waves = list(fleet(8, 6, strips=strips, seed=3))
    assert any(len(turns) > 8 for turns in waves)  # some were forked
    full, states = reused(H200._replace(num_states=None), waves), reused(H200, waves)
    assert full > 0.8
    assert 100 * (full - states) <= MOST_POINTS


@pytest.mark.parametrize("num_tokens", [700, 12_100])
def test_a_prompt_that_parts_a_little_earlier_loses_little(num_tokens: int) -> None:
    """Off the grid of blocks and of states."""
    assert 0 <= lost_by_a_shift(num_tokens) <= min(num_tokens, MOST_AGAIN)
