"""The tokenizer treats a word alike wherever it stands."""

import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer

from training.tokenizer import SPECIAL, one_of, token_id, train

TEXTS = [
    " ".join(["the weather in Lomi is fine and the cat of Tersa is at home,"] * 3),
    json.dumps({"name": "get_weather", "arguments": {"place": "Lomi", "days": 12}}),
    "def getWeatherNow(place): return place.upper()  # l o m i\n\n    x = 3.14",
] * 20


@pytest.fixture(name="tokenizer", scope="module")
def _tokenizer() -> Tokenizer:
    return train(TEXTS, 500)


@pytest.mark.parametrize(
    "text",
    [
        *TEXTS[:3],
        "",
        " ",
        "\n\n\n",
        "  a  b\t\n c ",
        "Ünï – 日本 🎉 e\u0301",
        "I'm, don't; HTTPs",
    ],
)
def test_every_text_comes_back(tokenizer: Tokenizer, text: str) -> None:
    """Encoding and decoding give the text unchanged."""
    assert tokenizer.decode(tokenizer.encode(text).ids) == text


def test_the_same_texts_give_the_same_tokenizer() -> None:
    """Training is deterministic."""
    assert train(TEXTS, 500).to_str() == train(TEXTS, 500).to_str()


def test_digits_are_single(tokenizer: Tokenizer) -> None:
    """A number is one token for each digit, behind a space, a quote or nothing."""
    for text in ("2026", " 2026", '"2026"', "-2026.5"):
        tokens = tokenizer.encode(text).tokens
        assert [token for token in tokens if token.isdigit()][:4] == list("2026")


@pytest.mark.parametrize("word", ["Lomi", "Tersa", "Zorvikan"])
def test_a_name_is_the_same_tokens_wherever_it_stands(tokenizer: Tokenizer, word: str) -> None:
    """A name is the same tokens wherever it stands: behind a space, in quotes, in camelCase, in
    snake_case and in a path.
    """
    alone = tokenizer.encode(word).tokens
    for text in (f"is {word}.", f'"{word}"', f"get{word}Now", f"a_{word}_b", f"/{word}/"):
        tokens = tokenizer.encode(text).tokens
        places = range(len(tokens) - len(alone) + 1)
        assert any(tokens[i : i + len(alone)] == alone for i in places), text


def test_spelled_letters_are_one_token_each(tokenizer: Tokenizer) -> None:
    """A word that is spelled out costs one token for a letter, space included."""
    assert len(tokenizer.encode(" l o m i").ids) == 4


def test_special_tokens_are_control_and_at_the_end(tokenizer: Tokenizer) -> None:
    """The reserved tokens have the last ids, whatever the size."""
    size = tokenizer.get_vocab_size()
    assert size <= 500
    assert all(token_id(tokenizer, token) >= size - 9 for token in SPECIAL)


@given(
    st.lists(st.text("abc", min_size=1, max_size=4), min_size=1, max_size=12),
    st.text("abc", max_size=12),
)
def test_words_with_common_beginnings_match_as_a_plain_list(words: list[str], text: str) -> None:
    """Wherever a match has to end at a certain place, as before something that is no letter."""
    plain = "|".join(sorted(words, key=len, reverse=True))
    for tail in ("(?!a)", "$", ""):
        expected = [match.span() for match in re.finditer(f"(?:{plain}){tail}", text)]
        assert [match.span() for match in re.finditer(one_of(words) + tail, text)] == expected
