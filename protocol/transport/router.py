"""The gateway's end of all worker links.

Owns one ROUTER socket and the frames that wait for each peer. Frames are opaque here. Must not know
messages, workers' names or what a lost link means.
"""

import errno
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Final, NamedTuple, final

import trio
import zmq

from protocol.errors import PeerUnknown
from protocol.ids import ID_BYTES, WorkerId
from protocol.transport import sockets
from protocol.transport.backlog import Backlog
from protocol.transport.curve import CurveServer, FailedHandshakes, ZapHandler
from protocol.transport.pump import Pump
from protocol.transport.sockets import NOBLOCK, NOBLOCK_MORE, receive_rest
from protocol.wire import check_frame_size

OnRefused = Callable[[str, str], None]
"""A callback that gets a name of the refused peer, by which repetitions are recognised, and a
log line.
"""


def ignore_refusal(_who: str, _line: str) -> None:
    """Do not report the refusal."""


_MAX_PINNED_KEYS: Final = 4096
"""Identities whose key is remembered; a fleet has hundreds of live ones at most."""


class RouterStatistics(NamedTuple):
    """Counters since the start, and the frames that wait now.

    `malformed`: messages that were not one frame. `foreign`: identities that are not 16 bytes,
    or that came with another key than before. `unroutable`: queued frames whose peer is gone.
    `refused_keys`: handshakes that ZAP refused.
    """

    received: int
    sent: int
    malformed: int
    foreign: int
    unroutable: int
    refused_keys: int
    waiting_peers: int
    waiting_bytes: int


