"""A JSON schema of any draft -> the schema that an engine can enforce, and what it leaves out.

Owns the meaning of keywords that engines do not know: keywords that change nothing are removed,
keywords of older drafts become those of 2020-12, bounds that are too large become smaller, and all
references lead into one list of definitions. A keyword that cannot be enforced is left out and
reported with its place. The result never allows more than the given schema but for what is
reported. Must not know who asks.

llguidance 1.9.1 refuses some of what is changed here (bounds over 2^63, `maxLength: 10.0`,
`uniqueItems: false`), and xgrammar 0.2.8 drops some of it in silence (`uniqueItems`, `not`, `if`).
"""

from __future__ import annotations

import math
import string
from collections import deque
from collections.abc import Callable, Mapping
from itertools import combinations
from typing import Any, Final, NamedTuple

from gateway.schemas.disjoint import SchemaComparison, of_objects
from gateway.schemas.exact_numbers import LARGEST, finite, is_kept, lower_bound, upper_bound
from gateway.schemas.formats import FORMAT_PATTERNS
from gateway.schemas.json_types import SYNONYMS, TYPES, named_types
from gateway.schemas.pattern import HardPattern, written
from gateway.schemas.property_names import name_test, names_in, pattern_of_names, rule_of_names
from gateway.schemas.references import pointer_to, target_of
from gateway.schemas.rings import open_ring, open_rings
from gateway.schemas.whole_objects import join_objects
from gateway.schemas.written_size import MAX_VALUES, SchemaTooLarge, check_size

Json = dict[str, Any]

FORMATS: Final = frozenset(FORMAT_PATTERNS)
"""Values of `format` that llguidance has a grammar for; any other value is an annotation."""

_MOST_REPEATED: Final = 2**31 - 1
_MOST_DIGITS: Final = 9
"""The most digits of a `multipleOf`; llguidance refuses longer ones."""
_MOST_STATES: Final = 2_000
"""The most states of a pattern together with a length; from some 10,000 on llguidance gives up."""
_MOST_WAYS: Final = 16
"""Alternatives that one `minProperties` or `oneOf` may become."""

CLOSED: Final = "x-herma-closed"
"""Marks an object that allows no further properties only because its schema is strict."""

_PLAIN: Final = f"{string.ascii_letters}{string.digits}_ "
_REFERENCE: Final = frozenset({"$ref", "$recursiveRef", "$dynamicRef"})
_OLD_DRAFTS: Final = ("draft-03", "draft-04", "draft-05", "draft-06", "draft-07")
_IN_PLACE: Final = frozenset({"allOf", "anyOf", "oneOf", "if", "dependentSchemas", *_REFERENCE})


class LeftOut(NamedTuple):
    """A keyword that is not enforced, at `pointer` in the schema, and why."""

    pointer: str
    keyword: str
    why: str


class Enforceable(NamedTuple):
    """The `schema` for an engine, and what of the given one it leaves out."""

    schema: Json
    left_out: tuple[LeftOut, ...] = ()


def enforceable(schema: Mapping[str, Any]) -> Enforceable:
    """What of `schema` can be enforced. It must be a tree of bounded depth. Raises
    `SchemaTooLarge`.
    """
    mender = _Mender(schema)
    mended = mender.part(dict(schema), "")
    if not isinstance(mended, dict):
        mended = {} if mended else {"not": {}}
    mender.mend_definitions()
    check_size([mended, *mender.definitions.values()])
    mender.compare_alternatives()
    join_objects(mended, mender.definitions, mender.closed)
    mender.open_rings(mended)
    if mender.definitions:
        mended["$defs"] = mender.definitions
    return Enforceable(mended, tuple(dict.fromkeys(mender.left_out)))


