"""The types of parameters whose values models write as plain text."""

import json
import sys
from types import FrameType
from typing import Any

import pytest

from gateway.output.tools import TOOL_FORMATS, ToolParser
from gateway.output.tools.minimax import PREFIX
from gateway.output.tools.schema import required_of, schemas_of, to_json, types_of, within
from tests.gateway.output.tools.test_answers import joined

DEFS = {
    "count": {"type": "integer"},
    "names": {"type": "array", "items": {"type": "string"}},
    "again": {"$ref": "#/$defs/count"},
    "ring": {"$ref": "#/$defs/ring"},
}
COUNT = {"$ref": "#/$defs/count"}


def _types(parameters: dict[str, Any], name: str = "x") -> frozenset[str]:
    tool = {"type": "function", "function": {"name": "f", "parameters": parameters}}
    return types_of(schemas_of((tool,))["f"].get(name))


@pytest.mark.parametrize("word", ["anyOf", "allOf"])
@pytest.mark.parametrize("num_ways", [2, 40])
def test_ways_that_lead_back_are_looked_at_for_a_bounded_time(word: str, num_ways: int) -> None:
    """40 references to the schema that they are in have 40 ** 5 ways, in a body of 1 KB."""
    counted = [{"type": "integer"}, *[{"$ref": "#/$defs/ring"}] * num_ways]
    ring = {word: counted, "properties": {"y": {"type": "boolean"}}, "required": ["y"]}
    parameters = {"$defs": {"ring": ring}, "properties": {"x": {"$ref": "#/$defs/ring"}}}
    spread = {**parameters, word: [{"$ref": "#/$defs/ring"}] * num_ways}
    one, two = (
        ({"type": "function", "function": {"name": "f", "parameters": given}},)
        for given in (parameters, spread)
    )
    looked_at = 0

    def look(frame: FrameType, event: str, _: object) -> None:
        nonlocal looked_at
        looked_at += event == "call" and frame.f_code.co_name == "resolved"

    sys.setprofile(look)
    try:
        own, of_parts = schemas_of(one)["f"], schemas_of(two)["f"]
        required = required_of(two)["f"]
        inner = within(parameters, own["x"], "y")
    finally:
        sys.setprofile(None)
    assert looked_at < 100_000
    assert {"object", "integer"} <= types_of(own["x"])
    assert types_of(of_parts["y"]) == types_of(inner) == {"boolean"}
    assert required == ({"y"} if word == "allOf" else set())


@pytest.mark.parametrize(
    ("schema", "text", "value"),
    [
        (COUNT, "2", "2"),
        ({"$ref": "#/$defs/again"}, "2", "2"),
        ({"$ref": "#/$defs/names"}, '["a","b"]', '["a","b"]'),
        ({"$ref": "#/$defs/names", "description": "d"}, '["a"]', '["a"]'),
        ({"allOf": [COUNT]}, "2", "2"),
        ({"anyOf": [COUNT, {"type": "null"}]}, "null", "null"),
        ({"oneOf": [{"allOf": [COUNT]}]}, "2", "2"),
        ({"$ref": "#/properties/y"}, "true", "true"),
        ({"type": "string", "nullable": True}, "null", "null"),
        ({"type": "string", "nullable": False}, "null", '"null"'),
        ({**COUNT, "nullable": True}, "None", "null"),
        ({"anyOf": [{"type": "string", "nullable": True}]}, "null", "null"),
        ({"enum": ["a", "b"], "nullable": True}, "null", "null"),
        ({"nullable": True, "description": "d"}, "2", '"2"'),
        ({"$ref": "#/$defs/none"}, "2", '"2"'),
        ({"$ref": "#/$defs/ring"}, "2", '"2"'),
    ],
)
def test_a_reference_gives_its_type(schema: Any, text: str, value: str) -> None:
    """Wherever it stands within the parameter."""
    properties = {"x": schema, "y": {"type": "boolean"}}
    types = _types({"type": "object", "properties": properties, "$defs": DEFS})
    assert to_json(text, types) == value


