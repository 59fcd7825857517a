"""The fields that demand a form of the answer, and what they become."""

import json
from typing import Any

import msgspec
import pytest

from gateway.api import (
    ApiError,
    ChatRequest,
    chat_request,
    parse_completions,
    schema_source,
)
from gateway.api.output_grammar import MAX_DEPTH, closed
from protocol.messages import MAX_GRAMMAR_BYTES

SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}
TOOL = {"type": "function", "function": {"name": "f", "parameters": SCHEMA}}
OTHER = {"type": "function", "function": {"name": "g", "parameters": SCHEMA}}


def _parse(**fields: Any) -> ChatRequest:
    return chat_request({"model": "m", "messages": [{"role": "user", "content": "Hi"}], **fields})


def _format(schema: object, **more: Any) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "x", "schema": schema, **more}}


@pytest.mark.parametrize(
    ("fields", "kind", "is_required"),
    [
        ({"response_format": {"type": "json_object"}}, "json_schema", False),
        ({"response_format": _format(SCHEMA)}, "json_schema", False),
        ({"response_format": _format(SCHEMA, strict=True)}, "json_schema", True),
        ({"guided_json": SCHEMA}, "json_schema", True),
        ({"guided_json": json.dumps(SCHEMA)}, "json_schema", True),
        ({"guided_regex": "a+"}, "regex", True),
        ({"regex": "a+"}, "regex", True),
        ({"guided_choice": ["a", "b"]}, "lark", True),
        ({"choice": ["a"]}, "lark", True),
        ({"guided_grammar": "start: a"}, "lark", True),
        ({"lark": "start: a"}, "lark", True),
        ({"structured_outputs": {"json": SCHEMA}}, "json_schema", True),
        ({"structured_outputs": {"json_object": True}}, "json_schema", True),
        ({"structured_outputs": {"regex": "a"}}, "regex", True),
        ({"structured_outputs": {"choice": ["a"]}}, "lark", True),
        ({"structured_outputs": {"grammar": "start: a"}}, "lark", True),
    ],
)
def test_each_field_becomes_a_grammar(fields: Any, kind: str, is_required: bool) -> None:
    """Under its own name, for errors."""
    grammar = _parse(**fields).grammar
    assert grammar is not None
    assert (grammar.kind, grammar.is_required) == (kind, is_required)
    assert grammar.field.split(".")[0] in fields


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"response_format": {"type": "text"}},
        {"guided_json": None},
        {"structured_outputs": {}},
        {"structured_outputs": {"json_object": False}},
    ],
)
def test_no_demand_is_none(fields: Any) -> None:
    """Null counts as absent."""
    assert _parse(**fields).grammar is None


def test_a_choice_is_one_of_its_texts() -> None:
    """Quotes and line breaks are those of the text."""
    grammar = _parse(choice=['say "no"', "ü\n"]).grammar
    assert grammar is not None
    assert grammar.text == 'start: "say \\"no\\"" | "ü\\n"\n'


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"guided_json": "{"}, "guided_json"),
        ({"guided_json": "[]"}, "guided_json"),
        ({"guided_choice": []}, "guided_choice"),
        ({"guided_choice": [""]}, "guided_choice"),
        ({"guided_choice": [1]}, "guided_choice[0]"),
        ({"guided_regex": ""}, "guided_regex"),
        ({"structured_outputs": {"regex": 3}}, "structured_outputs.regex"),
        ({"guided_regex": "a", "choice": ["a"]}, "choice"),
        ({"guided_regex": "a", "response_format": {"type": "json_object"}}, "guided_regex"),
        ({"guided_regex": "a", "ignore_eos": True}, "ignore_eos"),
        ({"regex": "a" * (MAX_GRAMMAR_BYTES + 1)}, "regex"),
    ],
)
def test_a_bad_demand_is_refused_by_name(fields: Any, param: str) -> None:
    """A bad demand is refused with the name of the field that is wrong."""
    with pytest.raises(ApiError) as caught:
        _parse(**fields)
    assert (caught.value.status, caught.value.param) == (400, param)


