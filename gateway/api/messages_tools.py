"""Tools of Anthropic's API that the client runs -> functions of a chat.

Owns their forms, and the choice among them. Must not know messages or requests.
"""

from collections.abc import Iterable
from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta

from gateway.api.client_functions import function_fields
from gateway.api.client_tools import client_tool
from gateway.api.errors import invalid
from gateway.api.json_body import typed_body

_NAMED: Final = frozenset({"tool", "function"})
FORCED: Final = frozenset({"any", "required", *_NAMED})
"""Choices that ask for a call."""
_CHOICES: Final = {"auto": "auto", "any": "required", "required": "required", "none": "none"}
_OUR_TOOLS: Final = frozenset({None, "custom"})
"""Types of tools that the client describes and runs. The client also runs the tools of
`client_tools.py`; Anthropic's server runs all other types.
"""
_SEARCH: Final = "tool_search_tool_"
"""Begins the types of a search that the server would run. No search runs here, so the tools that
the search would find are shown from the beginning.
"""
_EXAMPLES: Final = "Examples of its input:"


class ToolParam(msgspec.Struct):
    """A tool that the client runs."""

    name: Annotated[str, Meta(min_length=1)]
    type: str | None = None
    description: str | None = None
    input_schema: dict[str, Any] | None = None
    strict: bool | None = None
    defer_loading: bool | None = None
    input_examples: list[dict[str, Any]] | None = None


class ToolChoiceParam(msgspec.Struct):
    """The choice among tools; only the type `tool` has a `name`. In a chat's form its type is
    `function`, and the name may be in that field.
    """

    type: str
    name: str | None = None
    function: dict[str, Any] | None = None
    disable_parallel_tool_use: bool | None = None

    @property
    def tool_name(self) -> object:
        """The name of the chosen tool."""
        return self.name if self.function is None else self.function.get("name")


def is_ours(tool: dict[str, Any]) -> bool:
    """Whether the client runs the tool."""
    kind = tool.get("type")
    is_named = (kind is None or isinstance(kind, str)) and kind in _OUR_TOOLS
    is_known = is_named or client_tool(tool) is not None or "input_schema" in tool
    return is_known or function_fields(tool) is not None


def own_form(tool: dict[str, Any]) -> dict[str, Any]:
    """A tool in the form of this API."""
    fields = None if "input_schema" in tool else function_fields(tool)
    return tool if fields is None else {**fields, "input_schema": fields.get("parameters")}


def functions_of(given: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """The tools that the client runs, as tools of the chat API."""
    searches = any(str(tool.get("type")).startswith(_SEARCH) for tool in given)
    return [
        function_of(tool, f"tools[{at}]", may_defer=not searches)
        for at, tool in enumerate(given)
        if is_ours(tool)
    ]


def function_of(given: dict[str, Any], where: str, *, may_defer: bool = False) -> dict[str, Any]:
    """A tool at that place of the body as one of the chat API. Raises `ApiError` 400."""
    given = own_form(given)
    tool = typed_body(given, ToolParam, where)
    function: dict[str, Any] = {"name": tool.name}
    description, schema = tool.description, tool.input_schema
    if schema is None and (known := client_tool(given)) is not None:
        description, schema = known
    if tool.input_examples:
        shown = map(_text_of_json, tool.input_examples)
        description = "\n".join([*([description, ""] if description else []), _EXAMPLES, *shown])
    if description is not None:
        function["description"] = description
    function["parameters"] = schema or {"type": "object", "properties": {}}
    if tool.strict:
        function["strict"] = True
    found: dict[str, Any] = {"type": "function", "function": function}
    if tool.defer_loading and may_defer:
        found["defer_loading"] = True
    return found


def _text_of_json(value: object) -> str:
    return msgspec.json.encode(value).decode()


def tool_choice_fields(choice: ToolChoiceParam | None) -> dict[str, Any]:
    """The fields for a choice among tools."""
    if choice is None:
        return {}
    fields: dict[str, Any] = (
        {"parallel_tool_calls": False} if choice.disable_parallel_tool_use else {}
    )
    if choice.type in _NAMED:
        named = {"type": "function", "function": {"name": choice.tool_name}}
        return {**fields, "tool_choice": named}
    chosen = _CHOICES.get(choice.type)
    if chosen is None:
        text = f"'tool_choice.type' must be auto, any, tool or none, not {choice.type!r}."
        raise invalid("tool_choice.type", text)
    return {**fields, "tool_choice": chosen}
