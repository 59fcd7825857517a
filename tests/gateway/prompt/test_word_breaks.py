"""Which tokenizers may be given a text word by word."""

import sys
import unicodedata

import pytest
from tokenizers import AddedToken, Regex, Tokenizer, normalizers, pre_tokenizers

from gateway.prompt.word_breaks import is_printed, word_breaks
from tests.fakes.split_patterns import PATTERNS
from tests.fakes.tokenizers import byte_level, designs, split_by, unigram


@pytest.mark.parametrize(
    ("design", "has_pieces"),
    [
        ("byte-level", True),
        ("byte-level with space", False),
        ("unigram", False),
        ("wordpiece", False),
    ],
)
def test_the_common_designs_have_words(design: str, has_pieces: bool) -> None:
    """And byte-level ones without a space before each text have pieces too."""
    breaks = word_breaks(designs()[design])
    assert breaks is not None
    assert (breaks.pieces is not None) == has_pieces


@pytest.mark.parametrize("source", PATTERNS)
def test_the_expressions_of_known_models_give_pieces(source: str) -> None:
    """GPT-2, Llama 3, Qwen, GPT-4o, DeepSeek and the built-in model."""
    breaks = word_breaks(split_by(source))
    assert breaks is not None
    assert breaks.pieces is not None


@pytest.mark.parametrize("content", ["a b", "a ", "x\ny", "<a\tb>", " a b"])
def test_an_added_token_with_white_space_inside_forbids_it(content: str) -> None:
    """It could lie across a cut."""
    tokenizer = byte_level()
    tokenizer.add_tokens([AddedToken(content, normalized=False)])
    assert word_breaks(tokenizer) is None


@pytest.mark.parametrize(
    ("normalizer", "content"),
    [
        (normalizers.NFKC(), "x\N{DIAERESIS}y"),
        (normalizers.BertNormalizer(), "  "),
    ],
)
def test_an_added_token_that_a_normalizer_puts_across_a_space_forbids_it(
    normalizer: normalizers.Normalizer, content: str
) -> None:
    """The first is looked for with a space before the accent; of the second, one space may be of a
    Chinese character in front.
    """
    tokenizer = byte_level()
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.normalizer = normalizer
    assert word_breaks(tokenizer) is not None
    tokenizer.add_tokens([AddedToken(content, normalized=True)])
    assert word_breaks(tokenizer) is None


def test_an_added_token_is_found_in_the_form_that_is_looked_for() -> None:
    """A ligature is one by its letters, so they are no pieces."""
    tokenizer = byte_level()
    tokenizer.normalizer = normalizers.NFKC()
    tokenizer.add_tokens([AddedToken("\N{LATIN SMALL LIGATURE FI}", normalized=True)])
    breaks = word_breaks(tokenizer)
    assert breaks is not None
    assert breaks.pieces is not None
    assert len(tokenizer.encode("fish", add_special_tokens=False).ids) == 3
    assert breaks.pieces.pieces_of("fish") is None
    assert breaks.pieces.pieces_of("cash") == ["cash"]


@pytest.mark.parametrize(
    "normalizer",
    [
        normalizers.Replace(" ", "▁"),
        normalizers.Prepend("▁"),
        normalizers.Strip(),
        normalizers.Sequence([normalizers.NFC(), normalizers.Nmt()]),
        normalizers.StripAccents(),
    ],
)
def test_a_normalizer_that_changes_spaces_forbids_it(normalizer: normalizers.Normalizer) -> None:
    """Or one that may leave nothing of what stands before a space."""
    tokenizer = byte_level()
    tokenizer.normalizer = normalizer
    assert word_breaks(tokenizer) is None


