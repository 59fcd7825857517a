"""Words that were encoded before, against the library's ids of the whole text."""

from collections.abc import Sequence
from functools import cache

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tokenizers import AddedToken, normalizers

from gateway.prompt.split_patterns import ascii_pattern
from gateway.prompt.tokenizer import Encoder
from gateway.prompt.word_cache import (
    MAX_BYTES,
    MAX_NEW_PIECES,
    MAX_ONCE,
    MAX_TEXT_CHARS,
    Encode,
    WordCache,
)
from protocol.tokens import pack_tokens
from tests.fakes.text_files import CORPUS, MARKERS, SPECIALS
from tests.fakes.tokenizers import PATTERNS, byte_level, designs, split_by

NAMES = (
    "byte-level",
    "spaces as tokens",
    "ligature",
    *(f"pattern {at}" for at in range(len(PATTERNS))),
)
NASTY = (
    "🙂", "👩‍👩‍👧", "e\u0301", "\u0301", "\u200d", "\u200b", "ﬁ", "Å", "你好", "\u2028", "\x00",
    "\x1c",
    "\x0b", "\x0c", "\x1f", "\x85", "\u00a0", "\u3000", "\u180e", "\ufeff", "ΣΑΣ", "ß", "¨", "ﷺ",
    " ", "  ", "   ", "\n", "\r\n", "\n\n\n", "\t ", "\r", " \n ", "\n    ", "\t\t", " \u0301",
    "I'm", "'S", "'", "don't", "1234", "12,345.67", "foo();", "{'a': [1]}", "__init__", "x=y\n",
    "▁",
        "##s",
        "Ġ",
        "Ċ",
        "naïve",
        "ÜBER",
        "HTTPServer",
        "a",
        "I",
        " the",
        "weather",
        "-",
        "...\n\n",
)  # fmt: skip
WORDS = " ".join(CORPUS).split(" ")
TEXTS = st.lists(
    st.sampled_from([*NASTY, *MARKERS, *SPECIALS])
    | st.sampled_from(WORDS).map(lambda word: " " + word)
    | st.text(max_size=5),
    max_size=12,
).map("".join)


@cache
def encoder_of(name: str) -> Encoder:
    kind, _, at = name.partition(" ")
    if kind == "pattern":
        tokenizer = split_by(PATTERNS[int(at)])
    elif name == "spaces as tokens":  # as Phi has them
        tokenizer = split_by(PATTERNS[0])
        tokenizer.add_tokens([AddedToken(" " * size) for size in range(2, 6)])
    elif name == "ligature":  # is looked for by its letters
        tokenizer = byte_level()
        tokenizer.normalizer = normalizers.NFKC()
        tokenizer.add_tokens([AddedToken("\N{LATIN SMALL LIGATURE FI}", normalized=True)])
    else:
        tokenizer = designs()[name]
    return Encoder(tokenizer.to_str().encode())


def new_cache(name: str, encode: Encode | None = None, max_bytes: int = MAX_BYTES) -> WordCache:
    encoder = encoder_of(name)
    pattern = ascii_pattern(encoder.tokenizer)
    assert pattern is not None
    return WordCache(encoder.tokenizer, pattern, encode or encoder.encode_texts, max_bytes)


@cache
def cache_of(name: str, max_bytes: int = 30_000) -> WordCache:
    """One for all examples, so that most words are known, and some were forgotten."""
    return new_cache(name, max_bytes=max_bytes)


def encode(words: WordCache, *texts: str) -> list[bytes]:
    encoded = words.encode(texts)
    words.learn(encoded)
    return encoded.packed


@given(texts=st.lists(TEXTS, min_size=1, max_size=3))
@example(texts=["", " ", "  ", "a b", " a  b ", "\n a\n"])
def test_words_have_the_ids_of_their_text(texts: list[str]) -> None:
    """The first time, when they are learned, and when they are known. Drawing texts takes longer
    than encoding them: each is encoded with every tokenizer.
    """
    for name in NAMES:
        whole = [pack_tokens(ids) for ids in encoder_of(name).encode_texts(texts)]
        for _ in range(3):
            assert encode(cache_of(name), *texts) == whole, name


