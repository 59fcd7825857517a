"""Answers in one piece whose worker breaks behind their first tokens: nothing was sent of them."""

from typing import Any

import msgspec
import pytest
import trio

from gateway.app import edge_of
from gateway.http.routes import edge_app
from protocol.messages import Finished, Submit
from tests.fakes.provider import FakeProvider, open_provider
from tests.fakes.running_gateway import RunningGateway, chain_of, open_gateway, wait_until
from tests.fakes.served import Reply, ask, served
from tests.fakes.worker import PATIENCE_S, FakeWorker, open_worker

USER = [{"role": "user", "content": "Hi"}]
BODIES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": USER},
    "/v1/messages": {"messages": USER, "max_tokens": 99},
    "/v1/responses": {"input": USER},
}
AFAR = "Hello from afar"
NUM_SENT = 3


def _text_of(path: str, reply: Reply) -> list[str]:
    """The text of each choice."""
    match path:
        case "/v1/messages":
            return ["".join(block["text"] for block in reply.json["content"])]
        case "/v1/responses":
            (message,) = reply.json["output"]
            return ["".join(part["text"] for part in message["content"])]
        case _:
            return [choice["message"]["content"] for choice in reply.json["choices"]]


def _break(worker: FakeWorker, how: str) -> None:
    if how == "dies":
        worker.fail_engine()
        return
    for request_id, sequence in list(worker.running.items()):
        del worker.running[request_id]
        attempt = sequence.submit.attempt
        worker.say(Finished(request_id, attempt, "error", 0, 0, NUM_SENT, detail="no memory"))


async def _ask_and_break(
    gateway: RunningGateway, worker: FakeWorker, path: str, how: str, **fields: Any
) -> Reply:
    """The reply to a request whose worker breaks once some tokens have come."""
    await gateway.wait_state("ready")
    worker.pause_after = NUM_SENT
    replies: list[Reply] = []
    async with served(edge_app(edge_of(gateway.services))) as url, trio.open_nursery() as nursery:

        async def run() -> None:
            body = {"model": "alpha", **BODIES[path], **fields}
            replies.append(await ask(url, "POST", path, msgspec.json.encode(body)))

        nursery.start_soon(run)
        with trio.fail_after(PATIENCE_S):
            await worker.wait(Submit, count=fields.get("n", 1))
            await wait_until(lambda: len(worker.running) == fields.get("n", 1))
            _break(worker, how)
    return replies[0]


@pytest.mark.parametrize("path", BODIES)
@pytest.mark.parametrize("how", ["dies", "fails"])
async def test_the_provider_answers_instead(path: str, how: str) -> None:
    """The provider answers instead, with its words alone, in each API."""
    async with open_provider() as fake:
        model, tables = chain_of({"p0": fake})
        async with (
            open_gateway(models=[model], providers=tables) as gateway,
            open_worker(gateway.address) as worker,
        ):
            reply = await _ask_and_break(gateway, worker, path, how)
            assert reply.status == 200
            assert _text_of(path, reply) == [AFAR]
            assert reply.headers["x-herma-served-by"] == "cloud:p0"
            assert len(fake.requests) == 1


async def test_of_several_choices_none_is_left_over() -> None:
    """The provider is asked for all of them, whichever broke."""
    async with open_provider() as fake:
        model, tables = chain_of({"p0": fake})
        async with (
            open_gateway(models=[model], providers=tables) as gateway,
            open_worker(gateway.address) as worker,
        ):
            reply = await _ask_and_break(gateway, worker, "/v1/chat/completions", "dies", n=2)
            assert reply.status == 200
            assert _text_of("/v1/chat/completions", reply) == [AFAR]
            assert [request.body["n"] for request in fake.requests] == [2]


@pytest.mark.parametrize("path", BODIES)
async def test_where_no_provider_answers_the_worker_is_asked_anew(path: str) -> None:
    """Where no provider answers, the worker is asked anew from the beginning, and the answer has
    each word once.
    """
    failing = FakeProvider(status=500)
    async with open_provider(failing):
        model, tables = chain_of({"p0": failing})
        async with (
            open_gateway(models=[model], providers=tables) as gateway,
            open_worker(gateway.address) as worker,
        ):

            async def come_back() -> None:
                await wait_until(lambda: bool(failing.requests))
                worker.pause_after = None
                worker.register()

            async with trio.open_nursery() as nursery:
                nursery.start_soon(come_back)
                reply = await _ask_and_break(gateway, worker, path, "dies")
            assert reply.status == 200
            assert _text_of(path, reply) == ["The weather in Athens is warm."]
            assert reply.headers["x-herma-served-by"] == "worker"


async def test_a_key_without_providers_waits_for_a_worker() -> None:
    """A request of a key without providers waits for a worker, which continues with the tokens that
    came.
    """
    async with open_gateway() as gateway, open_worker(gateway.address) as worker:

        async def come_back() -> None:
            await gateway.wait_state("starting")
            worker.pause_after = None
            worker.register()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(come_back)
            reply = await _ask_and_break(gateway, worker, "/v1/chat/completions", "dies")
        assert _text_of("/v1/chat/completions", reply) == ["The weather in Athens is warm."]
        assert len(worker.all_of(Submit)[-1].output_ids) > 0
