"""The Messages API on the built-in model."""

import json
from typing import Any

import pytest

from tests.fakes.checked_http import checked_client
from tests.fakes.herma_process import HermaProcess
from tests.fakes.messages_checker import check_messages

WEATHER = {
    "name": "get_weather",
    "description": "Get the weather of a city.",
    "input_schema": {
        "type": "object",
        "properties": {"city": {"type": "string"}},
        "required": ["city"],
    },
}
ASKED = [{"role": "user", "content": "What is the weather in Athens?"}]


def _body(messages: list[dict[str, Any]], **fields: Any) -> dict[str, Any]:
    shared = {"model": "alpha", "max_tokens": 80, "temperature": 0}
    return {**shared, "messages": messages, **fields}


@pytest.mark.parametrize("thinks", [True, False])
def test_a_stream_joins_to_the_whole_message(fleet: HermaProcess, thinks: bool) -> None:
    """Blocks, reason and counts; with thinking and without."""
    thinking = {"type": "enabled" if thinks else "disabled"}
    body = _body(ASKED, tools=[WEATHER], thinking=thinking)
    with checked_client(fleet.base_url) as client:
        whole = client.post("/messages", json=body).json()
        stream = check_messages(client.post("/messages", json={**body, "stream": True}).content)
    assert stream.message is not None
    for block in (*whole["content"], *stream.message["content"]):
        block.pop("id", None)
    assert stream.message["content"] == whole["content"]
    assert stream.message["stop_reason"] == whole["stop_reason"]
    assert stream.message["usage"]["output_tokens"] == whole["usage"]["output_tokens"]


def test_a_tool_conversation_of_two_turns(fleet: HermaProcess) -> None:
    """The call, then an answer to its result; the count is that of the second prompt, whose first
    part is found in the cache.
    """
    with checked_client(fleet.base_url) as client:
        first = client.post("/messages", json=_body(ASKED, tools=[WEATHER])).json()
        (call,) = [block for block in first["content"] if block["type"] == "tool_use"]
        assert (call["name"], call["input"]) == ("get_weather", {"city": "Athens"})
        assert first["stop_reason"] == "tool_use"
        result = {"type": "tool_result", "tool_use_id": call["id"], "content": "sunny, 24 degrees"}
        history = [
            *ASKED,
            {"role": "assistant", "content": first["content"]},
            {"role": "user", "content": [result]},
        ]
        second = client.post("/messages", json=_body(history, tools=[WEATHER])).json()
        count = client.post(
            "/messages/count_tokens",
            json={"model": "alpha", "messages": history, "tools": [WEATHER]},
        ).json()
    assert second["stop_reason"] == "end_turn"
    assert "sunny" in second["content"][-1]["text"]
    usage = second["usage"]
    assert usage["cache_read_input_tokens"] > 0
    total = usage["input_tokens"] + usage["cache_read_input_tokens"]
    assert count["input_tokens"] == total


SCHEMA = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 12}, "ok": {"type": "boolean"}},
    "required": ["city", "ok"],
    "additionalProperties": False,
}


def test_a_schema_holds_by_messages_and_by_responses(fleet: HermaProcess) -> None:
    """The fields of both APIs reach the grammar that chats have."""
    form = {"type": "json_schema", "schema": SCHEMA}
    message = _body(ASKED, max_tokens=200, output_config={"format": form})
    response = {"model": "alpha", "temperature": 0, "max_output_tokens": 200, "input": ASKED}
    response |= {"text": {"format": {**form, "name": "answer", "strict": True}}}
    response |= {"reasoning": {"effort": "none"}}
    with checked_client(fleet.base_url) as client:
        first = client.post("/messages", json=message).json()
        second = client.post("/responses", json=response).json()
    assert (first["stop_reason"], second["status"]) == ("end_turn", "completed")
    for text in (first["content"][-1]["text"], second["output"][-1]["content"][0]["text"]):
        answer = json.loads(text)
        assert answer.keys() == {"city", "ok"}
        assert isinstance(answer["ok"], bool)
