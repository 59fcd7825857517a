"""What upstreams get back of their own answers: signatures, reasoning, and switches of thinking."""

import json
from typing import Any

import msgspec
import pytest

from gateway.app import edge_of
from gateway.http.routes import edge_app
from gateway.upstream import CallsMade, KeptCalls, field_at, switch_at
from gateway.upstream.thinking_switch import with_switch
from tests.fakes.provider import FakeProvider, open_provider
from tests.fakes.running_gateway import chain_of, open_gateway
from tests.fakes.served import ask, served

SIGNED = {"google": {"thought_signature": "c2lnbmVk"}}
TOOL = {"name": "f", "parameters": {"type": "object"}}


def calling(provider: FakeProvider, thought: str = "Hm, f.") -> None:
    """Make the provider answer with a thought and a call, streamed and whole."""
    function = {"name": "f", "arguments": "{}"}
    call = {"id": "call_0", "type": "function", "function": function, "extra_content": SIGNED}
    said = {"role": "assistant", "content": None, "reasoning_content": thought}
    half = len(thought) // 2
    deltas: list[tuple[dict[str, Any], str | None]] = [
        ({"reasoning_content": part}, None) for part in (thought[:half], thought[half:])
    ]
    deltas += [({"tool_calls": [{"index": 0, **call}]}, None), ({}, "tool_calls")]
    events = [
        b"data: "
        + json.dumps({"choices": [{"index": 0, "delta": delta, "finish_reason": end}]}).encode()
        + b"\n\n"
        for delta, end in deltas
    ]
    message = {**said, "tool_calls": [call]}
    whole = {"choices": [{"index": 0, "message": message, "finish_reason": "tool_calls"}]}
    provider.events = lambda *_: [*events, b"data: [DONE]\n\n"]  # type: ignore[method-assign]
    provider.whole = lambda _: json.dumps(whole).encode()  # type: ignore[method-assign]


def first_turn(api: str, stream: bool) -> tuple[str, dict[str, Any]]:
    asked: dict[str, Any] = {"model": "alpha", "stream": stream}
    user = [{"role": "user", "content": "Hi"}]
    if api == "messages":
        tool = {"name": "f", "input_schema": {"type": "object"}}
        return "/v1/messages", {**asked, "messages": user, "max_tokens": 99, "tools": [tool]}
    if api == "responses":
        tools = [{"type": "function", **TOOL}]
        return "/v1/responses", {**asked, "input": user, "tools": tools}
    tools = [{"type": "function", "function": TOOL}]
    return "/v1/chat/completions", {**asked, "messages": user, "tools": tools}


def second_turn(api: str, first: dict[str, Any], call_id: str) -> dict[str, Any]:
    """The next request of a client that shows neither thoughts nor unknown fields."""
    if api == "messages":
        use = {"type": "tool_use", "id": call_id, "name": "f", "input": {}}
        result = {"type": "tool_result", "tool_use_id": call_id, "content": "x"}
        turns = [{"role": "assistant", "content": [use]}, {"role": "user", "content": [result]}]
        return {**first, "messages": [*first["messages"], *turns]}
    if api == "responses":
        call = {"type": "function_call", "call_id": call_id, "name": "f", "arguments": "{}"}
        output = {"type": "function_call_output", "call_id": call_id, "output": "x"}
        return {**first, "input": [*first["input"], call, output]}
    call = {"id": call_id, "type": "function", "function": {"name": "f", "arguments": "{}"}}
    turns = [
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": call_id, "content": "x"},
    ]
    return {**first, "messages": [*first["messages"], *turns]}


def call_id_in(body: bytes, api: str) -> str:
    mark = {"messages": b'"id":"toolu_', "responses": b'"call_id":"', "chat": b'"id"'}[api]
    rest = body.replace(b'": "', b'":"').partition(mark.removesuffix(b'"'))[2]
    if api == "chat":
        rest = body[body.index(b"call_0") :]
        return "call_0" if rest else ""
    found = rest.lstrip(b':"').partition(b'"')[0].decode()
    return "toolu_" + found if api == "messages" else found


@pytest.mark.parametrize("api", ["chat", "messages", "responses"])
@pytest.mark.parametrize("stream", [True, False])
async def test_a_provider_gets_back_what_it_wants(api: str, stream: bool) -> None:
    """A provider gets its thought signature and its reasoning back by the id of the call, though
    clients do not send them.
    """
    async with open_provider() as fake:
        calling(fake)
        model, tables = chain_of({"p0": fake})
        async with (
            open_gateway(models=[model], providers=tables) as gateway,
            served(edge_app(edge_of(gateway.services))) as url,
        ):
            path, first = first_turn(api, stream)
            reply = await ask(url, "POST", path, msgspec.json.encode(first))
            assert reply.status == 200
            second = second_turn(api, first, call_id_in(reply.body, api))
            reply = await ask(url, "POST", path, msgspec.json.encode(second))
            assert reply.status == 200
    (message,) = [m for m in fake.requests[1].body["messages"] if m["role"] == "assistant"]
    assert message["tool_calls"][0]["id"] == "call_0"
    assert message["tool_calls"][0]["extra_content"] == SIGNED
    assert message["reasoning_content"] == "Hm, f."
    # The id that the provider repeats in its second answer is another one for the client.
    assert b'call_0"' not in reply.body.partition(b"output")[2] or api == "responses"


