"""The types of parameters whose values models write as plain text."""

from typing import Any

import pytest

from gateway.output.tools.schema import schemas_of, to_json, types_of

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
