"""Answers that must have a form, by the official client, from the built-in model."""

import json
from typing import Any

import jsonschema
import pytest
from openai import BadRequestError, OpenAI

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "maxLength": 16},
        "kind": {"enum": ["town", "village"]},
        "people": {"type": "array", "items": {"type": "integer"}, "maxItems": 2},
    },
    "required": ["city", "kind", "people"],
}
FORMAT: Any = {
    "type": "json_schema",
    "json_schema": {"name": "place", "schema": SCHEMA, "strict": True},
}
TOOL: Any = {
    "type": "function",
    "function": {
        "name": "keep_place",
        "description": "Keep a place.",
        "parameters": SCHEMA,
        "strict": True,
    },
}
ASKED: Any = [{"role": "user", "content": "Tell me about Athens."}]


@pytest.mark.parametrize("stream", [False, True])
def test_a_strict_schema_holds_at_any_temperature(client: OpenAI, stream: bool) -> None:
    """Thoughts come before, as the model wants; the answer is JSON of the schema alone."""
    given: Any = {"model": "alpha", "messages": ASKED, "response_format": FORMAT, "n": 3}
    given |= {"temperature": 1.5, "max_tokens": 400, "seed": 5}
    texts = ["", "", ""]
    ends: dict[int, str] = {}
    if stream:
        for chunk in client.chat.completions.create(**given, stream=True):
            for choice in chunk.choices:
                texts[choice.index] += choice.delta.content or ""
                if choice.finish_reason:
                    ends[choice.index] = choice.finish_reason
    else:
        for choice in client.chat.completions.create(**given).choices:
            texts[choice.index] = choice.message.content or ""
            ends[choice.index] = choice.finish_reason
    assert set(ends) == {0, 1, 2}
    assert "stop" in ends.values()
    for index, text in enumerate(texts):
        if ends[index] == "stop":
            closed = {**SCHEMA, "additionalProperties": False}
            jsonschema.validate(json.loads(text), closed)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("choice", ["required", {"type": "function"}])
def test_strict_calls_are_valid(client: OpenAI, stream: bool, choice: Any) -> None:
    """Calls of a strict tool that the model has never seen are valid, at a temperature where it
    writes anything.
    """
    if choice != "required":
        choice = {**choice, "function": {"name": "keep_place"}}
    given: Any = {"model": "alpha", "messages": ASKED, "tools": [TOOL], "tool_choice": choice}
    given |= {"temperature": 1.5, "max_tokens": 400, "seed": 8}
    if stream:
        name = arguments = ""
        for chunk in client.chat.completions.create(**given, stream=True):
            for delta in chunk.choices[0].delta.tool_calls or [] if chunk.choices else []:
                if delta.index == 0 and delta.function is not None:
                    name += delta.function.name or ""
                    arguments += delta.function.arguments or ""
    else:
        (call, *_) = client.chat.completions.create(**given).choices[0].message.tool_calls or ()
        assert call.type == "function"
        name, arguments = call.function.name, call.function.arguments
    assert name == "keep_place"
    jsonschema.validate(json.loads(arguments), SCHEMA)


def test_vllms_fields_hold(client: OpenAI) -> None:
    """vLLM's fields hold in chats and in raw completions."""
    chat = client.chat.completions.create(
        model="alpha", messages=ASKED, extra_body={"guided_choice": ["yes", "no"]}
    )
    assert chat.choices[0].message.content in ("yes", "no")
    raw = client.completions.create(
        model="alpha",
        prompt="Athens",
        max_tokens=40,
        extra_body={"structured_outputs": {"regex": "[0-9]{3}-[a-f]{2}"}},
    )
    digits, letters = raw.choices[0].text.split("-")
    assert digits.isdecimal()
    assert set(letters) <= set("abcdef")


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"guided_regex": "(a"}, "regex"),
        ({"guided_json": {"not": {"type": "string"}}}, "not"),
        ({"guided_json": {"$ref": "http://nowhere.example/a"}}, "nowhere.example"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_what_cannot_be_enforced_is_a_400(
    client: OpenAI, fields: Any, reason: str, stream: bool
) -> None:
    """A form that cannot be enforced is a 400 with the reason, before the first byte, streamed or
    not.
    """
    with pytest.raises(BadRequestError, match=reason) as caught:
        client.chat.completions.create(
            model="alpha", messages=ASKED, stream=stream, extra_body=fields
        )
    assert caught.value.code == "invalid_grammar"
