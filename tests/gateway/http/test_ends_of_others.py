"""Answers of providers that do not end well, through three APIs, streamed and whole."""

import json
from typing import Any

import msgspec
import pytest

from gateway.app import edge_of
from gateway.http.routes import edge_app
from tests.fakes.provider import FakeProvider, open_provider
from tests.fakes.responses_checker import check_responses
from tests.fakes.running_gateway import chain_of, open_gateway
from tests.fakes.served import Reply, ask, served

APIS = {
    "chat": ("/v1/chat/completions", {"messages": [{"role": "user", "content": "Hi"}]}),
    "messages": (
        "/v1/messages",
        {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 99},
    ),
    "responses": ("/v1/responses", {"input": "Hi"}),
}
each_api = pytest.mark.parametrize("api", sorted(APIS))
each_way = pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])


async def asked(api: str, *fakes: FakeProvider, stream: bool) -> Reply:
    """The answer of a gateway with these providers, in their order."""
    path, fields = APIS[api]
    async with open_provider(fakes[0]) as first, open_provider(fakes[-1]) as last:
        model, tables = chain_of({"p0": first, "p1": last} if len(fakes) > 1 else {"p0": first})
        async with (
            open_gateway(models=[model], providers=tables) as gateway,
            served(edge_app(edge_of(gateway.services))) as url,
        ):
            body = msgspec.json.encode({"model": "alpha", "stream": stream, **fields})
            return await ask(url, "POST", path, body)


def last_of(api: str, reply: Reply, *, stream: bool) -> str:
    """How the answer ends, in the words of its API, or `error`."""
    if not stream:
        if reply.status != 200:
            return "error"
        body: dict[str, Any] = reply.json
    elif reply.status != 200:
        return "error"
    else:
        datas = [line[6:] for line in reply.body.split(b"\n") if line.startswith(b"data: ")]
        told = [json.loads(data) for data in datas if data != b"[DONE]"]
        if any(event.get("error") for event in told):
            return "error"
        if api == "responses":
            body = told[-1]["response"]
        elif api == "messages":
            return str(
                next(e["delta"]["stop_reason"] for e in told if e["type"] == "message_delta")
            )
        else:
            return str(next(r for e in told for c in e["choices"] if (r := c["finish_reason"])))
    if api == "messages":
        return str(body["stop_reason"])
    if api == "chat":
        return str(body["choices"][0]["finish_reason"])
    why = body["incomplete_details"]
    return str(body["status"]) if why is None else str(why["reason"])


@each_api
@each_way
@pytest.mark.parametrize("finish", ["error", "insufficient_system_resource", "abort", "what", None])
async def test_an_end_that_is_none_is_an_error(api: str, stream: bool, finish: str | None) -> None:
    """Half an answer is never taken for a whole one. A whole one need not say why it ended."""
    reply = await asked(api, FakeProvider(finish=finish), stream=stream)
    if finish is None and not stream:
        assert reply.status == 200
        return
    assert last_of(api, reply, stream=stream) in ("error", "failed")


@each_api
@each_way
@pytest.mark.parametrize("finish", ["error", "content_filter"])
async def test_where_nothing_was_sent_the_next_one_answers(
    api: str, stream: bool, finish: str
) -> None:
    """If nothing was sent, the next provider answers, with a whole answer."""
    bad = FakeProvider(words=("",), finish=finish)
    reply = await asked(api, bad, FakeProvider(), stream=stream)
    assert reply.headers["x-herma-served-by"] == "cloud:p1"
    assert len(bad.requests) == 1
    ends = {"chat": "stop", "messages": "end_turn", "responses": "completed"}
    assert last_of(api, reply, stream=stream) == ends[api]


@each_api
@each_way
@pytest.mark.parametrize("words", [("",), ("Hello", " from")])
async def test_a_filter_is_each_api_s_refusal(
    api: str, stream: bool, words: tuple[str, ...]
) -> None:
    """When nobody else answers, and when a part was sent already."""
    reply = await asked(api, FakeProvider(words=words, finish="content_filter"), stream=stream)
    ends = {"chat": "content_filter", "messages": "refusal", "responses": "content_filter"}
    assert last_of(api, reply, stream=stream) == ends[api]


class Declining(FakeProvider):
    """A provider whose model declines, as OpenAI's do where a schema is demanded."""

    def events(self, model: str, usage: dict[str, Any] | None = None) -> list[bytes]:
        """The words are those of the refusal."""
        told = super().events(model, usage)
        return [event.replace(b'"content"', b'"refusal"') for event in told]

    def whole(self, model: str) -> bytes:
        """The words are those of the refusal."""
        told = super().whole(model)
        return told.replace(b'"content"', b'"content": null, "refusal"')


