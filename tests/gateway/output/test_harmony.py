"""gpt-oss: channels, calls and ends, however the stream is cut."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.api.events import (
    ChoiceFinished,
    ReasoningDelta,
    TextDelta,
    ToolCallArguments,
    ToolCallStart,
)
from gateway.output.answer_format import answer_format
from gateway.output.harmony_splitter import HarmonySplitter
from gateway.output.sequence_output import OutputEvent, OutputPipeline
from gateway.output.stop_strings import StopMatcher
from gateway.output.tools import ToolParser
from gateway.prompt.model_text import ModelText
from tests.fakes.text_files import make_text_files
from tests.fakes.tool_answers import TOOLS

TEXT = ModelText(make_text_files())
TEMPLATE = (
    "<|channel|>analysis<|message|><|end|> to=functions.f<|channel|>commentary json<|message|>"
)
FORM = answer_format(TEMPLATE)

ANALYSIS = "<|channel|>analysis<|message|>12 + 7 is 19<|end|>"
FINAL = "<|start|>assistant<|channel|>final<|message|>It is 19."
CALL = (
    "<|start|>assistant<|channel|>commentary to=functions.f <|constrain|>json<|message|>"
    '{"count": 19}<|call|>'
)
OLD_CALL = (
    '<|start|>assistant to=functions.f<|channel|>commentary json<|message|>{"count": 19}<|call|>'
)
SAID = ("f", '{"count": 19}')
BUILTIN = "<|start|>assistant to={}<|channel|>analysis code<|message|>{}"
"""A call of a tool that the model knows by itself, and no request has."""

SEARCH = '{"query": "19"}<|call|>'
SEARCHED = ("browser.search", '{"query": "19"}')
CODE_TEXT = 'print("x")'
CODE = r'{"code": "print(1 < 2)\n<|ca"}'
CODE_ONLY = r'{"code": "print(\"x\")"}'
COUNTED = CODE_ONLY.replace("code", "count")
"""The same as the text of a tool's first parameter."""


def split(parts: Sequence[str], *, is_open: bool = False) -> tuple[str, str]:
    splitter = HarmonySplitter(is_open=is_open)
    splits = [*map(splitter.push, parts), splitter.flush()]
    return "".join(one.reasoning for one in splits), "".join(one.answer for one in splits)


def run(
    text: str, size: int, stops: tuple[str, ...] = ()
) -> tuple[str, str, list[tuple[str, str]], OutputEvent]:
    """Thoughts, text, calls and the end of an answer whose tokens come in steps of a size."""
    assert FORM.tools is not None
    out = OutputPipeline(
        TEXT.decoder(FORM),
        StopMatcher(stops),
        ToolParser(FORM.tools, bytes, TOOLS),
        reasoning=FORM.splitter(TOOLS, is_open=False, is_past=False),
    )
    ids = TEXT.encoder.encode_texts([text])[0]
    events: list[OutputEvent] = []
    for at in range(0, len(ids), size):
        events += out.push(ids[at : at + size])
    events += out.finish("stop")
    calls = [[one.name, ""] for one in events if isinstance(one, ToolCallStart)]
    for one in events:
        if isinstance(one, ToolCallArguments):
            calls[one.call_index][1] += one.text
    return (
        "".join(one.text for one in events if isinstance(one, ReasoningDelta)),
        "".join(one.text for one in events if isinstance(one, TextDelta)),
        [(name, arguments) for name, arguments in calls],
        events[-1],
    )


