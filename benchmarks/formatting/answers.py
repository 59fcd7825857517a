"""The answers that are measured: text, thoughts, and one long call per format.

Owns their texts. The share of tokens outside of the kind that a row names is under 2 %.
"""

import json
from dataclasses import dataclass
from typing import Any, Final

_PROSE: Final = (
    "The gateway keeps every agent on the worker that already holds its conversation, and moves on "
    "to another one when that is lost. Nothing of it is seen by the agents: a pause, no more.\n\n"
    "Prices went from 3.50 to 4.25 (plus 21 %), which is less than a < b would suggest.\n"
) * 8
_CODE: Final = (
    'def f(path: str) -> dict[str, int]:\n    """Sizes of the files below `path`."""\n'
    "    return {p.name: p.stat().st_size for p in Path(path).iterdir() if p.is_file()}\n\n"
) * 8
_ARGUMENTS: Final = json.dumps({"path": "/tmp/a.py", "content": _CODE})

TOOLS: Final[tuple[dict[str, Any], ...]] = (
    {
        "type": "function",
        "function": {
            "name": "write_file",
            "parameters": {
                "type": "object",
                "properties": {"path": {"type": "string"}, "content": {"type": "string"}},
            },
        },
    },
)


@dataclass(frozen=True)
class Answer:
    """`kind` is text, thoughts or call; `form` a tool parser's name."""

    kind: str
    form: str
    text: str


def _parameters(before: str, between: str, after: str, end: str) -> str:
    values = {"path": "/tmp/a.py", "content": _CODE}
    return "".join(f"{before}{k}{between}{v}{after}" for k, v in values.items()) + end


_CALLS: Final = {
    "hermes": f'<tool_call>\n{{"name": "write_file", "arguments": {_ARGUMENTS}}}\n</tool_call>',
    "llama3_json": f'{{"name": "write_file", "parameters": {_ARGUMENTS}}}',
    "mistral": f"[TOOL_CALLS]write_file[ARGS]{_ARGUMENTS}",
    "kimi_k2": "<|tool_calls_section_begin|><|tool_call_begin|>functions.write_file:0"
    f"<|tool_call_argument_begin|>{_ARGUMENTS}<|tool_call_end|><|tool_calls_section_end|>",
    "deepseek_v3": "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>write_file<｜tool▁sep｜>"
    f"{_ARGUMENTS}<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
    "deepseek_v4": '<｜DSML｜tool_calls>\n<｜DSML｜invoke name="write_file">\n'
    + _parameters(
        '<｜DSML｜parameter name="',
        '" string="true">',
        "</｜DSML｜parameter>\n",
        "</｜DSML｜invoke>\n</｜DSML｜tool_calls>",
    ),
    "qwen3_coder": "<tool_call>\n<function=write_file>\n"
    + _parameters("<parameter=", ">\n", "\n</parameter>\n", "</function>\n</tool_call>"),
    "glm": "<tool_call>write_file\n"
    + _parameters("<arg_key>", "</arg_key>\n<arg_value>", "</arg_value>\n", "</tool_call>"),
}

ANSWERS: Final = (
    Answer("text", "hermes", _PROSE),
    Answer("text", "hermes", _CODE),
    Answer("text", "mistral", _PROSE),
    Answer("thoughts", "hermes", f"<think>\n{_PROSE}</think>\n\nYes."),
    *(Answer("call", form, text) for form, text in _CALLS.items()),
)
