"""trio <-> zmq: the one task that waits for a socket.

The law of this package: `ZMQ_FD` is edge-triggered. It says only that the state may have changed,
and any touch of the socket (send, recv, connect, reading `EVENTS`) may consume the edge. Whoever
touches a socket therefore calls `Pump.touched` afterwards, which reads `EVENTS` and wakes the
pump; the pump itself reads `EVENTS` after its last operation and only then waits. Waiting for the
FD with other tasks sending inline left messages unread in 20 of 20 timed rounds, and never
under this law (tests/protocol/transport/test_edge.py).

Owns the wait. Must not know what a message is.
"""

import math
from collections.abc import Callable
from typing import Final, final

import trio
import zmq

BURST_LIMIT: Final = 256
"""Messages per turn: at 3 us each the other tasks wait for less than a millisecond."""

RETRY_S: Final = 0.005
"""How often a ROUTER with a backlog retries. Its POLLOUT speaks for all peers together, so no
event names the one peer that was full, and another touch may have consumed the edge."""

_POLLIN: Final = int(zmq.POLLIN)
_POLLIN_OUT: Final = int(zmq.POLLIN | zmq.POLLOUT)


@final
class Pump:
    """Receives from one socket and sends its backlog, for as long as `run` runs.

    `receive` takes one message off the socket and delivers it synchronously: between dequeue
    and delivery there is no checkpoint, so cancellation loses nothing. It raises `zmq.Again` on
    an empty socket. `send_backlog` sends what it can and says whether something is left;
    `retries` says that POLLOUT cannot tell when to go on.
    """

    def __init__(
        self,
        socket: zmq.Socket[bytes],
        receive: Callable[[], None],
        send_backlog: Callable[[], bool] = lambda: False,
        *,
        retries: bool = False,
    ) -> None:
        self._socket = socket
        self._fd = int(socket.get(zmq.FD))
        self._receive = receive
        self._send_backlog = send_backlog
        self._retries = retries
        self._has_backlog = False
        self._wait_scope: trio.CancelScope | None = None

    async def run(self) -> None:
        """Pump until cancelled or until the socket is closed."""
        while not self._socket.closed:
            if self._turn():
                await trio.lowlevel.checkpoint()
            elif not self._socket.closed:
                await self._wait()

    def touched(self) -> None:
        """Re-read `EVENTS` after an operation outside the pump and wake the pump for work."""
        if not self._socket.closed and self._has_work():
            self.kick()

    def kick(self) -> None:
        """End the wait. Nothing is dequeued while the pump waits, so nothing is lost."""
        if self._wait_scope is not None:
            self._wait_scope.cancel()

    def close(self) -> None:
        """Close the socket; `run` returns. The wait goes first: epoll must not hold a dead FD."""
        self.kick()
        self._socket.close()

    def _turn(self) -> bool:
        """Receive and send until neither goes on; True if there may be more work now."""
        may_have_more = self._drain()
        if self._socket.closed:
            return False
        self._has_backlog = self._send_backlog()
        if self._socket.closed:
            return False
        return self._has_work() or may_have_more

    def _drain(self) -> bool:
        """Deliver at most `BURST_LIMIT` messages; True if it stopped at the limit."""
        for _ in range(BURST_LIMIT):
            try:
                self._receive()
            except zmq.Again:
                return False
            if self._socket.closed:
                return False
        return True

    async def _wait(self) -> None:
        must_retry = self._has_backlog and self._retries
        deadline = trio.current_time() + RETRY_S if must_retry else math.inf
        with trio.CancelScope(deadline=deadline) as scope:
            self._wait_scope = scope
            try:
                await trio.lowlevel.wait_readable(self._fd)
            finally:
                self._wait_scope = None

    def _has_work(self) -> bool:
        """Read `EVENTS`: is there a message, or room for the backlog?"""
        wanted = _POLLIN_OUT if self._has_backlog and not self._retries else _POLLIN
        return bool(int(self._socket.get(zmq.EVENTS)) & wanted)
