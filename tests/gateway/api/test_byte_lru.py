"""A memory bounded in bytes."""

from hypothesis import given
from hypothesis import strategies as st

from gateway.api.byte_lru import ByteLru

MAX_BYTES = 20

STEPS = st.lists(st.tuples(st.integers(0, 6), st.none() | st.integers(0, 25)), max_size=60)


def test_what_was_not_asked_for_longest_is_forgotten() -> None:
    """Asking keeps a value."""
    memory = ByteLru[str, str](10)
    memory.put("a", "A", 4)
    memory.put("b", "B", 4)
    assert memory.get("a") == "A"
    memory.put("c", "C", 4)
    assert [memory.get(key) for key in "abc"] == ["A", None, "C"]


@given(STEPS)
def test_it_behaves_as_a_list_that_is_cut(steps: list[tuple[int, int | None]]) -> None:
    """Against a plain model: the freshest entries that fit, and never more than the bound."""
    memory = ByteLru[int, int](MAX_BYTES)
    model: list[tuple[int, int]] = []
    for key, num_bytes in steps:
        old = [entry for entry in model if entry[0] == key]
        if num_bytes is None:
            assert memory.get(key) == (old[0][1] if old else None)
            model = [entry for entry in model if entry[0] != key] + old
        else:
            memory.put(key, num_bytes, num_bytes)
            model = [entry for entry in model if entry[0] != key]
            model += [(key, num_bytes)] if num_bytes <= MAX_BYTES else []
            while sum(size for _, size in model) > MAX_BYTES:
                del model[0]
        assert (len(memory), memory.num_bytes) == (len(model), sum(size for _, size in model))
