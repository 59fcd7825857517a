"""A proxy between an agent and the gateway that writes down who asked what, and checks each stream.

Owns the record. Must not change a byte of what is said, nor know what a test expects.
"""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

import h11
import trio

from tests.fakes.stream_checker import StreamChecker, is_stream

CHAT = "/v1/chat/completions"
KEEP_ALIVE = b'"delta":{"content":""}'


@dataclass
class Asked:
    """One request and its answer. Times are the clock's, `ended_at` None while it runs."""

    method: str
    path: str
    body: bytes
    asked_at: float
    status: int = 0
    ended_at: float | None = None
    is_stream: bool = False
    num_keep_alives: int = 0
    checker: StreamChecker = field(default_factory=StreamChecker)

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def texts(self) -> list[tuple[str, str]]:
        """Role and text of every message that was sent."""
        return [(one["role"], str(one.get("content"))) for one in self.json["messages"]]

    @property
    def cached_tokens(self) -> int:
        assert self.checker.usage is not None
        cached: int = self.checker.usage["prompt_tokens_details"]["cached_tokens"]
        return cached

    @property
    def prompt_tokens(self) -> int:
        assert self.checker.usage is not None
        prompt: int = self.checker.usage["prompt_tokens"]
        return prompt


class Recorder:
    """`url` is what the agent is given; `asked` is everything that came, in order."""

    def __init__(self, gateway_url: str) -> None:
        parts = urlsplit(gateway_url)
        assert parts.hostname is not None
        assert parts.port is not None
        self._gateway = (parts.hostname, parts.port)
        self.asked: list[Asked] = []
        self.url = ""

    @property
    def turns(self) -> list[Asked]:
        """The streamed chats: an agent's own turns."""
        return [one for one in self.asked if one.path == CHAT and one.json.get("stream")]

    @property
    def side_calls(self) -> list[Asked]:
        """The chats in one piece: titles and the like."""
        return [one for one in self.asked if one.path == CHAT and not one.json.get("stream")]

    @property
    def probes(self) -> list[str]:
        """What else was asked."""
        return [f"{one.method} {one.path}" for one in self.asked if one.path != CHAT]

    async def run(self, task_status: trio.TaskStatus[None]) -> None:
        """Listen until cancelled."""
        listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
        self.url = f"http://127.0.0.1:{listeners[0].socket.getsockname()[1]}/v1"
        async with trio.open_nursery() as nursery:
            task_status.started()
            await trio.serve_listeners(self._connection, listeners, handler_nursery=nursery)

    async def _connection(self, agent: trio.SocketStream) -> None:
        parser = h11.Connection(h11.SERVER)
        try:
            async with agent:
                while (request := await _event(agent, parser)) is not None:
                    await self._exchange(agent, parser, request)
                    if parser.our_state is not h11.DONE or parser.their_state is not h11.DONE:
                        return
                    parser.start_next_cycle()
        except (trio.BrokenResourceError, h11.RemoteProtocolError):
            return  # the agent has left

    async def _exchange(
        self, agent: trio.SocketStream, parser: h11.Connection, request: h11.Request
    ) -> None:
        body = b""
        while isinstance(event := await _event(agent, parser), h11.Data):
            body += bytes(event.data)
        path = request.target.decode()
        asked = Asked(request.method.decode(), path, body, trio.current_time())
        self.asked.append(asked)
        try:
            await self._pass_on(agent, parser, request, asked)
        finally:
            asked.ended_at = trio.current_time()

    async def _pass_on(
        self, agent: trio.SocketStream, parser: h11.Connection, request: h11.Request, asked: Asked
    ) -> None:
        to_gateway = h11.Connection(h11.CLIENT)
        async with await trio.open_tcp_stream(*self._gateway) as gateway:
            for event in (request, h11.Data(data=asked.body), h11.EndOfMessage()):
                await gateway.send_all(to_gateway.send(event) or b"")
            while (answer := await _event(gateway, to_gateway)) is not None:
                _note(asked, answer)
                await agent.send_all(parser.send(answer) or b"")
                if isinstance(answer, h11.EndOfMessage):
                    return


async def _event(stream: trio.SocketStream, parser: h11.Connection) -> Any:
    """The next event, None at the end of the connection."""
    while (event := parser.next_event()) is h11.NEED_DATA:
        parser.receive_data(await stream.receive_some(65_536))
    return None if isinstance(event, h11.ConnectionClosed) else event


def _note(asked: Asked, event: Any) -> None:
    if isinstance(event, h11.Response):
        asked.status = event.status_code
        headers = {name.decode(): value.decode() for name, value in event.headers}
        asked.is_stream = is_stream(headers)
    elif isinstance(event, h11.Data) and asked.is_stream:
        asked.num_keep_alives += bytes(event.data).count(KEEP_ALIVE)
        asked.checker.feed(bytes(event.data))
    elif isinstance(event, h11.EndOfMessage) and asked.is_stream:
        asked.checker.end()


@asynccontextmanager
async def recording(gateway_url: str) -> AsyncIterator[Recorder]:
    """A recorder before the gateway, for the length of the block."""
    recorder = Recorder(gateway_url)
    async with trio.open_nursery() as nursery:
        await nursery.start(recorder.run)
        yield recorder
        nursery.cancel_scope.cancel()
