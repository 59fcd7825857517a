"""Reasoning and answer apart, however the stream is cut."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.output.reasoning import (
    REASONING,
    REASONING_FORMATS,
    ReasoningFormat,
    ReasoningSplitter,
    Split,
)

CASES = [
    ("no reasoning at all", False, "", "no reasoning at all"),
    ("<think>a b</think>\n\nc", False, "a b", "c"),
    ("\n <think>\na\n</think>\nc </think> <think>d", False, "a", "c </think> <think>d"),
    ("<think></think>c", False, "", "c"),
    ("<think>never closed ", False, "never closed", ""),
    ("<think>a < b </ c</think>d", False, "a < b </ c", "d"),
    ("<thin air", False, "", "<thin air"),
    ("<thi", False, "", "<thi"),
    ("a</think>b", True, "a", "b"),
    ("\na", True, "a", ""),
    ("  only space before ", False, "", "  only space before "),
    ("", False, "", ""),
]


def _split(parts: list[str], *, is_open: bool) -> tuple[str, str]:
    splitter = ReasoningSplitter(is_open=is_open)
    splits = [splitter.push(part) for part in parts] + [splitter.flush()]
    return "".join(s.reasoning for s in splits), "".join(s.answer for s in splits)


@pytest.mark.parametrize(("text", "is_open", "reasoning", "answer"), CASES)
def test_only_a_block_that_opens_the_answer_is_reasoning(
    text: str, is_open: bool, reasoning: str, answer: str
) -> None:
    """One block at the start is split off; everything else stays as the model wrote it."""
    assert _split([text], is_open=is_open) == (reasoning, answer)
    assert _split(list(text), is_open=is_open) == (reasoning, answer)


@given(
    st.lists(
        st.sampled_from(["<think>", "</think>", "<", "</th", "think>", " ", "\n", "a", "b c"]),
        max_size=12,
    ),
    st.booleans(),
)
def test_every_split_of_the_stream_gives_the_same(parts: list[str], is_open: bool) -> None:
    """Tags cut anywhere, space and half tags included, are read as in one piece."""
    text = "".join(parts)
    whole = _split([text], is_open=is_open)
    assert _split(parts, is_open=is_open) == whole
    assert _split(list(text), is_open=is_open) == whole


def test_the_state_says_whether_the_text_ends_in_reasoning() -> None:
    """Tokens are counted as reasoning from the opening to the closing tag."""
    splitter = ReasoningSplitter()
    states = []
    for part in ("<think>", "a", "</think>", "b"):
        splitter.push(part)
        states.append(splitter.state in REASONING)
    assert states == [True, True, False, False]


@pytest.mark.parametrize("form", REASONING_FORMATS.values(), ids=lambda form: form.name)
def test_every_format_splits_at_its_own_tags(form: ReasoningFormat) -> None:
    """The siblings of `<think>` are read alike, character by character too."""
    text = f"{form.open}a <think {form.close[:-1]} b{form.close}\n\nc"
    for parts in ([text], list(text)):
        splitter = ReasoningSplitter(form)
        splits = [splitter.push(part) for part in parts] + [splitter.flush()]
        assert "".join(s.reasoning for s in splits) == f"a <think {form.close[:-1]} b"
        assert "".join(s.answer for s in splits) == "c"


def test_without_a_format_all_is_answer() -> None:
    """A model without reasoning may write about them."""
    assert ReasoningSplitter(None).push("<think>a</think>") == Split("", "<think>a</think>")


@given(st.integers(0, 40), st.booleans())
def test_a_call_ends_reasoning_that_were_not_closed(cut: int, is_open: bool) -> None:
    """The tag of the call stays with the answer, where its parser looks for it."""
    text = ("" if is_open else "<think>") + "a\n <tool_call>{}</tool_call>"
    splitter = ReasoningSplitter(is_open=is_open, enders=("<tool_call>",))
    splits = [splitter.push(text[:cut]), splitter.push(text[cut:]), splitter.flush()]
    assert "".join(s.reasoning for s in splits) == "a"
    assert "".join(s.answer for s in splits) == "<tool_call>{}</tool_call>"


@given(st.integers(0, 1200), st.integers(0, 1200), st.integers(0, 2500))
def test_endless_white_space_is_not_held(before: int, inside: int, cut: int) -> None:
    """However much space there is, every split agrees and little waits."""
    text = " " * before + "<think>a" + " " * inside + "</think>b"
    assert _split([text[:cut], text[cut:]], is_open=False) == _split([text], is_open=False)
    assert _split(list(text), is_open=False) == _split([text], is_open=False)
    splitter = ReasoningSplitter(is_open=True)
    shown = splitter.push("a" + " " * inside).reasoning
    assert inside - len(shown) < 256
