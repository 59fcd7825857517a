"""What of a schema is enforced, and what is left out and said."""

import json
import random
from typing import Any

import jsonschema
import pytest

from gateway.api import schema_source
from gateway.schemas import enforceable
from tests.fakes.grammar_walks import Walker, check_valid

WALKS = 6
REAL = {
    "domain": {
        "type": "string",
        "pattern": r"^(?:[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?\.)+[a-z]{2,63}$",
        "maxLength": 253,
    },
    "float64": {"type": "number", "minimum": -1.797e308, "maximum": 1.7976931348623157e308},
    "float32": {"type": "number", "minimum": -3.4028234663852886e38},
    "int64": {"type": "integer", "minimum": -(2**63), "maximum": 2**63 - 1},
    "large": {"type": "integer", "maximum": 1e21},
    "tiny": {"type": "number", "minimum": 5e-324},
    "brackets": {"type": "string", "pattern": r"^[^[\]]+$"},
    "anything": {"type": "string", "pattern": "[^]"},
    "braces": {"type": "string", "pattern": "^{.*}$"},
    "intersection": {"type": "string", "pattern": "^[a-z&&]$"},
    "point": {"type": "string", "maxLength": 10.0},
    "huge": {"type": "string", "maxLength": 9007199254740991},
    "many": {"type": "array", "items": {"type": "boolean"}, "maxItems": 9007199254740991},
    "any type": {"type": "any"},
    "old names": {"type": "str"},
    "capitals": {"type": "STRING"},
    "required null": {"type": "object", "properties": {}, "required": None},
    "required true": {"type": "string", "required": True},
    "nowhere": {"$ref": "#/$defs/none"},
    "elsewhere": {"$ref": "https://example.com/schema.json"},
    "properties list": {"type": "object", "properties": []},
    "names": {"type": "object", "propertyNames": {"type": "string"}},
    "names of a set": {
        "type": "object",
        "propertyNames": {"enum": ["x", "y"]},
        "additionalProperties": {"type": "boolean"},
    },
    "names of a pattern": {
        "type": "object",
        "propertyNames": {"pattern": "^k[0-9]$"},
        "additionalProperties": {"type": "boolean"},
    },
    "not unique": {"type": "array", "items": {"type": "boolean"}, "uniqueItems": False},
    "json": {"type": "string", "format": "json"},
    "draft 4": {"type": "integer", "minimum": 3, "exclusiveMinimum": True, "maximum": 5},
    "draft 4 false": {"type": "integer", "minimum": 3, "exclusiveMinimum": False, "maximum": 5},
    "one": {
        "type": "object",
        "properties": {"bodya": {"type": "boolean"}, "bodyb": {"type": "boolean"}},
        "minProperties": 1,
        "additionalProperties": False,
    },
    "two": {
        "type": "object",
        "properties": {"a": {"type": "boolean"}, "b": {"type": "boolean"}},
        "minProperties": 2,
        "additionalProperties": False,
    },
    "apart": {"oneOf": [{"type": "string", "maxLength": 3}, {"type": "boolean"}]},
    "kinds": {
        "oneOf": [
            {"type": "object", "properties": {"k": {"const": k}}, "required": ["k"]}
            for k in ("a", "b")
        ]
    },
    "tuple": {"type": "array", "items": [{"type": "boolean"}], "additionalItems": False},
    "closed": {"type": "object", "properties": {}, "unevaluatedProperties": False},
    "missing": {
        "type": "object",
        "properties": {},
        "required": ["x"],
        "additionalProperties": False,
    },
    "null": {"const": None},
    "unevaluated": {
        "type": "object",
        "properties": {"a": {"type": "boolean"}},
        "unevaluatedProperties": {"type": "boolean"},
    },
    "itself": {"$ref": "#/properties/value"},
    "never": {"not": {}},
    "crossed": {"type": "integer", "minimum": 5, "maximum": 2},
    "tree": {"$ref": "#"},
    "dialect": {"$schema": "https://example.com/dialect", "type": "boolean"},
    "not a schema": 5,
}
"""Kinds of what tools of MCP servers, zod and agents have."""