@each_way
async def test_an_answer_that_declines_is_each_api_s_refusal(stream: bool) -> None:
    """The words of a refusal are never taken for the object that the client asked for: Responses
    have a part of their own for them, Messages a reason of the end.
    """
    reply = await asked("chat", Declining(), stream=stream)
    assert (b'"refusal": "Hello' in reply.body, last_of("chat", reply, stream=stream)) == (
        True,
        "stop",
    )
    reply = await asked("messages", Declining(), stream=stream)
    assert last_of("messages", reply, stream=stream) == "refusal"
    reply = await asked("responses", Declining(), stream=stream)
    body = check_responses(reply.body).response if stream else reply.json
    assert body is not None
    (item,) = body["output"]
    assert body["status"] == item["status"] == "completed"
    assert item["content"] == [{"type": "refusal", "refusal": "Hello from afar"}]


FULL = b'{"error": {"code": 400, "type": "exceed_context_size_error", "n_prompt_tokens": 5000, "n_ctx": 4096, "message": "request (5000 tokens) exceeds the available context size (4096 tokens)"}}'  # noqa: E501


@each_api
@each_way
async def test_a_full_window_is_named_as_agents_know_it(api: str, stream: bool) -> None:
    """A full window is named in the words that agents know, so that they compress their history."""
    reply = await asked(api, FakeProvider(status=400, error_body=FULL), stream=stream)
    assert reply.status == 400
    error = reply.json["error"]
    if api == "messages":
        assert error["message"] == "prompt is too long: 5000 tokens > 4096 maximum"
    else:
        assert error["code"] == "context_length_exceeded"


@each_api
@each_way
@pytest.mark.parametrize(
    "body", [b'{"message": "No such voice."}', b'{"detail": "No such voice."}']
)
async def test_the_words_of_a_refusal_reach_the_client(api: str, stream: bool, body: bytes) -> None:
    """The words of a refusal reach the client in the form of its API, wherever they stood."""
    reply = await asked(api, FakeProvider(status=400, error_body=body), stream=stream)
    assert (reply.status, reply.json["error"]["message"]) == (400, "No such voice.")


@each_api
async def test_a_refusal_within_a_stream_is_one(api: str) -> None:
    """SGLang and LiteLLM refuse with status 200 and an error event."""
    fake = FakeProvider()
    fake.events = lambda *_: [b"data: " + FULL + b"\n\n", b"data: [DONE]\n\n"]  # type: ignore[method-assign]
    reply = await asked(api, fake, FakeProvider(), stream=True)
    assert reply.status == 400
    assert b"5000 tokens" in reply.body


@each_api
async def test_only_clients_that_ask_get_the_usage(api: str) -> None:
    """Only clients that ask get the usage, also where an upstream sends it unasked or in a chunk
    with choices.
    """
    usage = {"prompt_tokens": 9, "completion_tokens": 3, "total_tokens": 12}
    reply = await asked(api, FakeProvider(extra={"usage": usage}), stream=True)
    assert reply.status == 200
    assert (b'"usage"' in reply.body) is (api != "chat")


@each_api
async def test_what_follows_the_end_of_a_stream_is_ignored(api: str) -> None:
    """No error, and no text behind the end."""
    fake = FakeProvider()
    events = fake.events("m")
    fake.events = lambda *_: [*events, *events, b"data: {\n\n"]  # type: ignore[method-assign]
    reply = await asked(api, fake, stream=True)
    assert last_of(api, reply, stream=True) not in ("error", "failed")
    assert reply.body.count(b" afar") == reply.body.count(b"Hello from afar") + 1


@each_way
@pytest.mark.parametrize("arguments", ["x is 1", "[1]"])
async def test_messages_run_no_call_with_broken_arguments(stream: bool, arguments: str) -> None:
    """`input` is an object, and an empty one would be another call."""
    call = {"index": 0, "id": "a", "function": {"name": "f", "arguments": arguments}}
    fake = FakeProvider(words=("",), finish="tool_calls")
    told = json.loads(fake.events("m")[0][6:])
    told["choices"][0]["delta"] = {"tool_calls": [call]}
    answer = json.loads(fake.whole("m"))
    answer["choices"][0]["message"] = {"role": "assistant", "tool_calls": [call]}
    events = [b"data: " + json.dumps(told).encode() + b"\n\n", b"data: [DONE]\n\n"]
    fake.events = lambda *_: events  # type: ignore[method-assign]
    fake.whole = lambda *_: json.dumps(answer).encode()  # type: ignore[method-assign]
    assert last_of("messages", await asked("messages", fake, stream=stream), stream=stream) == (
        "error"
    )
