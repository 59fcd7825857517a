"""Schemas that contain themselves, alternatives in them, and names of properties."""

import json
import random
import time
from collections.abc import Callable
from typing import Any, Final

import pytest

from gateway.api import ApiError, schema_source
from gateway.schemas import enforceable
from tests.fakes.grammar_walks import Walker, check_valid

NULLABLE = [{"$ref": "#/$defs/node"}, {"type": "null"}]
RINGS: dict[str, dict[str, Any]] = {
    "alone": {"$ref": "#/$defs/node"},
    "with its type": {"$ref": "#/$defs/node", "type": "object"},
    "of all": {"type": "object", "allOf": [{"$ref": "#/$defs/node"}]},
    "or null": {"type": ["object", "null"], "anyOf": NULLABLE},
    "one of": {"oneOf": NULLABLE},
    "one of with its types": {"type": ["null", "object"], "oneOf": NULLABLE},
    "in a list": {"type": "array", "items": {"$ref": "#/$defs/node", "type": "object"}},
    "by another": {"$ref": "#/$defs/other", "type": "object"},
}
"""How the schema of a node refers to that of the next one."""
LOSING: dict[str, tuple[dict[str, Any], str]] = {
    "demand": ({"$ref": "#/$defs/node", "required": ["next"]}, "required"),
    "two of all": ({"allOf": [{"$ref": "#/$defs/node"}, {"required": ["next"]}]}, "allOf"),
    "type of another": ({"$ref": "#/$defs/node", "type": "string"}, "type"),
}


def _nodes(next_one: dict[str, Any]) -> dict[str, Any]:
    node = {
        "type": "object",
        "properties": {"value": {"type": "boolean"}, "next": next_one},
        "required": ["value"],
        "additionalProperties": False,
    }
    other = {**node, "properties": {"next": {"$ref": "#/$defs/node", "type": "object"}}}
    return {"$ref": "#/$defs/node", "$defs": {"node": node, "other": {**other, "required": []}}}


@pytest.fixture(scope="module", name="walker")
def _walker() -> Walker:
    return Walker()


@pytest.mark.parametrize("name", RINGS)
def test_a_schema_that_contains_itself_is_enforced_whole(name: str, walker: Walker) -> None:
    """llguidance refused all but a reference that stands alone."""
    given = _nodes(RINGS[name])
    source = schema_source(given, "f", is_strict=True)
    assert source.left_out == ()
    assert not walker.refusal(source.text)
    for seed in range(6):
        text = walker.walk(source.text, random.Random(seed))
        if text is not None:
            check_valid(text, given, ())


@pytest.mark.parametrize("name", LOSING)
def test_what_stands_beside_a_reference_in_a_ring_is_left_out_and_named(
    name: str, walker: Walker
) -> None:
    """What stands beside a reference in a ring is left out, and named with its place in the given
    schema.
    """
    next_one, keyword = LOSING[name]
    source = schema_source(_nodes(next_one), "f", is_strict=False)
    assert not walker.refusal(source.text)
    (left_out,) = source.left_out
    assert left_out[:2] == (f"/$defs/node/properties/next/{keyword}", keyword)


UNTYPED = {
    "oneOf": [
        {"properties": {"a": {"const": number}}, "required": ["a"], "title": "t"}
        for number in (1, 2)
    ]
}
NAMED = {
    "constant": {"const": "a"},
    "list": {"enum": ["a", "ab"]},
    "lengths": {"minLength": 1, "maxLength": 1},
    "no text": {"type": "integer"},
    "none": False,
}
VALID: list[tuple[dict[str, Any], object, bool]] = [
    (UNTYPED, {"a": 1}, True),
    (UNTYPED, "neither", False),  # of both
    (UNTYPED, 5, False),
    ({"type": "integer", "properties": {}, "anyOf": [{"type": "boolean"}]}, True, False),
    (
        {"properties": {"b": {}, "a": {}}, "propertyNames": NAMED["constant"], "type": "object"},
        {"b": 1},
        False,
    ),
]


@pytest.mark.parametrize(("schema", "value", "is_valid"), VALID)
def test_what_no_alternative_or_name_allows_is_not_written(
    schema: dict[str, Any], value: object, *, is_valid: bool, walker: Walker
) -> None:
    """Each was allowed, and not reported as left out."""
    given = {"type": "object", "properties": {"value": schema}, "required": ["value"]}
    source = schema_source(given, "f", is_strict=False)
    assert source.left_out == ()
    if not walker.refusal(source.text):
        assert walker.accepts_schema(source.text, json.dumps({"value": value})) == is_valid


