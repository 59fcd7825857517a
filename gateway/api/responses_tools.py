"""Tools of the Responses API that the client runs -> functions of a chat.

Owns their names in a chat, where namespaces are part of the name, and the choice among them. Must
not know items or requests.
"""

from collections.abc import Iterator
from typing import Any, Final, Literal

import msgspec

from gateway.api import client_items
from gateway.api.client_functions import function_fields
from gateway.api.custom_tools import custom_function
from gateway.api.deferred_tools import DEFER
from gateway.api.errors import invalid
from protocol.reading import objects_in

NAMESPACE_SEPARATOR: Final = "__"
SEARCH: Final = "tool_search"
"""The function by which the model asks the client to search for tools."""

_NO_PARAMETERS: Final = {"type": "object", "properties": {}}

Item = dict[str, Any]


class ToolName(msgspec.Struct, frozen=True):
    """A tool as the client knows it."""

    kind: Literal["function", "custom", "tool_search", "shell", "local_shell", "apply_patch"]
    name: str
    namespace: str | None = None


def flat_name(namespace: str, name: str) -> str:
    """The name by which the model knows the tool `name` of a namespace."""
    return f"{namespace}{NAMESPACE_SEPARATOR}{name}"


def _name(tool: Item, where: str) -> str:
    name = tool.get("name")
    if not isinstance(name, str) or not name:
        raise invalid(f"{where}.name", f"'{where}.name' must be a string.")
    return name


def _described(tool: Item) -> dict[str, Any]:
    """The description and the parameters, in the order of a chat's tools: most templates write a
    tool as it is, and models were trained on tools whose description stands before the parameters.
    """
    given, text = tool.get("parameters"), tool.get("description")
    described = {"description": text} if isinstance(text, str) else {}
    return {**described, "parameters": given if isinstance(given, dict) else _NO_PARAMETERS}


def _function(tool: Item, where: str) -> Iterator[tuple[ToolName, dict[str, Any]]]:
    tool = function_fields(tool) or tool
    function = _described(tool)
    function |= {mark: True for mark in ("strict", DEFER) if tool.get(mark) is True}
    yield ToolName("function", _name(tool, where)), function


def _namespace(tool: Item, where: str) -> Iterator[tuple[ToolName, dict[str, Any]]]:
    space, inner = _name(tool, where), tool.get("tools")
    described = tool.get("description")
    for at, one in enumerate(inner if isinstance(inner, list) else ()):
        write = _IN_NAMESPACES.get(kind_of(one)) if isinstance(one, dict) else None
        for name, function in () if write is None else write(one, f"{where}.tools[{at}]"):
            words = f"{space}: {described}" if isinstance(described, str) and described else ""
            # A chat has no place for the words of a namespace, so its first tool has them.
            described = None
            yield ToolName(name.kind, name.name, space), _with_words(words, function)


def _with_words(words: str, function: dict[str, Any]) -> dict[str, Any]:
    if not words:
        return function
    own = function.get("description") or ""
    rest = {name: value for name, value in function.items() if name != "description"}
    return {"description": f"{words}\n\n{own}".rstrip(), **rest}


def inner_tools(tool: Item) -> list[Item]:
    """The tools of a namespace."""
    return objects_in(tool.get("tools")) if tool.get("type") == "namespace" else []


def is_in_namespace(tool: Item) -> bool:
    """Whether a tool of a namespace runs here."""
    return kind_of(tool) in _IN_NAMESPACES


def _custom(tool: Item, where: str) -> Iterator[tuple[ToolName, dict[str, Any]]]:
    yield ToolName("custom", _name(tool, where)), custom_function(tool)


def _search(tool: Item, where: str) -> Iterator[tuple[ToolName, dict[str, Any]]]:  # noqa: ARG001
    """The function for a search of tools by the client; a search by the server has no function."""
    if tool.get("execution") != "client":
        return
    yield ToolName("tool_search", SEARCH), _described(tool)


def _own(tool: Item, where: str) -> Iterator[tuple[ToolName, dict[str, Any]]]:  # noqa: ARG001
    """A tool of the API itself that the client runs."""
    if client_items.is_run_by_client(tool):
        yield ToolName(tool["type"], tool["type"]), client_items.function_of(tool)


def is_search_by_server(tool: Item) -> bool:
    """Whether the server would run the search. No search runs here, so the tools that the search
    would find are shown from the beginning.
    """
    return tool.get("type") == SEARCH and tool.get("execution") != "client"


_IN_NAMESPACES: Final = {"function": _function, "custom": _custom}
TOOLS: Final = {
    **_IN_NAMESPACES,
    "namespace": _namespace,
    SEARCH: _search,
    **dict.fromkeys(client_items.CALL_OF, _own),
}
KNOWN_TOOLS: Final = TOOLS.keys()
CHOICES: Final = frozenset(
    {"function", "custom", "tool", "allowed_tools", "auto", "any", "none", "required", SEARCH}
    | client_items.CALL_OF.keys()
)
"""Types of choices among tools that run here."""
_NAMED: Final = frozenset({"function", "custom", "tool"})


def is_known(tool: Item) -> bool:
    """Whether a tool is one that runs here."""
    return kind_of(tool) in KNOWN_TOOLS and client_items.is_run_by_client(tool)


def kind_of(tool: Item) -> str:
    """The type of a tool. Functions may do without, as in Anthropic's API and MCP's."""
    kind = tool.get("type")
    if kind is None and function_fields(tool) is not None:
        return "function"
    return kind if isinstance(kind, str) else str(kind)


def tool_choice(
    given: str | dict[str, Any] | None,
) -> tuple[str | dict[str, Any], set[str] | None]:
    """The choice of a chat, and the tools that may be called if not all."""
    if given is None or isinstance(given, str):
        return given or "auto", None
    if given.get("type") in ("auto", "any", "none", "required"):
        return str(given["type"]), None  # the form of Anthropic's API
    kind = str(given.get("type"))
    if kind == "allowed_tools":
        listed = given.get("tools")
        tools = listed if isinstance(listed, list) else []
        mode = given.get("mode")
        own = {kind_of(one) for one in objects_in(tools)} & client_items.CALL_OF.keys()
        return mode if isinstance(mode, str) else "auto", own | {
            str(one.get("name"))
            for one in objects_in(tools)
            if str(one.get("type", "function")) in _NAMED
        }
    if kind == SEARCH or kind in client_items.CALL_OF:
        return {"type": "function", "function": {"name": kind}}, None
    if kind not in _NAMED:
        return "auto", None  # the choice of a tool that a server would run
    name = given.get("name")
    if name is None and isinstance(inner := given.get("function"), dict):
        name = inner.get("name")  # the form of a chat
    if isinstance(space := given.get("namespace"), str):
        name = flat_name(space, str(name))
    return {"type": "function", "function": {"name": name}}, None
