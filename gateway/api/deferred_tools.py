"""Deferred tools: tools whose definitions stand where the conversation loads them.

Owns what `defer_loading` and `tool_reference` mean in a chat, into which the other APIs' forms are
translated. A tool that is deferred is no part of the prompt's beginning, so that loading one more
leaves everything before its reference in the prefix cache. A deferred tool to which no message
refers costs no token and cannot be called. Must not know templates or models.
"""

from collections.abc import Iterable, Sequence
from typing import Any, Final, NamedTuple

from gateway.api.tool_schemas import ToolSchema, json_text, shown_tool

DEFER: Final = "defer_loading"
REFERENCE: Final = "tool_reference"
"""The type of a part that loads a tool; its field `tool_name` names it."""

_DEFINED: Final = "This tool can be called from now on:\n<tools>\n{}\n</tools>"
_KNOWN: Final = "The tool {} can be called."
_UNKNOWN: Final = "There is no tool {}."

Tool = dict[str, Any]


class LoadedTools(NamedTuple):
    """A chat whose tools are loaded. `shown` are the tools at the beginning of the prompt; `body`
    has these and behind them the loaded ones in the order of their references. `messages` are for
    a prompt, with definitions in the places of references; those in `body` are for a server that
    gets the tools beside them.
    """

    shown: list[Tool]
    body: dict[str, Any]
    messages: list[Any]


def may_refer(body: bytes) -> bool:
    """Whether a body of the Messages API can hold references to tools."""
    return body.find(b"tool_reference") >= 0


def load_tools(raw: dict[str, Any]) -> LoadedTools:
    """Load the tools to which the messages of the chat `raw` refer. What is not of the right type
    stays as it is, for the checks behind this.
    """
    tools = raw.get("tools")
    given = tools if isinstance(tools, list) else []
    deferred = {_name(tool): tool for tool in given if _is_deferred(tool)}
    shown = [_plain(tool) for tool in given if not _is_deferred(tool)]
    known = {_name(tool) for tool in shown}
    loaded: dict[str, Tool] = {}
    sent: list[Any] = []
    local: list[Any] = []
    messages = raw.get("messages")
    for message in messages if isinstance(messages, list) else ():
        content = message.get("content") if isinstance(message, dict) else None
        if not isinstance(content, list) or not any(map(_is_reference, content)):
            sent.append(message)
            local.append(message)
            continue
        names, parts = [], []
        for part in content:
            if not _is_reference(part):
                names.append(part)
                parts.append(part)
                continue
            name = str(part.get("tool_name"))
            line = (_KNOWN if name in known or name in deferred else _UNKNOWN).format(name)
            names.append(_text(line))
            if name in deferred and name not in loaded:
                loaded[name] = _plain(deferred[name])
                line = _DEFINED.format(_definition(loaded[name]))
            parts.append(_text(line))
        sent.append({**message, "content": _content(names)})
        local.append({**message, "content": _content(parts)})
    body = {**raw, "messages": sent}
    if isinstance(tools, list):
        body["tools"] = shown + list(loaded.values())
        if not body["tools"] and tools:
            _without_tools(body)
    return LoadedTools(shown, body, local if isinstance(messages, list) else sent)


def reference(name: str) -> dict[str, str]:
    """The part that loads the tool `name`."""
    return {"type": REFERENCE, "tool_name": name}


def only_shown(chosen: Sequence[Tool], shown: Iterable[Tool]) -> tuple[Tool, ...]:
    """The tools that may be called and stand at the beginning of the prompt."""
    names = {_name(tool) for tool in shown}
    return tuple(tool for tool in chosen if _name(tool) in names)


def _without_tools(body: dict[str, Any]) -> None:
    """Drop the fields that servers refuse where no tool is left."""
    del body["tools"]
    body.pop("parallel_tool_calls", None)
    if body.get("tool_choice") in ("auto", "none"):
        del body["tool_choice"]


def _is_deferred(tool: Any) -> bool:  # noqa: ANN401 (of a body that is not checked yet)
    return isinstance(tool, dict) and tool.get(DEFER) is True


def _is_reference(part: object) -> bool:
    return isinstance(part, dict) and part.get("type") == REFERENCE


def _name(tool: Any) -> str:  # noqa: ANN401 (of a body that is not checked yet)
    function = tool.get("function") if isinstance(tool, dict) else None
    return str(function.get("name")) if isinstance(function, dict) else ""


def _plain(tool: Any) -> Any:  # noqa: ANN401 (of a body that is not checked yet)
    """The tool without the field `defer_loading`, which is for the server."""
    if not isinstance(tool, dict) or DEFER not in tool:
        return tool
    if not isinstance(tool, ToolSchema):
        return {key: value for key, value in tool.items() if key != DEFER}
    if tool.loaded is None:
        rest = {key: value for key, value in tool.items() if key != DEFER}
        tool.loaded = ToolSchema(rest, tool.num_bytes)
    return tool.loaded


def _definition(tool: Tool) -> str:
    shown = shown_tool(tool)
    return shown.text_in() if isinstance(shown, ToolSchema) else json_text(shown)


def _text(text: str) -> dict[str, str]:
    return {"type": "text", "text": text}


def _content(parts: list[Any]) -> str | list[Any]:
    """The parts, as one text if all of them are texts: not every server takes parts in a result."""
    texts = [part.get("text") if isinstance(part, dict) else None for part in parts]
    if all(isinstance(text, str) for text in texts):
        return "\n".join(str(text) for text in texts)
    return parts
