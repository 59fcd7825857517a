"""Tools with the fields that APIs leave to the client and some templates demand.

Owns the defaults of missing fields. Must not know templates.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

_ANY: Final = "any"
"""The type of a parameter whose schema names no type."""
MAX_DEPTH: Final = 64
"""Levels of a schema that get a type; what is below the last one is left out."""
_TYPES: Final = frozenset({"string", "number", "integer", "boolean", "array", "object"})


def filled_tools(tools: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The tools, where each function has a description and an object of parameters, and each of
    these a type and a description.
    """
    return [{**tool, "function": _filled(tool.get("function"))} for tool in tools]


def typed_tools(tools: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The filled tools, where every schema has one of JSON's types, as templates demand that turn a
    schema into Python's types: those of Hermes and Command R+ never end at `null`, at a list with
    it, or at a type that they do not know.
    """
    filled = filled_tools(tools)
    return [{**tool, "function": _typed_function(tool["function"])} for tool in filled]


def _typed_function(function: Mapping[str, Any]) -> dict[str, Any]:
    schema = function["parameters"]
    return {**function, "parameters": _typed(schema, schema)}


def _typed(schema: object, root: Mapping[str, Any], depth: int = 0) -> dict[str, Any]:
    stated = _table(schema)
    if depth == MAX_DEPTH:
        return {"type": _one_type(stated, root)}
    typed = {**stated, "type": _one_type(stated, root)}
    if isinstance(parts := stated.get("properties"), Mapping):
        typed["properties"] = {key: _typed(part, root, depth + 1) for key, part in parts.items()}
    for key in ("items", "additionalProperties"):
        if isinstance(part := stated.get(key), Mapping):
            typed[key] = _typed(part, root, depth + 1)
    if isinstance(items := stated.get("items"), list):  # of tuples, up to draft 2019-09
        typed["items"] = _typed(next(iter(items), None), root, depth + 1)
    if depth and typed["type"] == "object":
        typed.setdefault("additionalProperties", True)  # an absent value means the same
    return typed


def _one_type(schema: Mapping[str, Any], root: Mapping[str, Any]) -> str:
    """The first of JSON's types, except null, that a schema allows: by its own `type`, by that of
    the schema that it refers to, or by that of an alternative; "string" if there is none.
    """
    for one in (schema, _referred(schema, root), *_alternatives(schema)):
        kind = _table(one).get("type")
        for name in kind if isinstance(kind, list) else (kind,):
            if isinstance(name, str) and name in _TYPES:
                return name
    return "object" if "properties" in schema else "array" if "items" in schema else "string"


def _referred(schema: Mapping[str, Any], root: Mapping[str, Any]) -> object:
    """The schema that a reference within the parameters names."""
    reference = schema.get("$ref")
    if not isinstance(reference, str):
        return None
    found: object = root
    for key in reference.removeprefix("#/").split("/"):
        found = _table(found).get(key)
    return found


def _filled(function: object) -> dict[str, Any]:
    stated = _table(function)
    schema = _table(stated.get("parameters"))
    properties = {
        name: _with_words(schema_of) for name, schema_of in _table(schema.get("properties")).items()
    }
    parameters = {**schema, "type": "object", "properties": properties}
    parameters["required"] = schema.get("required") or []
    return {**stated, "description": _words(stated), "parameters": parameters}


def _with_words(schema: object) -> dict[str, Any]:
    stated = _table(schema)
    kind = stated.get("type") or _first_type(stated) or _ANY
    return {**stated, "type": kind, "description": _words(stated)}


def _words(stated: Mapping[str, Any]) -> str:
    """The description, whose lines may be in a list. What is no text is written as JSON."""
    given = stated.get("description") or ""
    lines = given if isinstance(given, list) else [given]
    return "\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines)


def _first_type(schema: Mapping[str, Any]) -> object:
    """The type of the first alternative that has one."""
    kinds = (_table(one).get("type") for one in _alternatives(schema))
    return next((kind for kind in kinds if kind is not None), None)


def _alternatives(schema: Mapping[str, Any]) -> Iterator[object]:
    for key in ("anyOf", "oneOf", "allOf"):
        alternatives = schema.get(key)
        yield from alternatives if isinstance(alternatives, list) else ()


def _table(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}