@pytest.mark.parametrize(
    ("text", "thoughts", "answer", "calls"),
    [
        (ANALYSIS + FINAL, "12 + 7 is 19", "It is 19.", []),
        (f"{ANALYSIS}{FINAL}<|return|>", "12 + 7 is 19", "It is 19.", []),
        (ANALYSIS + CALL, "12 + 7 is 19", "", [SAID]),
        (ANALYSIS + OLD_CALL, "12 + 7 is 19", "", [SAID]),
        (CALL.removeprefix("<|start|>assistant"), "", "", [SAID]),
        (OLD_CALL.removeprefix("<|start|>assistant"), "", "", [SAID]),
        (CALL.replace("commentary", "analysis"), "", "", [SAID]),
        (
            "<|channel|>commentary<|message|>I look.<|end|><|start|>assistant"
            + ANALYSIS
            + CALL.removesuffix("<|call|>"),
            "12 + 7 is 19",
            "I look.",
            [SAID],
        ),
        (f"{ANALYSIS}{BUILTIN.format('browser.search', SEARCH)}", "12 + 7 is 19", "", [SEARCHED]),
        (BUILTIN.format("python", "print(1 < 2)\n<|ca"), "", "", [("python", CODE)]),
        (f"{BUILTIN.format('python', CODE_TEXT)}<|call|>", "", "", [("python", CODE_ONLY)]),
        (f"{BUILTIN.format('f', CODE_TEXT)}<|call|>", "", "", [("f", COUNTED)]),
        (FINAL.replace("assistant", "assistant to=user"), "", "It is 19.", []),
        (f"{ANALYSIS}<|start|>assistant{ANALYSIS}{FINAL}", None, "It is 19.", []),
        (ANALYSIS.removesuffix("<|end|>") + FINAL, "12 + 7 is 19", "It is 19.", []),
        (ANALYSIS.removesuffix("<|end|>"), "12 + 7 is 19", "", []),
        ("It is 19.", "", "It is 19.", []),
        (FINAL.removeprefix("<|start|>assistant") + " <b> <|", "", "It is 19. <b> <|", []),
    ],
)
def test_channels_are_told_apart(
    text: str, thoughts: str | None, answer: str, calls: list[tuple[str, str]]
) -> None:
    """Thoughts, text for the user, and calls whose recipient stands before or behind the channel;
    no tag is left as text.
    """
    for size in (1, 2, 3, 7, 1000):
        seen = run(text, size)
        expected = "12 + 7 is 19\n\n12 + 7 is 19" if thoughts is None else thoughts
        reason = "tool_calls" if calls else "stop"
        assert seen == (expected, answer, calls, ChoiceFinished(0, reason))


def test_stops_end_the_final_text_only() -> None:
    """Stops end the final text only, and not the thoughts that spell them."""
    seen = run(f"{ANALYSIS}{FINAL} 1 + 1", 3, stops=("+",))
    assert seen == ("12 + 7 is 19", "It is 19. 1 ", [], ChoiceFinished(0, "stop", "+"))


def test_a_cut_call_is_not_run() -> None:
    """The answer ends within the arguments."""
    assert run(f"{ANALYSIS}{CALL[:-12]}", 1)[3] == ChoiceFinished(0, "length")


PIECES = st.lists(
    st.sampled_from(
        [
            ANALYSIS, FINAL, CALL, OLD_CALL, "<|channel|>", "<|message|>", "<|end|>", "<|start|>",
            "<|call|>", "assistant", " to=", "functions.f", "final", "analysis", "<", "<|", " ",
            "\n", "text", "é",
        ]
    ),
    max_size=8,
)  # fmt: skip


@given(PIECES, st.booleans())
def test_every_split_says_the_same(pieces: list[str], is_open: bool) -> None:
    """Whatever the model writes, and wherever it is cut."""
    text = "".join(pieces)
    whole = split([text], is_open=is_open)
    assert split(pieces, is_open=is_open) == whole
    assert split(list(text), is_open=is_open) == whole


def test_where_an_answer_begins() -> None:
    """A call and a text each begin with a head of their own, behind the turn's beginning."""
    end = "<|end|><|start|>assistant"
    assert FORM.before_call(end) == ""
    assert FORM.past_reasoning(end) == "<|channel|>final<|message|>"
    assert FORM.past_reasoning(f"{end}<|channel|>final<|message|>") == ""
    opened = f"{end}<|channel|>analysis<|message|>"
    assert FORM.is_opened_by(opened)
    assert FORM.before_call(opened) == end
    assert FORM.past_reasoning(opened) == f"{end}<|channel|>final<|message|>"
