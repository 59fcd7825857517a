"""The table of split patterns, against what the tokenizers library does with each of them."""

import sys
import unicodedata

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tokenizers import AddedToken, Regex, normalizers, pre_tokenizers
from transformers.integrations.gguf.gguf_tokenizer_mapping import GGUF_PRE_TOKENIZER_SPLITS
from transformers.models.qwen3_5.tokenization_qwen3_5 import PRETOKENIZE_REGEX

from gateway.prompt.split_patterns import TABLE, ascii_pattern, in_ascii
from tests.fakes.tokenizers import PATTERNS, byte_level, designs, split_by, splits

LETTERS = "abBs'! .1/\n\r\t\v\x1c\x85\u00a0éß一\u0301🙂"
TEXTS = st.text(alphabet=LETTERS, max_size=12) | st.text(max_size=6)
ASCII = st.text(alphabet="abBfsS'!. 12/\n\r\t\v\x00\x1c\x7f-$^", max_size=14)


def is_printed(character: str) -> bool:
    return character.isprintable() and character != " "


def pieces(sources: tuple[str, ...], text: str) -> list[str]:
    return [piece for piece, _ in splits(sources).pre_tokenize_str(text)]


@pytest.mark.parametrize("sources", PATTERNS)
@given(left=TEXTS, right=TEXTS)
@example(left="a", right="")
@example(left="1", right=" a")
def test_a_space_behind_a_printed_character_begins_a_piece(
    sources: tuple[str, ...], left: str, right: str
) -> None:
    """Both sides of such a place have the pieces that they have by themselves."""
    if left and is_printed(left[-1]):
        apart = pieces(sources, left) + pieces(sources, " " + right)
        assert pieces(sources, left + " " + right) == apart


@pytest.mark.parametrize("sources", PATTERNS)
@given(text=ASCII | st.text(alphabet=st.characters(max_codepoint=127), max_size=8))
def test_python_finds_the_same_pieces_in_ascii(sources: tuple[str, ...], text: str) -> None:
    """Python finds the same pieces in ASCII where it finds the whole text, and each piece by itself
    is one piece again.
    """
    pattern = in_ascii(sources)
    assert pattern is not None
    found = pattern.findall(text)
    if "".join(found) != text:
        return
    assert found == pieces(sources, text)
    for piece in found:
        assert pieces(sources, piece) == [piece]


@pytest.mark.parametrize("sources", PATTERNS)
def test_python_finds_every_pair_and_triple_of_ascii(sources: tuple[str, ...]) -> None:
    """One character of each kind that some expression names, in all orders."""
    pattern = in_ascii(sources)
    assert pattern is not None
    kinds = "aZs'1 \n\r\t/!$^_\x00"
    texts = [a + b + c for a in kinds for b in kinds for c in kinds]
    split = splits(sources)
    for text in texts:
        found = pattern.findall(text)
        if "".join(found) == text:
            assert found == [piece for piece, _ in split.pre_tokenize_str(text)], text


@pytest.mark.parametrize("sources", PATTERNS)
def test_known_tokenizers_have_pieces(sources: tuple[str, ...]) -> None:
    """GPT-2, Llama 3, Qwen, GPT-4o, Mistral, DeepSeek and the built-in model."""
    assert ascii_pattern(split_by(sources)) is not None


FILES = dict(sorted(GGUF_PRE_TOKENIZER_SPLITS.items()))
"""The expressions of published tokenizer files by their kinds, as transformers has them."""


@pytest.mark.parametrize("kind", FILES)
def test_the_expressions_that_files_have_are_in_the_table(kind: str) -> None:
    """One letter of difference, and new text costs twice the CPU."""
    assert (FILES[kind],) in TABLE


def test_qwen_3_5_has_an_expression_of_its_own() -> None:
    """Qwen 3.5 has an expression of its own, with marks among the letters, as its tokenizer in
    transformers has it.
    """
    sources = (FILES["qwen35"],)
    assert sources == (PRETOKENIZE_REGEX,)
    assert pieces(sources, "e\u0301a b") == ["e\u0301a", " b"]
    assert ascii_pattern(split_by(sources)) is not None


def test_the_stage_of_gpt2_has_its_expression_built_in() -> None:
    """`ByteLevel` splits by itself where it is told to."""
    tokenizer = byte_level()
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    assert ascii_pattern(tokenizer) == in_ascii(PATTERNS[0])


def test_the_words_of_the_builtin_expression_may_be_any() -> None:
    """A model that is trained anew has other frequent words."""
    source = PATTERNS[-1][0]
    other = source.replace("a(?:b(?:o", "z(?:b(?:o", 1)
    assert other != source
    assert in_ascii((other,)) is not None
    assert in_ascii((source.replace("a(?:b(?:o", r"a(?:\s(?:o", 1),)) is None


