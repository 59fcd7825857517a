"""The writing side of a connection, over real sockets."""

import socket
from collections.abc import Callable

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from gateway.http.server.exchange import SendBuffer, WriteBatch

SIZES = st.sampled_from([1, 300, 5_000, 100_000])
PARTS = st.tuples(SIZES, st.sampled_from([SendBuffer.write, SendBuffer.write_all]))
STEPS = st.lists(st.tuples(st.booleans(), st.lists(PARTS, max_size=4)), max_size=6)
"""What is written one after the other: whether within a step, how much each time, and how."""

Write = Callable[[SendBuffer, bytes], None]


async def _read(peer: trio.SocketStream, num_bytes: int) -> bytes:
    came = b""
    while len(came) < num_bytes and (part := await peer.receive_some(50_000)):
        came += part
    return came


@given(STEPS)
def test_all_arrives_in_order(steps: list[tuple[bool, list[tuple[int, Write]]]]) -> None:
    """All bytes arrive in order, in steps or not, once or several times, whether or not the kernel
    takes them at once.
    """

    async def write() -> None:
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        peer = trio.SocketStream(trio.socket.from_stdlib_socket(theirs))
        step = WriteBatch()
        sent = b""
        with ours:
            async with peer, trio.open_nursery() as nursery:
                send_buffer = SendBuffer(ours, nursery, step, lambda: None)

                def put(size: int, write: Write) -> None:
                    nonlocal sent
                    data = bytes([len(sent) % 251]) * size
                    sent += data
                    write(send_buffer, data)

                for is_step, parts in steps:
                    if is_step:
                        with step:
                            for part in parts:
                                put(*part)
                    else:
                        for part in parts:
                            put(*part)
                with trio.fail_after(60):
                    assert await _read(peer, len(sent)) == sent
                    await send_buffer.flushed()
                assert not send_buffer.waiting
                assert send_buffer.stuck_since is None

    trio.run(write)


async def test_a_whole_response_waits_for_no_step() -> None:
    """A whole response is sent before the rest of a worker's frame is read, unless earlier bytes of
    the connection wait.
    """
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    theirs.setblocking(False)
    step = WriteBatch()
    with ours, theirs:
        async with trio.open_nursery() as nursery:
            send_buffer = SendBuffer(ours, nursery, step, lambda: None)
            with step:
                send_buffer.write_all(b"all of it")
                assert theirs.recv(100) == b"all of it"
                send_buffer.write(b"the begin, ")
                send_buffer.write_all(b"the end")
                with pytest.raises(BlockingIOError):
                    theirs.recv(100)
            assert theirs.recv(100) == b"the begin, the end"


@pytest.mark.parametrize("is_step", [True, False])
async def test_a_peer_that_is_gone_is_told_once(is_step: bool) -> None:
    """A peer that is gone is reported once, by the first task that finds it; what waited for it is
    dropped, and what comes later too.
    """
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    theirs.close()
    step, told = WriteBatch(), []
    with ours:
        async with trio.open_nursery() as nursery:
            send_buffer = SendBuffer(ours, nursery, step, lambda: told.append("gone"))
            for _ in range(3):
                if is_step:
                    with step:
                        send_buffer.write(b"one")
                        send_buffer.write(b"two")
                else:
                    send_buffer.write(b"one")
            await send_buffer.flushed()
    assert send_buffer.is_gone
    assert not send_buffer.waiting
    assert told == ["gone"]
