"""Incremental detokenisation."""

from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from gateway.output.detokenizer import (
    ByteDetokenizer,
    ByteTable,
    Detokenizer,
    StreamDetokenizer,
    StreamTokenBytes,
)
from tests.fakes.text_files import make_tokenizer

TOKENIZER = make_tokenizer()
TABLE = ByteTable(TOKENIZER)
HIDDEN = ("<|im_end|>", "<|endoftext|>")
IDS = st.lists(st.integers(0, TOKENIZER.get_vocab_size() - 1), max_size=40)


def metaspace_tokenizer() -> Tokenizer:
    """A tokenizer of the SentencePiece kind, whose unknown characters fall back to bytes."""
    vocab = {"<unk>": 0, **{f"<0x{byte:02X}>": byte + 1 for byte in range(256)}}
    for piece in ("▁", "▁hello", "▁wor", "ld", "a", "b"):
        vocab[piece] = len(vocab)
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[], unk_token="<unk>", byte_fallback=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    return tokenizer


METASPACE = metaspace_tokenizer()


def pushed(detokenizer: Detokenizer, ids: Iterable[int]) -> str:
    """The text that these ids complete."""
    return "".join(map(detokenizer.push_one, ids))


def pieces(detokenizer: Detokenizer, ids: list[int], cut: int) -> list[str]:
    return [pushed(detokenizer, ids[:cut]), pushed(detokenizer, ids[cut:]), detokenizer.flush()]


@given(IDS)
def test_every_split_gives_the_full_decode(ids: list[int]) -> None:
    """Whatever the ids and wherever they are split, the text equals one full decode."""
    whole = TOKENIZER.decode(ids, skip_special_tokens=True)
    for cut in range(len(ids) + 1):
        assert "".join(pieces(ByteDetokenizer(TABLE), ids, cut)) == whole
    one_by_one, at_once = ByteDetokenizer(TABLE), ByteDetokenizer(TABLE)
    parts = [one_by_one.push_one(token_id) for token_id in ids]
    assert "".join([*parts, one_by_one.flush()]) == whole
    assert parts == [pushed(at_once, (token_id,)) for token_id in ids]


@given(st.text(max_size=30))
def test_text_comes_back_as_it_was(text: str) -> None:
    """Encoded text decodes to itself, emoji across tokens included."""
    ids = TOKENIZER.encode(text, add_special_tokens=False).ids
    detokenizer = ByteDetokenizer(TABLE)
    shown = [pushed(detokenizer, (token_id,)) for token_id in ids]
    assert "\ufffd" in text or not any("\ufffd" in part for part in shown)
    assert "".join(shown) + detokenizer.flush() == TOKENIZER.decode(ids)


def test_a_character_is_never_shown_in_part() -> None:
    """An emoji of four tokens appears whole with its last token."""
    spelled = pre_tokenizers.ByteLevel(add_prefix_space=False).pre_tokenize_str("🦉")[0][0]
    ids = [TOKENIZER.token_to_id(char) for char in spelled]
    detokenizer = ByteDetokenizer(TABLE)
    assert [pushed(detokenizer, (token_id,)) for token_id in ids] == ["", "", "", "🦉"]


def test_a_character_that_never_ends_becomes_the_replacement() -> None:
    """Bytes that are no UTF-8 are U+FFFD, at the latest with the flush."""
    first = TOKENIZER.token_to_id("ð")
    detokenizer = ByteDetokenizer(TABLE)
    assert pushed(detokenizer, (first,)) == ""
    assert detokenizer.flush() == "\ufffd"


def test_special_tokens_are_silent_and_markers_are_not() -> None:
    """The end of a turn has no text; think and tool tags do; unknown ids have none."""
    ids = [TOKENIZER.token_to_id(token) for token in ("<think>", "<|im_end|>", "</tool_call>")]
    assert pushed(ByteDetokenizer(TABLE), [*ids, 10**6]) == "<think></tool_call>"


def test_a_special_token_is_spelt_where_asked() -> None:
    """Log-probabilities show control tokens by their text."""
    assert TABLE.bytes_of(TOKENIZER.token_to_id("<|im_end|>")) == b"<|im_end|>"
    assert TABLE.bytes_of(10**6) == b""


@given(st.text("abhello world é🦉", max_size=12))
def test_other_decoders_split_anywhere_too(text: str) -> None:
    """A tokenizer that is not byte-level streams real text to the same as its full decode.

    Runs of bytes that are no UTF-8 are left out: that decoder replaces the whole run, also the
    good characters that a stream has already shown.
    """
    ids = METASPACE.encode(text).ids
    whole = METASPACE.decode(ids, skip_special_tokens=True)
    for cut in range(len(ids) + 1):
        assert "".join(pieces(StreamDetokenizer(METASPACE), ids, cut)) == whole


@pytest.mark.parametrize(("token_id", "spelled"), [(1 + 0x41, b"A"), (10**6, b"")])
def test_other_decoders_spell_tokens(token_id: int, spelled: bytes) -> None:
    """Single tokens of other decoders are spelled, unknown ids are empty."""
    assert StreamTokenBytes(METASPACE).bytes_of(token_id) == spelled


@given(IDS, st.integers(0, 40))
def test_special_tokens_that_are_markup_have_text(ids: list[int], cut: int) -> None:
    """Special tokens that are shown stand in the text at their place; others have no text."""
    shown = frozenset({"<|im_start|>"})
    ids = [*ids, TOKENIZER.token_to_id("<|im_start|>"), TOKENIZER.token_to_id("<|im_end|>")]
    kept = [one for one in ids if one not in {TOKENIZER.token_to_id(t) for t in HIDDEN}]
    whole = TOKENIZER.decode(kept, skip_special_tokens=False)
    assert "".join(pieces(ByteDetokenizer(ByteTable(TOKENIZER, shown)), ids, cut)) == whole
    assert "".join(pieces(StreamDetokenizer(TOKENIZER, shown), ids, cut)) == whole
