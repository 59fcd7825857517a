"""Thoughts and answer apart, however the stream is cut."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.reasoning import ReasoningSplitter

CASES = [
    ("no thoughts at all", False, "", "no thoughts at all"),
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
    return "".join(s.thoughts for s in splits), "".join(s.answer for s in splits)


@pytest.mark.parametrize(("text", "is_open", "thoughts", "answer"), CASES)
def test_only_a_block_that_opens_the_answer_is_a_thought(
    text: str, is_open: bool, thoughts: str, answer: str
) -> None:
    """One block at the start is split off; everything else stays as the model wrote it."""
    assert _split([text], is_open=is_open) == (thoughts, answer)
    assert _split(list(text), is_open=is_open) == (thoughts, answer)


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


def test_it_is_known_whether_it_thinks() -> None:
    """Tokens are counted as reasoning from the opening to the closing tag."""
    splitter = ReasoningSplitter()
    states = []
    for part in ("<think>", "a", "</think>", "b"):
        splitter.push(part)
        states.append(splitter.is_thinking)
    assert states == [True, True, False, False]
