"""Answers of Kimi K3, Solar Open, Hy3 and Apriel: thoughts, text and calls in their own tags."""

from itertools import pairwise

import pytest

from gateway.api.events import ReasoningDelta, TextDelta, ToolCallArguments, ToolCallStart
from gateway.output import AnswerFormat
from gateway.output.reasoning import REASONING_FORMATS, Split
from gateway.output.tools import TOOL_FORMATS, ToolParser
from tests.fakes.tool_answers import TOOLS

SOLAR_CALL = (
    "<|tool_calls|><|tool_call:begin|>abc<|tool_call:name|>g<|tool_call:args|>"
    '{"x": "<|end|>"}<|tool_call:end|><|calls|>'
)
SOLAR_NEXT = "<|end|><|begin|>assistant"
K3_TEXT, K3_SAID = "<|open|>response<|sep|>", "<|close|>response<|sep|>"
K3_CALL = (
    '<|open|>tools<|sep|><|open|>call tool="g" index="1"<|sep|>'
    '<|open|>argument key="x" type="string"<|sep|><|end|><|close|>argument<|sep|>'
    "<|close|>call<|sep|><|close|>tools<|sep|>"
)
K3_OVER = "<|close|>message<|sep|>"
HY_CALL = (
    "<tool_calls:opensource>\n<tool_call:opensource>g<tool_sep:opensource>\n<arg_key:opensource>x"
    "</arg_key:opensource>\n<arg_value:opensource><|end|></arg_value:opensource>\n"
    "</tool_call:opensource>\n</tool_calls:opensource>"
)
CALL = ("g", '{"x": "<|end|>"}')
Seen = tuple[str, str, list[tuple[str, str]]]
ANSWERS: list[tuple[str, bool, str, Seen]] = [
    ("solar_open", False, f"<|think|>Hm.{SOLAR_NEXT}<|content|>Yes.<|end|>", ("Hm.", "Yes.", [])),
    ("solar_open", False, f"<|think|>Hm.{SOLAR_NEXT}{SOLAR_CALL}", ("Hm.", "", [CALL])),
    (
        "solar_open",
        False,
        f"<|think|>Hm.{SOLAR_NEXT}<|content|>See:{SOLAR_NEXT}{SOLAR_CALL}",
        ("Hm.", "See:", [CALL]),
    ),
    ("solar_open", False, "<|content|>Yes.<|end|>", ("", "Yes.", [])),
    ("solar_open", False, SOLAR_CALL, ("", "", [CALL])),
    (
        "kimi_k3",
        True,
        f"Hm.<|close|>think<|sep|>{K3_TEXT}Yes.{K3_SAID}{K3_OVER}",
        ("Hm.", "Yes.", []),
    ),
    (
        "kimi_k3",
        True,
        f"Hm.<|close|>think<|sep|>{K3_TEXT}{K3_SAID}{K3_CALL}{K3_OVER}",
        ("Hm.", "", [CALL]),
    ),
    ("kimi_k3", False, f"Yes.{K3_SAID}{K3_OVER}", ("", "Yes.", [])),
    ("kimi_k3", False, f"See:{K3_SAID}{K3_CALL}{K3_OVER}", ("", "See:", [CALL])),
    ("hy3", True, f"Hm.</think:opensource>See:\n{HY_CALL}", ("Hm.", "See:", [CALL])),
    ("apriel", True, "Hm.\n[BEGIN FINAL RESPONSE]\nYes.", ("Hm.", "Yes.", [])),
    (
        "apriel",
        False,
        "Here are my reasoning steps:\nHm.\n[BEGIN FINAL RESPONSE]\nYes.\n[END FINAL RESPONSE]",
        ("Hm.", "Yes.", []),
    ),
]


def _seen(name: str, text: str, cuts: tuple[int, ...], *, is_open: bool, has_tools: bool) -> Seen:
    tools = TOOL_FORMATS.get(name, TOOL_FORMATS["minimax_m1"]) if has_tools else None
    form = AnswerFormat(tools, REASONING_FORMATS[name])
    splitter = form.splitter(TOOLS if has_tools else (), is_open=is_open, is_past=False)
    parser = ToolParser(tools, bytes, TOOLS) if tools is not None else None
    thoughts, said, calls = "", "", list[tuple[str, str]]()
    splits: list[Split] = [
        *(splitter.push(text[one:two]) for one, two in pairwise((0, *cuts, len(text)))),
        splitter.flush(),
    ]
    for at, split in enumerate(splits):
        thoughts += split.reasoning
        events = parser.push(split.answer) if parser else [TextDelta(0, split.answer)]
        events += parser.flush() if parser and at + 1 == len(splits) else []
        for event in events:
            if isinstance(event, TextDelta):
                said += event.text
            elif isinstance(event, ToolCallStart):
                calls.append((event.name, ""))
            elif isinstance(event, ToolCallArguments):
                calls[-1] = (calls[-1][0], calls[-1][1] + event.text)
            assert not isinstance(event, ReasoningDelta)
    return thoughts, said.strip(), calls


@pytest.mark.parametrize(("name", "is_open", "text", "seen"), ANSWERS)
def test_only_words_are_seen(name: str, text: str, seen: Seen, *, is_open: bool) -> None:
    """However the stream is cut; a tag within arguments is a part of them."""
    every = tuple(range(1, len(text)))
    for cuts in [(), every, *((at,) for at in every)]:
        assert _seen(name, text, cuts, is_open=is_open, has_tools=True) == seen


@pytest.mark.parametrize(
    ("name", "is_open", "text", "seen"), [one for one in ANSWERS if not one[3][2]]
)
def test_requests_without_tools_see_no_tags_either(
    name: str, text: str, seen: Seen, *, is_open: bool
) -> None:
    """Nothing looks for calls in their answers."""
    every = tuple(range(1, len(text)))
    for cuts in [(), every]:
        assert _seen(name, text, cuts, is_open=is_open, has_tools=False) == seen


@pytest.mark.parametrize(
    ("name", "end", "before_call", "past"),
    [
        ("kimi_k3", "<|open|>think<|sep|>", f"<|close|>think<|sep|>{K3_TEXT}{K3_SAID}", None),
        ("kimi_k3", K3_TEXT, K3_SAID, ""),
        ("solar_open", "<|begin|>assistant", "", "<|content|>"),
        ("solar_open", "<|begin|>assistant<|think|>", SOLAR_NEXT, f"{SOLAR_NEXT}<|content|>"),
        ("hy3", "<think:opensource></think:opensource>", "", ""),
    ],
)
def test_a_prompt_goes_on_to_a_call_or_an_answer(
    name: str, end: str, before_call: str, past: str | None
) -> None:
    """A prompt goes on to a call or an answer, as the model itself would write it."""
    form = AnswerFormat(TOOL_FORMATS[name], REASONING_FORMATS[name], is_reasoning_model=True)
    assert form.before_call(end) == before_call
    assert form.past_reasoning(end) == (REASONING_FORMATS[name].closing if past is None else past)
