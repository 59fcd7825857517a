"""What the structure of an expression says, against what the library does with it."""

import re

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tokenizers import Regex, pre_tokenizers

from gateway.prompt.split_pattern import Pattern, UnknownPattern, read_pattern
from gateway.prompt.word_breaks import is_printed
from tests.fakes.split_patterns import PATTERNS

ATOMS = (
    *("a", "B", "'s", r"\p{L}", r"\p{Lu}", r"\p{Ll}", r"\p{N}", r"\P{L}", r"\s", r"\S", r"\d", "."),
    *(r"[^\s\p{L}\p{N}]", r"[^\r\n\p{L}\p{N}]", r"[\r\n]", r"[a-f ]", r"[^a-f]", r"\w", r"\W", " "),
    *("(?i:'s|b)", r"(?:a|\s)", r"(?: b)?", "[!-/]", r"\.", r"[\p{L}\p{M}]", "[一-龥]", "é"),
)
COUNTS = ("", "?", "*", "+", "{1,3}", "+?", "++")
AHEAD = ("", "", "", r"(?!\S)", r"(?!\p{L})", r"(?!\s)", "(?!b)")
PARTS = st.tuples(
    st.sampled_from(ATOMS),
    st.sampled_from(["", "?", "*", "+", "{1,3}", "+?", "++"]),
    st.sampled_from(AHEAD),
).map("".join)
BRANCHES = st.lists(PARTS, min_size=1, max_size=3).map("".join)
SOURCES = st.lists(BRANCHES, min_size=1, max_size=4).map("|".join)
LETTERS = "abBs'! .1\n\r\t\v\x1c\x85\u00a0éß一\u0301🙂"
TEXTS = st.text(alphabet=LETTERS, max_size=12)
ASCII = st.text(alphabet="abBfsS'!. 1\n\r\t\v\x00\x1c\x7f-", max_size=14)


def pieces(source: str, text: str) -> list[str]:
    split = pre_tokenizers.Split(Regex(source), "isolated")
    return [piece for piece, _ in split.pre_tokenize_str(text)]


def read(source: str) -> Pattern | None:
    try:
        return read_pattern(source)
    except UnknownPattern:
        return None


@given(source=SOURCES | st.sampled_from(PATTERNS), left=TEXTS, right=TEXTS)
@example(source=r"\s+(?!\S)|\s", left="a", right="")
def test_a_text_may_be_cut_where_the_structure_says_so(source: str, left: str, right: str) -> None:
    """In front of a space behind something printed: no piece lies across the place, and both
    sides have the pieces that they have by themselves."""
    pattern = read(source)
    if pattern is None or pattern.joins_space or not left or not is_printed(left[-1]):
        return
    whole, apart = (
        pieces(source, left + " " + right),
        pieces(source, left) + pieces(source, " " + right),
    )
    if not pattern.takes_white and whole != apart:
        at = len(pieces(source, left)) - 1
        apart[at : at + 2] = ["".join(apart[at : at + 2])]
    assert whole == apart


@given(source=SOURCES | st.sampled_from(PATTERNS), text=ASCII)
def test_in_ascii_python_finds_the_same(source: str, text: str) -> None:
    """Where it finds the whole text, and each piece by itself is one piece again."""
    pattern = read(source)
    if pattern is None:
        return
    found = pattern.ascii.findall(text)
    if "".join(found) != text:
        return
    assert found == pieces(source, text)
    for piece in found:
        assert pieces(source, piece) == [piece]


@pytest.mark.parametrize("source", PATTERNS)
def test_the_expressions_of_known_models_are_read(source: str) -> None:
    """GPT-2, Llama 3, Qwen, GPT-4o and the built-in model may be cut at spaces."""
    pattern = read_pattern(source)
    assert pattern.takes_white
    assert not pattern.joins_space
    assert isinstance(pattern.ascii, re.Pattern)


@pytest.mark.parametrize(
    "source",
    [
        *(r"\w+ \w+|\s", r"[^\n]+|\s", ".+", r"(?:\p{L}+ ?)+|\s+", r"\S+\s|\s+", r"\p{L}+(?! )|\s"),
        *(r"a[ b]|\s", r"\p{L}\W|\s", r"(a )|\s", r"[!-~ ]{2}|\s", r"a\P{L}|\s", r"(?i:x ?)+|\s"),
    ],
)
def test_what_takes_a_space_behind_a_word_is_found(source: str) -> None:
    """A match that holds both, in any way to write it."""
    assert read_pattern(source).joins_space


@pytest.mark.parametrize(
    "source",
    [
        *(r"(?<=a)b|\s", r"(?=a)\s", r"^a|\s", r"a$|\s", r"\ba|\s", r"\Aa|\s", r"(a)\1|\s", "a*"),
        *(r"(?>a)|\s", r"[a&&b]|\s", r"[[:alpha:]]|\s", r"\p{Han}|\s", r"(?i)a|\s", r"a{2}+|\s"),
        *(r"\x41|\s", r"\h|\s", "(a", "a)", "[a", "[]a]", "a|", "", "\\", r"\p{L", r"[a-\d]|\s"),
        *(r"(?!ab)\s", r"a{,2}|\s", r"\R|\s", r"(?#a)\s", r"(?~a)|\s", r"\K|\s"),
    ],
)
def test_what_is_not_known_is_refused(source: str) -> None:
    """Anchors, look-behind, sets of sets, and whatever could match nothing."""
    with pytest.raises(UnknownPattern):
        read_pattern(source)
