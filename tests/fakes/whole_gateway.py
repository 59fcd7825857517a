"""A gateway with its HTTP edge on a real port, and a worker of tests behind it."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec

from gateway.app import edge_of
from gateway.http.routes import edge_app
from tests.fakes.asgi import decode_events
from tests.fakes.running_gateway import RunningGateway, open_gateway
from tests.fakes.served import PATIENCE_S, Reply, ask, served
from tests.fakes.worker import FakeWorker, open_worker


class WholeGateway:
    """What a test asks it over HTTP is a method, what came back a `Reply` or events."""

    def __init__(self, url: str, gateway: RunningGateway, worker: FakeWorker) -> None:
        self.url = url
        self.gateway = gateway
        self.worker = worker

    async def get(self, path: str) -> Reply:
        return await ask(self.url, "GET", path)

    async def post(self, path: str, **fields: Any) -> Reply:
        return await ask(self.url, "POST", path, msgspec.json.encode(fields))

    async def stream(self, path: str, **fields: Any) -> list[Any]:
        """The decoded events of a streamed answer, `[DONE]` as the string."""
        reply = await self.post(path, stream=True, **fields)
        assert reply.status == 200, reply
        return decode_events(reply.body)


@asynccontextmanager
async def whole_gateway(
    worker: FakeWorker | None = None, patience_s: float = PATIENCE_S, **options: Any
) -> AsyncIterator[WholeGateway]:
    """All of it, ready, for the length of the block; `options` are those of `open_gateway`."""
    async with open_gateway(**options) as gateway, open_worker(gateway.address, worker) as fake:
        await gateway.wait_state("ready")
        async with served(edge_app(edge_of(gateway.services)), patience_s) as url:
            yield WholeGateway(url, gateway, fake)
