"""Which health check of a server is asked each second: one that costs nothing."""

import json
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio

from workers.bridge.engine_client import EngineClient
from workers.external import EngineQuestions, OpenAiApi, SglangApi

LIVE, READY, MODELS, HEALTH = "/health/liveliness", "/health/readiness", "/v1/models", "/health"


class Server:
    """Answers GET by `statuses` (404 unless given), and counts what is asked."""

    def __init__(self, owner: str, **statuses: int) -> None:
        self.statuses = {HEALTH: 200, MODELS: 200, **statuses}
        self.asked: Counter[str] = Counter()
        self._models = json.dumps({"data": [{"id": "m", "owned_by": owner}]}).encode()

    async def handle(self, stream: trio.SocketStream) -> None:
        head = b""
        while data := await stream.receive_some(4096):
            head += data
            while b"\r\n\r\n" in head:
                first, _, head = head.partition(b"\r\n\r\n")
                target = first.split()[1].decode()
                self.asked[target] += 1
                status = self.statuses.get(target, 404)
                body = self._models if target == MODELS else b"{}"
                reply = f"HTTP/1.1 {status} X\r\ncontent-length: {len(body)}\r\n\r\n"
                await stream.send_all(reply.encode() + body)


@asynccontextmanager
async def asking(
    server: Server, health: str | None = None, api: EngineQuestions | None = None
) -> AsyncIterator[EngineClient]:
    listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
    port = listeners[0].socket.getsockname()[1]
    async with trio.open_nursery() as nursery:
        nursery.start_soon(trio.serve_listeners, server.handle, listeners)
        url = f"http://127.0.0.1:{port}"
        client = EngineClient(
            url, api or OpenAiApi("m"), api_key=None, max_connections=4, health=health
        )
        yield client
        client.close()
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize(
    ("owner", "statuses", "found"),
    [
        ("openai", {LIVE: 200, READY: 200}, LIVE),
        ("openai", {READY: 200}, READY),
        ("somebody", {}, MODELS),
        ("somebody", {LIVE: 401, READY: 403}, MODELS),
        ("vllm", {}, HEALTH),
        ("llamacpp", {}, HEALTH),
        ("openai", {MODELS: 404}, HEALTH),
        ("openai", {MODELS: 500}, HEALTH),
        ("openai", {LIVE: 500}, MODELS),
    ],
)
async def test_what_costs_nothing_is_asked(
    owner: str, statuses: dict[str, int], found: str
) -> None:
    """`/health` of an unknown server may generate, so it is the last resort."""
    server = Server(owner)
    server.statuses |= statuses
    async with asking(server) as client:
        assert await client.health() == 200
        server.asked.clear()
        for _ in range(5):
            assert await client.check()
    assert server.asked == {found: 5}


@pytest.mark.parametrize("info", ["/server_info", "/get_server_info"])
async def test_sglang_is_not_asked_to_generate(info: str) -> None:
    """SGLang's `/health` generates a token, so its server information is asked, which costs
    nothing.
    """
    server = Server("sglang")
    server.statuses[info] = 200
    async with asking(server, api=SglangApi()) as client:
        assert await client.health() == 200
        server.asked.clear()
        for _ in range(5):
            assert await client.check()
    assert server.asked == {info: 5}


async def test_a_path_may_be_configured() -> None:
    """A configured path alone is asked, also if the server lacks it."""
    server = Server("vllm")
    server.statuses["/ping?x=1"] = 200
    async with asking(server, "/ping?x=1") as client:
        assert await client.check()
        server.statuses["/ping?x=1"] = 404
        assert await client.health() == 404
    assert server.asked == {"/ping?x=1": 2}


async def test_a_server_of_which_all_is_broken_is_not_healthy() -> None:
    """One that breaks at each path it has; what is absent does not hide that."""
    server = Server("somebody", **{MODELS: 500, HEALTH: 500})
    async with asking(server) as client:
        assert await client.health() == 500


async def test_a_server_that_loads_or_is_replaced_is_looked_at_again() -> None:
    """503 for every path decides nothing; neither does a target that is gone."""
    server = Server("vllm")
    loading = dict.fromkeys((LIVE, READY, MODELS, HEALTH), 503)
    well, server.statuses = server.statuses, loading
    async with asking(server) as client:
        assert await client.health() == 503
        server.statuses = well
        assert await client.health() == 200
        assert server.asked == {LIVE: 2, READY: 1, MODELS: 1}
        server.statuses = {LIVE: 200}
        assert await client.health() == 200
    assert server.asked == {LIVE: 3, READY: 1, MODELS: 1, HEALTH: 1}
