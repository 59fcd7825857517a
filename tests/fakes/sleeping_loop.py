"""A loop that reads in its sleep, and sockets for it to read."""

import socket
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager

import trio

from protocol.transport import direct


@contextmanager
def socket_pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    """Two ends; the first does not block."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.setblocking(False)
        yield ours, theirs


def run_reading(main: Callable[[], Awaitable[None]], *instruments: trio.abc.Instrument) -> None:
    """Run `main` in such a loop."""

    async def reading() -> None:
        direct.read_in_sleep()
        await main()

    trio.run(reading, instruments=instruments)
