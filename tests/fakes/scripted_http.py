"""HTTP servers that answer with exactly the bytes of a script, in exactly these pieces."""

import re
import ssl
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import trio
import trio.testing

_LENGTH = re.compile(rb"content-length: (\d+)", re.IGNORECASE)
_RESET = (trio.socket.SOL_SOCKET, trio.socket.SO_LINGER, (1).to_bytes(4, "little") + bytes(4))
PAUSE_S = 0.0
"""Between two pieces: a turn of the loop, so that each is a read of its own, or nearly always."""


@dataclass
class ScriptedServer:
    """Answers each request with `pieces`. Then the connection ends (`ends`), is reset (`resets`),
    or waits for the next request. After `num_answers` on one connection, the next request there is
    read and the connection ends, or is reset, once `may_end` is set: at once is as if it had been
    closed just before.
    """

    pieces: Sequence[bytes]
    ends: bool = False
    resets: bool = False
    num_answers: int | None = None
    may_end: trio.Event | None = None
    tls: ssl.SSLContext | None = None
    is_ragged: bool = True
    """Whether a TLS connection ends without saying so."""

    num_connections: int = 0
    num_closed: int = 0
    requests: list[bytes] = field(default_factory=list)
    url: str = ""
    _came: trio.Condition = field(default_factory=trio.Condition)

    async def heard(self, num_requests: int) -> None:
        """Return once so many requests have come, and all tasks wait for what comes next."""
        async with self._came:
            while len(self.requests) < num_requests:
                await self._came.wait()
        await trio.testing.wait_all_tasks_blocked()

    async def serve(self, *, task_status: trio.TaskStatus[None]) -> None:
        """Listen until cancelled."""
        (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
        port = listener.socket.getsockname()[1]
        self.url = f"http{'s' if self.tls else ''}://localhost:{port}/v1"
        async with trio.open_nursery() as nursery:
            task_status.started()
            await trio.serve_listeners(self._connection, [listener], handler_nursery=nursery)

    async def _connection(self, stream: trio.SocketStream) -> None:
        self.num_connections += 1
        try:
            async with stream:
                await self._answer_all(stream, await self._secured(stream))
                if self.resets:
                    stream.setsockopt(*_RESET)
        except trio.BrokenResourceError:
            pass  # The client has closed, which is its right.
        finally:
            self.num_closed += 1

    async def _secured(self, stream: trio.SocketStream) -> trio.abc.Stream:
        if self.tls is None:
            return stream
        secure = trio.SSLStream(stream, self.tls, server_side=True, https_compatible=self.is_ragged)
        await secure.do_handshake()
        return secure

    async def _answer_all(self, raw: trio.SocketStream, stream: trio.abc.Stream) -> None:
        num_left = self.num_answers
        while await self._request(stream) and num_left != 0:
            num_left = None if num_left is None else num_left - 1
            for piece in self.pieces:
                await stream.send_all(piece)
                await trio.sleep(PAUSE_S)
            if self.num_answers is None and (self.ends or self.resets):
                break
        if num_left == 0 and self.may_end is not None:
            await self.may_end.wait()
        if stream is not raw and not self.is_ragged:
            await stream.aclose()

    async def _request(self, stream: trio.abc.Stream) -> bool:
        data = b""
        while True:
            head, blank, body = data.partition(b"\r\n\r\n")
            length = _LENGTH.search(head)
            if blank and len(body) == (int(length[1]) if length else 0):
                self.requests.append(data)
                async with self._came:
                    self._came.notify_all()
                return True
            more = await stream.receive_some(65_536)
            if not more:
                return False
            data += more


@asynccontextmanager
async def open_server(server: ScriptedServer) -> AsyncIterator[ScriptedServer]:
    """The server, for the length of the block."""
    async with trio.open_nursery() as nursery:
        await nursery.start(server.serve)
        yield server
        nursery.cancel_scope.cancel()
