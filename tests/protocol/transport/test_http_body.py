"""Bodies that are read while the loop waits."""

import os
import socket
import ssl
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from protocol.errors import HermaError, ReadError, RemoteProtocolError
from protocol.transport import HttpClient, inline_reads
from tests.fakes.certificates import certificate_for
from tests.fakes.inline_loop import run_with_inline_reads
from tests.fakes.worker import PATIENCE_S

HEAD = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
END = b"0\r\n\r\n"


class Steps(trio.abc.Instrument):
    """How often the task that reads was switched to."""

    def __init__(self) -> None:
        self.task: trio.lowlevel.Task | None = None
        self.num = 0

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        self.num += task is self.task


async def send_raw(stream: trio.SocketStream, data: bytes) -> None:
    """Send, and wait until the reader has done with it. A socket of trio would let other tasks run
    before the loop waits.
    """
    with socket.socket(fileno=os.dup(stream.socket.fileno())) as peer:
        left = memoryview(data)
        while left:
            left = left[peer.send(left) :]
            await wait_all_tasks_blocked(0.002)


class Stream:
    """A server that answers one request and sends what the test says."""

    def __init__(self) -> None:
        self.peer: trio.SocketStream | None = None
        self.heard: list[bytes] = []
        self.error: Exception | None = None
        self.is_over = trio.Event()
        self.scope = trio.CancelScope()
        self.steps = Steps()
        self.client: HttpClient

    async def send(self, data: bytes) -> None:
        """Send, and wait until the reader has done with it."""
        assert self.peer is not None
        await send_raw(self.peer, data)

    async def read(self, take: Callable[[bytes], bool]) -> None:
        """Read one body."""
        self.steps.task = trio.lowlevel.current_task()
        with self.scope:
            await self._read(take)
        self.is_over.set()

    async def _read(self, take: Callable[[bytes], bool]) -> None:
        try:
            async with self.client.exchange("POST", "/", body=b"{}") as response:
                await response.body.pass_to(take)
        except HermaError as error:
            self.error = error


