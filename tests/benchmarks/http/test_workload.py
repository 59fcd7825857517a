"""The prompts of `herma bench http`: their lengths, what they share, and that nothing else does."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.http.workload import (
    ANSWER_TOKENS,
    COLD_OWN_TOKENS,
    FIRST_TURNS,
    LATER_TURNS,
    Agents,
    Cold,
    PromptGenerator,
    PromptWords,
    Staggered,
    Streams,
    TokenScale,
    server_order,
    token_scale,
)
from protocol.errors import ConfigError

WORD = TokenScale()
TEXT = PromptWords(tuple(f"w{number}" for number in range(150)), is_text=True)


def prompts(salt: str = "1", words: PromptWords | None = None) -> PromptGenerator:
    return PromptGenerator(words or PromptWords(), WORD, salt)


def texts(salt: str, words: PromptWords) -> list[str]:
    chains = Streams(16, 60).chains(prompts(salt, words))
    return [chain[0].messages[0]["content"] for chain in chains]


@pytest.mark.parametrize("words", [PromptWords(), TEXT])
def test_requests_share_nothing(words: PromptWords) -> None:
    """Requests share no beginning, within a round and between rounds: all differ within their first
    words.
    """
    begins = {" ".join(text.split()[:12]) for salt in "ab" for text in texts(salt, words)}
    assert len(begins) == 2 * 32


def test_the_same_salt_gives_the_same_prompts() -> None:
    """A run can be repeated."""
    assert texts("1/0/a/c=1", TEXT) == texts("1/0/a/c=1", TEXT)


@given(
    tokens=st.integers(20, 3000),
    tokens_per_word=st.floats(0.5, 4.0),
    overhead=st.floats(0.0, 15.0),
    is_text=st.booleans(),
)
def test_prompts_have_the_length_that_was_asked_for(
    tokens: int, tokens_per_word: float, overhead: float, *, is_text: bool
) -> None:
    """Prompts have the wanted number of tokens by the server's count, up to the rounding of a
    word.
    """
    words = TEXT if is_text else PromptWords()
    made = PromptGenerator(words, TokenScale(tokens_per_word, overhead), "1").opening(tokens)
    counted = len(made.split()) * tokens_per_word + overhead
    assert counted == pytest.approx(tokens, abs=tokens_per_word)


@given(
    few=st.integers(1, 50),
    more=st.integers(100, 900),
    tokens_per_word=st.integers(1, 4),
    overhead=st.integers(0, 40),
)
def test_two_counts_give_the_scale(
    few: int, more: int, tokens_per_word: int, overhead: int
) -> None:
    """Tokens per word, and what the template adds."""
    counts = ((words, words * tokens_per_word + overhead) for words in (few, few + more))
    scale = token_scale(*counts)
    assert scale.tokens_per_word == pytest.approx(tokens_per_word)
    assert scale.overhead_tokens == pytest.approx(overhead, abs=1e-6)


def test_counts_that_do_not_grow_are_an_error() -> None:
    """A server that counts every prompt alike cannot size them."""
    with pytest.raises(ConfigError, match="counts 9 tokens for 40 words and 9 for 440"):
        token_scale((40, 9), (440, 9))


def test_each_stream_gets_its_requests() -> None:
    """Each stream gets its requests, and a single stream gets enough for a median."""
    assert Streams(64, 10, each=3).num_requests == len(Streams(64, 10, 3).chains(prompts())) == 192
    assert Streams(1, 10).num_requests == 8


def test_conversations_grow_behind_a_shared_prompt() -> None:
    """Every turn contains the one before, with a fixed answer; the last has the full length."""
    agents = Agents(5, 4, shared_tokens=400, longest_tokens=1500)
    chains = agents.chains(prompts())
    assert len(chains) * len(chains[0]) == agents.num_requests == 20
    assert len({chain[0].messages[0]["content"] for chain in chains}) == 1
    assert len({chain[0].messages[1]["content"] for chain in chains}) == 5
    for chain in chains:
        assert [one.part for one in chain] == [FIRST_TURNS, *[LATER_TURNS] * 3]
        for earlier, later in pairwise(chain):
            assert later.messages[: len(earlier.messages)] == earlier.messages
            assert [one["role"] for one in later.messages[-2:]] == ["assistant", "user"]
            assert len(later.messages[-2]["content"].split()) == ANSWER_TOKENS
        length = sum(len(one["content"].split()) for one in chain[-1].messages)
        assert length == pytest.approx(1500, abs=4)


def test_agents_that_have_no_room_are_refused() -> None:
    """Agents that have no room are refused before anything is sent."""
    with pytest.raises(ConfigError, match="4 turns do not fit between 4000 and 4300 tokens"):
        Agents(32, 4, 4000, 4300)


def test_staggered_streams_begin_within_an_answer_and_alike_everywhere() -> None:
    """The requests are those of the cell; only the starts differ, by the salt alone."""
    base = Streams(16, 60)
    cell = Staggered(base, base.streams)
    starts = cell.starts_s("5/round", 4.0)
    assert starts == cell.starts_s("5/round", 4.0) != cell.starts_s("5/other", 4.0)
    assert len(starts) == 16
    assert 0 <= min(starts) < 1.0
    assert 3.0 < max(starts) <= 4.0
    assert cell.chains(prompts()) == base.chains(prompts())
    assert cell.num_requests == base.num_requests


def test_a_cold_prefix_is_new_in_every_round() -> None:
    """Shared by the conversations of a round, and by nothing before."""
    rounds = [Cold(8, 500).chains(prompts(salt)) for salt in "ab"]
    prefixes = [{chain[0].messages[0]["content"] for chain in chains} for chains in rounds]
    assert [len(found) for found in prefixes] == [1, 1]
    assert prefixes[0] != prefixes[1]
    assert all(len(chain) == 1 for chains in rounds for chain in chains)
    (system, user) = rounds[0][0][0].messages
    assert [len(one["content"].split()) for one in (system, user)] == [500, COLD_OWN_TOKENS]


@given(num_servers=st.integers(1, 3), num_cells=st.integers(1, 6), factor=st.integers(1, 3))
def test_every_server_is_first_equally_often(num_servers: int, num_cells: int, factor: int) -> None:
    """Every server is first equally often in each cell, if the rounds are a multiple of the
    servers; and all run every time.
    """
    names = [f"s{number}" for number in range(num_servers)]
    for cell in range(num_cells):
        orders = [server_order(names, each, cell) for each in range(num_servers * factor)]
        assert all(sorted(order) == names for order in orders)
        assert {sum(order[0] == name for order in orders) for name in names} == {factor}
