"""References within one JSON schema.

Owns JSON pointers (RFC 6901) and what a `$ref` means: a pointer, an anchor, or the schema's own
address in front of either. Nothing is fetched. Must not know what keywords mean.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final
from urllib.parse import unquote

_MAX_STEPS: Final = 32
"""References behind one another; a ring of them has no end."""


def pointer_to(*steps: str | int) -> str:
    """The pointer of a place, as `/properties/a~1b`."""
    return "".join(f"/{str(step).replace('~', '~0').replace('/', '~1')}" for step in steps)


def target_of(root: Mapping[str, Any], ref: object) -> tuple[str, Any] | None:
    """The pointer and the schema that `ref` leads to; None if it leads nowhere in `root`."""
    if not isinstance(ref, str):
        return None
    address, _, fragment = ref.partition("#")
    own = root.get("$id", root.get("id"))
    if address and not (isinstance(own, str) and own.partition("#")[0] == address):
        return None
    fragment = unquote(fragment)
    if fragment and not fragment.startswith("/"):
        return next(((at, one) for at, one in _parts(root) if _is_anchor(one, fragment)), None)
    found: Any = root
    for step in fragment.split("/")[1:]:
        name = step.replace("~1", "/").replace("~0", "~")
        if isinstance(found, dict) and name in found:
            found = found[name]
        elif isinstance(found, list) and name.isdecimal() and int(name) < len(found):
            found = found[int(name)]
        else:
            return None
    return (fragment, found) if isinstance(found, dict | bool) else None


def resolved(root: Mapping[str, Any], schema: object) -> object:
    """`schema`, or what its references lead to: a part of `root` that is not a reference, joined
    with the keywords beside the references. A reference that leads nowhere stays.
    """
    for _ in range(_MAX_STEPS):
        if not isinstance(schema, dict) or "$ref" not in schema:
            return schema
        found = target_of(root, schema["$ref"])
        if found is None:
            return schema
        beside = {key: value for key, value in schema.items() if key != "$ref"}
        schema = {**found[1], **beside} if isinstance(found[1], dict) else found[1]
    return {}


def _is_anchor(schema: Mapping[str, Any], name: str) -> bool:
    return name in (schema.get("$anchor"), schema.get("$dynamicAnchor")) or any(
        schema.get(key) == f"#{name}" for key in ("$id", "id")
    )


def _parts(schema: object, pointer: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    if isinstance(schema, dict):
        yield pointer, schema
        for key, value in schema.items():
            yield from _parts(value, pointer + pointer_to(key))
    elif isinstance(schema, list):
        for at, value in enumerate(schema):
            yield from _parts(value, pointer + pointer_to(at))