@final
class RouterSocket:
    """Carries frames to and from every worker that dialled in.

    `on_frame(peer, frame)` and `on_unroutable(peer)` are synchronous and must not block; they may
    call `send`. With `keys`, only peers with a configured public key can connect; `on_refused` is
    called for each other peer. `run` owns the socket and closes it when it ends.
    """

    def __init__(
        self,
        on_frame: Callable[[WorkerId, bytes], None],
        on_unroutable: Callable[[WorkerId], None],
        *,
        keys: CurveServer | None = None,
        on_refused: OnRefused = ignore_refusal,
    ) -> None:
        self._on_frame = on_frame
        self._on_unroutable = on_unroutable
        self._keys = keys
        # libzmq looks its ZAP handler up by context, so every router has a context of its own.
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._socket = sockets.open_socket(self._context, zmq.ROUTER)
        # Without MANDATORY a ROUTER drops silently (2,965 of 3,000 messages over the high-water
        # mark); without HANDOVER a restarted peer is ignored while its old connection lingers.
        self._socket.set(zmq.ROUTER_MANDATORY, 1)
        self._socket.set(zmq.ROUTER_HANDOVER, 1)
        self._zap: ZapHandler | None = None
        self._handshakes: FailedHandshakes | None = None
        receive = self._receive
        if keys is not None:
            self._zap = ZapHandler(self._context, keys.public_keys, on_refused)
            self._handshakes = FailedHandshakes(self._socket, on_refused)
            keys.secure(self._socket)
            receive = self._receive_with_key
        self._pump = Pump(self._socket, receive, self._send_backlogs, retries=True)
        self._backlogs: dict[WorkerId, Backlog] = {}
        self._key_of: dict[WorkerId, str] = {}
        self._received = self._sent = 0
        self._malformed = self._foreign = self._unroutable = 0

    def __repr__(self) -> str:
        return f"<RouterSocket {self.statistics()}>"

    def bind(self, address: str) -> str:
        """Listen on `address`; `tcp://127.0.0.1:*` picks a port. Returns the bound address.

        Raises `ConfigError` if it is taken, malformed, or public without keys.
        """
        return sockets.bind(self._socket, address, has_keys=self._keys is not None)

    def send(self, peer: WorkerId, frame: bytes) -> None:
        """Send `frame` now, or queue it while the peer's link is busy; never blocks.

        Raises `PeerUnknown` if no peer with that identity is connected, `LinkFull` if over 8 MiB
        wait for it already (this frame is refused, the earlier ones stay), `WireError` over the
        frame limit.
        """
        check_frame_size(frame)
        if self._socket.closed:
            raise PeerUnknown("the link to the workers is closed")
        if (backlog := self._backlogs.get(peer)) is not None:
            backlog.push(frame)
            return
        try:
            accepted = self._try_send(peer, frame)
        finally:
            self._pump.touched()
        if not accepted:
            backlog = self._backlogs[peer] = Backlog()
            backlog.push(frame)
            self._pump.kick()

    def send_all(self, peer: WorkerId, frames: list[bytes]) -> None:
        """`send` each in order. The frame that raises is refused, and so are those after it."""
        for frame in frames:
            self.send(peer, frame)

    def waiting_bytes(self, peer: WorkerId) -> int:
        """The bytes that wait for `peer`, 0 if it has no link."""
        backlog = self._backlogs.get(peer)
        return backlog.num_bytes if backlog is not None else 0

    def disconnect_peer(self, peer: WorkerId) -> int:
        """Drop the frames that wait for `peer` and return their number.

        libzmq cannot close one connection of a ROUTER: the caller stops talking to the peer, and
        the peer notices the silence.
        """
        self._key_of.pop(peer, None)
        backlog = self._backlogs.pop(peer, None)
        return len(backlog) if backlog is not None else 0

    def is_behind(self) -> bool:
        """Whether frames of any peer have arrived that `on_frame` has not been called with."""
        return self._pump.is_behind()

    def may_use_name(self, peer: WorkerId, worker_name: str) -> bool:
        """Whether the key with which `peer` connected belongs to `worker_name`.

        Always True without keys: then only this machine can connect.
        """
        if self._keys is None:
            return True
        key = self._key_of.get(peer)
        return key is not None and self._keys.worker_keys.get(worker_name) == key

    def accept_keys(self, worker_keys: Mapping[str, str]) -> None:
        """Accept these public keys, by worker name, from now on. Open connections stay."""
        if self._keys is None or self._zap is None:
            return
        self._keys = replace(self._keys, worker_keys=dict(worker_keys))
        self._zap.accept(self._keys.public_keys)

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Pump frames until cancelled or closed; closes the socket at the end."""
        try:
            async with trio.open_nursery() as nursery:
                if self._zap is not None:
                    nursery.start_soon(self._zap.run)
                if self._handshakes is not None:
                    nursery.start_soon(self._handshakes.run)
                task_status.started()
                await self._pump.run()
                nursery.cancel_scope.cancel()
        finally:
            self.close()

    def close(self) -> None:
        """Close the socket and drop waiting frames; later sends raise `PeerUnknown`."""
        if self._socket.closed:
            return
        if self._handshakes is not None:
            self._handshakes.close()
        self._pump.close()
        if self._zap is not None:
            self._zap.close()
        self._backlogs.clear()
        self._context.term()

    def statistics(self) -> RouterStatistics:
        """The counters, for metrics."""
        return RouterStatistics(
            received=self._received,
            sent=self._sent,
            malformed=self._malformed,
            foreign=self._foreign,
            unroutable=self._unroutable,
            refused_keys=self._zap.num_refused if self._zap is not None else 0,
            waiting_peers=len(self._backlogs),
            waiting_bytes=sum(backlog.num_bytes for backlog in self._backlogs.values()),
        )

    def _receive(self) -> None:
        # The parts of a message arrive together; a ROUTER puts the identity before the first one.
        # Two calls of recv cost 1.9 us, recv_multipart 3.0.
        identity = self._socket.recv(NOBLOCK)
        frame = self._socket.recv(NOBLOCK)
        if receive_rest(self._socket):
            self._malformed += 1
        else:
            self._deliver(identity, frame)

    def _receive_with_key(self) -> None:
        # Only uncopied frames carry the User-Id that ZAP gave the connection.
        parts = self._socket.recv_multipart(NOBLOCK, copy=False)
        if len(parts) != 2:
            self._malformed += 1
            return
        identity, frame = parts[0].bytes, parts[1]
        if self._pin_key(WorkerId(identity), str(frame.get("User-Id"))):
            self._deliver(identity, frame.bytes)
        else:
            self._foreign += 1

    def _pin_key(self, peer: WorkerId, key: str) -> bool:
        """Whether `peer` still has the key of its first frame. Without this check HANDOVER would
        let another accepted peer take over its identity.
        """
        if (pinned := self._key_of.get(peer)) is not None:
            return pinned == key
        if len(self._key_of) >= _MAX_PINNED_KEYS:
            del self._key_of[next(iter(self._key_of))]
        self._key_of[peer] = key
        return True

    def _deliver(self, identity: bytes, frame: bytes) -> None:
        if len(identity) != ID_BYTES:
            self._foreign += 1
            return
        self._received += 1
        self._on_frame(WorkerId(identity), frame)

    def _try_send(self, peer: WorkerId, frame: bytes) -> bool:
        """False if the peer's link is busy. Raises `PeerUnknown`."""
        try:
            self._socket.send(peer, NOBLOCK_MORE)
        except zmq.Again:
            return False
        except zmq.ZMQError as error:
            if error.errno == errno.EHOSTUNREACH:
                raise PeerUnknown(f"no worker with identity {peer.hex()} is connected") from error
            raise
        self._socket.send(frame, NOBLOCK)
        self._sent += 1
        return True

    def _send_backlogs(self) -> bool:
        for peer, backlog in list(self._backlogs.items()):
            # `on_unroutable` of an earlier peer may have disconnected this one or closed the
            # socket.
            if peer in self._backlogs:
                self._send_backlog(peer, backlog)
        return bool(self._backlogs)

    def _send_backlog(self, peer: WorkerId, backlog: Backlog) -> None:
        try:
            while backlog:
                if not self._try_send(peer, backlog.first()):
                    return
                backlog.pop()
            del self._backlogs[peer]
        except PeerUnknown:
            del self._backlogs[peer]
            self._unroutable += len(backlog)
            self._on_unroutable(peer)
