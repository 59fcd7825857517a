"""Schemas that contain themselves, beside other keywords.

Owns the search for rings of references that all have keywords beside them, and the choice of the
keywords that are left out: llguidance expands a reference with keywords beside it, and the
expansion of such a ring never ends. Its schemas come from `enforceable`; must not know the keywords
of older drafts.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

from gateway.schemas.json_types import TYPES, named_types

Json = dict[str, Any]

_ROOT: Final = ""
_IN_PLACE: Final = ("allOf", "anyOf")
_PARTS: Final = ("items", "additionalProperties")
_MAPS: Final = ("properties", "patternProperties")


class Opened(NamedTuple):
    """A schema in a ring, and the keyword that stays of it."""

    schema: Json
    stays: str


class _Edge(NamedTuple):
    """A reference with keywords beside it, within `schema`."""

    schema: Json
    target: str


def open_rings(root: Json, definitions: Mapping[str, Json | bool]) -> list[Opened]:
    """The schemas to open, so that rings go; where one is opened, a part of it may be next."""
    edges = {_ROOT: list(_edges(root))}
    edges |= {name: list(_edges(part)) for name, part in definitions.items()}
    if not any(edges.values()):
        return []
    ring_of = _rings({name: [edge.target for edge in some] for name, some in edges.items()})
    opened: dict[int, Opened] = {}
    for name, some in edges.items():
        for edge in some:
            if ring_of[name] == ring_of.get(edge.target):
                opened[id(edge.schema)] = Opened(edge.schema, _holder(edge))
    return list(opened.values())


def open_ring(opened: Opened, definitions: Mapping[str, Json | bool]) -> list[str]:
    """Leave only what stays of a schema; returns the keywords whose meaning is lost."""
    schema, stays = opened
    kept = schema[stays]
    lost = [key for key in schema if key not in (stays, "$defs")]
    if stays == "allOf":
        inner = [part for part in kept if any(_targets(part))]
        if len(kept) > 1:
            lost.append("allOf")
        kept = inner[0]
    if "type" in lost and _types(schema[stays], stays, definitions) <= _names(schema["type"]):
        lost.remove("type")
    for key in schema.keys() - {"$defs"}:
        del schema[key]
    schema.update(kept if stays == "allOf" else {stays: kept})
    return lost


def _edges(schema: Json | bool, *, is_place: bool = True) -> Iterator[_Edge]:
    """The references of a schema that have keywords beside them. `is_place`: the schema is not part
    of another schema with keywords that applies to the same value.
    """
    if isinstance(schema, bool):
        return
    is_beside = len(schema.keys() - {"$defs"}) > 1 or len(schema.get("allOf", ())) > 1
    if is_place and is_beside:
        for target in _targets(schema):
            yield _Edge(schema, target)
    for key in _IN_PLACE:
        for part in schema.get(key, ()):
            yield from _edges(part, is_place=is_place and not is_beside)
    for part in _children(schema):
        yield from _edges(part)


def _children(schema: Json) -> Iterator[Json | bool]:
    for key in _PARTS:
        if key in schema:
            yield schema[key]
    for key in _MAPS:
        yield from schema.get(key, {}).values()
    yield from schema.get("prefixItems", ())


def _targets(schema: Json | bool) -> Iterator[str]:
    """The targets of all references in place of a schema."""
    if isinstance(schema, bool):
        return
    if "$ref" in schema:
        yield _name_of(schema)
    for key in _IN_PLACE:
        for part in schema.get(key, ()):
            yield from _targets(part)


def _name_of(schema: Json) -> str:
    name: str = schema["$ref"].rpartition("/")[2]
    return name if schema["$ref"] != "#" else _ROOT


def _holder(edge: _Edge) -> str:
    """The keyword of the schema under which the reference is."""
    if "$ref" in edge.schema and _name_of(edge.schema) == edge.target:
        return "$ref"
    keys = (key for key in _IN_PLACE for part in edge.schema.get(key, ()) if any(_targets(part)))
    return next(keys)


def _rings(targets: Mapping[str, list[str]]) -> dict[str, int]:
    """The number of the ring of each name; names that reach each other have one number, by Tarjan's
    algorithm, without recursion: a client's schema may be a long chain.
    """
    number: dict[str, int] = {}
    low: dict[str, int] = {}
    ring: dict[str, int] = {}
    stack: list[str] = []
    for first in targets:
        if first in number:
            continue
        work = [(first, iter(targets[first]))]
        number[first] = low[first] = len(number)
        stack.append(first)
        while work:
            name, rest = work[-1]
            for target in rest:
                if target not in targets or target in ring:
                    continue
                if target in number:
                    low[name] = min(low[name], number[target])
                    continue
                number[target] = low[target] = len(number)
                stack.append(target)
                work.append((target, iter(targets[target])))
                break
            else:
                work.pop()
                if work:
                    low[work[-1][0]] = min(low[work[-1][0]], low[name])
                if low[name] == number[name]:
                    while (member := stack.pop()) != name:
                        ring[member] = number[name]
                    ring[name] = number[name]
    return ring


def _types(held: Any, stays: str, definitions: Mapping[str, Json | bool]) -> frozenset[str]:  # noqa: ANN401
    """The types of what stays; every type if they are not known."""
    if stays == "$ref":
        target = definitions.get(held.rpartition("/")[2])
        return _names(target.get("type")) if isinstance(target, dict) else _names(None)
    parts = [part if isinstance(part, dict) else {} for part in held]
    known = [
        _types(part["$ref"], "$ref", definitions) if "$ref" in part else _names(part.get("type"))
        for part in parts
    ]
    if stays == "allOf":
        return frozenset.intersection(*known)
    return frozenset.union(*known)


def _names(named: object) -> frozenset[str]:
    return TYPES if named is None else frozenset(named_types(named))
