"""A loop with inline reads, and sockets for it to read."""

import socket
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager

import trio

from protocol.transport import inline_reads


@contextmanager
def socket_pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    """Two ends; the first does not block."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.setblocking(False)
        yield ours, theirs


def run_with_inline_reads(
    main: Callable[[], Awaitable[None]], *instruments: trio.abc.Instrument
) -> None:
    """Run `main` with inline reads enabled."""

    async def reading() -> None:
        inline_reads.enable_inline_reads()
        await main()

    trio.run(reading, instruments=instruments)
