"""One connection between two processes of this machine that carries frames.

Owns one Unix stream socket, on which each frame follows its length, and the frames that the peer
has not read yet. Must not know what the peer is, nor dial or listen.

The sending task writes a frame and the receiving event loop reads it, with no thread in between:
ZeroMQ's two I/O threads cost 100 us of each round trip and half of its CPU time.
"""

import socket
import struct
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Final, final

import outcome
import trio

from protocol.errors import PeerUnknown, WireError
from protocol.transport.backlog import Backlog
from protocol.transport.inline_reads import InlineReads, inline_reads
from protocol.transport.pump import BURST_S
from protocol.wire import LengthDecoder, check_frame_size

_RECEIVE_BYTES: Final = 1 << 18
_INLINE_BYTES: Final = 1 << 14
"""Bytes that are read inline before other tasks run: tokens for 500 clients."""
_MAX_JOINED_BYTES: Final = 1 << 18
"""Bytes of frames that are joined into one write: about what a socket takes at once."""

HEADER: Final = struct.Struct("<I")
"""The length before each frame."""


@final
class FrameStream:
    """Frames to and from one peer, until it is gone or `close` is called.

    `on_frame` is synchronous and must not block; it may `send` and `close`. `on_pause` is called
    after the frames that arrived together, before other tasks run.
    """

    def __init__(
        self,
        sock: socket.socket,
        on_frame: Callable[[bytes], None],
        on_pause: Callable[[], None] = lambda: None,
    ) -> None:
        """`sock` must be non-blocking; it is closed with the stream."""
        self._socket = sock
        self._on_frame = on_frame
        self._on_pause = on_pause
        self._decoder = LengthDecoder(HEADER)
        self._inline: InlineReads | None = None
        self._failure: BaseException | None = None
        self._is_blocked = False
        self._unsent: bytes | memoryview = b""
        self._backlog = Backlog()
        self._may_write = trio.Event()
        self.is_closed = False
        self.is_delivering = False
        self.received = self.sent = 0

    def __repr__(self) -> str:
        return f"<FrameStream {self.sent} sent, {self.waiting_bytes} bytes wait>"

    @property
    def waiting_frames(self) -> int:
        """Frames that the socket has not accepted completely."""
        return len(self._backlog) + self._is_blocked

    @property
    def waiting_bytes(self) -> int:
        """The bytes of `waiting_frames`."""
        return self._backlog.num_bytes + len(self._unsent)

    def fileno(self) -> int:
        """The socket's descriptor, to poll it."""
        return self._socket.fileno()

    def send(self, frame: bytes) -> None:
        """Write `frame` now, or queue it while the peer does not read; never blocks.

        Raises `LinkFull` if over 8 MiB wait already (this frame is refused, earlier ones stay),
        `PeerUnknown` if the peer is gone, `WireError` for a frame over the limit.
        """
        self.send_all([frame])

    def send_all(self, frames: list[bytes]) -> None:
        """`send` each frame in order, in one write if they are small. If one raises, that frame and
        those after it are refused.
        """
        if len(frames) > 1 and sum(map(len, frames)) > _MAX_JOINED_BYTES:
            for frame in frames:
                self.send_all([frame])
            return
        if self.is_closed:
            raise PeerUnknown("the connection is closed")
        for frame in frames:
            check_frame_size(frame)
            if self._is_blocked:
                self._backlog.push(frame)
        if not self._is_blocked:
            self._write(frames)
            if self._is_blocked:
                self._may_write.set()

    def drop_waiting(self) -> int:
        """Drop the waiting frames and return their number. A frame that was sent in part is still
        completed, because the peer counts its bytes.
        """
        return self._backlog.clear()

    async def run(self) -> None:
        """Carry frames until the peer is gone or the stream is closed; closes it at the end."""
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._write_waiting)
                if (inline := inline_reads()) is not None:
                    self._inline = inline
                    inline.register(self.fileno(), self._read_inline)
                await self._read()
                nursery.cancel_scope.cancel()
        finally:
            self.close()

    def close(self, *, linger_s: float = 0.0) -> None:
        """Close. With `linger_s`, first block for up to that time to send the waiting frames. What
        the socket has accepted reaches the peer in any case.
        """
        if self.is_closed:
            return
        self.is_closed = True
        if linger_s > 0 and self.waiting_frames:
            self._write_all(linger_s)
        if self._inline is not None:
            self._inline.unregister(self.fileno())
        trio.lowlevel.notify_closing(self._socket)
        self._socket.close()
        self._backlog.clear()
        self._unsent = b""

    async def _read(self) -> None:
        while not self.is_closed:
            try:
                await trio.lowlevel.wait_readable(self._socket)
                if self._failure is not None:
                    break
                data = self._socket.recv(_RECEIVE_BYTES)
                if not data:
                    break
                frames = [frame for _, frame in self._decoder.feed(data)]
            except BlockingIOError:
                continue
            except (OSError, trio.ClosedResourceError, WireError):
                break
            await self._deliver(frames)
        if self._failure is not None:
            raise self._failure

    def _read_inline(self) -> None:
        """Read once while the loop waits, mostly a single frame. `_read` reads further bytes, and
        finds the end of the stream.
        """
        try:
            frames = self._decoder.feed(self._socket.recv(_INLINE_BYTES))
        except OSError:
            return
        except WireError:
            self.close()
            return
        result = outcome.capture(self._deliver_inline, frames)
        if isinstance(result, outcome.Error):
            # `_read` finds the end of the stream and raises the failure in its task.
            self._failure = result.error
            with suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)

    def _deliver_inline(self, frames: list[tuple[tuple[int, ...], bytes]]) -> None:
        for _, frame in frames:
            if self.is_closed:
                return
            self.received += 1
            self._on_frame(frame)
        self._on_pause()

    async def _deliver(self, frames: list[bytes]) -> None:
        """Deliver the frames in order; every `BURST_S` let other tasks run."""
        ends_at = time.perf_counter() + BURST_S
        self.is_delivering = True
        for frame in frames:
            if self.is_closed:
                return
            self.received += 1
            self._on_frame(frame)
            if time.perf_counter() >= ends_at:
                self._on_pause()
                await trio.lowlevel.checkpoint()
                ends_at = time.perf_counter() + BURST_S
        self.is_delivering = False
        self._on_pause()

    async def _write_waiting(self) -> None:
        while True:
            await self._may_write.wait()
            self._may_write = trio.Event()
            while self._is_blocked and not self.is_closed:
                try:
                    await trio.lowlevel.wait_writable(self._socket)
                except trio.ClosedResourceError:
                    return
                self._flush()

    def _flush(self) -> None:
        self._write_bytes(self._unsent)
        while self._backlog and not self._is_blocked:
            frame = self._backlog.first()
            self._backlog.pop()
            self._write([frame])

    def _write(self, frames: list[bytes]) -> None:
        self.sent += len(frames)
        self._write_bytes(b"".join([HEADER.pack(len(frame)) + frame for frame in frames]))

    def _write_bytes(self, data: bytes | memoryview) -> None:
        """Write what the socket accepts, and keep the rest in `_unsent`. A peer that is gone is
        noticed by the reading task, once it has read what the peer sent before.
        """
        try:
            num_sent = self._socket.send(data)
        except BlockingIOError:
            num_sent = 0
        except OSError:
            # A peer that is still there (this process is out of memory) must notice that a frame is
            # missing, so end the stream.
            with suppress(OSError):
                self._socket.shutdown(socket.SHUT_WR)
            num_sent = len(data)
        self._is_blocked = num_sent < len(data)
        # A view, not a copy: a model's files leave in a hundred pieces.
        self._unsent = memoryview(data)[num_sent:] if self._is_blocked else b""

    def _write_all(self, within_s: float) -> None:
        self._socket.settimeout(within_s)
        rest: list[bytes | memoryview] = [self._unsent]
        while self._backlog:
            frame = self._backlog.first()
            self._backlog.pop()
            rest.append(HEADER.pack(len(frame)) + frame)
        try:
            self._socket.sendall(b"".join(rest))
        except OSError:
            return
