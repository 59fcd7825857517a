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
    """`write` never waits. `on_gone` is called once, when the peer turns out to be gone.
    `stuck_since` is when the peer last took something while more waited, None while nothing does.
    """

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
        self._step = step
        self._on_gone = on_gone
        self._waiting = bytearray()
        self._corked: list[bytes] = []
        self._num_corked_bytes = 0
        self._emptied = trio.Event()
        self.stuck_since: float | None = None
        self.is_gone = False

    @property
    def num_waiting_bytes(self) -> int:
        """What the kernel has not taken yet."""
        return len(self._waiting) + self._num_corked_bytes

    def write(self, data: bytes) -> None:
        """Send `data` now, or as soon as the peer takes it."""
        if self._step.is_open:
            self._cork(data)
        elif self._waiting:
            self._waiting += data
        elif not self.is_gone:
            self._send_now(data)

    def uncork(self) -> None:
        """Send what was written since the step began."""
        data = b"".join(self._corked)
        self._corked.clear()
        self._num_corked_bytes = 0
        self.write(data)

    def lose(self) -> None:
        """The peer is gone: nothing reaches it any more."""
        if self.is_gone:
            return
        self.is_gone = True
        self._waiting.clear()
        self._emptied.set()
        self._on_gone()

    async def flushed(self) -> None:
        """Return once everything is with the kernel, or the peer is gone."""
        while self._waiting:
            await self._emptied.wait()

    def _cork(self, data: bytes) -> None:
        if not self._corked:
            self._step.add(self)
        self._corked.append(data)
        self._num_corked_bytes += len(data)

    def _send_now(self, data: bytes) -> None:
        try:
            num_sent = self._send(data)
        except BlockingIOError:
            num_sent = 0
        except OSError:
            self.lose()
            return
        if num_sent < len(data):
            self._waiting += data[num_sent:] if num_sent else data
            self._emptied = trio.Event()
            self.stuck_since = trio.current_time()
            self._nursery.start_soon(self._send_on)

    async def _send_on(self) -> None:
        while self._waiting:
            await trio.lowlevel.wait_writable(self._socket)
            try:
                num_sent = self._send(self._waiting[:_MAX_SEND_BYTES])
            except BlockingIOError:
                continue
            except OSError:
                self.lose()
                return
            del self._waiting[:num_sent]
            self.stuck_since = trio.current_time()
        self.stuck_since = None
        self._emptied.set()
