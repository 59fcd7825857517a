"""The reading side of all connections: one task, one look at all sockets.

Owns who is readable. Must not know what comes of it, nor HTTP.

Were each connection to wait in trio's own loop, a request would cost a second switch of tasks, and
a system call to wait again. Here what comes wakes only the task that answers it.
"""

import selectors
import socket
from typing import Final, Protocol, final

import trio

from gateway.http.responses import error_of


class Reader(Protocol):
    """One connection, as long as it is to be read."""

    def read(self) -> None:
        """There is something to read; it is called until all is taken. Must not wait, nor touch
        other readers.
        """
        ...

    def lose(self) -> None:
        """Reading failed: this is the end of the connection."""
        ...


@final
class Readers:
    """Those to be read, until it is closed."""

    def __init__(self) -> None:
        self._selector: Final = selectors.DefaultSelector()
        self._at: Reader | None = None

    def close(self) -> None:
        """Nobody is read any more."""
        self._selector.close()

    def add(self, connection: socket.socket, reader: Reader) -> None:
        """Read `connection` until it is dropped, as it must be before it is closed."""
        self._selector.register(connection, selectors.EVENT_READ, reader)

    def drop(self, connection: socket.socket) -> None:
        """Read it no more."""
        self._selector.unregister(connection)

    async def run(self) -> None:
        """Read all connections until cancelled. A failure is logged and ends its connection."""
        descriptor = self._selector.fileno()
        while True:
            await trio.lowlevel.wait_readable(descriptor)
            if await error_of(self._read_all) is not None and self._at is not None:
                self._at.lose()

    async def _read_all(self) -> None:
        for key, _ in self._selector.select(0):
            self._at = key.data
            key.data.read()
