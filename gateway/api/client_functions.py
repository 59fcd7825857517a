"""Functions that a client runs, as any API writes them -> their fields.

Owns where each form has the name, the description and the schema of the arguments: a chat in a
wrapper, the Responses API without it, Anthropic's as `input_schema`, MCP's as `inputSchema`. Must
not know requests.
"""

from typing import Any, Final

_SCHEMAS: Final = ("parameters", "input_schema", "inputSchema")
_TYPES: Final = (None, "function")

Tool = dict[str, Any]


def function_fields(tool: Tool) -> Tool | None:
    """The fields of a function without a wrapper, its schema as `parameters`; None for a tool of
    another type or form. A tool in the form of the Responses API is returned as it is.
    """
    if tool.get("type") not in _TYPES:
        return None
    inner = tool.get("function")
    if isinstance(inner, dict):
        outer = {name: value for name, value in tool.items() if name not in ("type", "function")}
        tool = {**outer, **inner}
    if "name" not in tool:
        return None
    name = next((name for name in _SCHEMAS if isinstance(tool.get(name), dict)), _SCHEMAS[0])
    if name == _SCHEMAS[0]:
        return tool
    rest = {key: value for key, value in tool.items() if key not in _SCHEMAS}
    return {**rest, "parameters": tool[name]}