def test_only_the_upstream_that_sent_it_gets_it() -> None:
    """Only the upstream that sent it gets it back, and only for the same client."""
    kept = KeptCalls()
    kept.note("k", "far", CallsMade((("a", {"x": 1}), ("b", {})), "Hm.", "reasoning"), str)
    call = {"id": "a", "function": {}}
    raw: dict[str, Any] = {"messages": [{"role": "assistant", "tool_calls": [call]}]}
    assert kept.restored(raw, "k", "near", str) is raw
    assert kept.restored(raw, "other", "far", str) is raw
    (message,) = kept.restored(raw, "k", "far", str)["messages"]
    assert message["tool_calls"] == [{**call, "x": 1}]
    assert message["reasoning"] == "Hm."
    (message,) = kept.restored(raw, "k", "far", str, "none")["messages"]
    assert "reasoning" not in message
    assert raw == {"messages": [{"role": "assistant", "tool_calls": [call]}]}


def thought_of(kept: KeptCalls, call_id: str, conversation: str) -> object:
    """The thought that goes back with a call of that id."""
    raw = {"messages": [{"role": "assistant", "tool_calls": [{"id": call_id, "function": {}}]}]}
    (message,) = kept.restored(raw, "k", "far", lambda: conversation)["messages"]
    return message.get("reasoning_content")


@pytest.mark.parametrize(
    "call_id", ["call_0", "functions.web2:0", "functionsexec5", "0", "call", ""]
)
def test_an_id_that_counts_means_the_call_of_its_conversation(call_id: str) -> None:
    """Servers that count calls give the first one of each conversation the same id. The thought of
    another conversation is never put into the history, nor that of an answer before this one.
    """
    kept = KeptCalls()
    for name in ("one", "two"):
        made = CallsMade(((call_id, {}),), f"Thought of {name}.")
        kept.note("k", "far", made, lambda name=name: name)  # type: ignore[misc] # bound at once
    assert thought_of(kept, call_id, "one") == "Thought of one."
    assert thought_of(kept, call_id, "two") == "Thought of two."
    assert thought_of(kept, call_id, "three") is None
    kept.note("k", "far", CallsMade(((call_id, {}),), "Anew."), lambda: "one")
    assert thought_of(kept, call_id, "one") == "Anew."
    kept.note("k", "far", CallsMade(((call_id, {}),)), lambda: "one")
    assert thought_of(kept, call_id, "one") is None
    assert thought_of(kept, call_id, "two") == "Thought of two."


@pytest.mark.parametrize(
    "call_id", ["call_00_a1B2c3D4e5F6", "chatcmpl-tool-9f3ac12", "a1b2c3d45", "call_9x8"]
)
def test_an_id_of_its_own_needs_no_conversation(call_id: str) -> None:
    """An id that no other call has finds its thought whatever the conversation is called now, and
    no name is made.
    """
    kept = KeptCalls()
    kept.note("k", "far", CallsMade(((call_id, {}),), "Hm."), pytest.fail)
    assert thought_of(kept, call_id, "renamed") == "Hm."


async def test_conversations_with_the_same_ids_keep_their_own_thoughts() -> None:
    """Over HTTP: two conversations at a provider that calls each first call `call_0`."""
    async with open_provider() as fake:
        model, tables = chain_of({"p0": fake})
        async with (
            open_gateway(models=[model], providers=tables) as gateway,
            served(edge_app(edge_of(gateway.services))) as url,
        ):
            seconds = []
            for said in ("Hm, f.", "Well, f."):
                calling(fake, said)
                path, first = first_turn("chat", False)
                first["messages"] = [{"role": "user", "content": said}]
                assert (await ask(url, "POST", path, msgspec.json.encode(first))).status == 200
                seconds.append(second_turn("chat", first, "call_0"))
            for second in seconds:
                await ask(url, "POST", path, msgspec.json.encode(second))
    thoughts = [one.body["messages"][1]["reasoning_content"] for one in fake.requests[2:]]
    assert thoughts == ["Hm, f.", "Well, f."]


@pytest.mark.parametrize(
    ("field", "names"),
    [(None, {"reasoning_content"}), ("reasoning", {"reasoning"}), ("none", set[str]())],
)
def test_reasoning_has_one_name(field: str | None, names: set[str]) -> None:
    """Some servers refuse a message with both."""
    message = {"role": "assistant", "content": "x", "reasoning_content": "a", "reasoning": "a"}
    (changed,) = KeptCalls().restored({"messages": [message]}, "k", "far", str, field)["messages"]
    assert changed.keys() - {"role", "content"} == names


