"""The fewest tokens of a text, against what the tokenizers make of it."""

import json
import unicodedata

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, models, normalizers, pre_tokenizers

from gateway.prompt.token_bound import TokenBound, token_bound
from tests.fakes.tokenizers import PATTERNS, byte_level, designs, split_by

ENDLESS = 2**40
PARTS = (
    "hello world ", "e\u0301", "\u1fef", "\u1112\u1161\u11ab", "\uac01",
    "\U0001d400", "    ", "----", "a", "9",
)  # fmt: skip
TEXTS = st.lists(
    st.sampled_from(PARTS) | st.text(max_size=4),
    max_size=30,
).map("".join)


def bound_of(tokenizer: Tokenizer) -> TokenBound | None:
    return token_bound(tokenizer, tokenizer.to_str().encode())


def normalized(name: str) -> Tokenizer:
    tokenizer = split_by(PATTERNS[0])
    if name:
        tokenizer.normalizer = getattr(normalizers, name)()
    return tokenizer


@pytest.mark.parametrize("name", ["", "NFC", "NFD", "NFKC", "NFKD", "Lowercase"])
@given(text=TEXTS)
def test_no_text_has_fewer_tokens_than_its_bound(name: str, text: str) -> None:
    tokenizer = normalized(name)
    bound = bound_of(tokenizer)
    assert bound is not None
    num_tokens = len(tokenizer.encode(text, add_special_tokens=False).ids)
    assert bound.fewest_tokens([text], ENDLESS) <= num_tokens
    assert bound.fewest_tokens(list(text), ENDLESS) <= num_tokens
    for is_ascii in (True, False):
        written = memoryview(json.dumps(text, ensure_ascii=is_ascii).encode())
        assert bound.fewest_in_json([written], ENDLESS) <= num_tokens


@pytest.mark.parametrize("form", ["NFC", "NFD", "NFKC", "NFKD"])
def test_no_character_shrinks_more_than_the_bound_knows(form: str) -> None:
    """Every character of Unicode by itself, and decomposed."""
    bound = bound_of(normalized(form))
    assert bound is not None
    for code in range(0x110000):
        if 0xD800 <= code < 0xE000:
            continue
        for text in {chr(code), unicodedata.normalize("NFD", chr(code))}:
            after = unicodedata.normalize(form, text)  # type: ignore[arg-type]
            assert len(text.encode()) <= bound.shrinks * len(after.encode()), hex(code)


def test_words_are_bounded_by_the_longest_word_and_not_by_the_longest_run() -> None:
    """Most vocabularies have runs of spaces much longer than any word."""
    tokenizer = byte_level()
    tokenizer.add_tokens([AddedToken(" " * 100, normalized=False)])
    bound = bound_of(tokenizer)
    assert bound is not None
    assert bound.most_bytes == 100
    assert bound.most_word_bytes < 30
    assert bound.fewest_tokens(["word" * 1000], ENDLESS) >= 4000 // bound.most_word_bytes
    assert bound.fewest_tokens([" " * 1000], ENDLESS) == 10


def test_a_string_of_json_is_bounded_without_decoding_it() -> None:
    """Letters of escapes are not the text's, and a long text is counted in pieces."""
    bound = TokenBound(1, 1)
    assert bound.fewest_in_json([memoryview(b'"' + b"a" * 1000 + b'"')], ENDLESS) > 990
    escapes = json.dumps("\n\x7f" * 1000).encode()
    assert bound.fewest_in_json([memoryview(escapes)], ENDLESS) == 0
    cut = json.dumps("\x7f" * 200_000).encode()
    assert bound.fewest_in_json([memoryview(cut)], ENDLESS) == 0


def test_counting_stops_behind_enough() -> None:
    """A million parts are not looked at once the first has proved it."""
    bound = TokenBound(1, 1)

    def endless():  # type: ignore[no-untyped-def] # noqa: ANN202
        while True:
            yield "abc"

    assert 5 < bound.fewest_tokens(endless(), 5) <= 8


@pytest.mark.parametrize("name", ["unigram", "wordpiece", "greedy for space"])
def test_a_tokenizer_that_drops_text_has_no_bound(name: str) -> None:
    """White space that a control token takes, words that are one unknown token, stripped ends."""
    assert bound_of(designs()[name]) is None


def test_sentence_piece_with_bytes_has_a_bound_and_without_has_none() -> None:
    """SentencePiece with bytes has a bound and without has none, as in Llama 2 and Gemma: spaces
    are letters, unknown letters are bytes.
    """
    letters = {f"<0x{byte:02X}>": byte for byte in range(256)} | {"▁": 256, "a": 257, "▁a": 258}
    for falls_back, has_bound in ((True, True), (False, False)):
        merges = [("▁", "a")]
        tokenizer = Tokenizer(
            models.BPE(letters, merges, byte_fallback=falls_back, unk_token="a", fuse_unk=True)
        )
        tokenizer.normalizer = normalizers.Replace(" ", "▁")
        bound = bound_of(tokenizer)
        assert (bound is not None) == has_bound
        if bound is not None:
            text = " a é  a" * 9
            assert bound.fewest_tokens([text], ENDLESS) <= len(tokenizer.encode(text).ids)


@pytest.mark.parametrize(
    "change",
    [
        {"normalizer": normalizers.Replace(" ", "")},
        {"normalizer": normalizers.Replace("  ", " ")},
        {"normalizer": normalizers.StripAccents()},
        {"normalizer": normalizers.Strip()},
        {"pre_tokenizer": pre_tokenizers.Whitespace()},
        {
            "pre_tokenizer": pre_tokenizers.Sequence(
                [pre_tokenizers.Split(" ", "removed"), pre_tokenizers.ByteLevel(use_regex=False)]
            )
        },
    ],
)
def test_stages_that_shorten_a_text_leave_no_bound(change: dict[str, object]) -> None:
    tokenizer = byte_level()
    for part, stage in change.items():
        setattr(tokenizer, part, stage)
    assert bound_of(tokenizer) is None


def test_a_vocabulary_without_all_bytes_has_no_bound() -> None:
    """The model drops letters that it has no token for."""
    state = msgspec.json.decode(byte_level().to_str())
    del state["model"]["vocab"]["Ã"]
    state["model"]["merges"] = []
    assert bound_of(Tokenizer.from_str(msgspec.json.encode(state).decode())) is None