@given(
    words=st.lists(st.sampled_from([*NASTY, *WORDS, *MARKERS]), min_size=20, max_size=60),
    joint=st.sampled_from([" ", "  ", "\n"]),
)
def test_long_texts_too(words: list[str], joint: str) -> None:
    """Long texts, of which some words are known and some are not, have the library's ids too."""
    text = joint.join(words)
    for name in NAMES:
        whole = [pack_tokens(ids) for ids in encoder_of(name).encode_texts([text])]
        assert encode(cache_of(name, 2_000), text) == whole, name
        assert encode(cache_of(name), text) == whole, name


def asking(name: str) -> tuple[Encoder, WordCache, list[str]]:
    """An encoder, a cache over it, and the texts that the cache gave to the encoder so far."""
    encoder = encoder_of(name)
    asked: list[str] = []

    def encode_texts(texts: Sequence[str]) -> list[list[int]]:
        asked.extend(texts)
        return encoder.encode_texts(texts)

    return encoder, new_cache(name, encode_texts), asked


def test_words_that_came_twice_are_not_encoded_again() -> None:
    """A new text of known words gives the library nothing to do."""
    encoder, words, asked = asking("byte-level")
    for text in ("the weather is warm naïve", "is the weather warm naïve"):
        encode(words, f"so {text}")
    asked.clear()
    text = "so warm is the naïve weather is"
    assert encode(words, text) == [pack_tokens(encoder.encode_texts([text])[0])]
    assert asked == []


def test_a_text_of_unknown_pieces_is_left_to_the_library_until_they_are_known() -> None:
    """A text of unknown pieces goes to the library until they are known; each time some pieces are
    learned.
    """
    encoder, words, asked = asking("byte-level")
    letters = [f"{a}{b}{c}" for a in "abcdefghij" for b in "klmnopqrst" for c in "uvwxyzabcd"]
    text = " ".join(letters)
    whole = [pack_tokens(encoder.encode_texts([text])[0])]
    num_whole = []
    for _ in range(3):
        assert encode(words, text) == whole
        num_whole.append(asked.count(text))
    assert num_whole == [1, 1, 1]


def test_many_unknown_texts_teach_no_more_at_a_time_than_one() -> None:
    """The loop learns: 4 MB of texts, each with few new pieces, had held it for 1.8 s."""
    encoder, words = encoder_of("byte-level"), new_cache("byte-level")
    texts = [" ".join(f"{a}{b}" for b in map(chr, range(97, 123))) for a in map(str, range(2_000))]
    texts = [text.replace("1", "x").replace("2", "y").replace("3", "z") for text in texts]
    encoded = words.encode(texts)
    assert encoded.packed == [pack_tokens(ids) for ids in encoder.encode_texts(texts)]
    assert len(encoded.pieces) <= MAX_NEW_PIECES
    assert len(encoded.once) <= MAX_ONCE + max(map(len, texts))


def test_reading_changes_nothing() -> None:
    """Reading changes nothing: only `learn` writes, so `encode` may run in a thread."""
    words = new_cache("byte-level")
    encoded = [words.encode(["some words that are new"]) for _ in range(3)]
    assert words.num_bytes == 0
    assert encoded[0] == encoded[1] == encoded[2]


@given(texts=st.lists(TEXTS, min_size=1))
def test_the_cache_is_bounded(texts: list[str]) -> None:
    """The word cache never holds more than its bound."""
    words = cache_of("byte-level", 3_000)
    for text in texts:
        encode(words, text)
        assert words.num_bytes <= 2 * 3_000


def test_the_words_that_came_once_are_bounded() -> None:
    """Numbers that never come again are forgotten."""
    words = new_cache("byte-level", lambda texts: [[1] for _ in texts])
    for start in range(0, 3 * MAX_ONCE, 1_000):
        encode(words, " ".join(f"{number:x}" for number in range(start, start + 1_000)))
        assert len(words._once) <= MAX_ONCE


@pytest.mark.parametrize("text", ["a b " * MAX_TEXT_CHARS, "a\0b c", "x" * 300])
def test_some_texts_are_left_to_the_library(text: str) -> None:
    """Long ones, long words (they would hold the GIL), and those with the character that cuts."""
    encoded = new_cache("byte-level").encode([text])
    assert encoded.packed == [pack_tokens(encoder_of("byte-level").encode_texts([text])[0])]
    assert not encoded.pieces
    assert not list(encoded.once)