@pytest.mark.parametrize("field", [None, "reasoning"])
@pytest.mark.parametrize("nothing", ["", None])
def test_a_name_that_says_nothing_replaces_none_that_does(
    nothing: str | None, field: str | None
) -> None:
    """An empty field does not replace or join a filled one of the other name: a server that refuses
    both names refuses a null too.
    """
    said = {"role": "assistant", "content": "x", "reasoning_content": nothing, "reasoning": "a"}
    (changed,) = KeptCalls().restored({"messages": [said]}, "k", "far", str, field)["messages"]
    assert changed == {"role": "assistant", "content": "x", "reasoning": "a"}
    silent = {"role": "assistant", "content": "x", "reasoning_content": nothing, "reasoning": None}
    (changed,) = KeptCalls().restored({"messages": [silent]}, "k", "far", str)["messages"]
    assert len(changed.keys() & {"reasoning_content", "reasoning"}) < 2


def test_a_provider_without_reasoning_gets_no_field_that_it_may_refuse() -> None:
    """What clients send back of an answer of another upstream: Mistral refuses the conversation."""
    call = {"id": "a", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    sound = {"role": "assistant", "content": "x", "tool_calls": [call]}
    nothing = {"refusal": None, "annotations": None, "audio": None, "function_call": None}
    thoughts = {"reasoning_content": "a", "reasoning_details": [{"text": "a"}], "thinking": "a"}
    messages = [{**sound, **nothing, **thoughts}, {**sound, "refusal": "No."}]
    restored = KeptCalls().restored({"messages": messages}, "k", "far", str, "none")["messages"]
    assert restored == [sound, {**sound, "refusal": "No."}]
    assert (
        KeptCalls().restored({"messages": messages[:1]}, "k", "far", str)["messages"]
        == messages[:1]
    )


@pytest.mark.parametrize(
    ("url", "field"),
    [
        ("https://api.mistral.ai/v1", "none"),
        ("https://api.cerebras.ai/v1", "reasoning"),
        ("https://api.groq.com/openai/v1", "reasoning"),
        ("https://notgroq.com/v1", None),
        ("http://127.0.0.1:8000/v1", None),
    ],
)
def test_known_providers_have_a_name_of_earlier_reasoning(url: str, field: str | None) -> None:
    """Any other name ends the conversation there with a 400 or 422."""
    assert field_at(url) == field


@pytest.mark.parametrize(
    ("url", "switch"),
    [
        ("https://api.deepseek.com/v1", "thinking"),
        ("https://openrouter.ai/api/v1", "reasoning"),
        ("https://dashscope-intl.aliyuncs.com/compatible-mode/v1", "enable_thinking"),
        ("https://notdeepseek.com/v1", "none"),
    ],
)
def test_known_providers_have_a_switch(url: str, switch: str) -> None:
    """Known providers have a switch of thinking, found by their host."""
    assert switch_at(url) == switch


@pytest.mark.parametrize(
    ("switch", "fields"),
    [
        ("thinking", {"thinking": {"type": "disabled"}}),
        ("enable_thinking", {"enable_thinking": False}),
        ("reasoning", {"reasoning": {"enabled": False}}),
        (
            "chat_template_kwargs",
            {"chat_template_kwargs": {"enable_thinking": False, "thinking": False}},
        ),
        ("reasoning_effort", {"reasoning_effort": "none"}),
        ("none", {}),
    ],
)
async def test_messages_switch_thinking_in_the_upstream_s_way(
    switch: str, fields: dict[str, Any]
) -> None:
    """Messages switch thinking in the upstream's way only if the client says anything about it; the
    effort is sent along.
    """
    assert with_switch({"a": 1}, switch) == {"a": 1}
    async with open_provider() as fake:
        model, tables = chain_of({"p0": fake})
        tables = {
            name: msgspec.structs.replace(table, thinking_switch=switch)
            for name, table in tables.items()
        }
        async with (
            open_gateway(models=[model], providers=tables) as gateway,
            served(edge_app(edge_of(gateway.services))) as url,
        ):
            path, asked = first_turn("messages", False)
            asked["thinking"] = {"type": "disabled"}
            await ask(url, "POST", path, msgspec.json.encode(asked))
            asked["thinking"] = {"type": "adaptive"}
            asked["output_config"] = {"effort": "high"}
            await ask(url, "POST", path, msgspec.json.encode(asked))
    switches = ("thinking", "enable_thinking", "reasoning", "chat_template_kwargs")
    off, on = (
        {k: v for k, v in one.body.items() if k in (*switches, "reasoning_effort")}
        for one in fake.requests
    )
    assert off == fields
    assert on["reasoning_effort"] == "high"
