"""Requests that are no chat, for models that providers serve."""

from collections.abc import Callable
from typing import Any

import h11
import msgspec
import pytest
import trio

from gateway.api import ApiError, Started, Usage, named_body
from gateway.turn import Caller, PathRequest, pass_through
from protocol.messages import Relay
from protocol.transport import HttpResponse
from tests.fakes.provider import FakeProvider, open_provider
from tests.fakes.running_gateway import RunningGateway, chain_of, open_gateway
from tests.fakes.worker import open_worker
from tests.gateway.turn.test_relayed_chat import TextWorker

USAGE = {"prompt_tokens": 5, "total_tokens": 5}


class Answered:
    """What a client would get."""

    def __init__(self) -> None:
        self.status = 0
        self.body = b""
        self.served_by = ""

    async def respond(
        self, response: HttpResponse, started: Started, note_usage: Callable[[Usage], None]
    ) -> None:
        self.status, self.served_by = response.status, started.served_by
        async for data in response.body:
            self.body += data
        note_usage(Usage(5, 0, 0))


async def ask(
    gateway: RunningGateway, caller: Caller | None = None, *, path: str = "/embeddings"
) -> Answered:
    body = named_body("application/json", b'{"model": "alpha", "input": "x"}')
    assert body is not None
    answered = Answered()
    request = PathRequest(path, body)
    with trio.fail_after(60):
        await pass_through(gateway.services, request, caller or Caller(), answered.respond)
    return answered


async def test_a_provider_serves_the_path() -> None:
    """A provider serves the path at its own path, under its own name of the model; the next one is
    asked if the first fails.
    """
    broken = FakeProvider(status=500)
    async with open_provider(broken), open_provider(FakeProvider(usage=USAGE)) as provider:
        model, tables = chain_of({"p0": broken, "p1": provider})
        async with open_gateway(models=[model], providers=tables) as gateway:
            answered = await ask(gateway)
    assert (answered.status, answered.served_by) == (200, "cloud:p1")
    (asked,) = provider.requests
    assert asked.path == "/v1/embeddings"
    assert asked.body["input"] == "x"
    assert asked.body["model"] == "p1-large"
    assert len(broken.requests) == 1


@pytest.mark.parametrize("status", [404, 501])
async def test_a_path_that_an_engine_has_not_switched_on_is_not_there(status: int) -> None:
    """llama.cpp without `--embeddings` says 501 to it. That is no failure of the engine."""
    worker = TextWorker(statuses=[status] * 9)
    async with open_gateway() as gateway, open_worker(gateway.address, worker):
        await gateway.wait_local()
        with pytest.raises(ApiError) as caught:
            await ask(gateway)
        assert (caught.value.status, caught.value.code) == (404, "path_not_served")
        assert len(worker.all_of(Relay)) == 1
    async with open_provider(FakeProvider(status=status)) as provider:
        model, tables = chain_of({"p": provider})
        async with open_gateway(models=[model], providers=tables) as gateway:
            with pytest.raises(ApiError) as caught:
                await ask(gateway)
    assert (caught.value.status, caught.value.code) == (404, "path_not_served")


class LateCut(FakeProvider):
    """Breaks an answer off behind 100 KB."""

    async def _answer(
        self, stream: trio.abc.Stream, parser: h11.Connection, _body: dict[str, Any]
    ) -> None:
        headers = [("content-type", "application/json")]
        await stream.send_all(parser.send(h11.Response(status_code=200, headers=headers)) or b"")
        await stream.send_all(parser.send(h11.Data(data=b'{"x": "' + b"A" * 100_000)) or b"")


@pytest.mark.parametrize(
    ("provider", "error"),
    [
        (FakeProvider(cut_after=0), "No provider could answer: p broke the exchange off"),
        (LateCut(), "upstream connection lost"),
    ],
)
async def test_a_key_without_cloud_and_a_provider_that_cuts(
    provider: FakeProvider, error: str
) -> None:
    """The one is refused; the other's client notices that its answer is not whole."""
    async with open_provider(provider):
        model, tables = chain_of({"p": provider})
        async with open_gateway(models=[model], providers=tables, rejoin_wait_s=0.0) as gateway:
            with pytest.raises(ApiError, match=error):
                await ask(gateway)
            with pytest.raises(ApiError, match="No worker"):
                await ask(gateway, Caller(cloud=False))
            assert len(provider.requests) == 1


async def test_a_client_that_leaves_is_no_failure() -> None:
    """A client that leaves is no failure: its request counts as cancelled, as a chat does."""
    body = named_body("application/json", b'{"model": "alpha", "input": "x"}')
    assert body is not None
    request = PathRequest("/embeddings", body)

    async def leave(*_given: object) -> None:
        client.cancel()
        await trio.lowlevel.checkpoint()

    async with open_provider(FakeProvider(usage=USAGE)) as provider:
        model, tables = chain_of({"p": provider})
        async with open_gateway(models=[model], providers=tables) as gateway:
            with trio.CancelScope() as client:
                await pass_through(gateway.services, request, Caller(), leave)
            counters = gateway.services.counters
    assert client.cancelled_caught
    assert (counters.turns_started, counters.turns_cancelled, counters.turns_failed) == (1, 1, 0)


async def test_what_an_engine_s_filter_ended_is_given_at_once() -> None:
    """Another worker of the model has the same filter; that it ended so counts against it."""
    choice = {"index": 0, "text": "a", "finish_reason": "content_filter"}
    answer = msgspec.json.encode({"choices": [choice], "usage": {**USAGE, "completion_tokens": 1}})
    workers = [TextWorker("t1"), TextWorker("t2")]
    for worker in workers:
        worker.body = answer
    async with open_gateway() as gateway:
        async with (
            open_worker(gateway.address, workers[0]),
            open_worker(gateway.address, workers[1]),
        ):
            await gateway.wait_workers(2)
            answered = await ask(gateway, path="/completions")
        assert (answered.status, answered.served_by) == (200, "worker")
        assert msgspec.json.decode(answered.body)["choices"] == [choice]
        assert sum(len(worker.all_of(Relay)) for worker in workers) == 1
