"""Our HTTP server at one end of a socket pair, in virtual time, and its peer at the other."""

import re
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from dataclasses import dataclass, field

import h11
import trio
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gateway.http.server.body_budget import BodyBudget
from gateway.http.server.connection import Connections, Readers, Service
from gateway.http.server.exchange import WriteBatch
from gateway.http.server.parser import ParserLimits
from gateway.http.server.read_deadlines import Deadlines
from gateway.http.server.response import HttpDate

SILENT_PEER_S = 30.0
LONGEST_S = 1_000.0
"""The bound in virtual time: a test that takes longer hangs."""


@dataclass
class Peer:
    """The client's end."""

    stream: trio.SocketStream
    connections: Connections
    batch: WriteBatch

    async def send(self, data: bytes) -> None:
        await self.stream.send_all(data)

    async def rest(self) -> bytes:
        """All that comes until the server closes."""
        received = bytearray()
        try:
            while part := await self.stream.receive_some(65_536):
                received += part
        except trio.BrokenResourceError:
            pass
        return bytes(received)

    async def until(self, mark: bytes) -> bytes:
        """The received bytes up to `mark`."""
        received = b""
        while mark not in received:
            part = await self.stream.receive_some(65_536)
            assert part, (received, mark)
            received += part
        return received


@asynccontextmanager
async def wired(
    app: ASGIApp,
    *,
    limits: ParserLimits | None = None,
    deadlines: Deadlines | None = None,
    budget: BodyBudget | None = None,
) -> AsyncIterator[Peer]:
    """A connection to `app`; at the end of the block the peer leaves, and all tasks must end."""
    ours, theirs = socket.socketpair()
    theirs.setblocking(False)
    batch = WriteBatch()
    readers = Readers()
    with closing(readers), trio.fail_after(LONGEST_S):
        async with trio.open_nursery() as upkeep:
            service = Service(
                app=app,
                limits=limits or ParserLimits(),
                deadlines=deadlines or Deadlines(),
                silent_peer_s=SILENT_PEER_S,
                date=HttpDate(lambda: 0.0),
                batch=batch,
                readers=readers,
                budget=budget or BodyBudget(),
                senders=upkeep,
            )
            connections = Connections(service, None)
            upkeep.start_soon(connections.sweep)
            upkeep.start_soon(readers.run)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(connections.handle, theirs, None)
                stream = trio.SocketStream(trio.socket.from_stdlib_socket(ours))
                async with stream:
                    yield Peer(stream, connections, batch)
            upkeep.cancel_scope.cancel()


@dataclass
class Echo:
    """An app that answers with what it was sent, and remembers what it was asked."""

    asked: list[tuple[str, bytes, bytes]] = field(default_factory=list)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        body = await whole_body(receive)
        self.asked.append((scope["method"], scope["raw_path"], body))
        await reply(send, body)


async def whole_body(receive: Receive) -> bytes:
    """The body of a request."""
    body = b""
    while True:
        message: Message = await receive()
        body += message["body"]
        if not message["more_body"]:
            return body


async def reply(send: Send, body: bytes, status: int = 200) -> None:
    """A whole response."""
    await send({"type": "http.response.start", "status": status, "headers": []})
    await send({"type": "http.response.body", "body": body})


def statuses(transcript: bytes) -> list[int]:
    """The statuses of the responses in it, whose bodies must not look like heads."""
    return [int(status) for status in re.findall(rb"HTTP/1\.1 (\d{3}) ", transcript)]


def parsed(transcript: bytes, *methods: str) -> list[tuple[int, bytes]]:
    """Status and body of each response in it, as h11 reads them for requests by `methods`."""
    found = []
    client = h11.Connection(h11.CLIENT)
    for index, method in enumerate(methods):
        client.send(h11.Request(method=method, target="/", headers=[("host", "x")]))
        client.send(h11.EndOfMessage())
        if index == 0:
            client.receive_data(transcript)
            client.receive_data(b"")
        status, body = 0, b""
        while not isinstance(event := client.next_event(), h11.EndOfMessage):
            assert not isinstance(event, h11.ConnectionClosed), (transcript, found)
            if isinstance(event, h11.Response):
                status = event.status_code
            elif isinstance(event, h11.Data):
                body += bytes(event.data)
        found.append((status, body))
        if index + 1 < len(methods):
            client.start_next_cycle()
    return found