@pytest.mark.parametrize("is_closed", [True, False])
@pytest.mark.parametrize("name", NAMED)
def test_properties_that_are_shown_have_the_names_that_are_allowed(
    name: str, *, is_closed: bool, walker: Walker
) -> None:
    """Properties that are shown have the names that are allowed, with and without other
    properties.
    """
    given = {
        "type": "object",
        "properties": {"a": {"type": "boolean"}, "bcd": {"type": "boolean"}},
        "propertyNames": NAMED[name],
        "additionalProperties": not is_closed and {"type": "boolean"},
    }
    source = schema_source(given, "f", is_strict=False)
    assert source.left_out == ()
    for seed in range(8):
        text = walker.walk(source.text, random.Random(seed))
        assert text is not None
        check_valid(text, given, ())


def test_a_pattern_of_names_that_are_shown_is_reported() -> None:
    """No expression of a client is run against a name here."""
    given = {"properties": {"a": {}}, "propertyNames": {"pattern": "^(a+)+$"}}
    assert [one.keyword for one in enforceable(given).left_out] == ["propertyNames"]


def test_a_report_stands_once() -> None:
    """A schema that is shown and referred to is read twice."""
    shown = {"type": "array", "uniqueItems": True}
    given = {"properties": {"a": shown, "b": {"$ref": "#/properties/a"}}}
    assert len(enforceable(given).left_out) == 1


def _branching(num_names: int) -> dict[str, Any]:
    """Two schemas whose `num_names` parts each have it within, and so `num_names` ** 16 pairs of
    parts to the depth of a comparison.
    """
    names = [f"p{i}" for i in range(num_names)]
    definitions = {
        one: {
            "type": "object",
            "properties": {name: {"$ref": f"#/$defs/{one}"} for name in names},
            "required": names,
        }
        for one in ("a", "b")
    }
    return {"$defs": definitions, "oneOf": [{"$ref": "#/$defs/a"}, {"$ref": "#/$defs/b"}]}


def test_alternatives_that_branch_without_end_are_compared_in_bounded_time() -> None:
    """Alternatives that branch without end are compared in bounded time; they took hours for a
    schema of a few lines.
    """
    started = time.process_time()
    _, left_out = enforceable(_branching(10))
    assert time.process_time() - started < 10
    assert [one.keyword for one in left_out] == ["oneOf"]


LONG: Final = 3_000


def _chain(link: Callable[[str], dict[str, Any]]) -> dict[str, Any]:
    links = {f"d{i}": link(f"#/$defs/d{i + 1}") for i in range(LONG)}
    first = {"properties": {"a": {"$ref": "#/$defs/d0"}}}
    return {**first, "$defs": {**links, f"d{LONG}": {"type": "string"}}}


@pytest.mark.parametrize(
    "link",
    [
        lambda ref: {"$ref": ref},
        lambda ref: {"type": "object", "properties": {"next": {"$ref": ref}}},
    ],
    ids=["references alone", "properties"],
)
def test_a_long_chain_of_definitions_is_enforced(link: Callable[[str], dict[str, Any]]) -> None:
    """A long chain of definitions is enforced. It exceeded the interpreter's stack (a 500), or took
    time that grew with its square.
    """
    started = time.process_time()
    schema, left_out = enforceable(_chain(link))
    assert time.process_time() - started < 5
    assert (len(schema["$defs"]), left_out) == (LONG + 1, ())


MANY: Final = [f"p{i}" for i in range(3_000)]
LARGE: dict[str, dict[str, Any]] = {
    "demands beside properties": {
        "type": "object",
        "properties": {name: {"type": "string"} for name in MANY},
        "anyOf": [{"required": [name]} for name in MANY],
    },
    "demands beside demands": {
        "type": "object",
        "properties": {"a": {}},
        "required": MANY,
        "anyOf": [{"required": [name]} for name in MANY],
    },
    "properties of names": {
        "type": "object",
        "propertyNames": {"enum": MANY},
        "additionalProperties": {"properties": {name: {"type": "string"} for name in MANY}},
    },
}


@pytest.mark.parametrize("name", LARGE)
def test_a_schema_that_would_be_too_large_is_refused_at_once(name: str) -> None:
    """A schema that would be too large is refused at once. It was written out first, for a minute
    and with gigabytes.
    """
    started = time.process_time()
    with pytest.raises(ApiError, match="larger than 256 KiB"):
        schema_source(LARGE[name], "f", is_strict=False)
    assert time.process_time() - started < 5


def test_long_lists_of_values_are_compared_at_once() -> None:
    """Each value of one was compared with each of the other."""
    started = time.process_time()
    lists = [{"enum": list(range(at, at + 20_000))} for at in (0, 20_000)]
    assert enforceable({"oneOf": lists}).left_out == ()
    assert time.process_time() - started < 5


@pytest.mark.parametrize(
    ("one", "two", "are_apart"),
    [(1, True, True), (1, 1.0, False), ([0], [False], True), ({"a": [1]}, {"a": [1.0]}, False)],
)
def test_values_are_compared_as_json_has_them(one: object, two: object, are_apart: bool) -> None:
    """A boolean is no number, and a number has many forms."""
    left_out = enforceable({"oneOf": [{"const": one}, {"const": two}]}).left_out
    assert (left_out == ()) is are_apart
