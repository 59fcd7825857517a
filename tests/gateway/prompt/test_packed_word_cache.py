"""Words and their ids."""

from hypothesis import given
from hypothesis import strategies as st

from gateway.prompt.packed_word_cache import MAX_WORD_CHARS, PackedWords

WORDS = st.dictionaries(st.text(max_size=6), st.binary(max_size=12), max_size=12)


@given(st.lists(WORDS, max_size=8))
def test_it_is_bounded_and_never_wrong(steps: list[dict[str, bytes]]) -> None:
    """Of each word it knows the first ids that it was told, or nothing; empty, it holds nothing."""
    words, told = PackedWords(2_000), dict[str, set[bytes]]()
    for step in steps:
        for word, packed in step.items():
            told.setdefault(word, set()).add(packed)
        words.add(step)
        assert words.num_bytes <= 2_000
        assert all(packed in told[word] for word, packed in words.known.items())
        assert (words.num_bytes == 0) == (not words.known)


def test_what_came_first_is_forgotten_first() -> None:
    """The dict keeps the order."""
    words = PackedWords(200_000)
    for number in range(5_000):
        words.add({f"{number}": b"1234"})
    known = [int(word) for word in words.known]
    assert known == list(range(known[0], 5_000))
    assert 500 < len(known) < 2_000


def test_long_words_are_not_kept() -> None:
    """They hardly ever come again."""
    words = PackedWords(10_000)
    words.add({"x" * MAX_WORD_CHARS: b"1", "x" * (MAX_WORD_CHARS + 1): b"2"})
    assert list(words.known.values()) == [b"1"]
