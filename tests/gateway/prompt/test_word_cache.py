"""Words that were encoded before, against the library's ids of the whole text."""

from collections.abc import Sequence
from functools import cache

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tokenizers import AddedToken

from gateway.prompt.tokenizer import Encoder
from gateway.prompt.word_breaks import word_breaks
from gateway.prompt.word_cache import MAX_ONCE, MAX_TEXT_CHARS, MAX_UNKNOWN, WordMemory
from protocol.tokens import pack_tokens
from tests.fakes.split_patterns import PATTERNS
from tests.fakes.text_files import CORPUS, MARKERS, SPECIALS
from tests.fakes.tokenizers import designs, split_by

DESIGNS = ("byte-level", "byte-level with space", "unigram", "wordpiece")
NAMES = (*DESIGNS, *(f"pattern {at}" for at in range(len(PATTERNS))), "spaces as tokens")
NASTY = (
    *(
        "🙂",
        "👩‍👩‍👧",
        "e\u0301",
        "\u0301",
        "\u200d",
        "\u200b",
        "ﬁ",
        "Å",
        "你好",
        "\u2028",
        "\x00",
        "\x1c",
    ),
    *("\x0b", "\x0c", "\x1f", "\x85", "\u00a0", "\u3000", "\u180e", "\ufeff", "ΣΑΣ", "ß", "¨", "ﷺ"),
    *(" ", "  ", "   ", "\n", "\r\n", "\n\n\n", "\t ", "\r", " \n ", "\n    ", "\t\t", " \u0301"),
    *("I'm", "'S", "'", "don't", "1234", "12,345.67", "foo();", "{'a': [1]}", "__init__", "x=y\n"),
    *(
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
    ),
)
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
    else:
        tokenizer = designs()[name]
    return Encoder(tokenizer.to_str().encode())


@cache
def memory_of(name: str, max_bytes: int = 30_000) -> WordMemory:
    """One for all examples, so that most words are known, and some were forgotten."""
    encoder = encoder_of(name)
    breaks = word_breaks(encoder.tokenizer)
    assert breaks is not None
    return WordMemory(breaks, encoder.encode_texts, max_bytes)


def spell(memory: WordMemory, *texts: str) -> list[bytes]:
    spelling = memory.spell(texts)
    memory.learn(spelling)
    return spelling.packed


@given(texts=st.lists(TEXTS, min_size=1, max_size=3))
@example(texts=["", " ", "  ", "a b", " a  b ", "\n a\n"])
def test_words_have_the_ids_of_their_text(texts: list[str]) -> None:
    """The first time, when they are learned, and when they are known. Drawing texts takes longer
    than spelling them: each is spelled with every tokenizer.
    """
    for name in NAMES:
        whole = [pack_tokens(ids) for ids in encoder_of(name).encode_texts(texts)]
        for _ in range(3):
            assert spell(memory_of(name), *texts) == whole, name


@given(
    words=st.lists(st.sampled_from([*NASTY, *WORDS, *MARKERS]), min_size=20, max_size=60),
    joint=st.sampled_from([" ", "  ", "\n"]),
)
def test_long_texts_too(words: list[str], joint: str) -> None:
    """Of which some words are known and some are not."""
    text = joint.join(words)
    for name in NAMES:
        whole = [pack_tokens(ids) for ids in encoder_of(name).encode_texts([text])]
        assert spell(memory_of(name, 2_000), text) == whole, name
        assert spell(memory_of(name), text) == whole, name


def asking(name: str) -> tuple[Encoder, WordMemory, list[str]]:
    """An encoder, a memory over it, and what that has asked it so far."""
    encoder = encoder_of(name)
    breaks = word_breaks(encoder.tokenizer)
    asked: list[str] = []

    def encode(texts: Sequence[str]) -> list[list[int]]:
        asked.extend(texts)
        return encoder.encode_texts(texts)

    assert breaks is not None
    memory = WordMemory(breaks, encode)
    return encoder, memory, asked


@pytest.mark.parametrize("name", DESIGNS)
def test_words_that_came_twice_are_not_encoded_again(name: str) -> None:
    """A new text of known words gives the library nothing to do."""
    encoder, memory, asked = asking(name)
    for text in ("the weather is warm naïve", "is the weather warm naïve"):
        spell(memory, f"so {text}")
    asked.clear()
    text = "so warm is the naïve weather is"
    assert spell(memory, text) == [pack_tokens(encoder.encode_texts([text])[0])]
    assert asked == []


def test_a_text_of_unknown_pieces_is_left_to_the_library_until_they_are_known() -> None:
    """It teaches some of them each time."""
    encoder, memory, asked = asking("byte-level")
    letters = [f"{a}{b}{c}" for a in "abcdefghij" for b in "klmnopqrst" for c in "uvwxyzabcd"]
    text = " ".join(letters)
    whole = [pack_tokens(encoder.encode_texts([text])[0])]
    num_asked = []
    for _ in range(3):
        assert spell(memory, text) == whole
        num_asked.append(len(asked))
    assert num_asked == [1, 1, 1]


def test_many_unknown_texts_teach_no_more_at_a_time_than_one() -> None:
    """The loop learns: 4 MB of texts, each with few new pieces, had held it for 1.8 s."""
    encoder = encoder_of("byte-level")
    breaks = word_breaks(encoder.tokenizer)
    assert breaks is not None
    memory = WordMemory(breaks, encoder.encode_texts)
    texts = [" ".join(f"{a}{b}" for b in map(chr, range(97, 123))) for a in map(str, range(2_000))]
    texts = [text.replace("1", "x").replace("2", "y").replace("3", "z") for text in texts]
    spelling = memory.spell(texts)
    assert spelling.packed == [pack_tokens(ids) for ids in encoder.encode_texts(texts)]
    assert len(spelling.pieces) <= MAX_UNKNOWN
    assert len(spelling.once) <= MAX_ONCE + max(map(len, texts))


def test_reading_changes_nothing() -> None:
    """Only `learn` writes: `spell` may run in a thread."""
    memory = memory_of("byte-level", 20_000)
    spellings = [memory.spell(["some words that nobody knows"]) for _ in range(3)]
    assert memory.num_bytes == 0
    assert spellings[0] == spellings[1] == spellings[2]


@given(texts=st.lists(TEXTS, min_size=1))
def test_the_memory_is_bounded(texts: list[str]) -> None:
    """Whatever comes, words and pieces hold no more than they may."""
    memory = memory_of("byte-level", 3_000)
    for text in texts:
        spell(memory, text)
        assert memory.num_bytes <= 2 * 3_000


def test_names_of_words_that_came_once_are_bounded() -> None:
    """Numbers that never come again are forgotten."""
    encoder = encoder_of("wordpiece")
    breaks = word_breaks(encoder.tokenizer)
    assert breaks is not None
    memory = WordMemory(breaks, lambda texts: [[1] for _ in texts])
    for start in range(0, 3 * MAX_ONCE, 1_000):
        spell(memory, " ".join(f"{number:x}" for number in range(start, start + 1_000)))
        assert memory.num_once <= MAX_ONCE


@pytest.mark.parametrize("text", ["a b " * MAX_TEXT_CHARS, "a\0b c", "x" * 300])
def test_some_texts_are_left_to_the_library(text: str) -> None:
    """Long ones, long words (they would hold the GIL), and those with the character that cuts."""
    memory = memory_of("byte-level", 40_000)
    spelling = memory.spell([text])
    assert spelling.packed == [pack_tokens(encoder_of("byte-level").encode_texts([text])[0])]
    assert not spelling.pieces
    assert not list(spelling.once)
