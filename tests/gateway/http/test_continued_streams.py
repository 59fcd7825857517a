"""Streams that are cut and go on at another upstream, through three APIs."""

import json
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import msgspec
import pytest

from gateway.app import edge_of
from gateway.http.routes import edge_app
from protocol.messages import Relay, RelayData, RelayEnd, RelayHead, RelayTaken
from tests.fakes.provider import STORY, FakeProvider, StoryProvider, open_provider
from tests.fakes.running_gateway import RunningGateway, chain_of, open_gateway
from tests.fakes.served import Reply, ask, served
from tests.fakes.worker import FakeWorker, open_worker
from tests.gateway.http.test_ends_of_others import APIS, each_api, last_of
from tests.gateway.turn.test_relayed_chat import TextWorker

ENDS = {"chat": "stop", "messages": "end_turn", "responses": "completed"}
USAGE = {"prompt_tokens": 100, "completion_tokens": 5, "total_tokens": 105}
CALL = {"index": 0, "id": "a", "type": "function", "function": {"name": "f", "arguments": "{"}}


class StoryWorker(TextWorker):
    """A text-level engine that tells the story of `teller`, and breaks off behind three chunks of
    an answer that it begins, of any if it `always_cuts`. It says that it goes on in `form`.
    """

    def __init__(self, name: str, form: str | None, *, always_cuts: bool = False) -> None:
        super().__init__(name)
        forms = () if form is None else (f"continues:{form}",)
        self.facts = msgspec.structs.replace(self.facts, capabilities=forms)
        self.teller = StoryProvider()
        self.always_cuts = always_cuts
        self.bodies: list[dict[str, Any]] = []

    def _answer(self, relay: Relay) -> None:
        body = json.loads(relay.data)
        if not body.get("stream"):
            super()._answer(relay)
            return
        self.bodies.append(body)
        self.teller.begin(body)
        ids, at = (relay.request_id, relay.attempt), 0
        self.say(RelayTaken(*ids, len(relay.data)))
        self.say(RelayHead(*ids, 200, (("content-type", "text/event-stream"),)))
        is_begun = body["messages"][-1]["role"] == "assistant"
        is_cut = self.always_cuts or not is_begun
        for data in self.teller.events("there", USAGE)[: 3 if is_cut else None]:
            self.say(RelayData(*ids, at, data))
            at += len(data)
        self.say(RelayEnd(*ids, at, "broken" if is_cut else None))


@asynccontextmanager
async def gateway_of(
    providers: dict[str, tuple[FakeProvider, str]], *workers: FakeWorker
) -> AsyncIterator[tuple[RunningGateway, str]]:
    """A gateway with these providers, each with its `continues`, and these workers; its address."""
    async with AsyncExitStack() as stack:
        for fake, _ in providers.values():
            await stack.enter_async_context(open_provider(fake))
        model, tables = chain_of({name: fake for name, (fake, _) in providers.items()})
        tables = {
            name: msgspec.structs.replace(table, continues=providers[name][1])
            for name, table in tables.items()
        }
        gateway = await stack.enter_async_context(
            open_gateway(models=[model], providers=tables, resume_wait_s=1.0)
        )
        for worker in workers:
            await stack.enter_async_context(open_worker(gateway.address, worker))
        if workers:
            await gateway.wait_workers(len(workers))
            await gateway.wait_local()
        edge = edge_app(edge_of(gateway.services))
        yield gateway, await stack.enter_async_context(served(edge))


async def streamed(url: str, api: str, **more: Any) -> Reply:
    path, fields = APIS[api]
    body = msgspec.json.encode({"model": "alpha", "stream": True, **fields, **more})
    return await ask(url, "POST", path, body)


def text_of(api: str, reply: Reply) -> str:
    """All visible text of a stream."""
    lines = [line[6:] for line in reply.body.split(b"\n") if line.startswith(b"data: {")]
    found = ""
    for event in map(json.loads, lines):
        if api == "chat":
            found += "".join(one["delta"].get("content") or "" for one in event.get("choices", ()))
        elif api == "messages":
            found += event.get("delta", {}).get("text", "")
        elif event["type"] == "response.output_text.delta":
            found += event["delta"]
    return found


@each_api
@pytest.mark.parametrize("form", ["continue_final_message", "prefix", "last_message"])
@pytest.mark.parametrize("cut_after", [1, 7, 8, 9, 12])
async def test_a_provider_goes_on(api: str, form: str, cut_after: int) -> None:
    """A provider goes on in a word, behind a paragraph, within an indent: the text is whole, and
    ends well.
    """
    first, second = StoryProvider(cut_after=cut_after), StoryProvider()
    async with gateway_of({"p0": (first, "off"), "p1": (second, form)}) as (gateway, url):
        reply = await streamed(url, api)
        assert text_of(api, reply) == STORY
        assert last_of(api, reply, stream=True) == ENDS[api]
        asked = second.requests[0].body
        assert STORY.startswith(asked["messages"][-1]["content"])
        assert asked.get("continue_final_message") is (form == "continue_final_message" or None)
        counters = gateway.services.counters
        assert (counters.sequences_resumed, counters.cloud_cut) == (1, 1)


