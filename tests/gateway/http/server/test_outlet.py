"""The writing side of a connection, over real sockets."""

import socket

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from gateway.http.push import StepFlush
from gateway.http.server.outlet import Outlet

SIZES = st.sampled_from([1, 300, 5_000, 100_000])
STEPS = st.lists(st.tuples(st.booleans(), st.lists(SIZES, max_size=4)), max_size=6)
"""What is written one after the other: whether within a step, and how much each time."""


async def _read(peer: trio.SocketStream, num_bytes: int) -> bytes:
    came = b""
    while len(came) < num_bytes and (part := await peer.receive_some(50_000)):
        came += part
    return came


@given(STEPS)
def test_all_arrives_in_order(steps: list[tuple[bool, list[int]]]) -> None:
    """In steps or not, once or several times, whether or not the kernel takes it at once."""

    async def write() -> None:
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        peer = trio.SocketStream(trio.socket.from_stdlib_socket(theirs))
        step = StepFlush()
        sent = b""
        with ours:
            async with peer, trio.open_nursery() as nursery:
                outlet = Outlet(ours, nursery, step, lambda: None)

                def put(size: int) -> None:
                    nonlocal sent
                    data = bytes([len(sent) % 251]) * size
                    sent += data
                    outlet.write(data)

                for is_step, sizes in steps:
                    if is_step:
                        with step:
                            for size in sizes:
                                put(size)
                    else:
                        for size in sizes:
                            put(size)
                with trio.fail_after(10):
                    assert await _read(peer, len(sent)) == sent
                    await outlet.flushed()
                assert not outlet.waiting
                assert outlet.stuck_since is None

    trio.run(write)


@pytest.mark.parametrize("is_step", [True, False])
async def test_a_peer_that_is_gone_is_told_once(is_step: bool) -> None:
    """Whoever finds it; what waited for it is dropped, and what comes later too."""
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    theirs.close()
    step, told = StepFlush(), []
    with ours:
        async with trio.open_nursery() as nursery:
            outlet = Outlet(ours, nursery, step, lambda: told.append("gone"))
            for _ in range(3):
                if is_step:
                    with step:
                        outlet.write(b"one")
                        outlet.write(b"two")
                else:
                    outlet.write(b"one")
            await outlet.flushed()
    assert outlet.is_gone
    assert not outlet.waiting
    assert told == ["gone"]