UNREAD = {
    "anything",
    "intersection",
    "capitals",
    "required null",
    "properties list",
    "tuple",
    "not a schema",
}
"""No schemas, or patterns that Python reads in another way: the validator refuses them."""


def _tool(schema: Any) -> dict[str, Any]:
    return {"type": "object", "properties": {"value": schema}, "required": ["value"]}


@pytest.fixture(scope="module", name="walker")
def _walker() -> Walker:
    return Walker()


@pytest.mark.parametrize("name", REAL)
def test_none_is_refused_where_it_may_be_left_out(name: str, walker: Walker) -> None:
    """What is written under it is valid for an independent validator."""
    given = _tool(REAL[name])
    source = schema_source(given, "f", is_strict=False, is_lenient=True)
    assert not walker.refusal(source.text)
    for seed in range(WALKS):
        text = walker.walk(source.text, random.Random(seed))
        if text is not None and name not in UNREAD:
            check_valid(text, given, source.left_out)


ENFORCED = [
    "float64",
    "int64",
    "large",
    "tiny",
    "brackets",
    "anything",
    "braces",
    "intersection",
    "point",
    "huge",
    "many",
    "required null",
    "properties list",
    "names",
    "names of a set",
    "names of a pattern",
    "not unique",
    "json",
    "draft 4",
    "draft 4 false",
    "one",
    "apart",
    "kinds",
    "tuple",
    "closed",
    "tree",
    "dialect",
    "null",
    "unevaluated",
]


@pytest.mark.parametrize("name", ENFORCED)
def test_all_of_it_is_enforced(name: str, walker: Walker) -> None:
    """The whole schema is enforced, so a strict tool may have it."""
    source = schema_source(_tool(REAL[name]), "f", is_strict=True)
    assert source.left_out == ()
    assert not walker.refusal(source.text)


@pytest.mark.parametrize(
    ("schema", "pointer", "keyword"),
    [
        ({"not": {"type": "string"}}, "/properties/value/not", "not"),
        ({"type": "array", "uniqueItems": True}, "/properties/value/uniqueItems", "uniqueItems"),
        ({"type": "array", "contains": {}}, "/properties/value/contains", "contains"),
        ({"if": {}, "then": {}}, "/properties/value/if", "if"),
        ({"dependentRequired": {"a": ["b"]}}, "/properties/value/dependentRequired", None),
        ({"$ref": "#/$defs/a~1b"}, "/properties/value/$ref", "$ref"),
        ({"type": "any"}, "/properties/value/type", "type"),
        ({"pattern": r"\bx"}, "/properties/value/pattern", "pattern"),
        ({"items": {"enum": []}}, "/properties/value/items/enum", "enum"),
        ({"properties": {"a/b": {"multipleOf": 0}}}, None, "multipleOf"),
        ({"oneOf": [{"type": "string"}, {"minLength": 1}]}, "/properties/value/oneOf", "oneOf"),
        ({"required": True}, "/properties/value/required", "required"),
        ({"minimum": "1"}, "/properties/value/minimum", "minimum"),
        ({"propertyNames": {"format": "email"}}, "/properties/value/propertyNames", None),
        (REAL["two"], "/properties/value/minProperties", "minProperties"),
    ],
)
def test_what_is_left_out_has_a_place(
    schema: Any, pointer: str | None, keyword: str | None
) -> None:
    """A JSON pointer, in which names are escaped."""
    (found,) = enforceable(_tool(schema)).left_out
    assert found.pointer == (pointer or "/properties/value/properties/a~1b/multipleOf")
    assert found.keyword == (keyword or found.pointer.rpartition("/")[2])
    assert found.why


