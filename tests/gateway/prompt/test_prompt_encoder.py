"""Prompts encoded by segments, against the same prompts encoded as a whole."""

from functools import cache

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.prompt.control_tokens import MARK, ControlTokens
from gateway.prompt.prompt_encoder import PromptEncoder
from gateway.prompt.tokenizer import Encoder
from protocol.tokens import pack_tokens, unpack_tokens
from tests.fakes.text_files import MARKERS, SPECIALS
from tests.fakes.tokenizers import INSEPARABLE, SEPARABLE, designs

TOKENS = (*SPECIALS, "<|end|>")
"""Not every design has the last one."""
FORGERIES = (*TOKENS, "<|im_", "end|>", "<|", "|>", "<")
ODDITIES = (
    "🙂", "👩‍👩‍👧", "e\u0301", "\u0301", "\u200d", "ﬁ", "Å", "你好", "\u2028", "\x00", "\u00a0",
    " ", "  ", "\n", "\r\n", "\n\n\n", "\t ", "\r", " \n ",
    "hello", "The weather", "'s", "▁", "##s", "Ġ", "1234", '{"name": "x"}', "ÜBER",
)  # fmt: skip
TEXTS = st.lists(
    st.sampled_from([*ODDITIES, *MARKERS]) | st.text(max_size=5).map(lambda t: t.replace(MARK, "")),
    max_size=5,
).map("".join)
FORGED = st.lists(st.sampled_from([*FORGERIES, *ODDITIES]), max_size=5).map("".join)


@cache
def encoder_of(design: str) -> Encoder:
    return Encoder(designs()[design].to_str().encode())


@cache
def cached(design: str) -> PromptEncoder:
    """One for all examples, so that most segments are found in its memory."""
    encoder = encoder_of(design)
    return PromptEncoder(encoder, ControlTokens(encoder.control), max_bytes=20_000)


def encode(prompts: PromptEncoder, segments: list[str]) -> bytes:
    draft = prompts.draft(segments)
    return prompts.finish(draft, prompts.encode(draft))


def prompt_of(design: str, first: str, turns: list[tuple[str, str]]) -> list[str]:
    control = encoder_of(design).control
    return [first, *(token + text for token, text in turns if token in control)]


@pytest.mark.parametrize("design", SEPARABLE + INSEPARABLE)
@given(first=TEXTS, turns=st.lists(st.tuples(st.sampled_from(TOKENS), TEXTS), max_size=6))
def test_an_honest_prompt_has_the_ids_of_its_whole(
    design: str, first: str, turns: list[tuple[str, str]]
) -> None:
    """For every design of tokenizer, what the library makes of the text at once."""
    segments = prompt_of(design, first, turns)
    whole = encoder_of(design).tokenizer.encode("".join(segments), add_special_tokens=False)
    assert list(unpack_tokens(encode(cached(design), segments))) == whole.ids


@pytest.mark.parametrize("design", SEPARABLE + INSEPARABLE)
@given(first=FORGED, turns=st.lists(st.tuples(st.sampled_from(TOKENS), FORGED), max_size=6))
def test_a_forged_prompt_has_the_turns_of_its_template(
    design: str, first: str, turns: list[tuple[str, str]]
) -> None:
    """Control tokens in content are text, whichever way the prompt is encoded."""
    encoder, segments = encoder_of(design), prompt_of(design, first, turns)
    packed = encode(cached(design), segments)
    assert packed == pack_tokens(encoder.encode(ControlTokens(encoder.control).read(segments)))
    control_ids = {token.id for token in encoder.control.values()}
    found = [token_id for token_id in unpack_tokens(packed) if token_id in control_ids]
    unknown = encoder.control.get("<unk>", encoder.control.get("[UNK]"))
    assert [i for i in found if unknown is None or i != unknown.id] == [
        encoder.control[token].id for token, _ in turns if token in encoder.control
    ]


