"""When prompts may be cut."""

import pytest
from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers

from gateway.prompt.segment_rule import is_separable
from tests.fakes.text_files import SPECIALS
from tests.fakes.tokenizers import INSEPARABLE, SEPARABLE, byte_level, designs, unigram


@pytest.mark.parametrize("design", SEPARABLE)
def test_the_common_designs_may_be_cut(design: str) -> None:
    """Stages that treat every stretch alike."""
    assert is_separable(designs()[design], SPECIALS)


@pytest.mark.parametrize("design", INSEPARABLE)
def test_what_looks_beyond_a_cut_may_not(design: str) -> None:
    """The mark of the very beginning, and tokens that take what is beside them."""
    assert not is_separable(designs()[design], [*SPECIALS, "<|end|>"])


@pytest.mark.parametrize(
    "token",
    [
        AddedToken("x", lstrip=True, normalized=False),
        AddedToken("x", rstrip=True, normalized=False),
        AddedToken("x", single_word=True, normalized=False),
        AddedToken("foo<|im", normalized=False),
        AddedToken("foo<|im_end|>", normalized=False),
        AddedToken("<|im_end|>foo", normalized=False),
        AddedToken("foo<|im_end|>bar", normalized=False),
    ],
    ids=["lstrip", "rstrip", "single word", "overlap", "end", "beginning", "middle"],
)
def test_an_added_token_may_forbid_it(token: AddedToken) -> None:
    """Each of these could match, or take, something on the other side of a cut."""
    tokenizer = byte_level()
    tokenizer.add_tokens([token])
    assert not is_separable(tokenizer, SPECIALS)


def test_a_control_token_that_overlaps_itself_forbids_it() -> None:
    """A control token that overlaps itself forbids cuts: of `||` after a bar, the library takes the
    first two.
    """
    tokenizer = byte_level()
    tokenizer.add_special_tokens(["||"])
    assert not is_separable(tokenizer, ["||"])


def test_control_tokens_behind_a_normalizer_forbid_it() -> None:
    """Control tokens behind a normalizer forbid cuts: they are found in the normalized text."""
    tokenizer = unigram()
    tokenizer.add_special_tokens([AddedToken("<|n|>", special=True, normalized=True)])
    assert is_separable(tokenizer, SPECIALS)
    assert not is_separable(tokenizer, [*SPECIALS, "<|n|>"])


def test_random_merges_forbid_it() -> None:
    """A memory would repeat what should differ."""
    tokenizer = Tokenizer(models.BPE(dropout=0.1))
    assert not is_separable(tokenizer, [])


def test_a_stage_inside_a_sequence_counts() -> None:
    """Sequences are looked through."""
    tokenizer = byte_level()
    inner = pre_tokenizers.Sequence([pre_tokenizers.Metaspace(prepend_scheme="first")])
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Digits(), inner])
    assert not is_separable(tokenizer, SPECIALS)
