"""Values longer than what is held back, in formats that write them between tags."""

import json
import random
from typing import Any, Final

import pytest

from gateway.api import ToolCallArguments, ToolCallEnd
from gateway.output.tools import TOOL_FORMATS, ToolParser, arguments_writer

MAX_VALUE: Final = 2000
SIZE: Final = 500

TOOLS: Final = (
    {
        "type": "function",
        "function": {
            "name": "f",
            "parameters": {
                "type": "object",
                "properties": {
                    "text": {"type": "string"},
                    "map": {"type": "object"},
                    "rows": {"type": "array"},
                    "count": {"type": "integer"},
                },
            },
        },
    },
)
K3: Final = '<|open|>tools<|sep|><|open|>call tool="f" index="1"<|sep|>'
WRITTEN: Final = {
    "qwen3_coder": (
        "<tool_call>\n<function=f>\n<parameter=@>\n",
        "\n</parameter>\n</function>\n</tool_call>",
    ),
    "glm": (
        "<tool_call>f\n<arg_key>@</arg_key>\n<arg_value>",
        "</arg_value>\n</tool_call>",
    ),
    "kimi_k3": (
        f'{K3}<|open|>argument key="@" type="object"<|sep|>',
        "<|close|>argument<|sep|><|close|>call<|sep|><|close|>tools<|sep|>",
    ),
    "minicpm5": ('<function name="f"><param name="@">', "</param></function>"),
    "minimax_m2": (
        '<minimax:tool_call>\n<invoke name="f">\n<parameter name="@">',
        "</parameter>\n</invoke>\n</minimax:tool_call>",
    ),
}


def read(name: str, text: str, size: int) -> tuple[str, int, bool]:
    """The arguments of the call, in how many pieces they came, and whether it is whole."""
    parser = ToolParser(TOOL_FORMATS[name], random.randbytes, TOOLS)
    events = [one for at in range(0, len(text), size) for one in parser.push(text[at : at + size])]
    events += parser.flush()
    parts = [one.text for one in events if isinstance(one, ToolCallArguments)]
    (end,) = [one for one in events if isinstance(one, ToolCallEnd)]
    return "".join(parts), len(parts), end.is_whole


@pytest.fixture(autouse=True)
def little_is_held(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hold little of a value back, so that the test of a long value is short."""
    monkeypatch.setattr(arguments_writer, "MAX_VALUE", MAX_VALUE)


@pytest.mark.parametrize("parameter", ["map", "rows"])
@pytest.mark.parametrize("name", WRITTEN)
def test_a_long_object_is_one_and_goes_on_as_it_comes(name: str, parameter: str) -> None:
    """A long object is one and goes on as it comes; beyond some length it was made a string that no
    tool takes.
    """
    words = 'a "b"\n{é} ' * (MAX_VALUE // 8)
    value: Any = {"k": [words, 1, None]} if parameter == "map" else [{"k": words}, True]
    before, after = WRITTEN[name]
    text = before.replace("@", parameter) + json.dumps(value, ensure_ascii=False) + after
    arguments, num_parts, is_whole = read(name, text, SIZE)
    assert json.loads(arguments) == {parameter: value}
    assert is_whole
    assert num_parts > 2


@pytest.mark.parametrize("name", WRITTEN)
def test_what_is_long_and_no_value_of_its_type_is_a_string(name: str) -> None:
    """A long value that fits no type of its schema is a string, as a short one is."""
    value = "7" * (MAX_VALUE + 9)
    before, after = WRITTEN[name]
    text = f"{before.replace('@', 'count')}{value}{after}"
    if name == "kimi_k3":
        text = text.replace('type="object"', 'type="number"')
    arguments, _, is_whole = read(name, text, SIZE)
    assert json.loads(arguments) == {"count": value}
    assert is_whole


@pytest.mark.parametrize("name", ["gemma4", "lfm2"])
def test_texts_in_a_notation_go_on_as_they_come(name: str) -> None:
    """A client that waits for a file would hear nothing for as long as it is written."""
    lines = ["a <b> <|", '\n"c"', " d", "é" * 9]
    text = f'<|tool_call>call:f{{text:<|"|>{"".join(lines)}<|"|>}}<tool_call|>'
    if name == "lfm2":
        text = f"<|tool_call_start|>[f(text={''.join(lines)!r})]<|tool_call_end|>"
    arguments, num_parts, is_whole = read(name, text, 1)
    assert json.loads(arguments) == {"text": "".join(lines)}
    assert is_whole
    assert num_parts > 9
