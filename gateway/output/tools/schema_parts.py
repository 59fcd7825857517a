"""A schema that refers to others, or is several at once -> one flat schema.

Owns how the keywords of two schemas are joined into one schema that allows what both allow, and the
alternatives of a value. Parts below properties and items are joined only when they are looked at,
because references may lead in circles. Must not know grammars.
"""

from collections.abc import Callable, Iterator
from typing import Any, Final, final

from gateway.schemas import resolved, types_of_both

Json = dict[str, Any]
Tell = Callable[[str], object]
"""Takes a keyword whose values in two schemas cannot become one value; the value of the first
schema is kept.
"""

_MAX_DEPTH: Final = 32
_MAX_OPTIONS: Final = 64
_MAX_PARTS: Final = 2**14
_LARGER: Final = frozenset(
    {"minimum", "exclusiveMinimum", "minLength", "minItems", "minProperties"}
)
_SMALLER: Final = frozenset(
    {"maximum", "exclusiveMaximum", "maxLength", "maxItems", "maxProperties"}
)
_OBJECTS: Final = frozenset({"properties", "required", "additionalProperties"})


@final
class SchemaParts:
    """The schema `root`, of which a bounded number of parts is looked at: references can lead to
    the same part in more ways than there is time for.
    """

    def __init__(self, root: Json) -> None:
        self._root = root
        self._num_left = _MAX_PARTS

    def flat(self, schema: object, tell: Tell, depth: int = 0) -> Json | bool:
        """The schema without `$ref` and `allOf`. `tell` is called with each keyword that cannot be
        joined.
        """
        if isinstance(schema, bool):
            return schema
        if not isinstance(schema, dict):
            return True
        self._num_left -= 1
        may_lead_on = depth < _MAX_DEPTH and self._num_left > 0
        parts: list[Any] = []
        own = {key: value for key, value in schema.items() if key not in {"$ref", "allOf", "$defs"}}
        if "$ref" in schema:
            target = resolved(self._root, {"$ref": schema["$ref"]})
            is_found = isinstance(target, bool) or (
                isinstance(target, dict) and "$ref" not in target
            )
            if is_found and may_lead_on:
                parts.append(target)
            else:
                tell("$ref")
        found: Json | bool = own
        for part in (*parts, *schema.get("allOf", ())):
            if not may_lead_on or self._num_left <= 0:
                tell("allOf")
                break
            found = _both(found, self.flat(part, tell, depth + 1), tell)
        return found

    def alternatives(self, schema: object, tell: Tell, depth: int = 0) -> Iterator[Json]:
        """The flat schemas of which a value has to follow one: the options of an `anyOf`, each
        joined with the keywords beside the `anyOf`.
        """
        found = self.flat(schema, tell)
        if not isinstance(found, dict):
            if found:
                yield {}
            return
        if "anyOf" not in found:
            yield found
            return
        if depth >= _MAX_DEPTH or not found["anyOf"] or self._num_left <= 0:
            tell("anyOf")
            return
        for one in options(found):
            yield from self.alternatives(one, tell, depth + 1)


def options(schema: Json) -> list[Any]:
    """The alternatives of an `anyOf`, each joined with the keywords beside the `anyOf`."""
    rest = {key: value for key, value in schema.items() if key != "anyOf"}
    return [{"allOf": [rest, one]} if rest else one for one in schema["anyOf"]]


def _both(one: Json | bool, two: Json | bool, tell: Tell) -> Json | bool:
    """A schema of the values that both schemas allow."""
    if isinstance(one, bool) or isinstance(two, bool):
        if one is False or two is False:
            return False
        return two if one is True else one
    found = dict(one)
    for keyword, value in two.items():
        if keyword not in found:
            found[keyword] = value
        elif keyword not in _OBJECTS and found[keyword] != value:
            _join(keyword, value, found, tell)
    if found.get("type") == [] or found.get("enum") == []:
        return False
    if _OBJECTS & two.keys():
        _join_objects(one, two, found)
    return found


def _join(keyword: str, value: Any, found: Json, tell: Tell) -> None:  # noqa: ANN401 (JSON)
    """Replace the value of the keyword in `found` by one that demands what both values demand."""
    own = found[keyword]
    if keyword in _LARGER:
        found[keyword] = max(own, value)
    elif keyword in _SMALLER:
        found[keyword] = min(own, value)
    elif keyword == "anyOf" and len(own) * len(value) > _MAX_OPTIONS:
        tell(keyword)
    elif keyword in _JOINED:
        found[keyword] = _JOINED[keyword](own, value)
    else:
        tell(keyword)


def _join_objects(one: Json, two: Json, found: Json) -> None:
    """Join the properties of both: each must follow what either schema says of it, by its name or
    of all other properties.
    """
    names = [*dict.fromkeys([*one.get("properties", ()), *two.get("properties", ())])]
    joined = {name: _joined(_property(one, name), _property(two, name)) for name in names}
    if joined:
        found["properties"] = joined
    other = _joined(one.get("additionalProperties", True), two.get("additionalProperties", True))
    if other is not True:
        found["additionalProperties"] = other
    required = [*dict.fromkeys([*one.get("required", ()), *two.get("required", ())])]
    if required:
        found["required"] = required


def _property(schema: Json, name: str) -> object:
    properties = schema.get("properties", {})
    return properties[name] if name in properties else schema.get("additionalProperties", True)


def _joined(one: object, two: object) -> object:
    """A schema that demands what both schemas demand. They are joined only when the schema is
    looked at.
    """
    if one is False or two is False:
        return False
    if one is True or one == two:
        return two
    return one if two is True else {"allOf": [one, two]}


def _types(one: object, two: object) -> list[str] | str:
    found = types_of_both(one, two)
    return found[0] if len(found) == 1 else found


_JOINED: Final[dict[str, Callable[[Any, Any], Any]]] = {
    "type": _types,
    "enum": lambda one, two: [value for value in one if value in two],
    "items": _joined,
    "anyOf": lambda one, two: [_joined(first, second) for first in one for second in two],
}
