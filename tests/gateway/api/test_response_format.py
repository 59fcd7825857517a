"""`response_format` as an instruction in the prompt, and what workers refuse."""

import json
from typing import Any

import pytest

from gateway.api.chat_parser import parse_chat_request
from gateway.api.errors import ApiError
from gateway.api.request import ChatRequest

SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}


def parse(*messages: tuple[str, str], **fields: Any) -> ChatRequest:
    turns = [{"role": role, "content": text} for role, text in messages or [("user", "Hi")]]
    return parse_chat_request(json.dumps({"model": "m", "messages": turns, **fields}).encode())


def test_a_schema_is_told_at_the_end_of_the_system_text() -> None:
    """A schema is shown once at the end of the system text, after the existing text; the body for
    providers is unchanged.
    """
    wanted = {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}
    request = parse(("system", "Be short."), ("user", "Hi"), response_format=wanted)
    system, user = request.messages
    assert system.content is not None
    assert system.content.startswith("Be short.\n\nAnswer with one JSON object")
    assert json.dumps(SCHEMA, separators=(",", ":")) in system.content
    assert user.content == "Hi"
    assert request.raw["messages"][0]["content"] == "Be short."
    assert request.raw["response_format"] == wanted


def test_a_system_text_is_made_where_there_is_none() -> None:
    """The instruction comes first."""
    request = parse(response_format={"type": "json_object"})
    assert [message.role for message in request.messages] == ["system", "user"]


def test_text_is_what_it_is_anyway() -> None:
    """The form "text" is what an answer is anyway, so nothing is added to the prompt for it."""
    assert parse(response_format={"type": "text"}).messages == parse().messages


@pytest.mark.parametrize(
    ("wanted", "param"),
    [
        ({}, "response_format.type"),
        ({"type": "xml"}, "response_format.type"),
        ({"type": ["text"]}, "response_format.type"),
        ({"type": "json_schema"}, "response_format.json_schema"),
        ({"type": "json_schema", "json_schema": {}}, "response_format.json_schema.schema"),
        ({"type": "json"}, "response_format.type"),
        ({"type": "json", "value": "{}"}, "response_format.value"),
        ({"type": "json_object", "schema": 7}, "response_format.schema"),
        ("json_object", "response_format"),
    ],
)
def test_a_bad_format_is_refused_by_name(wanted: Any, param: str) -> None:
    """Each with the place that is wrong."""
    with pytest.raises(ApiError) as caught:
        parse(response_format=wanted)
    assert (caught.value.status, caught.value.param) == (400, param)


def test_a_bias_is_left_to_providers() -> None:
    """Workers cannot do it and say so; an empty one asks for nothing."""
    refused = parse(logit_bias={"5": 1.5}).refused_locally
    assert refused is not None
    assert (refused.status, refused.param) == (400, "logit_bias")
    assert parse(logit_bias={}).refused_locally is None


@pytest.mark.parametrize("bias", [{"a": 1}, {"5": 101}, {"5": "x"}, [5], {"\u0665": 1}])
def test_a_bad_bias_is_refused_by_name(bias: Any) -> None:
    """Keys are ids, values within the API's bounds."""
    with pytest.raises(ApiError) as caught:
        parse(logit_bias=bias)
    assert caught.value.status == 400
    assert str(caught.value.param).startswith("logit_bias")
