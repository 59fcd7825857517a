"""Custom tools at chat: how their calls reach the client, by workers and by providers."""

import json
from typing import Any

import pytest

from tests.fakes.provider import open_provider
from tests.fakes.running_gateway import chain_of
from tests.fakes.whole_gateway import whole_gateway
from tests.fakes.worker import FakeWorker

PATH = "/v1/chat/completions"
FLAT = {"type": "custom", "name": "patch", "description": "Edits."}
NESTED = {"type": "custom", "custom": {"name": "patch", "description": "Edits."}}
USER = {"role": "user", "content": "Edit."}
PLAIN = {"type": "function", "function": {"name": "look"}}


def call_of(name: str, arguments: dict[str, Any]) -> str:
    call = json.dumps({"name": name, "arguments": arguments})
    return f"<tool_call>{call}</tool_call>"


TEXT = call_of("patch", {"input": 'say "é"'}) + call_of("look", {"at": 1})


def joined(events: list[Any]) -> list[dict[str, Any]]:
    """The calls of a stream, as a client joins their parts."""
    calls: dict[int, dict[str, Any]] = {}
    for event in events:
        for choice in event["choices"] if isinstance(event, dict) else ():
            for part in choice["delta"].get("tool_calls", ()):
                call = calls.setdefault(part["index"], {})
                for key in ("id", "type"):
                    call.setdefault(key, part.get(key))
                for form in ("function", "custom"):
                    for field, text in part.get(form, {}).items():
                        inner = call.setdefault(form, {})
                        inner[field] = inner.get(field, "") + text
    return [calls[at] for at in sorted(calls)]


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("tool", [FLAT, NESTED])
async def test_a_custom_call_has_its_text(tool: dict[str, Any], stream: bool) -> None:
    """Cursor, which sends tools without a wrapper, also reads the name in `function`."""
    async with whole_gateway(FakeWorker(text=TEXT)) as whole:
        fields: dict[str, Any] = {"model": "alpha", "messages": [USER], "tools": [tool, PLAIN]}
        if stream:
            calls = joined(await whole.stream(PATH, **fields))
        else:
            reply = await whole.post(PATH, **fields)
            calls = reply.json["choices"][0]["message"]["tool_calls"]
    custom, plain = calls
    assert custom["type"] == "custom"
    assert custom["custom"] == {"name": "patch", "input": 'say "é"'}
    if tool is FLAT:
        assert custom["function"] == {"name": "patch", "arguments": 'say "é"'}
    else:
        assert "function" not in custom
    assert plain["type"] == "function"
    assert json.loads(plain["function"]["arguments"]) == {"at": 1}
    assert "custom" not in plain


async def test_a_body_with_input_is_answered_as_a_chat() -> None:
    """Whole, with the tool in the form that Cursor reads."""
    async with whole_gateway(FakeWorker(text=TEXT)) as whole:
        reply = await whole.post(PATH, model="alpha", input=[USER], tools=[FLAT])
        assert reply.json["object"] == "chat.completion"
        call = reply.json["choices"][0]["message"]["tool_calls"][0]
        assert call["function"] == {"name": "patch", "arguments": 'say "é"'}


async def test_a_provider_gets_functions() -> None:
    """Most that speak chat know no custom tools; deferred ones come loaded, behind the others."""
    async with open_provider() as fake:
        model, tables = chain_of({"p0": fake})
        async with whole_gateway(models=[model], providers=tables) as whole:
            later = {**PLAIN, "function": {"name": "later"}, "defer_loading": True}
            never = {**PLAIN, "function": {"name": "never"}, "defer_loading": True}
            part = {"type": "tool_reference", "tool_name": "later"}
            result = {"role": "tool", "tool_call_id": "c", "content": [part]}
            sound = {"role": "user", "content": [{"type": "input_audio", "input_audio": {}}]}
            reply = await whole.post(
                PATH,
                model="alpha",
                messages=[USER, result, sound],
                tools=[later, never, FLAT, PLAIN],
            )
            assert reply.status == 200, reply
            body = fake.requests[0].body
            names = [tool["function"]["name"] for tool in body["tools"]]
            assert names == ["patch", "look", "later"]
            assert {tool["type"] for tool in body["tools"]} == {"function"}
            assert body["messages"][1]["content"] == "The tool later can be called."


async def test_what_is_ignored_is_named_in_a_header() -> None:
    """What is ignored is named in a header at each API; nothing is named if there is nothing."""
    async with whole_gateway() as whole:
        said = {"model": "alpha", "messages": [USER]}
        search = {"type": "web_search_20250305", "name": "web_search"}
        message = await whole.post("/v1/messages", max_tokens=5, tools=[search], **said)
        assert message.headers["x-herma-ignored"] == "tools[0] (web_search_20250305)"
        hosted = [{"type": "web_search"}]
        response = await whole.post("/v1/responses", model="alpha", input="x", tools=hosted)
        assert response.headers["x-herma-ignored"] == "tools[0] (web_search)"
        chat = await whole.post(PATH, functions=[{"name": "f"}], **said)
        assert chat.headers["x-herma-ignored"] == "functions"
        assert "x-herma-ignored" not in (await whole.post(PATH, **said)).headers
