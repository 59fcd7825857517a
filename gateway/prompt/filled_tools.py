"""Tools with the fields that APIs leave to the client and some templates demand.

Owns what stands for a missing field. Must not know templates.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

_ANY: Final = "any"
"""The type of a parameter that names none."""


def filled_tools(tools: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The tools, where each function has a description and an object of parameters, and each of
    these a type and a description.
    """
    return [{**tool, "function": _filled(tool.get("function"))} for tool in tools]


def _filled(function: object) -> dict[str, Any]:
    stated = _table(function)
    schema = _table(stated.get("parameters"))
    properties = {
        name: _with_words(schema_of) for name, schema_of in _table(schema.get("properties")).items()
    }
    parameters = {**schema, "type": "object", "properties": properties}
    parameters["required"] = schema.get("required") or []
    return {**stated, "description": stated.get("description") or "", "parameters": parameters}


def _with_words(schema: object) -> dict[str, Any]:
    stated = _table(schema)
    kind = stated.get("type") or _first_type(stated) or _ANY
    return {**stated, "type": kind, "description": stated.get("description") or ""}


def _first_type(schema: Mapping[str, Any]) -> object:
    """The type of the first alternative that has one."""
    for key in ("anyOf", "oneOf", "allOf"):
        alternatives = schema.get(key)
        for one in alternatives if isinstance(alternatives, list) else ():
            if (kind := _table(one).get("type")) is not None:
                return kind
    return None


def _table(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}
