"""The pump: the one trio task that waits for a ZeroMQ socket.

The rule of this package: `ZMQ_FD` is edge-triggered. It says only that the state may have changed,
and any operation on the socket (send, recv, connect, reading `EVENTS`) may consume the edge. So
code that operates on the socket outside the pump calls `Pump.touched` afterwards, which reads
`EVENTS` and wakes the pump if there is work. The pump itself reads `EVENTS` after its last
operation and only then waits. A plain wait for the FD while other tasks send left messages unread
in 20 of 20 timed rounds; under this rule it never did (tests/protocol/transport/test_edge.py).

Owns the wait. Must not know what a message is.
"""

from collections.abc import Callable
from typing import Final, final

import trio
import zmq

BURST_LIMIT: Final = 256
BURST_S: Final = 0.002
"""After this many messages, or this time, other tasks run. A small message takes 3 us, but a frame
of tokens for hundreds of clients takes milliseconds.
"""

RETRY_S: Final = 0.005
"""How often a ROUTER with a backlog retries. Its POLLOUT stands for all peers together, so no event
says that the one peer that was full has room, and another operation may have consumed the edge.
"""

_POLLIN: Final = int(zmq.POLLIN)
_POLLIN_OUT: Final = int(zmq.POLLIN | zmq.POLLOUT)


@final
class Pump:
    """Receives from one socket and sends its backlog while `run` runs.

    `receive` takes one message from the socket and delivers it by a plain call. There is no
    checkpoint between the two, so cancellation loses nothing. It raises `zmq.Again` if there is no
    message. `send_backlog` sends what it can and returns whether something is left. `retries`:
    POLLOUT does not show when the backlog can be sent, so it is tried every `RETRY_S`.
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
        self._is_waiting = False

    async def run(self) -> None:
        """Pump until cancelled or until the socket is closed."""
        while not self._socket.closed:
            if self._turn():
                await trio.lowlevel.checkpoint()
            elif not self._socket.closed:
                await self._wait()

    def touched(self) -> None:
        """Read `EVENTS` after an operation outside the pump, and wake the pump if there is work. If
        the pump is not waiting, it reads `EVENTS` itself before it waits.
        """
        if self._is_waiting and not self._socket.closed and self._has_work():
            self.kick()

    def is_behind(self) -> bool:
        """Whether messages wait to be received."""
        if self._socket.closed or not self._may_receive():
            return False
        self.kick()
        return True

    def kick(self) -> None:
        """End the wait. Nothing is dequeued while the pump waits, so nothing is lost."""
        if self._is_waiting:
            # `_wait_readable` catches the error that this raises in it. A cancel scope around each
            # wait would cost 10 us.
            trio.lowlevel.notify_closing(self._fd)

    def close(self) -> None:
        """Close the socket; `run` returns. The wait ends first: epoll must not hold a closed FD."""
        self.kick()
        self._socket.close()

    def _turn(self) -> bool:
        """Receive and send as much as possible; True if there may be more work now."""
        may_have_more = self._drain()
        if self._socket.closed:
            return False
        self._has_backlog = self._send_backlog()
        if self._socket.closed:
            return False
        return self._has_work() or may_have_more

    def _drain(self) -> bool:
        """Deliver messages within the limits of a burst; True if a limit was reached."""
        ends_at = trio.current_time() + BURST_S
        for _ in range(BURST_LIMIT):
            # Reading `EVENTS` first costs 1 us, the exception of an empty socket 5 us.
            if not self._may_receive():
                return False
            try:
                self._receive()
            except zmq.Again:
                return False
            if self._socket.closed:
                return False
            if trio.current_time() >= ends_at:
                return True
        return True

    def _may_receive(self) -> bool:
        return bool(int(self._socket.get(zmq.EVENTS)) & _POLLIN)

    async def _wait(self) -> None:
        if self._has_backlog and self._retries:
            with trio.move_on_after(RETRY_S):
                await self._wait_readable()
        else:
            await self._wait_readable()

    async def _wait_readable(self) -> None:
        self._is_waiting = True
        try:
            await trio.lowlevel.wait_readable(self._fd)
        except trio.ClosedResourceError:
            pass  # `kick` has ended the wait
        finally:
            self._is_waiting = False

    def _has_work(self) -> bool:
        """Read `EVENTS`: is there a message, or room for the backlog?"""
        wanted = _POLLIN_OUT if self._has_backlog and not self._retries else _POLLIN
        return bool(int(self._socket.get(zmq.EVENTS)) & wanted)
