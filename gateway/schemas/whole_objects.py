"""Several schemas for one object -> one equivalent schema, where there is one.

xgrammar 0.2.8 drops an object's own properties beside `allOf`, `anyOf` or `$ref`, so that its
grammar forbids every valid value (`findings/xgrammar-forbids-an-objects-own-properties.sh`). Owns
which schemas can be joined. Its schemas come from `enforceable`; must not know the keywords of
older drafts.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, final

from gateway.schemas.json_types import types_of_both

Json = dict[str, Any]

_OBJECT: Final = frozenset({"type", "properties", "required"})
"""The keywords of an open object; such keywords of two schemas can be joined."""
_IN_PLACE: Final = frozenset({"$ref", "allOf", "anyOf"})
_VALUES: Final = frozenset({"const", "enum"})

_MAX_STEPS: Final = 2**16
"""The most values that are compared and written for one request. A schema of some kilobytes can
have parts whose joining never ends; parts beyond the bound stay as they are.
"""
_MAX_LEVELS: Final = 32
"""The most levels of references that lead to each other, and of a joined schema."""


def join_objects(root: Json, definitions: dict[str, Json | bool], closed: dict[int, Json]) -> None:
    """Write each object whose demands are spread over several schemas as one whole schema. `closed`
    has the objects of a strict schema by their ids; only the whole object may be closed to further
    properties.
    """
    joiner = _Joiner(definitions, closed)
    # Most definitions lead to later ones, which are whole before they become part of another.
    for schema in (*reversed(definitions.values()), root):
        joiner.join_within(schema)


@final
class _Joiner:
    def __init__(self, definitions: Mapping[str, Json | bool], closed: dict[int, Json]) -> None:
        self._definitions = definitions
        self._closed = closed
        self._num_left = _MAX_STEPS
        self._tried: dict[int, Json] = {}
        """The schemas that stay as they are from now on, with all their parts, by their ids."""

    def join_within(self, schema: Json | bool) -> None:
        """The schema and each that is written in it, those within first."""
        if isinstance(schema, bool):
            return
        for part in _parts(schema):
            self.join_within(part)
        if not self._is_spread(schema):
            return
        joined = self._joined(schema)
        self._tried[id(schema)] = schema
        if joined is not None and self._has_room(joined):
            for key in schema.keys() - {"$defs"}:
                del schema[key]
            schema.update(joined)
            if "additionalProperties" in schema:
                self._closed[id(schema)] = schema

    def _has_room(self, written: object) -> bool:
        """Whether a schema as large as `written` may still be written or compared; its size is then
        taken from the bound. A join may be refused although the bound is not reached, because its
        result would exceed it.
        """
        level: list[object] = [written]
        for _ in range(_MAX_LEVELS):
            self._num_left -= len(level)
            if self._num_left < 0 or any(self._may_grow(one) for one in level):
                return False
            if not level:
                return True
            level = [part for one in level for part in _within(one)]
        return False

    def _may_grow(self, written: object) -> bool:
        return (
            isinstance(written, dict)
            and id(written) not in self._tried
            and self._is_spread(written)
        )

    def _is_spread(self, schema: Json) -> bool:
        """Whether the schema demands something in several places, one of them an object's words."""
        words = self._words(schema) - {"additionalProperties"}
        beside = words & _IN_PLACE
        if not beside or not self._words(schema) <= self._object_words(schema) | _IN_PLACE:
            return False
        return len(words) > 1 or "allOf" in beside

    def _words(self, schema: Json) -> frozenset[str]:
        return frozenset(schema.keys() - {"$defs"})

    def _object_words(self, schema: Json) -> frozenset[str]:
        is_ours = id(schema) in self._closed and schema.get("additionalProperties", False) is False
        return _OBJECT | {"additionalProperties"} if is_ours else _OBJECT

    def _joined(self, schema: Json) -> Json | None:
        whole = self._whole(schema, "anyOf")
        options = schema.get("anyOf")
        if whole is None or options is None:
            return whole and _closed_if_named(whole)
        joined = []
        for option in options:
            part = self._whole(option)
            both = None if part is None else self._both(whole, part)
            if both is None:
                return None
            joined.append(_closed_if_named(both))
        return {"anyOf": joined}

    def _whole(self, schema: Json | bool, without: str = "", depth: int = 0) -> Json | None:
        """The schema, `without` a keyword, as one object; None if it is no object, or not one
        alone.
        """
        if isinstance(schema, bool) or depth > _MAX_LEVELS:
            return None
        if not self._words(schema) - {without} <= self._object_words(schema) | {"$ref", "allOf"}:
            return None
        whole: Json | None = {key: schema[key] for key in _OBJECT & schema.keys()}
        if whole is not None and id(schema) in self._closed:
            whole["additionalProperties"] = False
        parts = list(schema.get("allOf", ()))
        if "$ref" in schema:
            parts.insert(0, self._definitions[schema["$ref"].rpartition("/")[2]])
        for part in parts:
            other = self._whole(part, depth=depth + 1)
            whole = None if whole is None or other is None else self._both(whole, other)
            if whole is None:
                return None
        return whole

    def _both(self, one: Json, two: Json) -> Json | None:
        """The object that both demand; None if a property has two schemas that differ."""
        first, second = one.get("properties", {}), two.get("properties", {})
        properties = {**first, **second}
        required = [*dict.fromkeys([*one.get("required", ()), *two.get("required", ())])]
        self._num_left -= 1 + len(properties) + len(required)
        for name in first.keys() & second.keys():
            narrower = None
            if self._has_room(first[name]):
                narrower = _narrower(first[name], second[name])
            if narrower is None:
                return None
            properties[name] = narrower
        types = [part["type"] for part in (one, two) if "type" in part]
        named = types_of_both(types[0], types[-1]) if types else []
        if self._num_left < 0 or (types and not named):
            return None
        joined: Json = {"type": named[0] if len(named) == 1 else named} if types else {}
        if properties:
            joined["properties"] = properties
        if required:
            joined["required"] = required
        if "additionalProperties" in one or "additionalProperties" in two:
            joined["additionalProperties"] = False
        return joined


def _closed_if_named(whole: Json) -> Json:
    """The object, open if it demands a property that it does not name."""
    if not set(whole.get("required", ())) <= whole.get("properties", {}).keys():
        whole.pop("additionalProperties", None)
    return whole


def _narrower(one: Json | bool, two: Json | bool) -> Json | bool | None:
    """The one of two schemas that allows only what the other does, if that can be seen."""
    if one == two or two in (True, {}):
        return one
    if one in (True, {}):
        return two
    for narrow, wide in ((one, two), (two, one)):
        if isinstance(narrow, dict) and wide == {"type": "string"} and narrow.keys() & _VALUES:
            values = narrow.get("enum", [narrow.get("const", "")])
            if all(isinstance(value, str) for value in values):
                return narrow
    return None


def _parts(schema: Json) -> Iterator[Json | bool]:
    for key in ("properties", "patternProperties"):
        yield from schema.get(key, {}).values()
    for key in ("allOf", "anyOf", "prefixItems"):
        yield from schema.get(key, ())
    for key in ("items", "additionalProperties"):
        if key in schema:
            yield schema[key]


def _within(written: object) -> Iterable[object]:
    if isinstance(written, dict):
        return written.values()
    return written if isinstance(written, list) else ()