class _Mender:
    """Mends one schema. `definitions` are the parts that references lead to."""

    def __init__(self, root: Mapping[str, Any]) -> None:
        self._root = root
        dialect = root.get("$schema")
        self._is_old = isinstance(dialect, str) and any(name in dialect for name in _OLD_DRAFTS)
        self.definitions: Json = {}
        self._names: dict[str, str] = {}
        self._endless: dict[str, bool] = {}
        """Whether a place of the schema is known to lead to itself by references alone."""
        self._waiting: deque[tuple[str, object]] = deque()
        self._places: dict[int, tuple[Json, str]] = {}  # mended schemas by id, with their pointers
        self.left_out: list[LeftOut] = []
        self.closed: dict[int, Json] = {}  # those with `CLOSED`, mended, by their ids
        self.alternatives: list[tuple[str, list[Json | bool]]] = []
        """The alternatives of each `oneOf`, with its place. They are compared once all definitions
        are known.
        """

    def mend_definitions(self) -> None:
        """Mend the parts that references lead to, and those that these lead to. They wait for it,
        because a client's references may be a longer chain than calls can be.
        """
        while self._waiting:
            pointer, target = self._waiting.popleft()
            self.definitions[self._names[pointer]] = self.part(target, pointer)

    def leave_out(self, pointer: str, keyword: str, why: str) -> None:
        """Report a keyword."""
        self.left_out.append(LeftOut(pointer + pointer_to(keyword), keyword, why))

    def compare_alternatives(self) -> None:
        """Report each `oneOf` of which a value may be valid for two schemas."""
        comparison = SchemaComparison(self.definitions)
        for at, parts in self.alternatives:
            given, parts[:] = list(parts), of_objects(self.definitions, parts)
            for old, new in zip(given, parts, strict=True):
                self.keep_closed(old, new)
            if not all(comparison.exclude(one, two) for one, two in combinations(parts, 2)):
                self.leave_out(at, "oneOf", "a value may be valid for two of its schemas")

    def open_rings(self, mended: Json) -> None:
        """Leave out the keywords beside each reference in a ring of references."""
        why = "it stands beside a reference to a schema that has it within"
        while opened := open_rings(mended, self.definitions):
            for one in opened:
                _, at = self._places.get(id(one.schema), (None, ""))
                for keyword in open_ring(one, self.definitions):
                    self.leave_out(at, keyword, why)

    def part(self, schema: object, at: str) -> Json | bool:
        """The schema at the pointer `at`."""
        if isinstance(schema, bool):
            return schema
        if not isinstance(schema, dict):
            self.left_out.append(LeftOut(at, at.rpartition("/")[2], "it is no schema"))
            return True
        # Null is the absence of a keyword, but for `const` it is a value.
        given = {k: value for k, value in schema.items() if value is not None or k == "const"}
        is_nullable = given.pop("nullable", False) is True
        # Up to draft 7, keywords beside a reference are ignored.
        if self._is_old and "$ref" in given:
            given = {"$ref": given["$ref"]}
        mended: Json = {}
        for mend in (_references, _types, _values, _numbers, _strings, _arrays, _objects, _choices):
            mend(self, given, mended, at)
        for keyword in _NEVER.keys() & given.keys():
            if not _NEVER[keyword](given):
                self.leave_out(at, keyword, "no grammar can follow it")
        if _is_anything(given.get("not")) and "not" in given:
            return False
        self.placed(mended, at)
        return _or_null(mended) if is_nullable else mended

    def keep_closed(self, old: Json | bool, new: Json | bool) -> None:
        """`new`, which is made of `old`, is closed for the same reason."""
        if isinstance(new, dict) and id(old) in self.closed:
            self.closed[id(new)] = new

    def placed(self, mended: Json, at: str) -> Json:
        """The mended schema, whose place is known from now on."""
        self._places[id(mended)] = mended, at
        return mended

    def reference(self, ref: object, at: str) -> Json | None:
        """The reference to a definition, which `mend_definitions` mends."""
        found = target_of(self._root, ref)
        if found is None:
            self.leave_out(at, "$ref", f"{ref!r:.80} leads nowhere in this schema")
            return None
        pointer, target = found
        if self._is_endless(target):
            self.leave_out(at, "$ref", f"{ref!r:.80} leads to itself")
            return None
        if pointer not in self._names:
            self._names[pointer] = f"d{len(self._names)}"
            self._waiting.append((pointer, target))
        return {"$ref": f"#/$defs/{self._names[pointer]}"}

    def _is_endless(self, target: object) -> bool:
        """Whether references that follow each other from here never reach a value."""
        seen: set[str] = set()
        is_endless = False
        while isinstance(target, dict) and "$ref" in target:
            found = target_of(self._root, target["$ref"])
            if found is None:
                break
            pointer, target = found
            if pointer in seen or pointer in self._endless:
                is_endless = self._endless.get(pointer, True)
                break
            seen.add(pointer)
        self._endless |= dict.fromkeys(seen, is_endless)
        return is_endless


