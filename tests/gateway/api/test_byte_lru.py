"""A cache bounded in bytes."""

from hypothesis import given
from hypothesis import strategies as st

from gateway.api.byte_lru import ByteLru

MAX_BYTES = 20

STEPS = st.lists(
    st.tuples(st.sampled_from(["get", "find", "put", "drop"]), st.integers(0, 25)), max_size=60
)


def test_what_was_not_used_for_longest_is_forgotten() -> None:
    """Reading a value is a use, and so is putting it again."""
    cache = ByteLru[str, str](12, lambda _key, _value: 4)
    cache.put((key, key.upper()) for key in "abc")
    assert cache.get("a") == "A"
    cache.put([("b", "B")])
    cache.put([("d", "D")])
    assert cache.find("abcd") == ["A", "B", None, "D"]


@given(STEPS)
def test_it_behaves_as_a_list_that_is_cut(steps: list[tuple[str, int]]) -> None:
    """Against a plain model: the freshest entries that fit, and never more than the bound."""
    cache = ByteLru[int, int](MAX_BYTES, lambda _key, value: value)
    model: list[int] = []
    for step, key in steps:
        if step == "put":
            cache.put([(key, key)])
            model += [key] if key not in model and key <= MAX_BYTES else []
            model.sort(key=lambda one: one == key)
            while sum(model) > MAX_BYTES:
                del model[0]
        elif step == "drop":
            cache.drop(key)
            model = [one for one in model if one != key]
        elif step == "find":
            assert cache.find([key]) == [key if key in model else None]
        else:
            assert cache.get(key) == (key if key in model else None)
            model.sort(key=lambda one: one == key)
        assert (len(cache), cache.num_bytes) == (len(model), sum(model))
