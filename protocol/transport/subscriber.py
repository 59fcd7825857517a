"""A subscription to the messages of a publisher, with replays of missed messages.

Owns one SUB socket, one DEALER for replays, and dialling until the publisher answers. Messages of
several frames are opaque here. Must not know what they mean.
"""

from collections.abc import Callable
from contextlib import ExitStack
from typing import Final, final

import trio
import zmq

from protocol.transport import sockets
from protocol.transport.dealer import LinkMonitor
from protocol.transport.pump import Pump
from protocol.transport.sockets import NOBLOCK, open_socket

_MAX_WAITING: Final = 10_000
"""Messages that libzmq holds; further ones are dropped, and leave a gap in the numbers."""
_MAX_BYTES: Final = 64 * 2**20
_RECONNECT_MS: Final = 100

_Frames = Callable[[list[bytes]], None]


@final
class Subscriber:
    """Follows the publisher at `address`. `on_message`, `on_replay` and `on_connected` are
    synchronous and must not block; the last is called each time that the connection is made.
    """

    def __init__(
        self,
        address: str,
        topic: bytes,
        replay: str | None,
        *,
        on_message: _Frames,
        on_replay: _Frames,
        on_connected: Callable[[], None],
    ) -> None:
        """Start dialling. Raises `ConfigError` for a bad address, or a public one."""
        self._on_message = on_message
        self._on_replay = on_replay
        self._on_connected = on_connected
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._events = self._open(zmq.SUB)
        self._replays = self._open(zmq.DEALER) if replay is not None else None
        with ExitStack() as on_failure:
            on_failure.callback(self.close)
            self._events.set(zmq.SUBSCRIBE, topic)
            self._monitor = LinkMonitor(self._events, self._link_changed)
            on_failure.callback(self._monitor.close)
            sockets.connect(self._events, address, has_keys=False)
            if self._replays is not None and replay is not None:
                sockets.connect(self._replays, replay, has_keys=False)
            on_failure.pop_all()

    async def run(self) -> None:
        """Deliver messages until cancelled."""
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._monitor.run)
                if self._replays is not None:
                    self._replay_pump = Pump(self._replays, self._receive_replay)
                    nursery.start_soon(self._replay_pump.run)
                await Pump(self._events, self._receive).run()
        finally:
            self._monitor.close()
            self.close()

    def ask_replay(self, request: bytes) -> None:
        """Ask for missed messages; does nothing if the publisher is not connected."""
        if self._replays is None:
            return
        try:
            # A REQ socket would send the empty frame itself, and refuse a second request.
            self._replays.send_multipart([b"", request], NOBLOCK)
        except zmq.Again:
            return
        self._replay_pump.touched()

    def close(self) -> None:
        """Close the sockets."""
        self._events.close()
        if self._replays is not None:
            self._replays.close()
        self._context.term()

    def _open(self, kind: int) -> zmq.Socket[bytes]:
        socket = open_socket(self._context, kind)
        socket.set(zmq.RCVHWM, _MAX_WAITING)
        socket.set(zmq.MAXMSGSIZE, _MAX_BYTES)
        socket.set(zmq.RECONNECT_IVL, _RECONNECT_MS)
        return socket

    def _receive(self) -> None:
        self._on_message(self._events.recv_multipart(NOBLOCK))

    def _receive_replay(self) -> None:
        assert self._replays is not None
        self._on_replay(self._replays.recv_multipart(NOBLOCK))

    def _link_changed(self, is_up: bool) -> None:
        if is_up:
            self._on_connected()