def _is_anything(schema: object) -> bool:
    """Whether the schema allows every value."""
    return schema is True or (
        isinstance(schema, dict)
        and all(word in _ANNOTATIONS or word.startswith("x-") for word in schema)
    )


def _or_null(schema: Json) -> Json:
    """The schema that also allows null, as `"nullable": true` of OpenAPI 3.0 says."""
    if schema.keys() & _OF_ANY_TYPE:
        return {"anyOf": [schema, {"type": "null"}]}
    types = schema.get("type", [])
    named = [types] if isinstance(types, str) else types
    return {**schema, "type": [*dict.fromkeys([*named, "null"])]} if named else schema


_OF_ANY_TYPE: Final = frozenset({"$ref", "const", "enum", "allOf", "anyOf"})
"""Keywords of a mended schema that may forbid null; all others but `type` are about other types."""

_ANNOTATIONS: Final = frozenset(
    {
        "title",
        "description",
        "default",
        "examples",
        "$comment",
        "readOnly",
        "writeOnly",
        "deprecated",
        # A keyword of OpenAPI. Without any other keyword, `nullable` allows what is allowed
        # already.
        "nullable",
        "example",
        "discriminator",
        "externalDocs",
        "xml",
    }
)

_NEVER: Final[Mapping[str, Callable[[Json], bool]]] = {
    "not": lambda given: _is_anything(given["not"]),
    "if": lambda given: "then" not in given and "else" not in given,
    "dependentRequired": lambda given: not given["dependentRequired"],
    "dependentSchemas": lambda given: not given["dependentSchemas"],
    "dependencies": lambda given: not given["dependencies"],
    "contains": lambda given: given.get("minContains") == 0 and "maxContains" not in given,
    "uniqueItems": lambda given: not given["uniqueItems"],
    "unevaluatedItems": lambda given: _is_anything(given["unevaluatedItems"]),
    "unevaluatedProperties": lambda given: (
        _is_anything(given["unevaluatedProperties"]) or not given.keys() & _IN_PLACE
    ),
    "extends": lambda given: not given["extends"],
    "disallow": lambda given: not given["disallow"],
}
"""Keywords that cannot be enforced, each with the question whether it changes nothing here."""


def _references(mender: _Mender, given: Json, mended: Json, at: str) -> None:
    for keyword in sorted(_REFERENCE & given.keys()):
        ref = given[keyword]
        if ref == "#" and not at:
            continue  # a reference of the whole schema to itself changes nothing
        if (reference := mender.reference(ref, at)) is not None:
            mended |= reference


def _types(mender: _Mender, given: Json, mended: Json, at: str) -> None:
    if "type" not in given:
        return
    named = given["type"]
    names = named_types(named)
    known = [name.lower() for name in names if isinstance(name, str) and name.lower() in TYPES]
    synonyms = [SYNONYMS[name] for name in names if isinstance(name, str) and name in SYNONYMS]
    if len(known) < len(names) or not names:
        mender.leave_out(at, "type", f"{named!r:.80} is no type of JSON")
    types = list(dict.fromkeys([*known, *synonyms]))
    if types and len(known) + len(synonyms) == len(names):
        mended["type"] = types[0] if len(types) == 1 else types


def _values(mender: _Mender, given: Json, mended: Json, at: str) -> None:
    for keyword in sorted(given.keys() & {"const", "enum"}):
        value = given[keyword]
        if keyword == "enum" and not (isinstance(value, list) and value):
            mender.leave_out(at, keyword, "it lists no value")
        elif is_kept(value):
            mended[keyword] = value
        else:
            mender.leave_out(at, keyword, "a number in it is longer than a grammar can follow")


