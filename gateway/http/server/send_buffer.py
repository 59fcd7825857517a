"""The bytes on their way to a client's socket, and which of them leave in one piece.

Owns the buffer of bytes that the kernel has not taken yet, and the write batch, in which writes of
one engine frame are collected. Must not know HTTP, requests or responses.
"""

import socket
from collections.abc import Callable
from typing import Final

import trio

_MAX_SEND_BYTES: Final = 2**20


class WriteBatch:
    """`with write_batch:` surrounds the processing of one engine frame. What the block writes to a
    connection leaves in one piece at its end. The block must not await; an inner block is part of
    the outer one.

    `is_open`: writes are being collected. `now`, which `with` also gives, is the time on trio's
    clock at which the block began; all events in the block use it, because asking the clock for
    every token would cost more than formatting its text. A buffer adds itself to `pending` with its
    first bytes.
    """

    __slots__ = ("_depth", "is_open", "now", "pending")

    def __init__(self) -> None:
        self.is_open = False
        self.now = 0.0
        self.pending: list[SendBuffer] = []
        self._depth = 0

    def __enter__(self) -> float:
        self._depth += 1
        if not self.is_open:
            self.now = trio.current_time()
            self.is_open = True
        return self.now

    def __exit__(self, *_exc: object) -> None:
        self._depth -= 1
        if self._depth:
            return
        self.is_open = False
        pending, self.pending = self.pending, []
        for send_buffer in pending:
            send_buffer.flush()


write_batch: Final = WriteBatch()
"""The write batch of this process, whose connections and frames share one thread."""


class SendBuffer:
    """Bytes for one socket. `write` never waits. `on_gone` is called once, when the peer is found
    to be gone.

    `waiting` holds the bytes that the kernel has not taken, or was not offered yet because the
    `batch` is open. It is the `bytes` of the only write, as in most batches, or else a bytearray.
    `stuck_since` is the time at which the kernel last took bytes while more waited; None while none
    wait.
    """

    __slots__ = (
        "_emptied",
        "_nursery",
        "_on_gone",
        "_socket",
        "batch",
        "is_gone",
        "stuck_since",
        "waiting",
    )

    def __init__(
        self,
        connection: socket.socket,
        nursery: trio.Nursery,
        batch: WriteBatch,
        on_gone: Callable[[], None],
    ) -> None:
        self._socket = connection
        self._nursery = nursery
        self.batch = batch
        self._on_gone = on_gone
        self._emptied = trio.Event()
        self.waiting: bytes | bytearray = b""
        self.stuck_since: float | None = None
        self.is_gone = False

    def write(self, data: bytes) -> None:
        """Send `data`, which is not empty, now or as soon as the kernel takes it."""
        if self.is_gone:
            return
        if self.waiting:
            # It leaves together with the bytes before it.
            if type(self.waiting) is bytes:
                self.waiting = bytearray(self.waiting)
            self.waiting += data
            return
        self.waiting = data
        if self.batch.is_open:
            self.batch.pending.append(self)
        else:
            self.flush()

    def write_all(self, data: bytes) -> None:
        """`write` a whole response at once: no later write of the batch can join it."""
        if self.waiting or self.is_gone:
            self.write(data)
        else:
            self.waiting = data
            self.flush()

    def flush(self) -> None:
        """Send the bytes that were written since the batch began."""
        data, self.waiting = self.waiting, b""
        try:
            num_sent = self._socket.send(data)
        except OSError as error:
            num_sent = self._sent_nothing(error)
        if num_sent < len(data) and not self.is_gone:
            self._send_later(data[num_sent:])

    def lose(self) -> None:
        """The peer is gone: drop the bytes that wait."""
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
                num_sent = self._socket.send(self.waiting[:_MAX_SEND_BYTES])
            except OSError as error:
                num_sent = self._sent_nothing(error)
            if num_sent:
                del self.waiting[:num_sent]
                self.stuck_since = trio.current_time()
        self.stuck_since = None
        self._emptied.set()
