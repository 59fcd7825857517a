"""Who answers a stream whose head left before anybody did."""

from typing import Any

import msgspec
import pytest
import trio
from starlette.types import ASGIApp
from trio.testing import MockClock

from gateway.api.errors import connection_lost
from gateway.api.events import (
    ChoiceFinished,
    Failed,
    Started,
    TextDelta,
    UpstreamBody,
    UpstreamChunk,
)
from gateway.http.routes import edge_app
from tests.fakes.asgi import ANSWER, STARTED, USAGE, Exchange, Script, chat_body, scripted_edge

HERMA = {
    "worker": "gpu0",
    "cached_tokens": 64,
    "route": "prefix 64 of 70",
    "served_by": "worker",
}
FAR = Started("cloud:far", "", 0, "no worker of alpha is ready", "big")


async def _answer(*steps: Any, **fields: Any) -> Exchange:
    return await _exchange(edge_app(scripted_edge(Script(*steps))), **fields)


async def _exchange(app: ASGIApp, **fields: Any) -> Exchange:
    body = chat_body(**fields)
    exchange = Exchange(app, body=body)
    return await exchange.run()


HEAD = {"id": "up-1", "object": "chat.completion.chunk", "created": 5, "model": "big"}
ROLE = {"role": "assistant", "content": ""}
DONE = b"data: [DONE]\n\n"


def _chunk(delta: dict[str, Any], finish: str | None = None, **more: Any) -> bytes:
    """A chunk of a provider."""
    choice = {"index": 0, "delta": delta, "finish_reason": finish}
    return b"data: " + msgspec.json.encode({**HEAD, "choices": [choice], **more}) + b"\n\n"


THEIRS = _chunk(ROLE) + _chunk({"content": "a"}, extra=[1]) + _chunk({}, "stop") + DONE


def _heads(exchange: Exchange) -> set[tuple[Any, ...]]:
    """The heads of all chunks."""
    chunks = [event for event in exchange.events if event != "[DONE]"]
    return {tuple(one[name] for name in HEAD) for one in chunks}


def _told(exchange: Exchange) -> list[Any]:
    """What each event says of who answers, in order; None for nothing."""
    return [event.get("herma") for event in exchange.events if event != "[DONE]"]


@pytest.mark.parametrize("include_usage", [True, False])
async def test_the_next_chunk_tells_what_the_head_could_not(
    include_usage: bool, autojump_clock: MockClock
) -> None:
    """An empty delta, as in every silence, before the first content; the usage chunk, for those
    who want it, is as ever.
    """
    exchange = await _answer(25.0, *ANSWER, stream_options={"include_usage": include_usage})
    assert "x-herma-served-by" not in exchange.head
    last = [HERMA] if include_usage else []
    assert _told(exchange) == [None, None, HERMA, None, None, None, *last]
    (choice,) = exchange.events[2]["choices"]
    assert choice == {
        "index": 0,
        "delta": {"content": ""},
        "logprobs": None,
        "finish_reason": None,
    }
    envelope = {name: exchange.events[0][name] for name in ("id", "object", "created", "model")}
    assert {**envelope, "choices": [choice], "herma": HERMA} == exchange.events[2]


async def test_a_head_that_tells_is_not_repeated(autojump_clock: MockClock) -> None:
    """A head that names the worker is not repeated, and a stream does not name the workers that
    continue it.
    """
    again = msgspec.structs.replace(STARTED, worker="gpu1")
    for steps in ((STARTED, 12.0, *ANSWER[1:]), (*ANSWER[:2], 12.0, again, *ANSWER[2:])):
        exchange = await _answer(*steps)
        assert exchange.head["x-herma-worker"] == "gpu0"
        assert not any(_told(exchange))
    exchange = await _answer(12.0, *ANSWER[:2], again, *ANSWER[2:])
    assert [told for told in _told(exchange) if told] == [HERMA]


@pytest.mark.parametrize("in_head", [True, False])
async def test_whoever_answers_in_the_end_is_told(in_head: bool, autojump_clock: MockClock) -> None:
    """Until there is content another may take over from whom the client was told of, a provider
    too; the same worker once more is no news.
    """
    wait = () if in_head else (12.0,)
    again = msgspec.structs.replace(STARTED, cached_tokens=0)
    steps = (*wait, STARTED, 12.0, again, 12.0, FAR, Failed(connection_lost()))
    exchange = await _answer(*steps)
    assert exchange.head.get("x-herma-worker") == ("gpu0" if in_head else None)
    told = [HERMA["served_by"]] * (not in_head) + ["cloud:far"]
    assert [one["served_by"] for one in _told(exchange) if one] == told


async def test_a_provider_is_named_before_its_own_bytes(autojump_clock: MockClock) -> None:
    """A provider is named before its own chunks, which have the head of ours then, and say no role
    again.
    """
    usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
    last = msgspec.json.encode({"id": "up-1", "choices": [], "usage": usage})  # no more of a head
    theirs = THEIRS.removesuffix(DONE) + b"data: " + last + b"\n\n" + DONE
    wants = {"include_usage": True}
    exchange = await _answer(12.0, FAR, UpstreamChunk(theirs), stream_options=wants)
    _, told = _told(exchange)[:2]
    assert (told["served_by"], told["worker"]) == ("cloud:far", "")
    *events, done = exchange.events
    ((own_id, *rest),) = _heads(exchange)
    assert (own_id, rest) == (events[0]["id"], ["chat.completion.chunk", 1_800_000_000, "alpha"])
    assert own_id != HEAD["id"]
    assert events.pop()["usage"] == usage
    deltas = [event["choices"][0]["delta"] for event in events]
    assert deltas == [ROLE, {"content": ""}, {"content": ""}, {"content": "a"}, {}]
    assert (events[3]["extra"], events[4]["choices"][0]["finish_reason"]) == ([1], "stop")
    assert done == "[DONE]"


