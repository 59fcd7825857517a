"""Digests of prompts that were partly seen before."""

from hypothesis import given
from hypothesis import strategies as st

from gateway.prompt.prompt_encoder import SPAN_BLOCKS, DigestCache
from protocol.hashing import block_digests, root_digest
from protocol.tokens import pack_tokens

ROOTS = [root_digest("m"), root_digest("m", "", b"alice")]

PROMPTS = st.lists(
    st.tuples(
        st.sampled_from(ROOTS),
        st.sampled_from([1, 2, 4]),
        st.lists(st.tuples(st.integers(0, 2), st.integers(1, 3 * SPAN_BLOCKS)), max_size=4),
    ),
    max_size=8,
)


@given(PROMPTS, st.sampled_from([0, 3_000, 1_000_000]))
def test_the_digests_are_those_of_the_definition(
    prompts: list[tuple[bytes, int, list[tuple[int, int]]]], max_bytes: int
) -> None:
    """Digests are those of the definition, whatever was asked before under other roots and with
    other block sizes.
    """
    cache = DigestCache(max_bytes)
    for root, block_size, runs in prompts:
        packed = pack_tokens([token for token, times in runs for _ in range(times)])
        expected = block_digests(root, packed, block_size)  # type: ignore[arg-type]
        assert cache.digests(root, packed, block_size) == tuple(expected)  # type: ignore[arg-type]
        assert cache.num_bytes <= max_bytes


def test_a_next_turn_keeps_only_its_new_part() -> None:
    """The memory grows by what is new, not by the conversation."""
    cache = DigestCache()
    first = pack_tokens(range(100 * SPAN_BLOCKS))
    cache.digests(ROOTS[0], first, 1)
    before = cache.num_bytes
    cache.digests(ROOTS[0], first + pack_tokens([7]), 1)
    assert cache.num_bytes - before < before / 50
