"""A worker's end of its link to a gateway of the same machine.

Owns one stream at a time, the frames that wait while there is none, and dialling until the gateway
answers. Frames are opaque here. Must not know messages.
"""

import socket
from collections.abc import Callable
from contextlib import suppress
from typing import Final, final

import trio

from housekeeping.processes import is_stopped
from protocol.errors import ConfigError, PeerUnknown, WireError
from protocol.ids import ID_BYTES, WorkerId
from protocol.transport import local_socket
from protocol.transport.backlog import Backlog
from protocol.transport.dealer import DealerStatistics
from protocol.transport.frame_stream import FrameStream
from protocol.wire import check_frame_size

_RECONNECT_S: Final = 0.05
_NO_GATEWAY: Final = "the process that answers is no gateway, or one of another version"


@final
class LocalDealer:
    """Like `DealerSocket`, for `ipc://` addresses without keys. It talks to no process of another
    user, unless it `admits_others`.
    """

    def __init__(
        self,
        identity: WorkerId,
        on_frame: Callable[[bytes], None],
        *,
        on_link: Callable[[bool], None] = lambda _is_up: None,
        on_pause: Callable[[], None] = lambda: None,
        admits_others: bool = False,
    ) -> None:
        if len(identity) != ID_BYTES:
            raise ValueError(f"an identity has {ID_BYTES} bytes, not {len(identity)}")
        self._identity = identity
        self._on_frame = on_frame
        self._on_link = on_link
        self._on_pause = on_pause
        self._admits_others = admits_others
        self._address: str | None = None
        self._dialled = trio.Event()
        self._stream: FrameStream | None = None
        self._peer_pid = 0
        self._backlog = Backlog()
        self._is_closed = False
        self._last_failure: str | None = None
        self._received = self._sent = 0

    def __repr__(self) -> str:
        return f"<LocalDealer {self._address} {self.statistics()}>"

    def connect(self, address: str) -> None:
        """As `DealerSocket.connect`."""
        if self._address is not None:
            raise ConfigError(f"this link dials {self._address} already")
        local_socket.check_dialled(address)
        self._address = address
        self._dialled.set()

    def send(self, frame: bytes) -> None:
        """As `DealerSocket.send`."""
        if self._stream is not None:
            self._stream.send(frame)
        elif self._is_closed:
            raise PeerUnknown(f"the link to {self._address} is closed")
        else:
            check_frame_size(frame)
            self._backlog.push(frame)

    def is_peer_stopped(self) -> bool:
        """Whether the gateway's process is stopped; a Unix socket has no heartbeats to show it."""
        return self._stream is not None and is_stopped(self._peer_pid)

    def drop_waiting(self) -> int:
        """As `DealerSocket.drop_waiting`."""
        num_dropped = self._backlog.clear()
        if self._stream is not None:
            num_dropped += self._stream.drop_waiting()
        return num_dropped

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Dial and carry frames until cancelled or closed; closes at the end."""
        try:
            task_status.started()
            await self._dialled.wait()
            while not self._is_closed:
                await self._serve_once()
                await trio.sleep(_RECONNECT_S)
        finally:
            self.close()

    def close(self, *, linger_s: float = 0.0) -> None:
        """As `DealerSocket.close`."""
        self._is_closed = True
        self._backlog.clear()
        self._dialled.set()
        stream, self._stream = self._stream, None
        if stream is not None:
            self._count(stream)
            stream.close(linger_s=linger_s)

    def statistics(self) -> DealerStatistics:
        """The counters, for metrics and logs."""
        stream = self._stream
        return DealerStatistics(
            received=self._received + (stream.received if stream else 0),
            sent=self._sent + (stream.sent if stream else 0),
            malformed=0,
            redials=0,
            waiting_frames=len(self._backlog) + (stream.waiting_frames if stream else 0),
            waiting_bytes=self._backlog.num_bytes + (stream.waiting_bytes if stream else 0),
            is_up=stream is not None,
            last_failure=self._last_failure,
        )

    async def _serve_once(self) -> None:
        assert self._address is not None
        connection = local_socket.dial(self._address)
        if connection is None:
            return
        with connection:
            process = local_socket.peer_of(connection)
            if not (self._admits_others or process.is_trusted):
                self._last_failure = f"the process that listens there is of {process.user}"
                return
            self._peer_pid = process.pid
            with suppress(OSError):
                connection.send(local_socket.MAGIC + self._identity)
            try:
                is_ours = await local_socket.receive_hello(connection, 0) is not None
            except WireError:
                is_ours, self._last_failure = False, _NO_GATEWAY
            if is_ours and not self._is_closed:
                self._last_failure = None
                await self._carry(connection)

    async def _carry(self, connection: socket.socket) -> None:
        stream = self._stream = FrameStream(connection, self._on_frame, self._on_pause)
        while self._backlog:
            stream.send(self._backlog.first())
            self._backlog.pop()
        self._on_link(True)
        await stream.run()
        if self._stream is stream:
            self._stream = None
            self._count(stream)
            self._on_link(False)

    def _count(self, stream: FrameStream) -> None:
        self._received += stream.received
        self._sent += stream.sent