@each_api
@pytest.mark.parametrize("continues", ["off", "auto"])
async def test_a_provider_that_does_not_is_not_asked(api: str, continues: str) -> None:
    """One clear error, behind what came."""
    first, second = StoryProvider(cut_after=3), StoryProvider()
    async with gateway_of({"p0": (first, "prefix"), "p1": (second, continues)}) as (_, url):
        reply = await streamed(url, api)
        assert text_of(api, reply) == "Once there"
        assert reply.body.count(b"upstream connection lost") == 1
        assert last_of(api, reply, stream=True) in ("error", "failed")
        assert not second.requests


def deltas(*given: dict[str, Any]) -> Callable[..., list[bytes]]:
    choices = [{"index": 0, "delta": delta, "finish_reason": None} for delta in given]
    chunks = [json.dumps({"id": "one", "choices": [choice]}).encode() for choice in choices]
    return lambda *_: [*(b"data: " + one + b"\n\n" for one in chunks), b"data: cut"]


@each_api
@pytest.mark.parametrize(
    ("given", "resumes"),
    [
        ([{"reasoning_content": "Hm"}], False),
        ([{"content": "Once"}, {"tool_calls": [CALL]}], False),
        ([{"tool_calls": [CALL]}], False),
        ([{"reasoning_content": "Hm"}, {"content": "Once"}], True),
        ([{"content": "Once"}], True),
    ],
    ids=["thoughts", "call behind text", "call", "text behind thoughts", "text"],
)
async def test_the_places_of_a_cut(api: str, given: list[Any], resumes: bool) -> None:
    """A stream that is cut within thoughts or a call is not continued; visible thoughts are sent
    along otherwise.
    """
    first, second = FakeProvider(), StoryProvider()
    first.events = deltas(*given)  # type: ignore[method-assign]
    async with gateway_of({"p0": (first, "off"), "p1": (second, "prefix")}) as (_, url):
        reply = await streamed(url, api)
        if not resumes:
            assert not second.requests
            assert b"upstream connection lost" in reply.body
            return
        assert text_of(api, reply) == STORY
        message = second.requests[0].body["messages"][-1]
        assert message.get("reasoning_content") == given[0].get("reasoning_content")


@each_api
async def test_before_content_the_next_one_answers(api: str) -> None:
    """Before content the next upstream answers, whether or not it can continue a begun answer."""
    first, second = StoryProvider(cut_after=0), StoryProvider()
    async with gateway_of({"p0": (first, "off"), "p1": (second, "off")}) as (_, url):
        reply = await streamed(url, api)
        assert text_of(api, reply) == STORY
        assert second.requests[0].body["messages"][-1]["role"] == "user"


@each_api
async def test_another_worker_goes_on(api: str) -> None:
    """Two text-level engines that break streams off, and go on with each other's."""
    workers = [StoryWorker(name, "continue_final_message") for name in ("one", "other")]
    async with gateway_of({}, *workers) as (gateway, url):
        reply = await streamed(url, api)
        assert text_of(api, reply) == STORY
        assert last_of(api, reply, stream=True) == ENDS[api]
        (first,), (second,) = (worker.bodies for worker in workers)
        if first["messages"][-1]["role"] == "assistant":
            first, second = second, first
        assert second["messages"][:-1] == first["messages"]
        assert second["messages"][-1] == {"role": "assistant", "content": "Once there"}
        assert second["continue_final_message"] is True
        recent = gateway.services.feed.recent
        (resumed,) = [json.loads(one.json) for one in recent if one.kind == "resumed"]
        assert (resumed["model"], resumed["output_tokens"]) == ("alpha", 3)


@each_api
async def test_a_worker_that_does_not_is_not_asked(api: str) -> None:
    """The one error; a provider that goes on is asked, and not the worker."""
    bad, other = (StoryWorker(name, None) for name in ("bad", "other"))
    async with gateway_of({}, bad, other) as (_, url):
        reply = await streamed(url, api)
        assert text_of(api, reply) == "Once there"
        assert b"upstream connection lost" in reply.body
        assert len(bad.bodies + other.bodies) == 1
    far = StoryProvider()
    bad = StoryWorker("bad", "last_message")
    async with gateway_of({"far": (far, "last_message")}, bad) as (_, url):
        reply = await streamed(url, api)
        assert text_of(api, reply) == STORY
        assert len(far.requests) == 1