@pytest.mark.parametrize(
    "pre_tokenizer",
    [
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        pre_tokenizers.Metaspace(split=False),
        pre_tokenizers.Metaspace(prepend_scheme="first"),
        pre_tokenizers.Digits(),
        pre_tokenizers.UnicodeScripts(),
        pre_tokenizers.Split(" ", "merged_with_previous"),
        pre_tokenizers.Split(Regex(r"\s+"), "merged_with_previous"),
        pre_tokenizers.Split(Regex(r"\p{L}+"), "isolated"),
        pre_tokenizers.Split(Regex(r"\S+ |\s"), "isolated"),
        pre_tokenizers.Split(Regex(r"(?<=a)b|\s"), "isolated"),
        pre_tokenizers.Split(Regex(r"\p{L}+|\s{2,}"), "isolated"),
        pre_tokenizers.Split(Regex(r"\p{L}+|(?:\s+\p{L})"), "isolated"),
        pre_tokenizers.Split(Regex(r"\p{L}+|(?:\s+(?!\d))"), "isolated"),
        pre_tokenizers.Sequence(
            [
                pre_tokenizers.ByteLevel(use_regex=False),
                pre_tokenizers.Split(Regex(r"\s|\S+"), "isolated"),
            ]
        ),
    ],
)
def test_a_pre_tokenizer_that_may_not_cut_at_spaces_forbids_it(
    pre_tokenizer: pre_tokenizers.PreTokenizer,
) -> None:
    """Whether it joins words, or is not known."""
    tokenizer = byte_level()
    tokenizer.pre_tokenizer = pre_tokenizer
    assert word_breaks(tokenizer) is None


@pytest.mark.parametrize(
    "pre_tokenizer",
    [
        pre_tokenizers.Sequence(
            [pre_tokenizers.Digits(), pre_tokenizers.ByteLevel(add_prefix_space=False)]
        ),
        pre_tokenizers.Split(Regex(r"\s|\S+"), "removed"),
        pre_tokenizers.Sequence(
            [
                pre_tokenizers.Split(Regex(PATTERNS[1]), "isolated"),
                pre_tokenizers.ByteLevel(add_prefix_space=True, use_regex=False),
            ]
        ),
    ],
)
def test_where_several_stages_decide_there_are_words_but_no_pieces(
    pre_tokenizer: pre_tokenizers.PreTokenizer,
) -> None:
    """An expression alone does not tell what the pieces are."""
    tokenizer = byte_level()
    tokenizer.pre_tokenizer = pre_tokenizer
    breaks = word_breaks(tokenizer)
    assert breaks is not None
    assert breaks.pieces is None


def test_a_prefix_of_the_whole_text_is_no_word() -> None:
    """Metaspace in the form that marks only the beginning."""
    assert word_breaks(unigram("first")) is None


def test_what_is_printed_is_no_white_space_to_the_library() -> None:
    """In no expression, and after no normalizer that is allowed: for every character there is."""
    characters = [chr(n) for n in range(sys.maxunicode + 1) if not 0xD800 <= n < 0xE000]
    printed = [character for character in characters if is_printed(character)]
    white = pre_tokenizers.Split(Regex(r"\s"), "isolated")
    assert len(white.pre_tokenize_str("".join(printed))) == 1
    assert len(pre_tokenizers.WhitespaceSplit().pre_tokenize_str("".join(printed))) == 1
    for form in ("NFC", "NFD", "NFKC", "NFKD"):
        ends = (unicodedata.normalize(form, character) for character in printed)
        assert all(end and not end[-1].isspace() for end in ends)
    lower = (character.lower() for character in printed)
    assert all(end and not end[-1].isspace() for end in lower)


def test_a_space_composes_with_nothing() -> None:
    """No character is made of a space and another, but for compatibility."""
    for number in range(sys.maxunicode + 1):
        parts = unicodedata.decomposition(chr(number)).split()
        assert "0020" not in parts or parts[0].startswith("<")


def test_a_tokenizer_without_a_pre_tokenizer_has_no_words() -> None:
    """A whole text is one piece."""
    tokenizer = Tokenizer.from_str(byte_level().to_str())
    tokenizer.pre_tokenizer = None
    assert word_breaks(tokenizer) is None