def _numbers(mender: _Mender, given: Json, mended: Json, at: str) -> None:
    bounds: Json = {key: given[key] for key in _BOUNDS if key in given}
    for inclusive, exclusive in (("minimum", "exclusiveMinimum"), ("maximum", "exclusiveMaximum")):
        is_strict = bounds.get(exclusive)
        if isinstance(is_strict, bool):  # draft 4
            del bounds[exclusive]
            if is_strict and inclusive in bounds:
                bounds[exclusive] = bounds.pop(inclusive)
    for keyword, value in bounds.items():
        _bound(mender, keyword, value, mended, at)
    lower = max(mended.get("minimum", -math.inf), mended.get("exclusiveMinimum", -math.inf))
    upper = min(mended.get("maximum", math.inf), mended.get("exclusiveMaximum", math.inf))
    if lower > upper:
        for keyword in bounds.keys() & mended.keys():
            mender.leave_out(at, keyword, "no number is between the bounds")
            del mended[keyword]
    if "multipleOf" in given:
        step = finite(given["multipleOf"])
        if step is None or step <= 0 or not _is_short(step):
            mender.leave_out(at, "multipleOf", f"{given['multipleOf']!r:.80} cannot be followed")
        else:
            mended["multipleOf"] = step


def _bound(mender: _Mender, keyword: str, value: object, mended: Json, at: str) -> None:
    number = finite(value)
    if number is None:
        mender.leave_out(at, keyword, f"{value!r:.80} is no number")
        return
    narrowed = lower_bound(number) if "inimum" in keyword else upper_bound(number)
    if narrowed is None:
        mender.leave_out(at, keyword, f"{value!r:.80} is out of range")
    else:
        mended[keyword] = narrowed


_BOUNDS: Final = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")


def _is_short(step: float) -> bool:
    digits = f"{step:.15f}".strip("0").replace(".", "") if step < LARGEST else ""
    return 0 < len(digits) <= _MOST_DIGITS and float(f"{step:.15f}") == step


def _counts(mender: _Mender, given: Json, at: str, keywords: tuple[str, str]) -> dict[str, int]:
    """The counts under `keywords`, the least and the most: whole numbers, however written."""
    found: dict[str, int] = {}
    for keyword in keywords:
        if keyword not in given:
            continue
        value = finite(given[keyword])
        if value is None or value < 0 or value != int(value):
            mender.leave_out(at, keyword, f"{given[keyword]!r:.80} is no count")
        elif value <= _MOST_REPEATED:
            if value or keyword.startswith("max"):
                found[keyword] = int(value)
        elif keyword.startswith("min"):
            mender.leave_out(at, keyword, "no answer is as long")
    least, most = keywords
    if found.get(least, 0) > found.get(most, math.inf):
        for keyword in keywords:
            mender.leave_out(at, keyword, f"'{least}' is over '{most}'")
        return {}
    return found


def _strings(mender: _Mender, given: Json, mended: Json, at: str) -> None:
    lengths = _counts(mender, given, at, ("minLength", "maxLength"))
    pattern = None
    if "pattern" in given and not isinstance(given["pattern"], str):
        mender.leave_out(at, "pattern", f"{given['pattern']!r:.80} is no text")
    elif "pattern" in given:
        try:
            pattern = written(
                given["pattern"], lengths.get("minLength", 0), lengths.get("maxLength", math.inf)
            )
        except HardPattern as error:
            mender.leave_out(at, "pattern", f"{error}")
    if pattern is not None:
        mended["pattern"] = pattern.text
        if lengths.get("minLength", 0) <= pattern.least:
            lengths.pop("minLength", None)
        if lengths.get("maxLength", math.inf) >= pattern.most:
            lengths.pop("maxLength", None)
        for keyword, length in list(lengths.items()):
            if length * pattern.size > _MOST_STATES:
                mender.leave_out(at, keyword, "with the pattern it takes too much work")
                del lengths[keyword]
    elif given.get("format") in FORMATS:
        mended["format"] = given["format"]
    mended |= lengths