def test_depth_and_size_of_a_schema_are_bounded() -> None:
    """The text names the bound."""
    deep: dict[str, Any] = {}
    for _ in range(MAX_DEPTH):
        deep = {"items": deep}
    with pytest.raises(ApiError, match="levels deep"):
        _parse(response_format=_format(deep, strict=True))
    large = {"enum": ["x" * 1000] * (MAX_GRAMMAR_BYTES // 1000 + 1)}
    with pytest.raises(ApiError, match="KiB"):
        _parse(response_format=_format(large))


def test_strict_objects_are_closed_wherever_they_stand() -> None:
    """Strict objects are closed, except values of a schema, objects that the schema itself opens,
    and parts of an allOf.
    """
    given = {
        **SCHEMA,
        "properties": {
            "properties": {"type": "array", "items": SCHEMA},
            "open": {**SCHEMA, "additionalProperties": True},
            "both": {"allOf": [SCHEMA, SCHEMA]},
            "one": {"anyOf": [SCHEMA, {"const": SCHEMA}]},
        },
        "$defs": {"x": SCHEMA},
    }
    before = msgspec.json.encode(given)
    found = closed(given)
    properties = found["properties"]
    assert found["additionalProperties"] is False
    assert properties["properties"]["items"]["additionalProperties"] is False
    assert properties["open"]["additionalProperties"] is True
    assert properties["both"] == {"allOf": [SCHEMA, SCHEMA]}
    assert properties["one"]["anyOf"][0]["additionalProperties"] is False
    assert properties["one"]["anyOf"][1] == {"const": SCHEMA}
    assert found["$defs"]["x"]["additionalProperties"] is False
    assert msgspec.json.encode(given) == before


@pytest.mark.parametrize(
    ("pattern", "shown"),
    [
        (r"^[a-z]{1,3}(?:\.\w+)*$", r"^[a-z]{1,3}(?:\.[A-Za-z0-9_]+)*$"),
        (r"^\\b\(?=$", r"^\\b\(?=$"),
        (r"^a{,3}$", r"^a\{,3\}$"),
        (r"^(?!\.)x$", None),
        (r"(?<=a)b", None),
        (r"\bword\b", None),
        (r"^(a)\1$", None),
    ],
)
def test_patterns_that_cannot_be_followed_are_left_out_and_said(
    pattern: str, shown: str | None
) -> None:
    """zod describes addresses with look-around, which would refuse the whole request. A property
    may have the name of the keyword.
    """
    text = {"type": "string", "pattern": pattern, "format": "email"}
    named = {"type": "object", "patternProperties": {pattern: text}, "additionalProperties": False}
    schema = {
        "type": "object",
        "properties": {"pattern": text, "all": {"allOf": [text]}, "ref": {"$ref": "#/$defs/x"}},
        "additionalProperties": named,
        "$defs": {"x": {"anyOf": [text]}},
    }
    given = json.dumps(schema)
    source = schema_source(schema, "f", is_strict=False, is_lenient=True)
    made = json.loads(source.text)
    assert json.dumps(schema) == given
    places = {one.pointer for one in source.left_out}
    if shown is not None:
        assert made["properties"]["pattern"] == {"type": "string", "pattern": shown}
        assert list(made["additionalProperties"]["patternProperties"]) == [shown]
        assert not places
        return
    assert made["properties"]["pattern"] == {"type": "string", "format": "email"}
    assert "additionalProperties" not in made["additionalProperties"]
    assert {
        "/properties/pattern/pattern",
        "/properties/all/allOf/0/pattern",
        "/$defs/x/anyOf/0/pattern",
    } < places


def test_options_of_a_client_are_replaced() -> None:
    """A schema must not take the bounds away."""
    given = {**SCHEMA, "x-guidance": {"whitespace_pattern": " *", "lenient": True}}
    options = json.loads(schema_source(given, "f", is_strict=True).text)["x-guidance"]
    assert options["lenient"] is False
    assert options["whitespace_pattern"] != " *"


@pytest.mark.parametrize("mode", ["auto", "required"])
def test_allowed_tools_hide_the_others(mode: str) -> None:
    """Allowed tools, in the order of the tools, hide the others."""
    allowed = {"mode": mode, "tools": [{"type": "function", "function": {"name": "g"}}]}
    choice = {"type": "allowed_tools", "allowed_tools": allowed}
    request = _parse(tools=[TOOL, OTHER], tool_choice=choice)
    assert [tool["function"]["name"] for tool in request.tools] == ["g"]
    assert request.tool_choice == mode


@pytest.mark.parametrize(
    "allowed",
    [
        None,
        {"mode": "auto"},
        {"mode": "none", "tools": [{"function": {"name": "f"}}]},
        {"tools": []},
        {"tools": [{"function": {"name": "h"}}]},
        {"tools": ["f"]},
    ],
)
def test_bad_allowed_tools_are_refused(allowed: Any) -> None:
    """Bad allowed tools are refused with the field's name."""
    with pytest.raises(ApiError) as caught:
        _parse(tools=[TOOL], tool_choice={"type": "allowed_tools", "allowed_tools": allowed})
    assert caught.value.param == "tool_choice"


def test_raw_completions_take_vllms_fields() -> None:
    """Each prompt gets the grammar."""
    body = {"model": "m", "prompt": ["a", "b"], "guided_regex": "x+"}
    requests = parse_completions(json.dumps(body).encode()).requests
    assert [request.grammar and request.grammar.text for request in requests] == ["x+", "x+"]


def test_an_evaluation_gets_its_one_token() -> None:
    """lm-eval drops the last entry as that of the generated token; the end of an answer has none
    unless it is ignored.
    """
    body = {"model": "m", "prompt": [[1, 2]], "echo": True, "logprobs": 1, "max_tokens": 1}
    asked = parse_completions(json.dumps(body).encode())
    assert asked.requests[0].ignore_eos
    assert asked.num_top == 1
    more = parse_completions(json.dumps({**body, "max_tokens": 2}).encode())
    assert not more.requests[0].ignore_eos