@pytest.mark.parametrize(
    "parameters",
    [
        {"$ref": "#/$defs/whole"},
        {"allOf": [{"$ref": "#/$defs/whole"}]},
        {"allOf": [{"type": "object", "properties": {"y": {}}}, {"properties": {"x": COUNT}}]},
        {"type": "object", "properties": {"y": {}}, "anyOf": [{"$ref": "#/$defs/whole"}]},
        {"oneOf": [{"properties": {"x": COUNT}}, {"properties": {"x": {"type": "integer"}}}]},
    ],
)
def test_parameters_may_stand_behind_a_reference_or_in_parts(parameters: Any) -> None:
    """The properties of all of them count."""
    whole = {"type": "object", "properties": {"x": COUNT}}
    assert _types({**parameters, "$defs": {**DEFS, "whole": whole}}) == {"integer"}


ITEM = {"type": "object", "properties": {"n": COUNT, "tags": {"$ref": "#/$defs/names"}}}
NESTED = {
    "type": "object",
    "properties": {
        "items": {"type": "array", "items": {"$ref": "#/$defs/item"}},
        "maybe": {"anyOf": [{"$ref": "#/$defs/item"}, {"type": "null"}]},
        "inner": {"type": "object", "properties": {"n": COUNT, "deep": {"$ref": "#/$defs/item"}}},
        "parts": {"allOf": [{"$ref": "#/$defs/item"}, {"properties": {"b": {"type": "boolean"}}}]},
        "map": {"type": "object", "additionalProperties": {"type": "integer"}},
        "rows": {"type": "array", "items": {"type": "array", "items": {"type": "integer"}}},
        "n": COUNT,
        "must": COUNT,
        "text": {"type": "string"},
    },
    "required": ["must"],
    "$defs": {**DEFS, "item": ITEM},
}


def _tag(name: str, *inner: str) -> str:
    return f"{PREFIX}<{name}>{''.join(inner)}{PREFIX}</{name}>"


@pytest.mark.parametrize(
    ("value", "arguments"),
    [
        (_tag("items", _tag("item", _tag("n", "5"))), {"items": [{"n": 5}]}),
        (_tag("maybe", _tag("n", "5")), {"maybe": {"n": 5}}),
        (_tag("inner", _tag("n", "5")), {"inner": {"n": 5}}),
        (_tag("inner", _tag("deep", _tag("n", "5"))), {"inner": {"deep": {"n": 5}}}),
        (_tag("parts", _tag("b", "true"), _tag("n", "5")), {"parts": {"b": True, "n": 5}}),
        (_tag("map", _tag("k", "5")), {"map": {"k": 5}}),
        (_tag("rows", _tag("item", _tag("item", "5"))), {"rows": [[5]]}),
        (_tag("rows", _tag("item"), _tag("item", _tag("item", "5"))), {"rows": [[], [5]]}),
        (_tag("items"), {"items": []}),
        (_tag("map"), {"map": {}}),
        (_tag("maybe"), {"maybe": {}}),
        (_tag("items", _tag("item", _tag("tags"))), {"items": [{"tags": []}]}),
        (_tag("text"), {"text": ""}),
        (_tag("n"), {}),
        (_tag("n") + _tag("text", "x"), {"text": "x"}),
        (_tag("must"), {"must": ""}),
    ],
)
def test_values_within_values_have_their_types(value: str, arguments: dict[str, Any]) -> None:
    """In M3's tags, also behind references, which pydantic writes for each model in a model; an
    empty tag is an empty list if the schema says so, and says nothing of a number.
    """
    tool = {"type": "function", "function": {"name": "f", "parameters": NESTED}}
    text = (
        f'{PREFIX}<tool_call>\n{PREFIX}<invoke name="f">{value}{PREFIX}</invoke>\n'
        f"{PREFIX}</tool_call>"
    )
    for pieces in ([text], list(text)):
        parser = ToolParser(TOOL_FORMATS["minimax_m3"], bytes, (tool,))
        events = [event for piece in pieces for event in parser.push(piece)] + parser.flush()
        (call,) = joined(events)
        assert isinstance(call, tuple)
        assert (call[0], json.loads(call[1])) == ("f", arguments)


def test_what_a_call_has_to_give_may_stand_in_parts() -> None:
    """Behind references and in an `allOf`, as its properties."""
    whole = {"properties": {"x": COUNT}, "required": ["x"]}
    parameters = {
        "allOf": [{"$ref": "#/$defs/whole"}, {"required": ["y", 7]}],
        "anyOf": [{"required": ["z"]}],
        "required": None,
        "$defs": {"whole": whole},
    }
    tool = {"type": "function", "function": {"name": "f", "parameters": parameters}}
    assert required_of((tool,)) == {"f": {"x", "y"}}
