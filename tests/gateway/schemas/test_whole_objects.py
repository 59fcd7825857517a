"""Objects whose demands are spread over several schemas, and what becomes of them."""

import json
import random
from collections.abc import Iterator
from typing import Any

import jsonschema
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gateway.api import schema_source
from gateway.schemas import enforceable
from tests.fakes.grammar_walks import Walker, check_valid

WALKS = 4
MODE = {
    "type": "object",
    "properties": {"mode": {"type": "string", "enum": ["r", "w"]}},
    "required": ["mode"],
}
TEXT = {"properties": {"text": {"type": "string"}}, "required": ["text"]}
OWN = {
    "type": "object",
    "properties": {"path": {"type": "string"}},
    "required": ["path"],
    "$defs": {"mode": MODE, "base": {"allOf": [{"$ref": "#/$defs/mode"}, TEXT]}},
}
SPREAD = {
    "inherited": {**OWN, "allOf": [{"$ref": "#/$defs/mode"}]},
    "a reference": {**OWN, "$ref": "#/$defs/mode"},
    "alternatives": {**OWN, "anyOf": [MODE, TEXT]},
    "alternatives that exclude each other": {
        **OWN,
        "oneOf": [
            {"properties": {"mode": {"const": "r"}}, "required": ["mode"]},
            {"properties": {"mode": {"const": "w"}, "text": {}}, "required": ["mode", "text"]},
        ],
    },
    "parts alone": {"allOf": [MODE, TEXT]},
    "several levels": {**OWN, "$ref": "#/$defs/base", "anyOf": [{"required": ["text"]}]},
    "within": {"type": "array", "items": {**OWN, "allOf": [MODE]}, "$defs": OWN["$defs"]},
    "a word of its own": {
        **OWN,
        "properties": {"path": {"type": "string"}, "mode": {"type": "string"}},
        "allOf": [{"$ref": "#/$defs/mode"}],
    },
    "null too": {
        **OWN,
        "type": ["object", "null"],
        "allOf": [{**MODE, "type": ["object", "null"]}],
    },
}
KEPT = {
    "closed": {**OWN, "additionalProperties": False, "allOf": [MODE]},
    "two schemas of one property": {
        **OWN,
        "allOf": [{"properties": {"path": {"pattern": "^/"}}}],
    },
    "no object": {"type": "string", "anyOf": [{"maxLength": 1}, {"minLength": 3}]},
    "a part that is none": {**OWN, "anyOf": [MODE, {"type": "null"}]},
}


@pytest.fixture(scope="module", name="walker")
def _walker() -> Walker:
    return Walker()


def _spread(schema: Any) -> Iterator[dict[str, Any]]:
    """Schemas with an object's own words beside others that apply to the same value."""
    if isinstance(schema, dict):
        in_place = schema.keys() & {"$ref", "allOf", "anyOf"}
        if in_place and schema.keys() & {"properties", "required"}:
            yield schema
    if isinstance(schema, dict | list):
        for part in schema.values() if isinstance(schema, dict) else schema:
            yield from _spread(part)


def _objects(schema: Any) -> Iterator[dict[str, Any]]:
    if isinstance(schema, dict):
        if "properties" in schema:
            yield schema
        for part in schema.values():
            yield from _objects(part)
    elif isinstance(schema, list):
        for part in schema:
            yield from _objects(part)


def _agree(schema: Any, values: list[Any]) -> None:
    shown = jsonschema.Draft202012Validator(enforceable(schema).schema)
    real = jsonschema.Draft202012Validator(schema)
    for value in values:
        assert shown.is_valid(value) == real.is_valid(value), value


@pytest.mark.parametrize("name", sorted(SPREAD))
def test_an_object_stands_in_one_schema(name: str) -> None:
    """Engines that drop what stands beside such keywords forbade its own properties."""
    schema = SPREAD[name]
    assert not list(_spread(enforceable(schema).schema))
    assert "allOf" not in json.dumps(enforceable(schema).schema)
    members = [("path", "a"), ("mode", "r"), ("mode", "x"), ("text", "t"), ("text", 1)]
    values: list[Any] = [None, [], {}]
    for first in members:
        values += [dict([first]), *(dict([first, other]) for other in members)]
    values += [dict([("path", "a"), ("text", "t"), mode]) for mode in members[1:3]]
    _agree(schema, [*values, *([one] for one in values)])


