"""The gateway's end of all worker links within one machine.

Owns the listening socket and one stream for each peer. Frames are opaque here. Must not know
messages, workers' names or what a lost link means.
"""

import select
import socket
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Final, final

import trio

from housekeeping.tick import next_tick
from protocol.errors import ConfigError, PeerUnknown, WireError
from protocol.ids import ID_BYTES, WorkerId
from protocol.transport import local_socket
from protocol.transport.frame_stream import FrameStream
from protocol.transport.router import OnRefused, RouterStatistics, ignore_refusal

LOOK_S: Final = 3.2
"""How often the socket's file is looked for while nobody dials, at multiples of this: a cleaner may
have taken it, and no worker could dial in again. Eight beats of a gateway at rest (0.4 s), so that
no look wakes the process.
"""
_ACCEPT_AGAIN_S: Final = 0.1
"""The pause after `accept` failed, as when the process is out of descriptors."""


@final
class LocalRouter:
    """Like `RouterSocket`, for `ipc://` addresses without keys. When a peer's connection ends it
    calls `on_unroutable` at once. A process of another user is refused, unless it `admits_others`.
    """

    def __init__(
        self,
        on_frame: Callable[[WorkerId, bytes], None],
        on_unroutable: Callable[[WorkerId], None],
        *,
        on_refused: OnRefused = ignore_refusal,
        admits_others: bool = False,
    ) -> None:
        self._on_frame = on_frame
        self._on_unroutable = on_unroutable
        self._on_refused = on_refused
        self._admits_others = admits_others
        self._listener: socket.socket | None = None
        self._address = ""
        self._streams: dict[WorkerId, FrameStream] = {}
        self._is_closed = False
        self._received = self._sent = self._foreign = 0

    def __repr__(self) -> str:
        return f"<LocalRouter {self._address} {self.statistics()}>"

    def bind(self, address: str) -> str:
        """Listen on `address` and return it. Raises `ConfigError` if it is taken or malformed."""
        self._listener, self._address = self._listen(address), address
        return address

    def _listen(self, address: str) -> socket.socket:
        return local_socket.listen(address, admits_others=self._admits_others)

    def send(self, peer: WorkerId, frame: bytes) -> None:
        """As `RouterSocket.send`."""
        self.send_all(peer, [frame])

    def send_all(self, peer: WorkerId, frames: list[bytes]) -> None:
        """Like `RouterSocket.send_all`, in few writes."""
        if (stream := self._streams.get(peer)) is None:
            raise PeerUnknown(f"no worker with identity {peer.hex()} is connected")
        stream.send_all(frames)

    def waiting_bytes(self, peer: WorkerId) -> int:
        """As `RouterSocket.waiting_bytes`."""
        stream = self._streams.get(peer)
        return stream.waiting_bytes if stream is not None else 0

    def disconnect_peer(self, peer: WorkerId) -> int:
        """As `RouterSocket.disconnect_peer`."""
        stream = self._streams.get(peer)
        return stream.drop_waiting() if stream is not None else 0

    def is_behind(self) -> bool:
        """As `RouterSocket.is_behind`."""
        poll = select.poll()
        for stream in self._streams.values():
            if stream.is_delivering:
                return True
            poll.register(stream, select.POLLIN)
        return bool(poll.poll(0))

    def may_use_name(self, peer: WorkerId, worker_name: str) -> bool:  # noqa: ARG002 - the seam's
        """Always True: only this user can connect."""
        return True

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Serve all connections until cancelled or closed; closes at the end."""
        try:
            async with trio.open_nursery() as nursery:
                task_status.started()
                await self._accept_all(nursery)
                nursery.cancel_scope.cancel()
        finally:
            self.close()

    def close(self) -> None:
        """Close all streams and drop waiting frames; later sends raise `PeerUnknown`."""
        if self._is_closed:
            return
        self._is_closed = True
        for stream in list(self._streams.values()):
            self._forget(stream)
            stream.close()
        self._streams.clear()
        if self._listener is not None:
            with suppress(RuntimeError):  # closed outside a loop: no task waits for it
                trio.lowlevel.notify_closing(self._listener)
            # Unlink before closing: after the close the file may belong to a successor.
            local_socket.unlink(self._address)
            self._listener.close()

    def statistics(self) -> RouterStatistics:
        """The counters, for metrics."""
        streams = self._streams.values()
        return RouterStatistics(
            received=self._received + sum(stream.received for stream in streams),
            sent=self._sent + sum(stream.sent for stream in streams),
            malformed=0,
            foreign=self._foreign,
            unroutable=0,
            refused_keys=0,
            waiting_peers=sum(stream.waiting_bytes > 0 for stream in streams),
            waiting_bytes=sum(stream.waiting_bytes for stream in streams),
        )

    async def _accept_all(self, nursery: trio.Nursery) -> None:
        assert self._listener is not None
        while not self._is_closed:
            try:
                with trio.move_on_at(next_tick(trio.current_time(), LOOK_S)) as waited:
                    await trio.lowlevel.wait_readable(self._listener)
                if waited.cancelled_caught:
                    self._look_for_file()
                    continue
                connection, _ = self._listener.accept()
            except trio.ClosedResourceError:
                return
            except BlockingIOError:
                continue
            except OSError:
                await trio.sleep(_ACCEPT_AGAIN_S)
                continue
            nursery.start_soon(self._serve, connection)

    def _look_for_file(self) -> None:
        """Make the socket's file again if it is gone; no task waits for the listener now."""
        if self._listener is None or local_socket.is_there(self._address):
            return
        with suppress(ConfigError):  # there is no place for it now
            former, self._listener = self._listener, self._listen(self._address)
            former.close()

    async def _serve(self, connection: socket.socket) -> None:
        with connection:
            process = local_socket.peer_of(connection)
            if not (self._admits_others or process.is_trusted):
                self._foreign += 1
                self._on_refused(
                    process.user,
                    f"a process of {process.user} (pid {process.pid}) was refused at "
                    f"{self._address}: it is another user than this gateway's",
                )
                return
            connection.setblocking(False)
            with suppress(OSError):
                connection.send(local_socket.MAGIC)
            try:
                identity = await local_socket.receive_hello(connection, ID_BYTES)
            except WireError:
                identity = None
            if identity is None:
                self._foreign += 1
            elif not self._is_closed:
                await self._carry(WorkerId(identity), connection)

    async def _carry(self, peer: WorkerId, connection: socket.socket) -> None:
        stream = FrameStream(connection, partial(self._on_frame, peer))
        if (former := self._streams.pop(peer, None)) is not None:
            # The peer dialled again before the end of its previous connection was noticed.
            self._forget(former)
            former.close()
        self._streams[peer] = stream
        await stream.run()
        if self._streams.get(peer) is stream:
            del self._streams[peer]
            self._forget(stream)
            self._on_unroutable(peer)

    def _forget(self, stream: FrameStream) -> None:
        self._received += stream.received
        self._sent += stream.sent