def reading(
    script: Callable[[Stream], Awaitable[None]],
    take: Callable[[Stream, bytes], bool] = lambda _stream, _data: False,
) -> Stream:
    """Run `script` beside a task that reads; `take` gets the pieces."""
    stream = Stream()

    def hear(data: bytes) -> bool:
        stream.heard.append(data)
        return take(stream, data)

    async def main() -> None:
        (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
        stream.client = HttpClient(f"http://127.0.0.1:{listener.socket.getsockname()[1]}")
        with trio.fail_after(PATIENCE_S):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(stream.read, hear)
                stream.peer = await listener.accept()
                await stream.peer.receive_some()
                await stream.send(HEAD)
                await script(stream)
                await stream.is_over.wait()
                nursery.cancel_scope.cancel()
        reads = inline_reads.inline_reads()
        assert repr(reads) == "<InlineReads of 0 sockets>"
        await stream.peer.aclose()
        stream.client.close()
        await listener.aclose()

    run_with_inline_reads(main, stream.steps)
    return stream


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


def test_pieces_wake_no_task() -> None:
    """Pieces wake no task: only what is read while the loop does other things does; the connection
    is kept.
    """
    num_steps = []

    async def script(stream: Stream) -> None:
        for number in range(40):
            await stream.send(chunk(b"%d" % number))
        num_steps.append(stream.steps.num)
        await stream.send(END)
        assert stream.client.num_idle == 1

    stream = reading(script)
    assert stream.heard == [b"%d" % number for number in range(40)]
    assert num_steps[0] < 20
    assert stream.error is None


def test_more_than_is_read_at_once() -> None:
    """The task reads what a callback leaves."""
    large = bytes(range(256)) * 2000

    async def script(stream: Stream) -> None:
        await stream.send(chunk(large))
        await stream.send(chunk(b"x") + END)

    stream = reading(script)
    assert b"".join(stream.heard) == large + b"x"
    assert stream.error is None


def test_what_the_reader_raises_reaches_its_task() -> None:
    """An error of the reader reaches its task and ends the reading; the connection is not used
    again.
    """

    def refuse(_: Stream, data: bytes) -> bool:
        if data == b"bad":
            raise HermaError("no more")
        return False

    async def script(stream: Stream) -> None:
        for data in (b"good", b"bad", b"late"):
            await stream.send(chunk(data))
        assert stream.client.num_idle == stream.client.num_busy == 0

    stream = reading(script, refuse)
    assert str(stream.error) == "no more"
    assert stream.heard == [b"good", b"bad"]


def test_a_reader_may_leave_the_rest_to_its_task() -> None:
    """A reader may leave the rest to its task, as when it has moved a deadline: nothing is lost or
    doubled.
    """
    num_steps = []

    async def script(stream: Stream) -> None:
        for data in (b"a", b"done", b"b", b"c"):
            await stream.send(chunk(data))
            num_steps.append(stream.steps.num)
        await stream.send(END)

    stream = reading(script, lambda _, data: data == b"done")
    assert stream.heard == [b"a", b"done", b"b", b"c"]
    assert num_steps[0] < num_steps[1] < num_steps[2] < num_steps[3]
    assert stream.error is None


@pytest.mark.parametrize("ends_well", [True, False])
def test_a_connection_that_ends_in_the_body(ends_well: bool) -> None:
    """What came before its end counts."""

    async def script(stream: Stream) -> None:
        assert stream.peer is not None
        await stream.send(chunk(b"a"))
        if not ends_well:
            reset = (1).to_bytes(4, "little") + bytes(4)
            stream.peer.setsockopt(trio.socket.SOL_SOCKET, trio.socket.SO_LINGER, reset)
        await stream.peer.aclose()

    stream = reading(script)
    assert stream.heard == [b"a"]
    assert type(stream.error) is (RemoteProtocolError if ends_well else ReadError)


def test_a_cancelled_reader_is_forgotten() -> None:
    """Later bytes do not reach it."""

    async def script(stream: Stream) -> None:
        await stream.send(chunk(b"a"))
        stream.scope.cancel()
        await stream.send(chunk(b"b"))

    stream = reading(script)
    assert stream.heard == [b"a"]


def test_through_tls_records_that_arrive_together_are_all_read(tmp_path: Path) -> None:
    """The socket says nothing of what OpenSSL has read already, so a callback must leave none of
    that: many small records in one segment, the largest record, records in two parts.
    """
    authority, context = certificate_for("localhost", tmp_path)
    pieces = [b"%d," % number for number in range(200)] + [bytes(50_000), bytes(2**14 - 8)]
    heard: list[bytes] = []
    num_inline = []

    def hear(data: bytes) -> bool:
        heard.append(data)
        num_inline.append(in_callback())
        return False

    async def serve(listener: trio.SocketListener) -> None:
        peer = await listener.accept()
        incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        tls = context.wrap_bio(incoming, outgoing, server_side=True)
        for step in (tls.do_handshake, tls.read):
            while not stepped(step):
                await peer.send_all(outgoing.read())
                incoming.write(await peer.receive_some())
        tls.write(HEAD)
        for number, piece in enumerate(pieces):
            tls.write(chunk(piece))
            if number % 50 == 49 or len(piece) > 100:
                await send_in_two(peer, outgoing.read())
        while sum(map(len, heard)) < sum(map(len, pieces)):
            await wait_all_tasks_blocked(0.002)
        tls.write(END)
        await peer.send_all(outgoing.read())
        await peer.receive_some()
        await peer.aclose()

    async def main() -> None:
        (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
        url = f"https://localhost:{listener.socket.getsockname()[1]}"
        client = HttpClient(url, tls=ssl.create_default_context(cafile=str(authority)))
        with trio.fail_after(PATIENCE_S):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(serve, listener)
                async with client.exchange("POST", "/", body=b"{}") as response:
                    await response.body.pass_to(hear)
                client.close()
        await listener.aclose()

    run_with_inline_reads(main)
    assert b"".join(heard) == b"".join(pieces)
    assert any(num_inline)


def in_callback() -> bool:
    """Whether no task runs now."""
    try:
        trio.lowlevel.current_task()
    except RuntimeError:
        return True
    return False


def stepped(step: Callable[[], object]) -> bool:
    """Whether `step` needs nothing more from the peer."""
    try:
        step()
    except ssl.SSLWantReadError:
        return False
    return True


async def send_in_two(peer: trio.SocketStream, data: bytes) -> None:
    """In the middle of a record the reader finds nothing to read yet."""
    for part in (data[: len(data) // 2], data[len(data) // 2 :]):
        await send_raw(peer, part)
