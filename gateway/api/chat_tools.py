"""The tools of a chat, and which of them the model may call.

Owns which tools the client runs, the meaning of `tool_choice`, and the 400 for a tool or a choice
that is none. Must not know messages.
"""

from typing import Any, Final, get_args

from gateway.api.errors import ApiError, invalid
from gateway.api.request import ToolChoice
from gateway.api.tool_schemas import ToolSchema

TOOL_CHOICES: Final[dict[str, ToolChoice]] = {choice: choice for choice in get_args(ToolChoice)}


def own_tools(given: tuple[dict[str, Any], ...]) -> tuple[tuple[dict[str, Any], ...], str]:
    """The tools that the client runs, and the place of the first that a server would run."""
    others = [
        at
        for at, tool in enumerate(given)
        if not (type(tool) is ToolSchema and tool.function_name) and _is_of_server(tool)
    ]
    if not others:
        return given, ""
    own = tuple(tool for at, tool in enumerate(given) if at not in others)
    return own, f"tools[{others[0]}].type"


def _is_of_server(tool: dict[str, Any]) -> bool:
    kind = tool.get("type")
    return isinstance(kind, str) and kind not in ("", "function", "custom")


def chosen_tools(
    choice: str | dict[str, Any] | None, tools: tuple[dict[str, Any], ...], *, has_others: bool
) -> tuple[tuple[dict[str, Any], ...], ToolChoice]:
    """The tools that the model may see, and the choice; of a named function only that one."""
    names = [
        (type(tool) is ToolSchema and tool.function_name) or _tool_name(tool, f"tools[{i}]")
        for i, tool in enumerate(tools)
    ]
    if choice is None:
        return tools, "auto"
    if isinstance(choice, str):
        # Mistral's API calls it "any".
        known = TOOL_CHOICES.get("required" if choice == "any" else choice)
        if known is None:
            raise _bad_choice(f"must be none, auto, required or an object, not {choice!r}")
        if known == "required" and not tools and not has_others:
            raise _bad_choice("is 'required', but there are no tools")
        return (() if known == "none" else tools), known
    if choice.get("type") == "allowed_tools":
        return _allowed_tools(choice, tools, names)
    wanted = choice.get("function")
    if has_others and _is_of_server(choice):
        return tools, "auto"
    if choice.get("type", "function") != "function" or not isinstance(wanted, dict):
        raise _bad_choice("must name a function")
    if wanted.get("name") not in names:
        raise _bad_choice(f"names {wanted.get('name')!r}, which is not among the tools")
    return (tools[names.index(wanted["name"])],), "required"


def _allowed_tools(
    choice: dict[str, Any], tools: tuple[dict[str, Any], ...], names: list[str]
) -> tuple[tuple[dict[str, Any], ...], ToolChoice]:
    """The tools that `choice` names. The model does not see the others, so it cannot call them."""
    allowed = choice.get("allowed_tools")
    given = allowed.get("tools") if isinstance(allowed, dict) else None
    mode = allowed.get("mode", "auto") if isinstance(allowed, dict) else None
    if mode not in ("auto", "required") or not isinstance(given, list) or not given:
        raise _bad_choice("must have 'allowed_tools' with a mode, auto or required, and tools")
    wanted = set()
    for one in given:
        function = one.get("function") if isinstance(one, dict) else None
        name = function.get("name") if isinstance(function, dict) else None
        if name not in names:
            raise _bad_choice(f"allows {name!r}, which is not among the tools")
        wanted.add(name)
    chosen = tuple(tool for tool, name in zip(tools, names, strict=True) if name in wanted)
    return chosen, TOOL_CHOICES[mode]


def _bad_choice(text: str) -> ApiError:
    return invalid("tool_choice", f"'tool_choice' {text}.")


def _tool_name(tool: dict[str, Any], where: str) -> str:
    if tool.get("type", "function") != "function":
        raise invalid(f"{where}.type", f"'{where}.type' must be 'function'.")
    function = tool.get("function")
    if not isinstance(function, dict):
        text = f"'{where}.function' must be an object with 'name' and 'parameters'."
        raise invalid(f"{where}.function", text)
    name = function.get("name")
    if not isinstance(name, str) or not name:
        raise invalid(f"{where}.function.name", f"'{where}.function.name' must be a string.")
    if isinstance(tool, ToolSchema):
        tool.function_name = name
    return name