@pytest.mark.parametrize("name", sorted(SPREAD.keys() - {"parts alone"}))
def test_a_strict_object_is_closed_as_a_whole(name: str, walker: Walker) -> None:
    """Each part alone would forbid what the others name: no value was valid, so the request was
    refused.
    """
    source = schema_source(SPREAD[name], "schema", is_strict=True)
    assert not list(_spread(json.loads(source.text)))
    assert '"x-herma-closed"' not in source.text
    assert all(one["additionalProperties"] is False for one in _objects(json.loads(source.text)))
    assert not walker.refusal(source.text)
    for seed in range(WALKS):
        text = walker.walk(source.text, random.Random(seed))
        if text is not None:
            check_valid(text, SPREAD[name], source.left_out)


@pytest.mark.parametrize("name", sorted(KEPT))
def test_what_cannot_be_joined_stays(name: str) -> None:
    """As it was given: the values that it allows are the same."""
    schema = {"$defs": {}, **KEPT[name]}
    shown = enforceable(schema).schema
    assert shown.keys() & {"allOf", "anyOf"}
    _agree(schema, [None, "a", "ab", {}, {"path": "/a"}, {"path": "a", "mode": "r"}])


WORDS = st.sampled_from(["a", "b", "c"])
LEAVES = st.sampled_from([{}, {"type": "string"}, {"const": "x"}, {"enum": ["x", "y"]}])
OBJECTS = st.fixed_dictionaries(
    {},
    optional={
        "type": st.sampled_from(
            ["object", ["object", "null"], ["integer", "object"], ["number", "object"]]
        ),
        "properties": st.dictionaries(WORDS, LEAVES, max_size=3),
        "required": st.lists(WORDS, unique=True, max_size=2),
    },
)


def _spread_over(parts: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    beside = st.fixed_dictionaries(
        {},
        optional={
            "allOf": st.lists(parts, min_size=1, max_size=2),
            "anyOf": st.lists(parts, min_size=1, max_size=2),
            "$ref": st.sampled_from(["#/$defs/one", "#/$defs/two"]),
        },
    )
    return st.builds(lambda one, two: {**one, **two}, OBJECTS, beside)


SCHEMAS = st.recursive(OBJECTS, _spread_over, max_leaves=6)
ROOTS = st.builds(
    lambda schema, one, two: {**schema, "$defs": {"one": one, "two": two}},
    _spread_over(SCHEMAS),
    OBJECTS,
    st.builds(lambda part: {"allOf": [{"$ref": "#/$defs/one"}, part]}, OBJECTS),
)
VALUES = st.one_of(
    st.sampled_from([None, "x", 1, 1.5]),
    st.dictionaries(WORDS, st.sampled_from(["x", "y", 1]), max_size=3),
)


COUNTED = {"type": ["number", "object"], "properties": {"a": {"const": "x"}}}


@given(ROOTS, st.lists(VALUES, max_size=8))
@example({"type": ["integer", "object"], "allOf": [COUNTED], "$defs": {}}, [1, 1.5, {}])
def test_joined_schemas_allow_the_same(schema: dict[str, Any], values: list[Any]) -> None:
    """Whatever is joined."""
    _agree(schema, values)


@pytest.mark.parametrize("num_parts", [1, 2])
def test_joining_is_bounded(num_parts: int) -> None:
    """Definitions of which each has the one before it twice, or 2,000 of them: what is left then
    stays as it is.
    """
    length = 2_000 if num_parts == 1 else 40
    definitions: dict[str, Any] = {"p0": MODE}
    for number in range(1, length):
        parts = [{"$ref": f"#/$defs/p{number - 1}"}] * num_parts
        within = {f"q{number}": {"allOf": parts, "required": ["x"]}}
        definitions[f"p{number}"] = {"allOf": parts, "properties": within}
    schema = {"$ref": f"#/$defs/p{length - 1}", "$defs": definitions}
    assert len(json.dumps(enforceable(schema).schema)) < 4_000_000


def test_a_schema_that_contains_itself_is_joined_once() -> None:
    """Its reference stays where it is; one in place, which no value ends, is left out as before."""
    node = {"properties": {"next": {"$ref": "#/$defs/node"}}, "required": ["next"]}
    schema = {"type": "object", "allOf": [{"$ref": "#/$defs/node"}], "$defs": {"node": node}}
    shown = enforceable(schema).schema
    assert shown["properties"] == {"next": {"$ref": "#/$defs/d0"}}
    ring = {"allOf": [{"$ref": "#/$defs/ring"}], "properties": {"a": True}}
    assert enforceable({"$ref": "#/$defs/ring", "$defs": {"ring": ring}}).left_out
