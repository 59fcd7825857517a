"""Values written as plain text -> JSON, by the schema of their parameter.

Owns how types are read from a schema and how a text becomes a value of one of them. A parameter
without a known schema is a string. Must not know formats.
"""

import json
import re
from collections.abc import Iterator, Mapping
from math import isfinite
from typing import Any, Final

from gateway.output.tools.json_repair import NUMBER, JsonRepair
from gateway.schemas import SYNONYMS, resolved, type_of

_INTEGER: Final = re.compile(r"-?(0|[1-9]\d*)", re.ASCII)
quote: Final = json.JSONEncoder(ensure_ascii=False).encode
"""A text as a JSON string, in quotes."""
_MAX_DEPTH: Final = 4
_MAX_PARTS: Final = 2**14
"""The most parts of a request's schemas that are visited, counting each visit of a part that
references lead back to: a short schema can demand more visits than there is time for. Parts that
are not visited stay as they are.
"""
_COMBINED: Final = ("anyOf", "oneOf", "allOf")
_SIMPLE: Final = frozenset({"$ref", *_COMBINED})


NULLS: Final = ("null", "None")
"""How models write that a value is null, where no quotes tell it from a string."""


def is_blank(text: str) -> bool:
    """Whether a text says that there is no value."""
    return text.strip().lower() in {"", "null", "none"}


def may_be_blank(text: str) -> bool:
    """Whether a text may still become one that `is_blank`."""
    start = text.strip().lower()
    return "null".startswith(start) or "none".startswith(start)


def schemas_of(tools: tuple[dict[str, Any], ...]) -> dict[str, Mapping[str, Any]]:
    """The schemas of parameters by tool; `tools` are in the API's shape. References are resolved
    as far as the types of a parameter need it.
    """
    found: dict[str, Mapping[str, Any]] = {}
    left = _parts_left()
    for tool in tools:
        function = tool["function"]
        given = function.get("parameters")
        found[function["name"]] = _parameters(given, left) if isinstance(given, dict) else {}
    return found


def _parts_left() -> Iterator[int]:
    return iter(range(_MAX_PARTS))


def _is_over(left: Iterator[int]) -> bool:
    """Whether no more schemas are looked at; else one more is."""
    return next(left, None) is None


def _parameters(root: dict[str, Any], left: Iterator[int]) -> Mapping[str, Any]:
    """The schemas of the properties that `root` names, also behind a reference and in parts of an
    `allOf`, `anyOf` or `oneOf`.
    """
    properties = root.get("properties")
    if isinstance(properties, dict) and _SIMPLE.isdisjoint(root):
        own = properties
    else:
        own = {}
        _gather(root, root, own, 0, left)
    if not [one for one in own.values() if type(one) is dict and not _SIMPLE.isdisjoint(one)]:
        return own
    return {name: _plain(root, one, 0, left) for name, one in own.items()}


def _gather(
    root: dict[str, Any], schema: object, own: dict[str, Any], depth: int, left: Iterator[int]
) -> None:
    schema = {} if _is_over(left) else resolved(root, schema)
    if not isinstance(schema, dict) or depth > _MAX_DEPTH:
        return
    for word in _COMBINED:
        for option in _listed(schema.get(word)):
            _gather(root, option, own, depth + 1, left)
    properties = schema.get("properties")
    for name, one in properties.items() if isinstance(properties, dict) else ():
        own[name] = {"allOf": [own[name], one]} if name in own else one


def _listed(options: object) -> list[Any]:
    return options if isinstance(options, list) else []


def _plain(root: Mapping[str, Any], schema: object, depth: int, left: Iterator[int]) -> object:
    """`schema` without references where its types are stated."""
    if _is_over(left):
        return schema
    schema = resolved(root, schema)
    if not isinstance(schema, dict) or depth > _MAX_DEPTH:
        return schema
    combined = {
        word: [_plain(root, one, depth + 1, left) for one in schema[word]]
        for word in _COMBINED
        if isinstance(schema.get(word), list)
    }
    return {**schema, **combined} if combined else schema


def within(root: Mapping[str, Any], schema: object, key: str | None) -> object:
    """The schema of the property `key` of a value with this schema, or of the items of a list if
    `key` is None, also behind references and in parts of an `allOf`, `anyOf` or `oneOf`. None if
    nothing states it.
    """
    left = _parts_left()
    found = list(_inner(root, schema, key, 0, left))
    if not found:
        return None
    return _plain(root, found[0] if len(found) == 1 else {"anyOf": found}, 0, left)


