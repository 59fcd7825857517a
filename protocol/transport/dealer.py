"""A worker's end of its link to one gateway.

Owns one DEALER socket, the frames that wait for the gateway, and dialling until it answers. Frames
are opaque here. Must not know messages.
"""

from collections.abc import Callable
from typing import Final, NamedTuple, final

import trio
import zmq

from protocol.errors import ConfigError, PeerUnknown
from protocol.ids import ID_BYTES, WorkerId
from protocol.transport import sockets
from protocol.transport.backlog import Backlog
from protocol.transport.curve import CurveClient
from protocol.transport.pump import Pump
from protocol.transport.sockets import NOBLOCK, receive_rest
from protocol.wire import check_frame_size

_RECONNECT_MS: Final = 50
_REDIAL_CHECK_S: Final = 0.25

_DIALLING: Final = frozenset(
    {zmq.Event.CONNECT_DELAYED, zmq.Event.CONNECT_RETRIED, zmq.Event.CONNECTED}
)
_FAILURES: Final[dict[int, str]] = {
    zmq.Event.HANDSHAKE_FAILED_AUTH: "the gateway does not accept this worker's public key",
    zmq.Event.HANDSHAKE_FAILED_PROTOCOL: (
        "only one side has CURVE keys, or the other side is no gateway"
    ),
    zmq.Event.HANDSHAKE_FAILED_NO_DETAIL: (
        "the handshake broke off: wrong gateway key, keys on one side only, or no gateway"
    ),
}
_WATCHED: Final = (
    zmq.Event.CONNECT_DELAYED
    | zmq.Event.CONNECT_RETRIED
    | zmq.Event.CONNECTED
    | zmq.Event.HANDSHAKE_SUCCEEDED
    | zmq.Event.HANDSHAKE_FAILED_AUTH
    | zmq.Event.HANDSHAKE_FAILED_PROTOCOL
    | zmq.Event.HANDSHAKE_FAILED_NO_DETAIL
    | zmq.Event.DISCONNECTED
)


class DealerStatistics(NamedTuple):
    """Counters since the start, and the frames that wait now. `malformed` counts messages of
    several frames. `last_failure` is why the last handshake failed, None after a successful one.
    """

    received: int
    sent: int
    malformed: int
    redials: int
    waiting_frames: int
    waiting_bytes: int
    is_up: bool
    last_failure: str | None


@final
class LinkMonitor:
    """Follows the events of one dialled connection on libzmq's monitor socket.

    `on_change(is_up)` is synchronous. `is_idle`: libzmq is neither connected nor dialling.
    """

    def __init__(self, socket: zmq.Socket[bytes], on_change: Callable[[bool], None]) -> None:
        # Imported here because it imports asyncio, which no gateway needs.
        from zmq.utils.monitor import parse_monitor_message  # noqa: PLC0415

        self._parse = parse_monitor_message
        self._dealer = socket
        self._on_change = on_change
        self._socket = socket.get_monitor_socket(_WATCHED)
        self._pump = Pump(self._socket, self._receive)
        self.is_up = False
        self.is_idle = False
        self.last_failure: str | None = None

    async def run(self) -> None:
        """Follow events until cancelled or closed."""
        await self._pump.run()

    def close(self) -> None:
        """Stop following."""
        self._dealer.disable_monitor()
        self._pump.close()

    def _receive(self) -> None:
        event = self._parse(self._socket.recv_multipart(NOBLOCK))["event"]
        if event == zmq.Event.HANDSHAKE_SUCCEEDED:
            self.last_failure = None
            self._change(is_up=True)
        elif event == zmq.Event.DISCONNECTED:
            self.is_idle = True
            self._change(is_up=False)
        elif event in _DIALLING:
            self.is_idle = False
        else:
            self.last_failure = _FAILURES.get(event, self.last_failure)

    def _change(self, *, is_up: bool) -> None:
        if is_up != self.is_up:
            self.is_up = is_up
            self._on_change(is_up)


