"""A memory with a young half and an old one."""

from hypothesis import given
from hypothesis import strategies as st

from gateway.prompt.segment_cache import Generations

MAX_BYTES = 20

STEPS = st.lists(st.tuples(st.lists(st.integers(0, 9), max_size=4), st.booleans()), max_size=60)


def size_of(key: int, packed: bytes) -> int:
    return 1 + key


def ids(key: int) -> bytes:
    return bytes([key])


def test_what_is_asked_for_stays() -> None:
    """However much else comes in the meantime."""
    memory = Generations[int](10, lambda _, packed: len(packed))
    memory.put(0, b"x")
    for key in range(1, 100):
        memory.put(key, b"y")
        assert memory.find([0]) == [b"x"]
    assert memory.find([1, 99]) == [None, b"y"]


def test_what_nobody_asks_for_goes() -> None:
    """After as much else as the memory holds, at the latest."""
    memory = Generations[int](10, lambda _, packed: len(packed))
    memory.put(0, b"x")
    for key in range(1, 11):
        memory.put(key, b"y")
    assert memory.find([0]) == [None]


def test_what_is_too_large_is_not_kept() -> None:
    """It would leave no place for anything else."""
    memory = Generations[int](10, lambda _, packed: len(packed))
    memory.put(0, b"x" * 6)
    assert memory.find([0]) == [None]
    assert memory.num_bytes == 0


@given(STEPS)
def test_it_is_bounded_and_never_wrong(steps: list[tuple[list[int], bool]]) -> None:
    """It knows what was put, or nothing; it counts what it holds."""
    memory, known = Generations[int](MAX_BYTES, size_of), set[int]()
    for keys, is_put in steps:
        if is_put:
            for key in keys:
                memory.put(key, ids(key))
                known.add(key)
                assert size_of(key, b"") > MAX_BYTES // 2 or memory.find([key]) == [ids(key)]
        for key, found in zip(keys, memory.find(keys), strict=True):
            assert found is None or (found == ids(key) and key in known)
        held = [*memory._young, *memory._old]
        assert memory.num_bytes == sum(size_of(key, b"") for key in held) <= MAX_BYTES