@pytest.mark.parametrize(
    "pre_tokenizer",
    [
        None,
        pre_tokenizers.ByteLevel(add_prefix_space=True),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        pre_tokenizers.Metaspace(),
        pre_tokenizers.WhitespaceSplit(),
        splits(PATTERNS[1]),
        pre_tokenizers.Sequence(
            [splits([r"\w+ \w+|\s"]), pre_tokenizers.ByteLevel(use_regex=False)]
        ),
        pre_tokenizers.Sequence(
            [splits(PATTERNS[1]), pre_tokenizers.ByteLevel(add_prefix_space=False)]
        ),
        pre_tokenizers.Sequence(
            [
                splits(PATTERNS[1]),
                pre_tokenizers.ByteLevel(add_prefix_space=True, use_regex=False),
            ]
        ),
        pre_tokenizers.Sequence(
            [
                pre_tokenizers.Split(Regex(PATTERNS[1][0]), "merged_with_previous"),
                pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
            ]
        ),
        pre_tokenizers.Sequence(
            [
                pre_tokenizers.Digits(),
                pre_tokenizers.ByteLevel(add_prefix_space=False),
            ]
        ),
    ],
)
def test_any_other_tokenizer_gets_whole_segments(
    pre_tokenizer: pre_tokenizers.PreTokenizer | None,
) -> None:
    """A tokenizer that is not in the table gets whole segments."""
    tokenizer = byte_level()
    tokenizer.pre_tokenizer = pre_tokenizer
    assert ascii_pattern(tokenizer) is None


@pytest.mark.parametrize("design", ["byte-level with space", "unigram", "wordpiece"])
def test_other_designs_get_whole_segments(design: str) -> None:
    """Tokenizers of other designs get whole segments, because their texts are not split by an
    expression of the table.
    """
    assert ascii_pattern(designs()[design]) is None


@pytest.mark.parametrize("content", ["a b", "a ", "x\ny", "<a\tb>", " a b"])
def test_an_added_token_with_white_space_inside_forbids_it(content: str) -> None:
    """An added token with white space inside forbids cuts, because it could lie across one."""
    tokenizer = byte_level()
    tokenizer.add_tokens([AddedToken(content, normalized=False)])
    assert ascii_pattern(tokenizer) is None


def test_an_added_token_that_a_normalizer_puts_across_a_space_forbids_it() -> None:
    """A token that a normalizer puts across a space forbids cuts: it is looked for with a space
    before the accent.
    """
    tokenizer = byte_level()
    tokenizer.normalizer = normalizers.NFKC()
    assert ascii_pattern(tokenizer) is not None
    tokenizer.add_tokens([AddedToken("x\N{DIAERESIS}y", normalized=True)])
    assert ascii_pattern(tokenizer) is None


@pytest.mark.parametrize(
    "normalizer",
    [
        normalizers.Replace(" ", "▁"),
        normalizers.Prepend("▁"),
        normalizers.Lowercase(),
        normalizers.Strip(),
        normalizers.Sequence([normalizers.NFC(), normalizers.Nmt()]),
        normalizers.StripAccents(),
    ],
)
def test_a_normalizer_that_is_no_unicode_form_forbids_it(
    normalizer: normalizers.Normalizer,
) -> None:
    """A normalizer that is none of Unicode's forms forbids cuts, because it may change spaces or
    ASCII letters.
    """
    tokenizer = byte_level()
    tokenizer.normalizer = normalizer
    assert ascii_pattern(tokenizer) is None


def test_what_is_printed_is_no_white_space_to_the_library() -> None:
    """What is printed is no white space to the library, in any expression and after any normalizer
    that is allowed: for every character there is.
    """
    characters = [chr(n) for n in range(sys.maxunicode + 1) if not 0xD800 <= n < 0xE000]
    printed = [character for character in characters if is_printed(character)]
    white = pre_tokenizers.Split(Regex(r"\s"), "isolated")
    assert len(white.pre_tokenize_str("".join(printed))) == 1
    for form in ("NFC", "NFD", "NFKC", "NFKD"):
        ends = (unicodedata.normalize(form, character) for character in printed)
        assert all(end and not end[-1].isspace() for end in ends)


def test_a_space_composes_with_nothing() -> None:
    """No character is made of a space and another, but for compatibility."""
    for number in range(sys.maxunicode + 1):
        parts = unicodedata.decomposition(chr(number)).split()
        assert "0020" not in parts or parts[0].startswith("<")
