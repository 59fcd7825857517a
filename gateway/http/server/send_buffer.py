"""Bytes on their way to one peer.

Owns the writing side of a socket: what the kernel does not take at once waits here, and one task
sends it on, joined. Must not know HTTP.
"""

import socket
from collections.abc import Callable
from typing import Final

import trio

from gateway.http.response_writer import WriteBatch

_MAX_SEND_BYTES: Final = 2**20


class SendBuffer:
    """`write` never waits. `on_gone` is called once, when the peer turns out to be gone. `waiting`
    is what the kernel has not taken, or was not offered yet since the `step` is open: one write as
    it is, since most steps bring one, or what can grow. `stuck_since` is when the peer last took
    something while more waited, None while nothing does.
    """

    __slots__ = (
        "_emptied",
        "_nursery",
        "_on_gone",
        "_send",
        "_socket",
        "is_gone",
        "step",
        "stuck_since",
        "waiting",
    )

    def __init__(
        self,
        connection: socket.socket,
        nursery: trio.Nursery,
        step: WriteBatch,
        on_gone: Callable[[], None],
    ) -> None:
        self._socket = connection
        self._send = connection.send
        self._nursery = nursery
        self.step = step
        self._on_gone = on_gone
        self._emptied = trio.Event()
        self.waiting: bytes | bytearray = b""
        self.stuck_since: float | None = None
        self.is_gone = False

    def write(self, data: bytes) -> None:
        """Send `data`, which is not empty, now or as soon as the peer takes it."""
        if self.is_gone:
            return
        if self.waiting:
            # Whoever has to send what is before it sends it too.
            if type(self.waiting) is bytes:
                self.waiting = bytearray(self.waiting)
            self.waiting += data
            return
        self.waiting = data
        if self.step.is_open:
            self.step.corked.append(self)
        else:
            self.flush()

    def write_all(self, data: bytes) -> None:
        """`write` what nothing can join, as it is a whole response: no step's end is awaited."""
        if self.waiting or self.is_gone:
            self.write(data)
        else:
            self.waiting = data
            self.flush()

    def flush(self) -> None:
        """Send what was written since the step began."""
        data, self.waiting = self.waiting, b""
        try:
            num_sent = self._send(data)
        except OSError as error:
            num_sent = self._sent_nothing(error)
        if num_sent < len(data) and not self.is_gone:
            self._send_later(data[num_sent:])

    def lose(self) -> None:
        """The peer is gone: nothing reaches it any more."""
        if self.is_gone:
            return
        self.is_gone = True
        self.waiting = b""
        self._emptied.set()
        self._on_gone()

    async def flushed(self) -> None:
        """Return once everything is with the kernel, or the peer is gone."""
        while self.waiting:
            await self._emptied.wait()

    def _sent_nothing(self, error: OSError) -> int:
        if not isinstance(error, BlockingIOError):
            self.lose()
        return 0

    def _send_later(self, rest: bytes | bytearray) -> None:
        self.waiting = bytearray(rest)
        self._emptied = trio.Event()
        self.stuck_since = trio.current_time()
        self._nursery.start_soon(self._send_on)

    async def _send_on(self) -> None:
        while isinstance(self.waiting, bytearray) and self.waiting:
            await trio.lowlevel.wait_writable(self._socket)
            try:
                num_sent = self._send(self.waiting[:_MAX_SEND_BYTES])
            except OSError as error:
                num_sent = self._sent_nothing(error)
            if num_sent:
                del self.waiting[:num_sent]
                self.stuck_since = trio.current_time()
        self.stuck_since = None
        self._emptied.set()