async def test_all_break_off() -> None:
    """Three parts at most, then the error; every part is where it belongs."""
    workers = [StoryWorker(f"w{at}", "last_message", always_cuts=True) for at in range(4)]
    async with gateway_of({}, *workers) as (_, url):
        reply = await streamed(url, "chat")
        assert text_of("chat", reply) == STORY[: len(text_of("chat", reply))]
        assert len(text_of("chat", reply)) > len("Once there was")
        assert b"upstream connection lost" in reply.body
        assert sum(len(worker.bodies) for worker in workers) == 3


async def test_a_mark_and_usage_that_adds_up() -> None:
    """One id, the mark once, and the total of the second worker's count."""
    workers = [StoryWorker(name, "last_message") for name in ("one", "other")]
    async with gateway_of({}, *workers) as (gateway, url):
        options = {"include_usage": True}
        reply = await streamed(url, "chat", stream_options=options, max_tokens=50)
        lines = [line[6:] for line in reply.body.split(b"\n") if line.startswith(b"data: {")]
        chunks = list(map(json.loads, lines))
        (mark,) = [chunk["x_herma_resumed"] for chunk in chunks if "x_herma_resumed" in chunk]
        assert mark in ("worker:one", "worker:other")
        (usage,) = [chunk["usage"] for chunk in chunks if chunk.get("usage")]
        assert usage == {"prompt_tokens": 97, "completion_tokens": 8, "total_tokens": 105}
        assert reply.body.count(b"[DONE]") == 1
        asked = sorted(worker.bodies[-1]["max_tokens"] for worker in workers)
        assert asked == [47, 50]
        assert gateway.services.counters.completion_tokens == 8


async def test_requests_that_nobody_continues() -> None:
    """Log-probabilities, choices and grammars end in the one error."""
    for more in ({"logprobs": True}, {"n": 2}, {"response_format": {"type": "json_object"}}):
        first, second = StoryProvider(cut_after=3), StoryProvider()
        async with gateway_of({"p0": (first, "off"), "p1": (second, "prefix")}) as (_, url):
            reply = await streamed(url, "chat", **more)
            assert b"upstream connection lost" in reply.body, more
            assert not second.requests


@each_api
async def test_one_that_refuses_to_go_on(api: str) -> None:
    """The client sees the cut, not the refusal of a request that is not its own."""
    first, second = StoryProvider(cut_after=3), FakeProvider(status=400)
    async with gateway_of({"p0": (first, "off"), "p1": (second, "prefix")}) as (_, url):
        reply = await streamed(url, api)
        assert text_of(api, reply) == "Once there"
        assert reply.body.count(b"upstream connection lost") == 1
        assert len(second.requests) == 1


@each_api
@pytest.mark.parametrize("end", ["its own", "a stop", "its bound"])
async def test_what_nobody_counts_is_estimated_behind_a_cut_too(api: str, end: str) -> None:
    """However the answer ends at the second upstream."""
    more: dict[str, Any] = {"stream_options": {"include_usage": True}} if api == "chat" else {}
    if end == "its bound":
        more["max_output_tokens" if api == "responses" else "max_tokens"] = 7
    elif end == "a stop":
        more["stop_sequences" if api == "messages" else "stop"] = ["."]
    first, second = StoryProvider(cut_after=7), StoryProvider()
    async with gateway_of({"p0": (first, "off"), "p1": (second, "prefix")}) as (_, url):
        reply = await streamed(url, api, **more)
    assert last_of(api, reply, stream=True) != "error"
    told = [line[6:] for line in reply.body.split(b"\n") if line.startswith(b"data: {")]
    events = [json.loads(line) for line in told]
    usages = [one.get("usage") or one.get("response", {}).get("usage") for one in events]
    usage = [one for one in usages if one][-1]
    assert usage["is_estimate"] is True
    assert usage["prompt_tokens" if api == "chat" else "input_tokens"] > 0
    assert usage["completion_tokens" if api == "chat" else "output_tokens"] >= 3


@each_api
async def test_a_filter_that_ends_what_goes_on_leaves_a_whole_stream(api: str) -> None:
    """A stream that a filter ends after it was continued is whole. No upstream counts tokens, so
    the end waits for an estimate.
    """
    first, second = StoryProvider(cut_after=7), StoryProvider(finish="content_filter")
    async with gateway_of({"p0": (first, "off"), "p1": (second, "prefix")}) as (_, url):
        reply = await streamed(url, api)
    assert text_of(api, reply) == STORY
    ends = {"chat": "content_filter", "messages": "refusal", "responses": "content_filter"}
    assert last_of(api, reply, stream=True) == ends[api]
    if api == "chat":
        assert reply.body.endswith(b"data: [DONE]\n\n")