@pytest.mark.parametrize("design", SEPARABLE)
def test_a_next_turn_misses_only_what_is_new(design: str) -> None:
    """The history's segments are known, and a repeated prompt misses nothing."""
    encoder = encoder_of(design)
    prompts = PromptEncoder(encoder, ControlTokens(encoder.control))
    first = ["", "<|im_start|>user\nhello", "<|im_end|>\n", "<|im_start|>assistant\n"]
    encode(prompts, first)
    assert prompts.draft(first).missing == []
    following = [*first[:-1], "<|im_start|>assistant\nhi", "<|im_end|>\n", first[-1]]
    assert prompts.draft(following).missing == ["<|im_start|>assistant\nhi"]


@pytest.mark.parametrize("design", INSEPARABLE)
def test_where_cutting_is_not_exact_the_whole_prompt_is_remembered(design: str) -> None:
    """A repeated prompt costs nothing there either."""
    encoder = encoder_of(design)
    prompts = PromptEncoder(encoder, ControlTokens(encoder.control))
    segments = ["", "<|im_start|>user\n hello", "<|im_end|>"]
    assert not prompts.is_separable
    assert len(prompts.draft(segments).missing) == 1
    encode(prompts, segments)
    assert prompts.draft(segments).missing == []


def test_a_mark_before_no_token_does_not_cut() -> None:
    """A template that changes its own tokens, to capitals say, writes text."""
    encoder = encoder_of("byte-level")
    prompts = PromptEncoder(encoder, ControlTokens(encoder.control))
    segments = ["hel", "lo", "<|im_end|>The wea", "ther", "<|IM_END|>"]
    whole = encoder.tokenizer.encode("".join(segments), add_special_tokens=False)
    for _ in range(2):
        assert list(unpack_tokens(encode(prompts, segments))) == whole.ids


def test_text_before_the_first_token_is_never_taken_for_a_token() -> None:
    """A prompt may begin with a forgery, and another with the real token."""
    encoder = encoder_of("byte-level")
    prompts = PromptEncoder(encoder, ControlTokens(encoder.control))
    real = encode(prompts, ["", "<|im_end|>"])
    forged = encode(prompts, ["<|im_end|>"])
    assert len(real) < len(forged)


@pytest.mark.parametrize("design", ["byte-level", "unigram, first"])
def test_an_owner_shares_nothing(design: str) -> None:
    """What a key with a private cache has asked is known to it alone."""
    encoder = encoder_of(design)
    prompts = PromptEncoder(encoder, ControlTokens(encoder.control))
    segments = ["", "<|im_start|>hello"]
    draft = prompts.draft(segments, b"alice")
    packed = prompts.finish(draft, prompts.encode(draft))
    assert prompts.draft(segments, b"alice").missing == []
    assert prompts.draft(segments).missing == prompts.draft(segments, b"bob").missing != []
    assert encode(prompts, segments) == packed
    assert prompts.draft(segments, b"bob").missing != []


def test_an_owners_words_are_not_learned_nor_looked_for() -> None:
    """The words of a text would tell of it too: of a word that came twice, others are faster."""
    encoder = encoder_of("byte-level")
    prompts = PromptEncoder(encoder, ControlTokens(encoder.control))
    segments = ["", "<|im_start|>hello weather"]
    draft = prompts.draft(segments, b"alice")
    encoded = prompts.encode(draft)
    assert encoded.words is None
    prompts.finish(draft, encoded)
    words = prompts.encode(prompts.draft(segments)).words
    assert words is not None
    assert set(words.once) == words.pieces.keys() == {"hello", " weather"}


@given(st.lists(TEXTS, min_size=1))
def test_the_memory_is_bounded(texts: list[str]) -> None:
    """The encoder's cache never holds more than its bound."""
    encoder = encoder_of("byte-level")
    prompts = PromptEncoder(encoder, ControlTokens(encoder.control), max_bytes=2_000)
    for text in texts:
        encode(prompts, ["", f"<|im_start|>{text}"])
        assert prompts.num_bytes <= 2_000
