"""Random bytes in small pieces."""

import itertools

from hypothesis import given
from hypothesis import strategies as st

from gateway.runtime.random_pool import POOL_BYTES, RandomPool


@given(st.lists(st.integers(0, POOL_BYTES // 4 + 8), max_size=20))
def test_no_byte_is_given_away_twice(sizes: list[int]) -> None:
    """Each piece is as long as asked for, and from another place of the source."""
    places = itertools.count()

    def source(num_bytes: int) -> bytes:
        """Four bytes tell their place."""
        return b"".join(next(places).to_bytes(4, "little") for _ in range(num_bytes // 4))

    random_pool = RandomPool(source)
    pieces = [random_pool.draw(4 * size) for size in sizes]
    assert [len(piece) for piece in pieces] == [4 * size for size in sizes]
    words = [piece[at : at + 4] for piece in pieces for at in range(0, len(piece), 4)]
    assert len(set(words)) == len(words)


@given(st.lists(st.integers(0, POOL_BYTES + 9), max_size=20))
def test_each_piece_is_as_long_as_asked_for(sizes: list[int]) -> None:
    """Also where the pool ends."""
    random_pool = RandomPool(bytes)
    assert [len(random_pool.draw(size)) for size in sizes] == sizes
    assert [len(random_pool.draw(1)) for _ in range(POOL_BYTES + 1)] == [1] * (POOL_BYTES + 1)


def test_small_pieces_ask_the_source_once_in_a_while() -> None:
    """A pool serves hundreds of requests."""
    asked: list[int] = []

    def source(num_bytes: int) -> bytes:
        asked.append(num_bytes)
        return bytes(num_bytes)

    random_pool = RandomPool(source)
    for _ in range(POOL_BYTES // 16 + 1):
        assert len(random_pool.draw(16)) == 16
    assert asked == [POOL_BYTES, POOL_BYTES]