def _inner(
    root: Mapping[str, Any], schema: object, key: str | None, depth: int, left: Iterator[int]
) -> Iterator[Any]:
    schema = {} if _is_over(left) else resolved(root, schema)
    if not isinstance(schema, dict) or depth > _MAX_DEPTH:
        return
    if key is None:
        yield from (one for one in (schema.get("items"),) if isinstance(one, dict))
    else:
        properties = schema.get("properties")
        own = properties.get(key) if isinstance(properties, dict) else None
        stated = schema.get("additionalProperties") if own is None else own
        yield from (one for one in (stated,) if isinstance(one, dict))
    for word in _COMBINED:
        for option in _listed(schema.get(word)):
            yield from _inner(root, option, key, depth + 1, left)


def required_of(tools: tuple[dict[str, Any], ...]) -> dict[str, frozenset[str]]:
    """The parameters by tool that a call has to give."""
    found: dict[str, frozenset[str]] = {}
    left = _parts_left()
    for tool in tools:
        function = tool["function"]
        given = function.get("parameters")
        names = _required(given, given, 0, left) if isinstance(given, dict) else ()
        found[function["name"]] = frozenset(name for name in names if isinstance(name, str))
    return found


def _required(
    root: dict[str, Any], schema: object, depth: int, left: Iterator[int]
) -> Iterator[object]:
    schema = {} if _is_over(left) else resolved(root, schema)
    if not isinstance(schema, dict) or depth > _MAX_DEPTH:
        return
    yield from _listed(schema.get("required"))
    for part in _listed(schema.get("allOf")):
        yield from _required(root, part, depth + 1, left)


def types_of(schema: object) -> frozenset[str]:
    """The JSON types that a schema allows; empty where it names none."""
    return frozenset(SYNONYMS.get(name, name) for name in _types(schema, 0, _parts_left()))


def _types(schema: object, depth: int, left: Iterator[int]) -> list[str]:
    if not isinstance(schema, dict) or depth > _MAX_DEPTH or _is_over(left):
        return []
    named = [*_named_types(schema, depth, left)]
    # OpenAPI 3.0; where no type is named, null is allowed already.
    return [*named, "null"] if named and schema.get("nullable") is True else named


def _named_types(schema: dict[str, Any], depth: int, left: Iterator[int]) -> Iterator[str]:
    named = schema.get("type")
    if isinstance(named, str):
        yield named
    elif isinstance(named, list):
        yield from (name for name in named if isinstance(name, str))
    elif isinstance(schema.get("enum"), list):
        yield from map(type_of, schema["enum"])
    elif "const" in schema:
        yield type_of(schema["const"])
    elif "properties" in schema or "$ref" in schema:
        yield "object"
    elif "items" in schema:
        yield "array"
    for word in _COMBINED:
        for option in _listed(schema.get(word)):
            yield from _types(option, depth + 1, left)


def is_text(types: frozenset[str]) -> bool:
    """Whether a value is taken as it stands, so that it may be streamed."""
    return not types or "string" in types


def to_json(text: str, types: frozenset[str]) -> str:
    """A value in JSON; a string if `text` is not a value of these types."""
    value = text.strip()
    if is_text(types):
        return "null" if value in NULLS and "null" in types else quote(text)
    for name in ("null", "boolean", "integer", "number", "object", "array"):
        if name in types and (found := _as_type(value, name)) is not None:
            return found
    return quote(text)


def _as_type(value: str, name: str) -> str | None:
    match name:
        case "null":
            return "null" if value.lower() in {"null", "none"} else None
        case "boolean":
            return value.lower() if value.lower() in {"true", "false"} else None
        case "integer":
            return value if _INTEGER.fullmatch(value) else None
        case "number":
            return value if NUMBER.fullmatch(value) and isfinite(float(value)) else None
        case "object":
            return _container(value, "{")
        case _:
            return _container(value, "[")


def _container(value: str, opener: str) -> str | None:
    """The JSON, repaired if need be; None if it does not end where the text ends."""
    if not value.startswith(opener):
        return None
    reader = JsonRepair("{" if opener == "{" else "[")
    for at, char in enumerate(value[1:], 2):
        reader.feed(char)
        if reader.is_done:
            return reader.take() if at == len(value) else None
    return None


def any_json(text: str) -> str:
    """A value that the model declared to be JSON; a string if it is not."""
    value = text.strip()
    for name in ("null", "boolean", "integer", "number", "object", "array"):
        if (found := _as_type(value, name)) is not None:
            return found
    try:
        said = json.loads(value)
    except (ValueError, RecursionError):
        return quote(text)
    if not isinstance(said, str):
        return quote(text)
    return quote(said.encode("utf-16", "surrogatepass").decode("utf-16", "replace"))
