"""The app under another ASGI server, such as the transport of a test client.

Owns a `ResponseWriter` over ASGI's `send`, for servers that bring none. Must not know what is
written.
"""

import math
from collections.abc import Sequence

import trio
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gateway.http.error_responses import Header, error_of, send_error
from gateway.http.response_writer import EXTENSION, MAX_PENDING_BYTES, Look


async def answer_plainly(app: ASGIApp, scope: Scope, receive: Receive, send: Send) -> None:
    """Let `app` answer with a writer over `send`. An error that it raises becomes the response, as
    on our own server.
    """
    async with trio.open_nursery() as nursery:
        writer = SendingWriter(send, nursery)
        nursery.start_soon(writer.run)
        extensions = {**scope.get("extensions", {}), EXTENSION: writer}
        with writer.answering:
            error = await error_of(app, {**scope, "extensions": extensions}, receive, writer.send)
            if error is not None and not writer.has_begun:
                await send_error(writer.send, error, scope=scope)
        writer.close()


class SendingWriter:
    """A `ResponseWriter` whose messages wait for `run`, which sends them. A client that leaves is
    noticed by the error of `send`, which ends the nursery and with it the app, which runs within
    `answering`.
    """

    is_gone = False

    def __init__(self, send: Send, nursery: trio.Nursery) -> None:
        self.wrote_at = 0.0
        self.extra_headers: Sequence[Header] = ()
        self.has_begun = False
        self.answering = trio.CancelScope()
        self._send = send
        self._nursery = nursery
        self._watching = trio.CancelScope()
        self._queue, self._waiting = trio.open_memory_channel[Message](math.inf)
        self._num_bytes = 0

    async def run(self) -> None:
        """Send what is written until `close`."""
        async for message in self._waiting:
            await self._send(message)
            self._num_bytes -= len(message.get("body", b""))

    def close(self) -> None:
        """Let `run` end once all is sent."""
        self.unwatch()
        self._queue.close()

    async def send(self, message: Message) -> None:
        """ASGI's `send`, for handlers that wait for the client."""
        if message["type"] == "http.response.start":
            self.has_begun = True
            message = {**message, "headers": [*message["headers"], *self.extra_headers]}
        await self._send(message)

    def whole_body(self, max_bytes: int) -> bytes | None:  # noqa: ARG002
        """None: the body comes by `receive`."""
        return None

    def respond(self, status: int, headers: Sequence[Header], body: bytes) -> None:
        """See `ResponseWriter`."""
        self.open(status, [*headers, (b"content-length", b"%d" % len(body))])
        self.end(body)

    def open(self, status: int, headers: Sequence[Header]) -> None:
        """See `ResponseWriter`."""
        self.has_begun = True
        headers = [*headers, *self.extra_headers]
        self._queue.send_nowait(
            {"type": "http.response.start", "status": status, "headers": headers}
        )

    def write(self, chunk: bytes) -> bool:
        """See `ResponseWriter`."""
        if self._num_bytes and self._num_bytes + len(chunk) > MAX_PENDING_BYTES:
            return False
        self.wrote_at = trio.current_time()
        self._put(chunk, is_last=False)
        return True

    def end(self, last: bytes = b"") -> None:
        """See `ResponseWriter`."""
        self._put(last, is_last=True)

    def give_up(self) -> None:
        """See `ResponseWriter`."""
        self.answering.cancel()

    def watch(self, look: Look, at: float) -> None:
        """See `ResponseWriter`."""
        self._watching = trio.CancelScope()
        self._nursery.start_soon(self._watch, look, at, self._watching)

    def unwatch(self) -> None:
        """See `ResponseWriter`."""
        self._watching.cancel()

    async def _watch(self, look: Look, at: float, watching: trio.CancelScope) -> None:
        with watching:
            while True:
                await trio.sleep_until(at)
                at = look(trio.current_time())

    def _put(self, part: bytes, *, is_last: bool) -> None:
        self._num_bytes += len(part)
        self._queue.send_nowait(
            {"type": "http.response.body", "body": part, "more_body": not is_last}
        )
