"""The body of a response, in pieces as they arrive.

Owns the two ways to read it: a task that waits for each piece, and a callback that gets each piece
inline, without a task switch. Must not know what the bytes mean, nor how long a silence may last.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import TYPE_CHECKING, Final, Protocol, final

import outcome
import trio

from protocol.transport.inline_reads import inline_reads

if TYPE_CHECKING:
    from protocol.transport.http_response import ResponseParser

_INLINE_BYTES: Final = 2**14
"""Bytes that are read inline: a TLS record. More bytes wake the task."""

Take = Callable[[bytes], bool]


class BodyConnection(Protocol):
    """The connection that a body is read from. Reading raises `ReadError`."""

    def fileno(self) -> int:
        """The descriptor to wait for."""
        ...

    def receive_now(self, num_bytes: int) -> bytes | None:
        """At most `num_bytes` that have arrived; b"" at the end, None if none have arrived."""
        ...

    async def receive(self) -> bytes:
        """Wait for the next bytes; b"" at the end."""
        ...


class Body(AsyncIterator[bytes]):
    """Iterating yields the bytes of each read. There is no deadline: the caller's single scope
    around all reads costs less than one for each read.
    """

    async def pass_to(self, take: Take) -> None:
        """Call `take` with each piece until the end of the body; raises what `take` raises.

        `take` may be called outside any task. It must be short, and return True if it has moved a
        deadline to an earlier time.
        """
        async for data in self:
            take(data)

    def pass_ready(self, take: Take) -> bool:
        """Call `take` with the bytes that have arrived already; True at the end of the body."""
        del take
        return False


@final
class ConnectionBody(Body):
    """The body that arrives on a connection. Raises `ReadError` or `RemoteProtocolError`."""

    def __init__(self, connection: BodyConnection, parser: ResponseParser) -> None:
        self._connection = connection
        self._parser = parser

    async def __anext__(self) -> bytes:
        parser = self._parser
        while not (data := parser.take()):
            if parser.is_complete:
                raise StopAsyncIteration
            parser.feed(await self._connection.receive())
        return data

    async def pass_to(self, take: Take) -> None:
        """See `Body`. The pieces are read while the loop waits, without waking the task."""
        if self.pass_ready(take):
            return
        parser, connection = self._parser, self._connection
        reads = _InlineBody(connection, parser, take)
        try:
            while not parser.is_complete:
                try:
                    data = await connection.receive()
                except trio.ClosedResourceError:
                    reads.stop()
                    continue
                parser.feed(data)
                while data := parser.take():
                    take(data)
        finally:
            reads.close()

    def pass_ready(self, take: Take) -> bool:
        """See `Body`."""
        parser = self._parser
        while data := parser.take():
            take(data)
        return parser.is_complete


@final
class _InlineBody:
    """Reads the body inline while the loop waits, until `stop` or `close`."""

    def __init__(self, connection: BodyConnection, parser: ResponseParser, take: Take) -> None:
        self._connection = connection
        self._parser = parser
        self._take = take
        self._failure: Exception | None = None
        self._inline = inline_reads()
        if self._inline is not None:
            self._inline.register(connection.fileno(), self._read)

    def stop(self) -> None:
        """The callback has woken the task: read no more inline. Raises the callback's failure."""
        self.close()
        if self._failure is not None:
            raise self._failure

    def close(self) -> None:
        """Read no more inline."""
        inline, self._inline = self._inline, None
        if inline is not None:
            inline.unregister(self._connection.fileno())

    def _read(self) -> None:
        result = outcome.capture(self._read_once)
        if isinstance(result, outcome.Error):
            assert isinstance(result.error, Exception)
            self._failure = result.error
        elif not result.value:
            return
        trio.lowlevel.notify_closing(self._connection.fileno())

    def _read_once(self) -> bool:
        """Read once; returns whether the task has to wake."""
        parser, is_over = self._parser, False
        data = self._connection.receive_now(_INLINE_BYTES)
        if data is None:
            return False
        parser.feed(data)
        while data := parser.take():
            is_over = self._take(data)
        return is_over or parser.is_complete
