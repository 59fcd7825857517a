"""Deferred tools: tools whose definitions stand where the conversation loads them.

Owns what `defer_loading` and `tool_reference` mean in a chat, into which the other APIs' forms are
translated. A tool that is deferred is no part of the prompt's beginning, so that loading one more
leaves everything before its reference in the prefix cache. A deferred tool to which no message
refers costs no token and cannot be called. A tool that is withdrawn stays in the prompt, for the
sake of the same cache, and cannot be called any more. Must not know templates or models.
"""

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from gateway.api.tool_schemas import ToolSchema, json_text, shown_tool

DEFER: Final = "defer_loading"
REFERENCE: Final = "tool_reference"
"""The type of a part that loads a tool; its field `tool_name` names it."""
WITHDRAWAL: Final = "tool_removal"
"""The type of a part that withdraws a tool, by the same field."""

_DEFINED: Final = "This tool can be called from now on:\n<tools>\n{}\n</tools>"
_KNOWN: Final = "The tool {} can be called."
_UNKNOWN: Final = "There is no tool {}."
_WITHDRAWN: Final = "The tool {} can no longer be called."

Tool = dict[str, Any]


class LoadedTools(NamedTuple):
    """A chat whose tools are loaded. `shown` are the tools at the beginning of the prompt; `body`
    has these and behind them the loaded ones in the order of their references, without those that
    were withdrawn; of two with one name it has the loaded one. `changed` names the tools that were
    withdrawn or defined again. `messages` are for a prompt, with definitions in the places of
    references; those in `body` are for a server that gets the tools beside them.
    """

    shown: list[Tool]
    body: dict[str, Any]
    messages: list[Any]
    changed: frozenset[str]

    def shown_of(self, chosen: Sequence[Tool]) -> tuple[Tool, ...] | None:
        """The tools at the beginning of the prompt if those that may be called are `chosen`; None
        if they are the same. Changed ones stay there unless the client chose among the rest.
        """
        names = set(map(_name, chosen))
        if len(chosen) == len(self.body.get("tools") or ()):
            names |= self.changed
        shown = tuple(tool for tool in self.shown if _name(tool) in names)
        is_same = len(shown) == len(chosen) and names.isdisjoint(self.changed)
        return None if is_same else shown


def may_refer(body: bytes) -> bool:
    """Whether a body of the Messages API can hold references to tools, or define some."""
    return body.find(b"tool_reference") >= 0 or body.find(b"tool_definition") >= 0


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
    withdrawn: set[str] = set()
    sent: list[Any] = []
    local: list[Any] = []
    messages = raw.get("messages")
    for message in messages if isinstance(messages, list) else ():
        content = message.get("content") if isinstance(message, dict) else None
        if not isinstance(content, list) or not any(map(_is_change, content)):
            sent.append(message)
            local.append(message)
            continue
        names, parts = [], []
        for part in content:
            if not _is_change(part):
                names.append(part)
                parts.append(part)
                continue
            name = str(part.get("tool_name"))
            if part["type"] == WITHDRAWAL:
                withdrawn.add(name)
                names.append(_text(_WITHDRAWN.format(name)))
                parts.append(names[-1])
                continue
            withdrawn.discard(name)
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
        left = [tool for tool in shown if _name(tool) not in loaded] + list(loaded.values())
        body["tools"] = [tool for tool in left if _name(tool) not in withdrawn]
        if not body["tools"] and tools:
            _without_tools(body)
    changed = frozenset(withdrawn | (known & loaded.keys()))
    return LoadedTools(shown, body, local if isinstance(messages, list) else sent, changed)


def reference(name: str) -> dict[str, str]:
    """The part that loads the tool `name`."""
    return {"type": REFERENCE, "tool_name": name}


def withdrawal(name: str) -> dict[str, str]:
    """The part that withdraws the tool `name`."""
    return {"type": WITHDRAWAL, "tool_name": name}


def _without_tools(body: dict[str, Any]) -> None:
    """Drop the fields that servers refuse where no tool is left."""
    del body["tools"]
    body.pop("parallel_tool_calls", None)
    if body.get("tool_choice") in ("auto", "none"):
        del body["tool_choice"]


def _is_deferred(tool: Any) -> bool:  # noqa: ANN401 (of a body that is not checked yet)
    return isinstance(tool, dict) and tool.get(DEFER) is True


def _is_change(part: object) -> bool:
    return isinstance(part, dict) and part.get("type") in (REFERENCE, WITHDRAWAL)


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
