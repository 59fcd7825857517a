"""Calls of earlier turns as text, for templates that have no turns for calls.

Owns how a call is written as text of the assistant, in the format in which the model's calls are
read. Must not know templates.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final

from gateway.api import json_text
from gateway.prompt.turns import Turn, without

Writer = Callable[[Sequence[Turn]], str]
"""Calls -> their text."""

_PYTHON_WORDS: Final = {True: "True", False: "False", None: "None"}


def spelled_calls(turns: Sequence[Turn], write: Writer) -> list[Turn]:
    """The conversation where calls are text of the assistant, behind what it said."""
    return [_spelled(turn, write) if "tool_calls" in turn else turn for turn in turns]


def call_writer(tool_format: str, mark: Callable[[str], str]) -> Writer | None:
    """How calls of this format are written, with `mark` applied to its tags; None if only templates
    write it.
    """
    if tool_format == "llama3_json":
        return _llama
    if tool_format not in _FORMATS:
        return None
    write, opening, closing = _FORMATS[tool_format]
    return partial(write, opening=mark(opening), closing=mark(closing))


def hermes_text(calls: Sequence[Turn]) -> str:
    """A block per call, in the tags of Hermes' models."""
    return _blocks(calls, "<tool_call>", "</tool_call>")


def _spelled(turn: Turn, write: Writer) -> Turn:
    said = [turn["content"]] if turn["content"] else []
    text = "\n".join([*said, write(turn["tool_calls"])])
    return {**without(turn, "tool_calls"), "content": text}


def _object(call: Turn, arguments: str = "arguments") -> str:
    function = call["function"]
    return json_text({"name": function["name"], arguments: function["arguments"]})


def _blocks(calls: Sequence[Turn], opening: str, closing: str) -> str:
    return "\n".join(f"{opening}\n{_object(call)}\n{closing}" for call in calls)


def _list(calls: Sequence[Turn], opening: str, closing: str) -> str:
    return f"{opening}[{', '.join(map(_object, calls))}]{closing}"


def _python_list(calls: Sequence[Turn], opening: str, closing: str) -> str:
    return f"{opening}[{', '.join(map(_python, calls))}]{closing}"


def _llama(calls: Sequence[Turn]) -> str:
    return "; ".join(_object(call, "parameters") for call in calls)


def _python(call: Turn) -> str:
    name, arguments = call["function"]["name"], call["function"]["arguments"]
    if not isinstance(arguments, Mapping):
        return _object(call)
    given = ", ".join(f"{key}={_literal(value)}" for key, value in arguments.items())
    return f"{name}({given})"


def _literal(value: Any) -> str:  # noqa: ANN401 - any JSON
    if value is None or isinstance(value, bool):
        return _PYTHON_WORDS[value]
    if isinstance(value, Mapping):
        pairs = (f"{json_text(key)}: {_literal(one)}" for key, one in value.items())
        return f"{{{', '.join(pairs)}}}"
    if isinstance(value, list):
        return f"[{', '.join(map(_literal, value))}]"
    return json_text(value)


_FORMATS: Final[Mapping[str, tuple[Callable[..., str], str, str]]] = {
    "hermes": (_blocks, "<tool_call>", "</tool_call>"),
    "phi4_mini": (_list, "<|tool_call|>", "<|/tool_call|>"),
    "nemotron": (_list, "<TOOLCALL>", "</TOOLCALL>"),
    "lfm2": (_python_list, "<|tool_call_start|>", "<|tool_call_end|>"),
}
