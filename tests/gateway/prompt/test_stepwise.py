"""Long prompts in steps, against the same prompts at once."""

from itertools import pairwise

import pytest

from gateway.prompt import StepwiseDraft, StepwiseText, encode_raw, stepwise
from gateway.prompt.control_tokens import ControlTokens
from gateway.prompt.model_text import ModelText
from gateway.prompt.prompt_encoder import PromptEncoder
from gateway.prompt.tokenizer import Encoder
from protocol.tokens import TOKEN_BYTES, pack_tokens
from tests.fakes.text_files import make_text_files
from tests.fakes.tokenizers import PATTERNS, designs, split_by

ODD = "The  cat's 1234 naïve 🙂 \n\n you said: 你好 x=1;\u00a0 end\x00 b  \t q "
TEXT = (ODD * 40 + "nothing" * 100 + " " * 500 + ODD) * 3


@pytest.fixture(autouse=True)
def short_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stepwise, "STEP_CHARS", 100)


def all_steps(work: StepwiseDraft | StepwiseText) -> tuple[bytes, int]:
    num_steps = 1
    while not work.step():
        num_steps += 1
    return work.finish(), num_steps


@pytest.mark.parametrize("sources", PATTERNS, ids=lambda sources: sources[0][:12])
def test_a_text_in_steps_has_the_ids_of_its_whole(sources: tuple[str, ...]) -> None:
    """A text in steps has the ids of its whole, for all known expressions."""
    encoder = Encoder(split_by(sources).to_str().encode())
    prompts = PromptEncoder(encoder, ControlTokens(encoder.control))
    segments = [TEXT, "<|im_start|>" + TEXT + "!", "<|im_end|>", "<|im_start|>short", "<|im_end|>"]
    at_once = prompts.draft(segments)
    expected = prompts.finish(at_once, prompts.encode(at_once))
    other = PromptEncoder(encoder, ControlTokens(encoder.control))
    work = StepwiseDraft(other, other.draft(segments))
    packed, num_steps = all_steps(work)
    assert packed == expected
    assert num_steps > 20
    assert 0 < work.num_tokens <= len(expected) // TOKEN_BYTES
    assert not other.draft(segments).missing


@pytest.mark.parametrize("name", ["unigram", "greedy for space", "byte-level with space"])
def test_a_tokenizer_that_may_not_be_cut_gets_each_text_at_once(name: str) -> None:
    encoder = Encoder(designs()[name].to_str().encode())
    prompts = PromptEncoder(encoder, ControlTokens(encoder.control))
    segments = [TEXT, "<|im_start|>" + TEXT]
    at_once = prompts.draft(segments)
    expected = prompts.finish(at_once, prompts.encode(at_once))
    other = PromptEncoder(encoder, ControlTokens(encoder.control))
    assert all_steps(StepwiseDraft(other, other.draft(segments)))[0] == expected


@pytest.mark.parametrize("special", [True, False])
def test_a_raw_text_in_steps_has_the_ids_of_its_whole(special: bool) -> None:
    """A raw text in steps has the ids of its whole: control tokens in it count, and the tokenizer's
    own stand around all of it.
    """
    text = ModelText(make_text_files())
    prompt = TEXT + "<|im_end|> and " + TEXT
    packed, num_steps = all_steps(StepwiseText(text, prompt, add_special_tokens=special))
    assert packed == pack_tokens(encode_raw(text, prompt, add_special_tokens=special))
    assert num_steps > 20


def test_pieces_are_cut_in_front_of_spaces_behind_printed_characters() -> None:
    pieces = stepwise.pieces_of(TEXT)
    assert "".join(pieces) == TEXT
    for before, piece in pairwise(pieces):
        assert piece[0] == " "
        assert before[-1].isprintable()
        assert before[-1] != " "