@pytest.mark.parametrize("comment", [None, b": PROCESSING\n\n"])
async def test_a_keep_alive_within_a_providers_stream_has_its_head(
    comment: bytes | None, autojump_clock: MockClock
) -> None:
    """The provider's bytes pass as they are."""
    first, *rest = THEIRS.split(b"\n\n")[:-1]
    steps: list[Any] = [FAR, UpstreamChunk(first + b"\n\n")]
    steps += [4.0, UpstreamChunk(comment)] if comment else []
    for part in rest:
        steps += [12.0, UpstreamChunk(part + b"\n\n")]
    exchange = await _answer(*steps)
    events = [event + b"\n\n" for event in exchange.content.split(b"\n\n")[:-1]]
    told = [event for event in events if not event.startswith(b":")]
    assert b"".join(event for event in told if b'"logprobs"' not in event) == THEIRS
    assert len(told) > 4
    chunks = [msgspec.json.decode(event[6:]) for event in told if event != DONE]
    assert {tuple(one[name] for name in HEAD) for one in chunks} == {tuple(HEAD.values())}


async def test_a_provider_that_comes_while_the_head_is_sent_is_named_behind_the_role(
    autojump_clock: MockClock,
) -> None:
    """The first event of ours has the role, however slowly the client takes the head."""
    steps = (12.0, FAR, UpstreamChunk(THEIRS))
    app, body = edge_app(scripted_edge(Script(*steps))), chat_body()
    exchange = Exchange(app, body=body)
    exchange.reads = False
    async with trio.open_nursery() as nursery:
        nursery.start_soon(exchange.run)
        await trio.sleep(15.0)
        exchange.resume_reading()
    assert exchange.events[0]["choices"][0]["delta"]["role"] == "assistant"
    assert exchange.events[1]["herma"]["served_by"] == "cloud:far"


@pytest.mark.parametrize(
    "end", [Failed(connection_lost()), UpstreamBody(422, b'{"error":{"message":"x"}}')]
)
async def test_whoever_fails_late_is_named_too(end: Any, autojump_clock: MockClock) -> None:
    """The error is the last event all the same."""
    exchange = await _answer(12.0, FAR, end)
    assert [told and told["served_by"] for told in _told(exchange)] == [None, "cloud:far", None]
    assert "error" in exchange.events[-1]


async def test_of_several_choices_one_is_enough(autojump_clock: MockClock) -> None:
    """All run on one worker."""
    answer = (STARTED, TextDelta(1, "b"), TextDelta(0, "a"), ChoiceFinished(0, "stop"))
    exchange = await _answer(12.0, *answer, ChoiceFinished(1, "stop"), USAGE, n=2)
    assert [told for told in _told(exchange) if told] == [HERMA]


async def test_it_is_no_content(autojump_clock: MockClock) -> None:
    """The first token is late by what its worker takes for it."""
    app = edge_app(scripted_edge(Script(12.0, STARTED, 20.0, *ANSWER[1:])))
    await _exchange(app)
    metrics = await Exchange(app, method="GET", path="/metrics").run()
    lines = metrics.content.decode().splitlines()
    assert 'herma_first_token_seconds_bucket{le="30.0",model="alpha"} 0.0' in lines
    assert 'herma_first_token_seconds_bucket{le="+Inf",model="alpha"} 1.0' in lines


async def test_a_providers_raw_completion_has_the_head_of_ours(autojump_clock: MockClock) -> None:
    choice = {"index": 0, "text": "a", "finish_reason": "stop"}
    chunk = {**HEAD, "object": "text_completion", "choices": [choice]}
    data = UpstreamChunk(b"data: " + msgspec.json.encode(chunk) + b"\n\n" + DONE)
    app = edge_app(scripted_edge(Script(12.0, FAR, data)))
    body = msgspec.json.encode({"model": "alpha", "prompt": "Hi", "stream": True})
    exchange = Exchange(app, body=body)
    exchange.path = "/v1/completions"
    await exchange.run()
    assert {head[3] for head in _heads(exchange)} == {"alpha"}
    assert len(_heads(exchange)) == 1
    assert [event["choices"][0]["text"] for event in exchange.events[:-1]] == ["", "a"]


async def test_raw_completions_tell_it_in_their_own_form(autojump_clock: MockClock) -> None:
    """A chunk without text."""
    app = edge_app(scripted_edge(Script(12.0, *ANSWER)))
    body = msgspec.json.encode({"model": "alpha", "prompt": "Hi", "stream": True})
    exchange = Exchange(app, body=body)
    exchange.path = "/v1/completions"
    await exchange.run()
    first = exchange.events[0]
    assert (first["object"], first["herma"]) == ("text_completion", HERMA)
    assert first["choices"][0]["text"] == ""
