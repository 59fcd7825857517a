"""Muse Glimmer: messages to itself, to the user and to functions, however the stream is cut."""

from collections.abc import Sequence

import pytest

from gateway.api.events import ReasoningDelta, TextDelta, ToolCallArguments, ToolCallStart
from gateway.output.answer_format import answer_format
from gateway.output.tools import ToolParser, forced_opening
from tests.fakes.tool_answers import TOOLS

FORM = answer_format("<atem:function_calls> to=self<|message|>")
NEXT = "<|eom|><|start|>assistant"
CALL = (
    '<atem:function_calls>\n<atem:invoke name="{}">\n<atem:parameter name="count">1'
    "</atem:parameter>\n</atem:invoke>\n</atem:function_calls>"
)
TO_F = f" to=f<|message|>{CALL.format('f')}"
ONE = '{"count": 1}'
Seen = tuple[str, str, list[tuple[str, str]]]
ANSWERS: list[tuple[str, Seen]] = [
    (" to=user<|message|>Yes.<|eot|>", ("", "Yes.", [])),
    (f" to=self<|message|>Hm.{NEXT} to=user<|message|>Yes.<|eot|>", ("Hm.", "Yes.", [])),
    (
        f" to=self<|message|>Hm.{NEXT}{TO_F}{NEXT}{TO_F}<|eot|>",
        ("Hm.", "", [("f", ONE), ("f", ONE)]),
    ),
    (
        f" to=user<|message|>See:{NEXT} to=self<|message|>Hm.{NEXT}{TO_F}",
        ("Hm.", "See:", [("f", ONE)]),
    ),
    (
        f" to=nope.x<|message|>{CALL.format('nope.x')}<|eot|>",
        ("", "", [("nope.x", '{"count": "1"}')]),
    ),
    ("Yes.", ("", "Yes.", [])),
]


def _seen(pieces: Sequence[str], begun: str = "") -> Seen:
    assert FORM.tools is not None
    splitter = FORM.splitter(TOOLS, is_open=False, is_past=bool(begun))
    parser = ToolParser(FORM.tools, bytes, TOOLS)
    parser.begin(begun)
    splits = [*map(splitter.push, pieces), splitter.flush()]
    events = [event for split in splits for event in parser.push(split.answer)]
    thoughts, said, calls = (
        "".join(split.reasoning for split in splits),
        "",
        list[tuple[str, str]](),
    )
    for event in events + parser.flush():
        if isinstance(event, TextDelta):
            said += event.text
        elif isinstance(event, ToolCallStart):
            calls.append((event.name, ""))
        elif isinstance(event, ToolCallArguments):
            calls[-1] = (calls[-1][0], calls[-1][1] + event.text)
        assert not isinstance(event, ReasoningDelta)
    return thoughts, said, calls


@pytest.mark.parametrize(("text", "seen"), ANSWERS)
def test_messages_are_told_apart(text: str, seen: Seen) -> None:
    """No head and no tag is left as text."""
    assert FORM.reasoning is not None
    assert FORM.reasoning.name == "muse_glimmer"
    for size in (1, 2, 3, 7, len(text)):
        assert _seen([text[at : at + size] for at in range(0, len(text), size)]) == seen


def test_a_demanded_call_may_be_followed_by_another() -> None:
    """The prompt has begun the first one."""
    opening = forced_opening("muse_glimmer", ("f",), "")
    assert opening is not None
    assert opening.head == " to=f<|message|>"
    rest = f"{CALL.format('f').removeprefix(opening.text)}{NEXT}{TO_F}<|eot|>"
    for size in (1, 3, len(rest)):
        pieces = [rest[at : at + size] for at in range(0, len(rest), size)]
        assert _seen(pieces, opening.text) == ("", "", [("f", ONE), ("f", ONE)])