@final
class DealerSocket:
    """Carries frames to and from one gateway.

    `on_frame(frame)` and `on_link(is_up)` are synchronous and must not block; they may call
    `send`. `on_link` is called when the connection is made or lost, `on_pause()` after the frames
    that came together. `run` owns the socket and closes it when it ends.
    """

    def __init__(
        self,
        identity: WorkerId,
        on_frame: Callable[[bytes], None],
        *,
        keys: CurveClient | None = None,
        on_link: Callable[[bool], None] = lambda _is_up: None,
        on_pause: Callable[[], None] = lambda: None,
    ) -> None:
        if len(identity) != ID_BYTES:
            raise ValueError(f"an identity has {ID_BYTES} bytes, not {len(identity)}")
        self._on_frame = on_frame
        self._on_pause = on_pause
        self._keys = keys
        self._address: str | None = None
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._socket = sockets.open_socket(self._context, zmq.DEALER)
        self._socket.set(zmq.ROUTING_ID, identity)
        self._socket.set(zmq.RECONNECT_IVL, _RECONNECT_MS)
        # Without a connection libzmq then accepts no frames, so that a restarted gateway does not
        # get frames that were meant for its predecessor.
        self._socket.set(zmq.IMMEDIATE, 1)
        if keys is not None:
            keys.secure(self._socket)
        self._monitor = LinkMonitor(self._socket, on_link)
        self._pump = Pump(self._socket, self._receive, self._send_backlog)
        self._backlog = Backlog()
        self._received = self._sent = self._malformed = self._redials = 0

    def __repr__(self) -> str:
        return f"<DealerSocket {self._address} {self.statistics()}>"

    def connect(self, address: str) -> None:
        """Start dialling `address`, once; a lost connection is dialled again every 50 ms.

        Raises `ConfigError` if it is malformed, or public without keys.
        """
        if self._address is not None:
            raise ConfigError(f"this link dials {self._address} already")
        sockets.connect(self._socket, address, has_keys=self._keys is not None)
        self._address = address
        self._pump.touched()

    def send(self, frame: bytes) -> None:
        """Send `frame` now, or queue it while the link is busy or down; never blocks.

        Raises `LinkFull` if over 8 MiB wait already (this frame is refused, the earlier ones stay),
        `PeerUnknown` after `close`, `WireError` over the frame limit.
        """
        check_frame_size(frame)
        if self._socket.closed:
            raise PeerUnknown(f"the link to {self._address} is closed")
        if self._backlog:
            self._backlog.push(frame)
            return
        if not self._try_send(frame):
            self._backlog.push(frame)
            self._pump.kick()
        self._pump.touched()

    def is_peer_stopped(self) -> bool:
        """Always False: the connection of a stopped gateway ends by its heartbeats."""
        return False

    def drop_waiting(self) -> int:
        """Drop the frames that wait for a gateway that is gone; returns their number."""
        return self._backlog.clear()

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Pump frames until cancelled or closed; closes the socket at the end."""
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._monitor.run)
                nursery.start_soon(self._redial_when_given_up)
                task_status.started()
                await self._pump.run()
                nursery.cancel_scope.cancel()
        finally:
            self.close()

    def close(self, *, linger_s: float = 0.0) -> None:
        """Close, after up to `linger_s` (blocking) for frames that the link has accepted."""
        if self._socket.closed:
            return
        self._socket.set(zmq.LINGER, int(linger_s * 1000))
        self._monitor.close()
        self._pump.close()
        self._backlog.clear()
        self._context.term()

    def statistics(self) -> DealerStatistics:
        """The counters, for metrics and logs."""
        return DealerStatistics(
            received=self._received,
            sent=self._sent,
            malformed=self._malformed,
            redials=self._redials,
            waiting_frames=len(self._backlog),
            waiting_bytes=self._backlog.num_bytes,
            is_up=self._monitor.is_up,
            last_failure=self._monitor.last_failure,
        )

    async def _redial_when_given_up(self) -> None:
        """Dial again when libzmq has given up. It dials again by itself after a lost connection,
        but not after a refused key, a protocol error or an oversize frame (seen with 4.3.5:
        DISCONNECTED, then silence).
        """
        was_idle = False
        while True:
            await trio.sleep(_REDIAL_CHECK_S)
            is_idle = self._monitor.is_idle and not self._socket.closed
            if is_idle and was_idle and self._address is not None:
                self._redial(self._address)
            was_idle = is_idle

    def _redial(self, address: str) -> None:
        self._redials += 1
        self._socket.disconnect(address)
        self._socket.connect(address)
        self._pump.touched()

    def _receive(self) -> None:
        frame = self._socket.recv(NOBLOCK)
        if receive_rest(self._socket):
            self._malformed += 1
            return
        self._received += 1
        self._on_frame(frame)

    def _try_send(self, frame: bytes) -> bool:
        try:
            self._socket.send(frame, NOBLOCK)
        except zmq.Again:
            return False
        self._sent += 1
        return True

    def _send_backlog(self) -> bool:
        self._on_pause()
        while self._backlog:
            if not self._try_send(self._backlog.first()):
                return True
            self._backlog.pop()
        return False
