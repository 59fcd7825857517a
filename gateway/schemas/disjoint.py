"""Whether two schemas have no value in common.

Owns the comparison, which finds most of what people write as alternatives: other types, other
constants, objects with another constant in one property. Must not know the keywords of older
drafts: its schemas come from `enforceable`.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Any, Final, final

from gateway.schemas.json_types import named_types, type_of

Json = dict[str, Any]

_MAX_DEPTH: Final = 16
_MAX_STEPS: Final = 500_000
"""The most names and values that are compared for one request: enough for 400 small alternatives.
Comparing them takes about a second.
"""
_OF_OBJECTS: Final = frozenset(
    {
        "properties",
        "required",
        "additionalProperties",
        "patternProperties",
        "minProperties",
        "maxProperties",
    }
)


@final
class SchemaComparison:
    """Compares the schemas of one request, whose `definitions` may contain each other and
    themselves: a schema of a few lines has more pairs of parts than can be compared.
    """

    def __init__(self, definitions: Mapping[str, Any]) -> None:
        self._definitions = definitions
        self._num_left = _MAX_STEPS

    def exclude(self, one: Json | bool, two: Json | bool, depth: int = 0) -> bool:
        """Whether no value is valid for both; False where that would take too long to find out."""
        one, two = _target(self._definitions, one), _target(self._definitions, two)
        if isinstance(one, bool) or isinstance(two, bool):
            return one is False or two is False
        self._num_left -= 1 + _size(one) + _size(two)
        if depth > _MAX_DEPTH or self._num_left < 0:
            return False
        for first, second in ((one, two), (two, one)):
            if "anyOf" in first:
                options = [_typed(option, first) for option in first["anyOf"]]
                return all(self.exclude(option, second, depth + 1) for option in options)
        is_apart = _by_values(one, two)
        if is_apart is not None:
            return is_apart
        parts, others = (part.get("properties", {}) for part in (one, two))
        both = set(one.get("required", ())) & set(two.get("required", ()))
        if any(
            self.exclude(parts.get(name, True), others.get(name, True), depth + 1) for name in both
        ):
            return True
        return any(
            part.get("additionalProperties") is False
            and "patternProperties" not in part
            and set(other.get("required", ())) - set(part.get("properties", ()))
            for part, other in ((one, two), (two, one))
        )


def _by_values(one: Json, two: Json) -> bool | None:
    """Whether the schemas are disjoint by their values and types; None if only objects may be valid
    for both.
    """
    values = [_values_of(part) for part in (one, two)]
    if values[0] is not None and values[1] is not None:
        return not {*map(_frozen, values[0])} & {*map(_frozen, values[1])}
    types = [_types_of(part, known) for part, known in zip((one, two), values, strict=True)]
    named = [some for some in types if some]
    if not named:
        return False  # a value that is not an object is valid for both
    shared = frozenset.intersection(*named)
    if not shared and not ({"integer", "number"} <= types[0] | types[1]):
        return True
    return None if shared == {"object"} else False


def of_objects(definitions: Mapping[str, Any], parts: list[Json | bool]) -> list[Json | bool]:
    """The schemas of a `oneOf`. If several of them name properties and no type, a value that is not
    an object is valid for each of them, and so not for the `oneOf`: these schemas get the type
    object.
    """
    untyped = [at for at, part in enumerate(parts) if _speaks_of_objects(definitions, part)]
    if len(untyped) < 2:
        return parts
    return [
        {**part, "type": "object"} if at in untyped and isinstance(part, dict) else part
        for at, part in enumerate(parts)
    ]


def _speaks_of_objects(definitions: Mapping[str, Any], part: Json | bool) -> bool:
    target = _target(definitions, part)
    is_alone = not isinstance(part, dict) or "$ref" not in part or len(part) == 1
    return isinstance(target, dict) and is_alone and not target.keys() - _OF_OBJECTS


def _typed(option: Json | bool, beside: Json) -> Json | bool:
    """The option with the type of its parent schema, if it has no type itself."""
    if isinstance(option, bool) or "$ref" in option or "type" not in beside:
        return option
    return {"type": beside["type"], **option}


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
        return frozenset(named_types(named))
    return frozenset(map(_type_of, values or ()))


def _type_of(value: object) -> str:
    """The JSON type of a value; 2.0 is an integer."""
    is_whole = isinstance(value, float) and value == int(value)
    return "integer" if is_whole else type_of(value)


def _frozen(value: object) -> Hashable:
    """Equal for equal values of JSON; Python takes `True` for 1."""
    if isinstance(value, bool):
        return "boolean", value
    if isinstance(value, list):
        return "array", *map(_frozen, value)
    if isinstance(value, dict):
        return "object", frozenset((name, _frozen(part)) for name, part in value.items())
    assert isinstance(value, Hashable)
    return value


def _size(part: Json) -> int:
    """The number of names and values that are compared."""
    return sum(len(part.get(keyword, ())) for keyword in ("enum", "required", "properties"))