def _arrays(mender: _Mender, given: Json, mended: Json, at: str) -> None:
    mended |= _counts(mender, given, at, ("minItems", "maxItems"))
    items, first, where = given.get("items"), given.get("prefixItems"), "items"
    if isinstance(items, list):  # in drafts up to 2019-09
        first, items, where = items, given.get("additionalItems"), "additionalItems"
    if isinstance(first, list) and first:
        place = "items" if where == "additionalItems" else "prefixItems"
        mended["prefixItems"] = [
            mender.part(one, at + pointer_to(place, index)) for index, one in enumerate(first)
        ]
    if items is not None:
        mended["items"] = mender.part(items, at + pointer_to(where))


def _objects(mender: _Mender, given: Json, mended: Json, at: str) -> None:
    properties = given.get("properties")
    if isinstance(properties, dict):
        mended["properties"] = {
            name: mender.part(one, at + pointer_to("properties", name))
            for name, one in properties.items()
        }
    elif properties:
        mender.leave_out(at, "properties", "it is no object")
    required = given.get("required")
    if isinstance(required, list):
        names = [name for name in dict.fromkeys(required) if isinstance(name, str)]
        if names:
            mended["required"] = names
    elif required:
        mender.leave_out(at, "required", "it is no list of names")
    _other_properties(mender, given, mended, at)
    _named_properties(mender, given, mended, at)
    _demands(mender, mended, at)
    _numbers_of_properties(mender, given, mended, at)


def _demands(mender: _Mender, mended: Json, at: str) -> None:
    """Leave out demands for properties that cannot be there."""
    shown, is_closed = mended.get("properties", {}), mended.get("additionalProperties") is False
    for name in list(mended.get("required", ())):
        if shown.get(name, True) is False:
            mender.leave_out(at + pointer_to("properties"), name, "no value is valid")
            shown[name] = True
        elif name not in shown and is_closed and "patternProperties" not in mended:
            mender.leave_out(at, "required", f"{name!r:.80} is none of the properties")
            mended["required"].remove(name)


def _other_properties(mender: _Mender, given: Json, mended: Json, at: str) -> None:
    """`additionalProperties` and `patternProperties`."""
    if given.get(CLOSED) is True:
        mender.closed[id(mended)] = mended
    others = given.get("additionalProperties")
    if others is None and not given.keys() & _IN_PLACE:
        # Means the same if no other keyword evaluates properties.
        others = given.get("unevaluatedProperties")
    if others is not None:
        mended["additionalProperties"] = mender.part(
            others, at + pointer_to("additionalProperties")
        )
    patterns = given.get("patternProperties")
    if not isinstance(patterns, dict) or not patterns:
        return
    made: Json = {}
    for pattern, one in patterns.items():
        try:
            text = written(pattern).text
        except HardPattern as error:
            mender.leave_out(at + pointer_to("patternProperties"), pattern, f"{error}")
            mended.pop("additionalProperties", None)
            return
        made[text] = mender.part(one, at + pointer_to("patternProperties", pattern))
    if len(made) > 1 and not _are_apart(list(patterns)):
        mender.leave_out(at, "patternProperties", "its patterns may match the same name")
        mended.pop("additionalProperties", None)
        return
    mended["patternProperties"] = made


def _are_apart(patterns: list[str]) -> bool:
    """Whether each pattern begins with a text that no other one begins with."""
    begins = []
    for pattern in patterns:
        begin = pattern[1:] if pattern.startswith("^") and "|" not in pattern else ""
        length = len(begin) - len(begin.lstrip(_PLAIN))
        is_optional = begin[length : length + 1] in ("*", "?", "{") and length > 0
        begins.append(begin[: length - is_optional])
    return all(
        one and two and not one.startswith(two) and not two.startswith(one)
        for one, two in combinations(begins, 2)
    )


