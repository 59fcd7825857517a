"""Whether two schemas have no value in common.

Owns the comparison, which finds most of what people write as alternatives: other types, other
constants, objects with another constant in one property. Must not know other drafts' words: the
schemas are those of `enforceable`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

Json = dict[str, Any]

_MAX_DEPTH: Final = 16


def exclude(
    definitions: Mapping[str, Any], one: Json | bool, two: Json | bool, depth: int = 0
) -> bool:
    """Whether no value is valid for both."""
    one, two = _target(definitions, one), _target(definitions, two)
    if isinstance(one, bool) or isinstance(two, bool):
        return one is False or two is False
    if depth > _MAX_DEPTH:
        return False
    for first, second in ((one, two), (two, one)):
        if "anyOf" in first:
            return all(exclude(definitions, option, second, depth + 1) for option in first["anyOf"])
    values = [_values_of(part) for part in (one, two)]
    if values[0] is not None and values[1] is not None:
        return not any(_same(a, b) for a in values[0] for b in values[1])
    types = [_types_of(part, known) for part, known in zip((one, two), values, strict=True)]
    if types[0] and types[1]:
        shared = types[0] & types[1]
        if not shared and not ({"integer", "number"} <= types[0] | types[1]):
            return True
        if shared != {"object"}:
            return False
    properties = [part.get("properties", {}) for part in (one, two)]
    both = set(one.get("required", ())) & set(two.get("required", ()))
    if any(
        exclude(
            definitions, properties[0].get(name, True), properties[1].get(name, True), depth + 1
        )
        for name in both
    ):
        return True
    return any(
        part.get("additionalProperties") is False
        and "patternProperties" not in part
        and set(other.get("required", ())) - set(part.get("properties", ()))
        for part, other in ((one, two), (two, one))
    )


def _target(definitions: Mapping[str, Any], part: Json | bool) -> Json | bool:
    if isinstance(part, dict) and isinstance(ref := part.get("$ref"), str):
        found: Json | bool = definitions.get(ref.rpartition("/")[2], True)
        return found
    return part


def _values_of(part: Json) -> list[Any] | None:
    if "const" in part:
        return [part["const"]]
    values: list[Any] | None = part.get("enum")
    return values


def _types_of(part: Json, values: list[Any] | None) -> frozenset[str]:
    named = part.get("type")
    if named is not None:
        return frozenset([named] if isinstance(named, str) else named)
    return frozenset(map(_type_of, values or ()))


def _type_of(value: object) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, int | float):
        return "integer" if value == int(value) else "number"
    if isinstance(value, str):
        return "string"
    return "array" if isinstance(value, list) else "object"


def _same(one: object, two: object) -> bool:
    """Whether JSON values are equal; Python takes `True` for 1."""
    return one == two and isinstance(one, bool) == isinstance(two, bool)