@pytest.mark.parametrize("pattern", [5, ["a"], {}, None, True])
def test_a_pattern_that_is_no_text_is_said_in_plain_words(pattern: Any) -> None:
    """The reason was an error of Python."""
    left_out = enforceable({"type": "string", "pattern": pattern}).left_out
    assert [one.why for one in left_out] == ([] if pattern is None else [f"{pattern!r} is no text"])


def test_the_model_need_not_invent_a_property(walker: Walker) -> None:
    """One of those that exist stands for `minProperties: 1`."""
    given = {
        "type": "object",
        "properties": {"bodya": {"type": "boolean"}, "bodyb": {"type": "boolean"}},
        "minProperties": 1,
    }
    source = schema_source(given, "f", is_strict=False, is_lenient=True)
    assert "minProperties" not in source.text
    matched = {frozenset(json.loads(_walked(walker, source.text, seed))) for seed in range(20)}
    assert all(names & {"bodya", "bodyb"} for names in matched)


def _walked(walker: Walker, text: str, seed: int) -> str:
    found = walker.walk(text, random.Random(seed), max_tokens=2000)
    assert found is not None
    return found


@pytest.mark.parametrize(
    "value",
    [2**53, 2**53 + 2, -(10**18), 10**15 + 1, 2**60, 9007199254740991, 0.1, 123.456, 1e22, 2.5e-5],
)
def test_a_number_is_written_as_it_is(value: float, walker: Walker) -> None:
    """Alone and within others."""
    for schema in ({"const": value}, {"enum": [{"a": [value]}]}):
        source = schema_source(_tool(schema), "f", is_strict=True)
        assert source.left_out == ()
        written = json.loads(_walked(walker, source.text, 3))
        jsonschema.Draft202012Validator(_tool(schema)).validate(written)


@pytest.mark.parametrize(
    "value",
    [2**53 + 1, -(2**53) - 1, 1850000000000000123, 2**63, 2**64 - 1, 10**25, 123456789.12345679],
)
def test_a_number_that_the_grammar_would_change_is_left_out(value: float, walker: Walker) -> None:
    """The library takes it as a double, and would force its neighbour."""
    for keyword, given in (("const", value), ("enum", [1, {"a": [value]}])):
        (found,) = enforceable(_tool({keyword: given})).left_out
        assert found.keyword == keyword
        source = schema_source(_tool({keyword: given}), "f", is_strict=False, is_lenient=True)
        assert not walker.refusal(source.text)


@pytest.mark.parametrize("bound", [2**53 + 1, 2**53 + 3, 2**60 + 1, 123456789.12345679])
def test_a_bound_allows_no_number_beyond_it(bound: float) -> None:
    """A bound that no double holds becomes the nearest double inside it, so no number beyond it is
    allowed; usual bounds stay.
    """
    least = enforceable({"type": "number", "minimum": bound}).schema["minimum"]
    most = enforceable({"type": "number", "maximum": -bound}).schema["maximum"]
    assert bound < least == -most
    assert float(least) == least < bound * (1 + 2**-40)
    for usual in (2**53 - 1, 2**53, 5, 0.5, -0.25, 10**18):
        assert enforceable({"type": "number", "minimum": usual}).schema["minimum"] == usual


def test_draft_4_is_read_as_such(walker: Walker) -> None:
    """Over 3 and up to 5."""
    source = schema_source(REAL["draft 4"], "f", is_strict=True)
    found = {_walked(walker, source.text, seed).strip() for seed in range(20)}
    assert found == {"4", "5"}


