"""The usage of answers whose upstream reports none: an estimate that is marked as one, and no 0."""

from dataclasses import dataclass
from functools import partial
from typing import Any

import msgspec
import pytest

from config import PriceConfig
from gateway.api import chat_request
from gateway.app import edge_of
from gateway.http.routes import edge_app
from gateway.store import read_report
from gateway.turn.caller import Caller
from gateway.turn.estimated_usage import UsageEstimate
from tests.fakes.provider import FakeProvider, open_provider
from tests.fakes.running_gateway import chain_of, open_gateway, wait_until
from tests.fakes.served import ask, served
from tests.fakes.worker import FakeWorker, open_worker
from tests.gateway.turn.test_relayed_chat import StreamingWorker

TEXT = "What follows is long enough for some tokens. " * 40
MESSAGES = [{"role": "user", "content": TEXT}]
APIS: dict[str, tuple[str, dict[str, Any]]] = {
    "chat": (
        "/v1/chat/completions",
        {"messages": MESSAGES, "stream_options": {"include_usage": True}},
    ),
    "messages": ("/v1/messages", {"messages": MESSAGES, "max_tokens": 99}),
    "responses": ("/v1/responses", {"input": TEXT}),
}
WORDS = ("One", " two", " three", " four")
each_api = pytest.mark.parametrize("api", sorted(APIS))
each_way = pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])


def usage_in(body: bytes, *, stream: bool) -> list[dict[str, Any]]:
    """The last usage of each kind of event, in order."""
    if not stream:
        return [msgspec.json.decode(body)["usage"]]
    lines = [line[6:] for line in body.split(b"\n") if line.startswith(b"data: {")]
    events = [msgspec.json.decode(line) for line in lines]
    told = [event.get("usage") or event.get("response", {}).get("usage") for event in events]
    return [usage for usage in told if usage]


@each_api
@each_way
async def test_what_a_provider_does_not_count_is_estimated(api: str, stream: bool) -> None:
    """Agents compact their history by these numbers: 0 reads as an empty context."""
    path, fields = APIS[api]
    async with open_provider(FakeProvider(words=WORDS, usage=None)) as provider:
        model, tables = chain_of({"p0": provider})
        async with (
            open_gateway(models=[model], providers=tables) as gateway,
            served(edge_app(edge_of(gateway.services))) as url,
        ):
            if api == "chat" and not stream:
                fields = {"messages": MESSAGES}
            body = msgspec.json.encode({"model": "alpha", "stream": stream, **fields})
            reply = await ask(url, "POST", path, body)
    assert reply.status == 200
    if api == "chat" and not stream:  # passes as it is
        assert "usage" not in reply.json
        return
    usage = usage_in(reply.body, stream=stream)[-1]
    assert usage["is_estimate"] is True
    prompt = usage["prompt_tokens" if api == "chat" else "input_tokens"]
    answer = usage["completion_tokens" if api == "chat" else "output_tokens"]
    assert len(TEXT) // 8 < prompt < len(TEXT)
    assert 3 <= answer <= 12
    if api == "chat":
        assert reply.body.endswith(b"data: [DONE]\n\n")


@each_api
async def test_what_is_counted_is_no_estimate(api: str) -> None:
    path, fields = APIS[api]
    counted = {"prompt_tokens": 11, "completion_tokens": 3, "total_tokens": 14}
    async with open_provider(FakeProvider(words=WORDS, usage=counted)) as provider:
        model, tables = chain_of({"p0": provider})
        async with (
            open_gateway(models=[model], providers=tables) as gateway,
            served(edge_app(edge_of(gateway.services))) as url,
        ):
            body = msgspec.json.encode({"model": "alpha", "stream": True, **fields})
            reply = await ask(url, "POST", path, body)
    assert b"is_estimate" not in reply.body


@dataclass
class LateProvider(FakeProvider):
    """Counts behind its `[DONE]`, in one write with it if that `is_joined`."""

    is_joined: bool = False

    def events(self, model: str, usage: dict[str, Any] | None = None) -> list[bytes]:
        *answer, counted, done = super().events(model, usage)
        return [*answer, done + counted] if self.is_joined else [*answer, done, counted]


@each_api
@pytest.mark.parametrize("is_joined", [True, False])
async def test_what_is_counted_behind_the_end_is_told(api: str, is_joined: bool) -> None:
    """Usage that the upstream reports behind the end is passed on with its figures."""
    path, fields = APIS[api]
    counted = {"prompt_tokens": 1111, "completion_tokens": 3, "total_tokens": 1114}
    async with open_provider(
        LateProvider(words=WORDS, usage=counted, is_joined=is_joined)
    ) as provider:
        model, tables = chain_of({"p0": provider})
        async with (
            open_gateway(models=[model], providers=tables) as gateway,
            served(edge_app(edge_of(gateway.services))) as url,
        ):
            body = msgspec.json.encode({"model": "alpha", "stream": True, **fields})
            reply = await ask(url, "POST", path, body)
    usage = usage_in(reply.body, stream=True)[-1]
    assert usage["prompt_tokens" if api == "chat" else "input_tokens"] == 1111
    if api == "chat":
        assert reply.body.endswith(b"data: [DONE]\n\n")


async def test_a_text_engine_that_does_not_count() -> None:
    """The client of a text engine that does not count gets an estimate if it asks for the usage;
    the ledger has an estimate in any case.
    """
    async with open_gateway() as gateway, open_worker(gateway.address, StreamingWorker()):
        await gateway.wait_local()
        silent = await gateway.ask(stream=True)
        assert b"usage" not in silent.upstream
        told = await gateway.ask(stream=True, stream_options={"include_usage": True})
        usage = usage_in(told.upstream, stream=True)[-1]
        assert usage["is_estimate"] is True
        assert usage["completion_tokens"] >= 3
        assert gateway.services.counters.completion_tokens == 2 * usage["completion_tokens"]


async def test_with_the_tokenizer_it_is_the_count_of_a_turn() -> None:
    """The gateway has the model's own, because a worker has sent it."""
    async with open_gateway() as gateway, open_worker(gateway.address, FakeWorker()):
        await gateway.wait_state("ready")
        asked = await gateway.ask(messages=MESSAGES)
        request = chat_request({"model": "alpha", "messages": MESSAGES})
        estimate = UsageEstimate(gateway.services, request, Caller(), "alpha")
        usage = await estimate.of(asked.text)
    assert usage.prompt_tokens == asked.usage.prompt_tokens
    assert abs(usage.completion_tokens - asked.usage.completion_tokens) <= 1


async def test_an_estimate_of_another_gateway_pays_no_bill(tmp_path: Any) -> None:
    """The bill stays at its worst case."""
    estimated = {"prompt_tokens": 11, "completion_tokens": 3, "is_estimate": True}
    ledger = tmp_path / "ledger.sqlite"
    read = partial(read_report, ledger, (), "2000-01-01")
    async with open_provider(FakeProvider(words=WORDS, usage=estimated)) as provider:
        model, tables = chain_of({"p0": provider})
        price = PriceConfig(input=1.0, output=1.0)
        tables = {name: msgspec.structs.replace(one, price=price) for name, one in tables.items()}
        async with open_gateway(models=[model], providers=tables, ledger=ledger) as gateway:
            assert (await gateway.ask(stream=True, max_tokens=50)).error is None
            await wait_until(lambda: (report := read()) is not None and report.total is not None)
    report = read()
    assert report is not None
    assert report.total is not None
    assert report.total.unsettled == 1
    assert report.total.unsettled_cost > 14
