"""Calls that a client demands of the built-in model, which thinks before it calls."""

import json
from typing import Any

import pytest
from openai import OpenAI


def _tool(name: str, *parameters: str) -> dict[str, Any]:
    properties = {parameter: {"type": "string"} for parameter in parameters}
    schema = {"type": "object", "properties": properties, "required": list(parameters)}
    return {"type": "function", "function": {"name": name, "parameters": schema}}


WEATHER, MAIL = _tool("get_weather", "city", "unit"), _tool("send_mail", "to", "subject")
NAMED = {"type": "function", "function": {"name": "get_weather"}}


@pytest.mark.parametrize(
    ("tools", "choice"),
    [([WEATHER, MAIL], "required"), ([WEATHER], "required"), ([MAIL, WEATHER], NAMED)],
    ids=["one of two", "the only one", "a named one"],
)
@pytest.mark.parametrize("town", ["Athens", "Bergen"])
def test_a_demanded_call_is_made(client: OpenAI, tools: Any, choice: Any, town: str) -> None:
    """There is a call that fits the question, no markup beside it, and the finish reason is a
    call.
    """
    answer = client.chat.completions.create(
        model="alpha",
        messages=[{"role": "user", "content": f"Get the weather in {town} with unit celsius."}],
        tools=tools,
        tool_choice=choice,
        temperature=0,
        max_tokens=80,
    ).choices[0]
    assert answer.message.content is None
    assert answer.finish_reason == "tool_calls"
    (call,) = answer.message.tool_calls or ()
    assert call.type == "function"
    assert call.function.name == "get_weather"
    assert json.loads(call.function.arguments) == {"city": town, "unit": "celsius"}
