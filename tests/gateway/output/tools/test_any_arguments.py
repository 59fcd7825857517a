"""Arguments that are no plain object, and text in them that no client reads, in all formats."""

import json
from typing import Any

import msgspec
import pytest

from gateway.api import TextDelta, ToolCallArguments, ToolCallEnd, ToolCallStart
from gateway.output.tools import TOOL_FORMATS
from gateway.output.tools.parser import ToolParser

PARAMETERS = {"type": "object", "properties": {"city": {"type": "string"}, "x": {}}}
TOOLS = ({"type": "function", "function": {"name": "get", "parameters": PARAMETERS}},)
SECTION, CALL = "<｜tool▁calls▁begin｜>", "<｜tool▁call▁begin｜>"
ENDS = "<｜tool▁call▁end｜><｜tool▁calls▁end｜>"
KIMI = "<|tool_calls_section_begin|><|tool_call_begin|>functions.get:0<|tool_call_argument_begin|>"

WRITTEN = {
    "hermes": '<tool_call>\n{"name": "get", "arguments": @}\n</tool_call>',
    "llama3_json": '{"name": "get", "parameters": @}',
    "mistral": '[TOOL_CALLS][{"name": "get", "arguments": @}]',
    "mistral, named": "[TOOL_CALLS]get[ARGS]@",
    "deepseek_v3": f"{SECTION}{CALL}function<｜tool▁sep｜>get\n```json\n@\n```{ENDS}",
    "deepseek_v3, later": f"{SECTION}{CALL}get<｜tool▁sep｜>@{ENDS}",
    "kimi_k2": f"{KIMI}@<|tool_call_end|><|tool_calls_section_end|>",
    "phi4_mini": '<|tool_call|>[{"name": "get", "arguments": @}]',
    "apertus": '<|tools_prefix|>[{"get": @}]<|tools_suffix|>',
    "nemotron": '<TOOLCALL>[{"name": "get", "arguments": @}]</TOOLCALL>',
    "harmony": "<|channel|>commentary to=functions.get <|constrain|>json<|message|>@<|call|>",
    "cohere": '<|START_ACTION|>[{"tool_name": "get", "parameters": @}]<|END_ACTION|>',
}
GIVEN: dict[str, tuple[str, dict[str, Any]]] = {
    "object": ('{"city": "Rome"}', {"city": "Rome"}),
    "twice": (json.dumps('{"city": "Rome"}'), {"city": "Rome"}),
    "null": ("null", {}),
    "half": ('{"city": "\\ud83d"}', {"city": "\ufffd"}),
    "halves": (
        '{"city": "\\ude00 \\ud83d\\ud83d\\ude00\\ud83d\\n\\ud83dx\\ud83d\\\\"}',
        {"city": "\ufffd \ufffd\U0001f600\ufffd\n\ufffdx\ufffd\\"},
    ),
    "half, broken": ('{"city": "\\ud83d\\u00e"}', {"city": "\ufffd\\u00e"}),
    "huge": ('{"x": 1e999, "city": "a"}', {"x": None, "city": "a"}),
}


def read(name: str, text: str, size: int) -> tuple[str, list[str]]:
    """The text and the arguments of all calls in an answer that comes in pieces of `size`."""
    form = TOOL_FORMATS[name.partition(",")[0]]
    parser = ToolParser(form, lambda count: b"\1" * count, TOOLS)
    events = [one for at in range(0, len(text), size) for one in parser.push(text[at : at + size])]
    events += parser.flush()
    said, calls = "", list[str]()
    for event in events:
        match event:
            case TextDelta():
                said += event.text
            case ToolCallStart():
                assert event.name == "get"
                calls.append("")
            case ToolCallArguments():
                calls[-1] += event.text
            case ToolCallEnd():
                assert event.is_whole
    return said, calls


@pytest.mark.parametrize("name", sorted(WRITTEN))
@pytest.mark.parametrize("given", sorted(GIVEN))
def test_arguments_in_any_form_are_an_object(name: str, given: str) -> None:
    """However the answer is cut; a strict reader takes what the client gets."""
    arguments, expected = GIVEN[given]
    text = WRITTEN[name].replace("@", arguments)
    for size in (1, 2, 3, 7, len(text)):
        said, calls = read(name, text, size)
        assert [msgspec.json.decode(call) for call in calls] == [expected], size
        assert not said


@pytest.mark.parametrize("name", ["deepseek_v3", "deepseek_v3, later", "kimi_k2", "harmony"])
def test_a_call_without_arguments_is_one(name: str) -> None:
    """Models leave out the `{}` where tags tell the end."""
    text = WRITTEN[name].replace("@", "")
    for size in (1, 3, len(text)):
        assert read(name, text, size) == ("", ["{}"])


def test_half_a_character_in_json_of_a_parameter_is_none() -> None:
    """Half a character in the JSON of a parameter is none, also in formats that write parameters
    one by one.
    """
    text = (
        '<｜DSML｜function_calls>\n<｜DSML｜invoke name="get">\n'
        '<｜DSML｜parameter name="x" string="false">@</｜DSML｜parameter>\n'
        "</｜DSML｜invoke>\n</｜DSML｜function_calls>"
    )
    for value, expected in (('["\\ud83d"]', ["\ufffd"]), ('"\\ud83d"', "\ufffd")):
        _, calls = read("deepseek_v4", text.replace("@", value), 5)
        assert [msgspec.json.decode(call) for call in calls] == [{"x": expected}]