def _named_properties(mender: _Mender, given: Json, mended: Json, at: str) -> None:
    """`propertyNames`: the names that properties may have."""
    given_rule = given.get("propertyNames")
    if given_rule is None or _is_anything(given_rule):
        return
    rule = rule_of_names(mender.part(given_rule, at + pointer_to("propertyNames")))
    if rule == {}:
        return
    words = frozenset(rule or ())
    is_named = name_test(rule)
    shown = mended.get("properties", {})
    if "patternProperties" in mended or (is_named is None and (shown or words != {"pattern"})):
        mender.leave_out(at, "propertyNames", "no grammar can follow it")
        return
    if is_named is not None:
        for name in [name for name in shown if not is_named(name)]:
            del shown[name]
    if mended.get("additionalProperties") is False:
        return
    value, mended["additionalProperties"] = mended.get("additionalProperties", True), False
    if rule is None:
        return
    if words <= {"enum", "const"}:
        listed = [name for name in names_in(rule) if name not in shown]
        mended["properties"] = {**shown, **dict.fromkeys(listed, value)}
    else:
        mended["patternProperties"] = {pattern_of_names(rule): value}


def _numbers_of_properties(mender: _Mender, given: Json, mended: Json, at: str) -> None:
    """`minProperties` and `maxProperties`, which engines know only without optional properties."""
    counts = _counts(mender, given, at, ("minProperties", "maxProperties"))
    if not counts:
        return
    shown, required = mended.get("properties", {}), mended.get("required", [])
    optional = [name for name in shown if name not in required]
    is_closed = mended.get("additionalProperties") is False and "patternProperties" not in mended
    least, most = counts.get("minProperties", 0), counts.get("maxProperties", math.inf)
    if least <= len(required):
        counts.pop("minProperties", None)
    if is_closed and most >= len(shown):
        counts.pop("maxProperties", None)
    if is_closed and least > len(shown):
        mender.leave_out(at, "minProperties", "there are fewer properties")
        counts.pop("minProperties", None)
    if not optional:
        mended |= counts
        return
    if "minProperties" in counts and least == len(required) + 1 and len(optional) <= _MOST_WAYS:
        # At least one of the properties that the schema names, so that a model invents none.
        del counts["minProperties"]
        mended["anyOf"] = [{"required": [name]} for name in optional]
    for keyword in counts:
        mender.leave_out(at, keyword, "there are optional properties")


def _choices(mender: _Mender, given: Json, mended: Json, at: str) -> None:
    for keyword in ("allOf", "anyOf", "oneOf"):
        options = given.get(keyword)
        if options is None:
            continue
        if not isinstance(options, list) or not options:
            mender.leave_out(at, keyword, "it lists no schema")
            continue
        parts = [mender.part(one, at + pointer_to(keyword, i)) for i, one in enumerate(options)]
        if keyword == "allOf":
            mended["allOf"] = [*mended.get("allOf", ()), *parts]
            continue
        if keyword == "oneOf":
            mender.alternatives.append((at, parts))
        if "anyOf" in mended:
            mended.setdefault("allOf", []).append({"anyOf": parts})
        else:
            mended["anyOf"] = parts
    _spread_demands(mender, mended, at)


def _spread_demands(mender: _Mender, mended: Json, at: str) -> None:
    """Write alternatives that only demand properties as whole objects: xgrammar drops the
    properties that stand beside an `anyOf`.
    """
    options = mended.get("anyOf")
    if not options or "properties" not in mended or "allOf" in mended:
        return
    if all(isinstance(one, dict) and _only_demands(one, mended) for one in options):
        del mended["anyOf"]
        required = mended.pop("required", [])
        if len(options) * len(required) > MAX_VALUES:
            raise SchemaTooLarge
        whole = dict(mended)
        mended.clear()
        mended["anyOf"] = [
            mender.placed(
                {
                    **whole,
                    **one,
                    "required": [*dict.fromkeys([*required, *one.get("required", ())])],
                },
                at,
            )
            for one in options
        ]
        for one in mended["anyOf"]:
            mender.keep_closed(mended, one)


def _only_demands(one: Json, beside: Json) -> bool:
    """Whether the alternative only demands properties, and allows no type that is not allowed
    beside it.
    """
    if not one.keys() <= {"type", "required"}:
        return False
    allowed = set(named_types(beside["type"])) if "type" in beside else TYPES
    return "type" not in one or set(named_types(one["type"])) <= allowed