def test_references_lead_where_they_point(walker: Walker) -> None:
    """References are resolved by pointer, by anchor, through the schema's own address, in a ring,
    and with escapes.
    """
    schema = {
        "$id": "https://example.com/tool",
        "type": "object",
        "properties": {
            "a": {"$ref": "#/$defs/a~1b"},
            "b": {"$ref": "#named"},
            "c": {"$ref": "https://example.com/tool#/properties/a"},
            "d": {"$ref": "#/$defs/tree"},
        },
        "required": ["a", "b", "c", "d"],
        "additionalProperties": False,
        "$defs": {
            "a/b": {"type": "boolean"},
            "x": {"$anchor": "named", "const": 1},
            "tree": {
                "type": "object",
                "properties": {"next": {"$ref": "#/$defs/tree"}},
                "additionalProperties": False,
            },
            "unused": {"not": {"type": "string"}},
        },
    }
    source = schema_source(schema, "f", is_strict=True)
    assert source.left_out == ()
    for seed in range(WALKS):
        written = json.loads(_walked(walker, source.text, seed))
        jsonschema.Draft202012Validator(schema).validate(written)


NULLABLE: dict[str, tuple[dict[str, Any], object]] = {
    "text": ({"type": "string", "maxLength": 3}, "abc"),
    "types": ({"type": ["integer", "boolean"], "minimum": 3}, 4),
    "choice": ({"type": "string", "enum": ["a", "b"]}, "a"),
    "choice with null": ({"type": "string", "enum": ["a", None]}, "a"),
    "constant": ({"const": 7}, 7),
    "reference": ({"$ref": "#/$defs/count"}, 2),
    "parts": ({"allOf": [{"$ref": "#/$defs/count"}]}, 2),
    "alternatives": ({"oneOf": [{"type": "string"}, {"type": "boolean"}]}, True),
    "list": ({"type": "array", "items": {"type": "integer", "nullable": True}}, [1, None]),
    "object": ({"type": "object", "properties": {"a": {"type": "boolean"}}}, {"a": True}),
    "none named": ({"description": "d"}, {"b": [None]}),
    "old draft": ({"$ref": "#/$defs/count"}, 2),
}


@pytest.mark.parametrize("is_strict", [True, False])
@pytest.mark.parametrize("name", NULLABLE)
def test_nullable_of_openapi_allows_null(name: str, is_strict: bool, walker: Walker) -> None:
    """OpenAPI's `nullable` allows null beside what the schema allows without it, and not where it
    is false.
    """
    schema, value = NULLABLE[name]
    dialect = {"$schema": "http://json-schema.org/draft-07/schema#"} if name == "old draft" else {}
    for said in (True, False):
        given = {**_tool({**schema, "nullable": said}), "$defs": {"count": {"type": "integer"}}}
        source = schema_source({**given, **dialect}, "f", is_strict=is_strict)
        assert source.left_out == ()
        grammar = f"start: %json {source.text}"
        assert walker.accepts(grammar, json.dumps({"value": value}))
        may_be_null = said or name == "none named"
        assert walker.accepts(grammar, json.dumps({"value": None})) is may_be_null
        assert not walker.accepts(grammar, '{"value": nothing}')


WORDS_OF_OPENAPI = {
    "example": "a",
    "discriminator": {"propertyName": "kind"},
    "externalDocs": {"url": "https://example.com"},
    "xml": {"name": "x"},
    "x-order": 3,
    "nullable": True,
}


@pytest.mark.parametrize("word", WORDS_OF_OPENAPI)
def test_words_of_openapi_change_nothing(word: str, walker: Walker) -> None:
    """Alone they say nothing, and beside others nothing is left out because of them."""
    said = {word: WORDS_OF_OPENAPI[word]}
    for given in (
        {"type": "object", "propertyNames": said},
        {"type": "object", "allOf": [{}], "unevaluatedProperties": said},
        _tool({"type": "string", **said}),
    ):
        source = schema_source(given, "f", is_strict=True)
        assert source.left_out == ()
        assert not walker.refusal(source.text)


def test_a_schema_is_not_changed() -> None:
    """Tools are cached and shown to the model as they are."""
    for schema in REAL.values():
        given = _tool(schema)
        before = json.dumps(given)
        enforceable(given)
        assert json.dumps(given) == before
