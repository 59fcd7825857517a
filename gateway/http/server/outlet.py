"""Bytes on their way to one peer.

Owns the writing side of a socket: what the kernel does not take at once waits here, and one task
sends it on, joined. Must not know HTTP.
"""

import socket
from collections.abc import Callable
from typing import Final

import trio

from gateway.http.push import StepFlush

_MAX_SEND_BYTES: Final = 2**20


class Outlet:
    """`write` never waits. `on_gone` is called once, when the peer turns out to be gone. `waiting`
    is what the kernel has not taken, or was not offered yet since the `step` is open. `stuck_since`
    is when the peer last took something while more waited, None while nothing does.
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
        step: StepFlush,
        on_gone: Callable[[], None],
    ) -> None:
        self._socket = connection
        self._send = connection.send
        self._nursery = nursery
        self.step = step
        self._on_gone = on_gone
        self._emptied = trio.Event()
        self.waiting = bytearray()
        self.stuck_since: float | None = None
        self.is_gone = False

    def write(self, data: bytes) -> None:
        """Send `data` now, or as soon as the peer takes it."""
        if self.is_gone:
            return
        if self.waiting:
            # Whoever has to send what is before it sends it too.
            self.waiting += data
        elif self.step.is_open:
            self.waiting += data
            self.step.corked.append(self)
        elif (num_sent := self._send_now(data)) < len(data) and not self.is_gone:
            self.waiting += data[num_sent:] if num_sent else data
            self._send_later()

    def uncork(self) -> None:
        """Send what was written since the step began."""
        waiting = self.waiting
        try:
            num_sent = self._send(waiting)
        except OSError as error:
            num_sent = self._sent_nothing(error)
        if num_sent < len(waiting):
            del waiting[:num_sent]
            self._send_later()
        else:
            waiting.clear()

    def lose(self) -> None:
        """The peer is gone: nothing reaches it any more."""
        if self.is_gone:
            return
        self.is_gone = True
        self.waiting.clear()
        self._emptied.set()
        self._on_gone()

    async def flushed(self) -> None:
        """Return once everything is with the kernel, or the peer is gone."""
        while self.waiting:
            await self._emptied.wait()

    def _send_now(self, data: bytes | bytearray) -> int:
        """How much of `data` the kernel took."""
        try:
            return self._send(data)
        except OSError as error:
            return self._sent_nothing(error)

    def _sent_nothing(self, error: OSError) -> int:
        if not isinstance(error, BlockingIOError):
            self.lose()
        return 0

    def _send_later(self) -> None:
        self._emptied = trio.Event()
        self.stuck_since = trio.current_time()
        self._nursery.start_soon(self._send_on)

    async def _send_on(self) -> None:
        while self.waiting:
            await trio.lowlevel.wait_writable(self._socket)
            num_sent = self._send_now(self.waiting[:_MAX_SEND_BYTES])
            if num_sent:
                del self.waiting[:num_sent]
                self.stuck_since = trio.current_time()
        self.stuck_since = None
        self._emptied.set()
