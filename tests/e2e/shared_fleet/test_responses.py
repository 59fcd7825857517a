"""The Responses API on the built-in model, by the official client."""

import json
from typing import Any

import pytest
from openai import OpenAI

WEATHER: Any = {
    "type": "function",
    "name": "get_weather",
    "description": "Get the weather of a city.",
    "parameters": {
        "type": "object",
        "properties": {"city": {"type": "string"}},
        "required": ["city"],
    },
    "strict": False,
}
ASKED: list[Any] = [{"role": "user", "content": "What is the weather in Athens?"}]
FIELDS: dict[str, Any] = {"model": "alpha", "temperature": 0, "max_output_tokens": 80}


@pytest.mark.parametrize("effort", ["none", "medium"])
def test_a_stream_joins_to_the_whole_response(client: OpenAI, effort: Any) -> None:
    """Items, text, status and counts; with reasoning and without."""
    fields = {**FIELDS, "tools": [WEATHER], "reasoning": {"effort": effort}}
    whole = client.responses.create(input=ASKED, **fields)
    with client.responses.stream(input=ASKED, **fields) as events:
        final = events.until_done().get_final_response()

    def said(response: Any) -> list[Any]:
        items = [item.model_dump(exclude={"id", "call_id"}) for item in response.output]
        return [{k: v for k, v in item.items() if k != "parsed_arguments"} for item in items]

    assert said(final) == said(whole)
    assert final.status == whole.status
    assert final.usage is not None
    assert whole.usage is not None
    assert final.usage.output_tokens == whole.usage.output_tokens


def test_a_tool_conversation_of_two_turns(client: OpenAI) -> None:
    """The call, then an answer to its result, with the items sent back as they came."""
    include: Any = ["reasoning.encrypted_content"]
    first = client.responses.create(input=ASKED, tools=[WEATHER], include=include, **FIELDS)
    call: Any = first.output[-1]
    assert (call.name, json.loads(call.arguments)) == ("get_weather", {"city": "Athens"})
    result = {
        "type": "function_call_output",
        "call_id": call.call_id,
        "output": "sunny, 24 degrees",
    }
    history: Any = [*ASKED, *(item.model_dump() for item in first.output), result]
    second = client.responses.create(input=history, tools=[WEATHER], **FIELDS)
    assert second.status == "completed"
    assert "sunny" in second.output_text
    assert second.usage is not None
    assert second.usage.input_tokens_details.cached_tokens > 0
