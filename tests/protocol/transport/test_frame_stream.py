"""One connection's frames, read in the loop's sleep or by tasks alone: the same in both ways."""

import socket

import pytest
import trio

from protocol.errors import WireError
from protocol.transport import inline_reads
from protocol.transport.frame_stream import HEADER, FrameStream
from tests.fakes.inline_loop import run_with_inline_reads, socket_pair


@pytest.fixture(name="has_insides", params=[True, False])
def _has_insides(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Whether trio is as we know it."""
    if not request.param:
        monkeypatch.setattr(inline_reads, "_runner", lambda: None)
    return bool(request.param)


def _frame(content: bytes) -> bytes:
    return HEADER.pack(len(content)) + content


@pytest.mark.usefixtures("has_insides")
def test_frames_come_whole_and_in_order() -> None:
    """One by one, cut anywhere, many together and larger than any read."""
    sizes = [0, 1, 900, 16_380, 16_384, 40_000, 1_000_000, *range(200), 7]
    frames = [bytes([size % 251]) * size for size in sizes]
    received: list[bytes] = []

    async def main() -> None:
        with socket_pair() as (ours, theirs):
            stream = FrameStream(ours, received.append)
            theirs.setblocking(False)
            data = b"".join(map(_frame, frames))
            async with trio.open_nursery() as nursery:
                nursery.start_soon(stream.run)
                for at in range(0, len(data), 5_003):
                    await _send_all(theirs, data[at : at + 5_003])
                theirs.shutdown(socket.SHUT_WR)
            assert stream.is_closed
            assert stream.received == len(frames)

    run_with_inline_reads(main)
    assert received == frames


async def _until_it_waits() -> None:
    """Wait until the reader waits, so that what is sent next arrives in the loop's sleep."""
    for _ in range(10):
        await trio.lowlevel.checkpoint()


async def _send_all(sock: socket.socket, data: bytes) -> None:
    while data:
        await trio.lowlevel.wait_writable(sock)
        data = data[sock.send(data) :]


@pytest.mark.usefixtures("has_insides")
def test_a_length_over_the_limit_ends_the_stream() -> None:
    """Bytes after it are not read as frames."""
    received: list[bytes] = []

    async def main() -> None:
        with socket_pair() as (ours, theirs):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(FrameStream(ours, received.append).run)
                await _until_it_waits()
                theirs.send(_frame(b"a"))
                theirs.send(HEADER.pack(2**32 - 1) + _frame(b"b"))

    run_with_inline_reads(main)
    assert b"b" not in received


@pytest.mark.usefixtures("has_insides")
@pytest.mark.parametrize("is_closing", [False, True])
@pytest.mark.parametrize("kind", [ConnectionAbortedError, WireError, KeyError])
def test_what_on_frame_raises_is_raised_by_the_streams_task(
    kind: type[Exception], is_closing: bool
) -> None:
    """As an unexpected error of ours; even one that looks like the peer's, or that comes
    once the stream is closed. No frame follows it, and the task that runs the stream goes on.
    """
    received: list[bytes] = []

    def on_frame(stream: FrameStream, frame: bytes) -> None:
        received.append(frame)
        if is_closing:
            stream.close()
        raise kind("ours")

    async def main() -> None:
        with socket_pair() as (ours, theirs):
            stream = FrameStream(ours, lambda frame: on_frame(stream, frame))
            raised: list[BaseException] = []

            async def run() -> None:
                try:
                    await stream.run()
                except* kind as errors:
                    raised.extend(errors.exceptions)

            async with trio.open_nursery() as nursery:
                nursery.start_soon(run)
                await _until_it_waits()
                theirs.send(_frame(b"a") + _frame(b"b") + _frame(bytes(20_000)))
            assert len(raised) == 1
            assert stream.is_closed
            await trio.lowlevel.checkpoint()

    run_with_inline_reads(main)
    assert received == [b"a"]


@pytest.mark.usefixtures("has_insides")
def test_a_stream_may_be_closed_while_it_delivers() -> None:
    """The frames that came along are not delivered any more."""
    received: list[bytes] = []
    pauses: list[None] = []

    async def main() -> None:
        with socket_pair() as (ours, theirs):

            def on_frame(frame: bytes) -> None:
                received.append(frame)
                stream.close()

            stream = FrameStream(ours, on_frame, lambda: pauses.append(None))
            async with trio.open_nursery() as nursery:
                nursery.start_soon(stream.run)
                await _until_it_waits()
                theirs.send(_frame(b"a") + _frame(b"b"))
            assert repr(inline_reads.inline_reads()) in {"None", "<InlineReads of 0 sockets>"}

    run_with_inline_reads(main)
    assert received == [b"a"]
    assert not pauses


def test_a_frame_that_comes_in_the_loops_sleep_is_read_there(has_insides: bool) -> None:
    """A frame that arrives in the loop's sleep is read there without a task; where inline reads are
    off, the stream's task reads it.
    """
    told: list[str] = []

    def on_frame(_frame: bytes) -> None:
        try:
            told.append("by " + trio.lowlevel.current_task().name.rpartition(".")[2])
        except RuntimeError:
            told.append("by none")

    async def main() -> None:
        with socket_pair() as (ours, theirs):
            over = trio.Event()

            def on_pause() -> None:
                told.append("pause")
                over.set()

            async with trio.open_nursery() as nursery:
                nursery.start_soon(FrameStream(ours, on_frame, on_pause).run)
                await _until_it_waits()
                theirs.send(_frame(b"a"))
                with trio.fail_after(30):
                    await over.wait()
                nursery.cancel_scope.cancel()

    run_with_inline_reads(main)
    assert told == ["by none" if has_insides else "by run", "pause"]
