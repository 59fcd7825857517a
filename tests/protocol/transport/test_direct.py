"""Reading in the loop's sleep: nobody else waits longer, nothing is lost or comes twice."""

import socket
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager

import pytest
import trio

from protocol.transport import direct
from protocol.transport.direct import DirectReads
from protocol.transport.frame_stream import HEADER, FrameStream

PATIENCE_S = 30.0


class _Steps(trio.abc.Instrument):
    """Counts what the loop runs."""

    def __init__(self) -> None:
        self.count = 0

    def before_task_step(self, _task: trio.lowlevel.Task) -> None:
        self.count += 1


@contextmanager
def _pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.setblocking(False)
        yield ours, theirs


def _run(main: Callable[[], Awaitable[None]], steps: _Steps | None = None) -> None:
    instruments = [] if steps is None else [steps]

    async def reading() -> None:
        direct.read_in_sleep()
        await main()

    trio.run(reading, instruments=instruments)


def _reads() -> DirectReads:
    reads = direct.direct_reads()
    assert reads is not None
    return reads


def test_no_task_wakes_for_what_is_taken() -> None:
    """A hundred arrivals, each after the last was taken, are not one step of any task."""
    steps, taken = _Steps(), threading.Event()
    counts: list[int] = []

    def send(theirs: socket.socket, then: Callable[[], None]) -> None:
        for _ in range(100):
            theirs.send(b"x")
            assert taken.wait(PATIENCE_S)
            taken.clear()
        then()

    async def main() -> None:
        with _pair() as (ours, theirs):
            token, over = trio.lowlevel.current_trio_token(), trio.Event()

            def take() -> None:
                assert ours.recv(10) == b"x"
                counts.append(steps.count)
                taken.set()

            _reads().offer(ours.fileno(), take)
            end = lambda: token.run_sync_soon(over.set)  # noqa: E731
            thread = threading.Thread(target=send, args=(theirs, end))
            thread.start()
            await over.wait()
            thread.join()
            _reads().withdraw(ours.fileno())

    _run(main, steps)
    assert len(counts) == 100
    # The first may come before the loop sleeps.
    assert counts[-1] == counts[1]


def test_a_task_that_is_woken_by_a_take_runs_at_once() -> None:
    """The sleep ends with it, though nothing else happens."""

    async def main() -> None:
        with _pair() as (ours, theirs):
            came = trio.Event()

            def take() -> None:
                ours.recv(10)
                came.set()

            _reads().offer(ours.fileno(), take)
            theirs.send(b"x")
            began_at = trio.current_time()
            with trio.fail_after(PATIENCE_S):
                await came.wait()
            assert trio.current_time() < began_at + PATIENCE_S
            _reads().withdraw(ours.fileno())

    _run(main)


def test_what_a_take_leaves_wakes_the_task_that_waits_for_it() -> None:
    """Two of three bytes are left, and then the end; the task finds both."""

    async def main() -> None:
        with _pair() as (ours, theirs):
            taken: list[bytes] = []
            _reads().offer(ours.fileno(), lambda: taken.append(ours.recv(1)))
            theirs.send(b"abc")
            theirs.shutdown(socket.SHUT_WR)
            with trio.fail_after(PATIENCE_S):
                await trio.lowlevel.wait_readable(ours)
            assert [*taken, ours.recv(10), ours.recv(10)] == [b"a", b"bc", b""]
            _reads().withdraw(ours.fileno())

    _run(main)


def test_a_deadline_ends_the_sleep() -> None:
    """Though nothing comes."""

    async def main() -> None:
        with _pair() as (ours, _):
            _reads().offer(ours.fileno(), lambda: None)
            with trio.move_on_after(0.01) as scope:
                await trio.sleep_forever()
            assert scope.cancelled_caught
            _reads().withdraw(ours.fileno())

    _run(main)


def test_deadlines_and_other_sockets_are_served_while_one_never_rests() -> None:
    """A socket that can always be read, which nobody empties, holds up nobody."""

    async def main() -> None:
        with _pair() as (ours, theirs), _pair() as (other, its_peer):
            theirs.send(b"x")
            _reads().offer(ours.fileno(), lambda: None)
            with trio.move_on_after(0.01) as scope:
                await trio.sleep_forever()
            assert scope.cancelled_caught
            its_peer.send(b"y")
            with trio.fail_after(PATIENCE_S):
                await trio.lowlevel.wait_readable(other)
            _reads().withdraw(ours.fileno())

    _run(main)


def test_who_withdrew_is_not_called() -> None:
    """Neither for what comes later nor for another socket of the same number."""

    async def main() -> None:
        taken: list[str] = []
        with _pair() as (ours, theirs):
            number = ours.fileno()
            _reads().offer(number, lambda: taken.append("first"))
            _reads().withdraw(number)
            _reads().withdraw(number)
            theirs.send(b"x")
            with trio.fail_after(PATIENCE_S):
                await trio.lowlevel.wait_readable(ours)
        with _pair() as (ours, theirs):
            assert ours.fileno() == number
            _reads().offer(number, lambda: taken.append("second"))
            theirs.send(b"x")
            with trio.move_on_after(0.01):
                await trio.sleep_forever()
            _reads().withdraw(number)
        assert set(taken) == {"second"}

    _run(main)


def test_a_clock_of_another_kind_reads_nothing() -> None:
    """Whoever would offer a socket learns it."""

    async def main() -> None:
        assert direct.direct_reads() is None

    trio.run(main)


# Frames.


@pytest.fixture(name="has_insides", params=[True, False])
def _has_insides(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Whether trio is as we know it."""
    if not request.param:
        monkeypatch.setattr(direct, "_runner", lambda: None)
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
        with _pair() as (ours, theirs):
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

    _run(main)
    assert received == frames


async def _until_it_waits() -> None:
    """So that what is sent next comes in the loop's sleep."""
    for _ in range(10):
        await trio.lowlevel.checkpoint()


async def _send_all(sock: socket.socket, data: bytes) -> None:
    while data:
        await trio.lowlevel.wait_writable(sock)
        data = data[sock.send(data) :]


@pytest.mark.usefixtures("has_insides")
def test_a_length_over_the_limit_ends_the_stream() -> None:
    """What comes after it is nobody's frame."""
    received: list[bytes] = []

    async def main() -> None:
        with _pair() as (ours, theirs):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(FrameStream(ours, received.append).run)
                await _until_it_waits()
                theirs.send(_frame(b"a"))
                theirs.send(HEADER.pack(2**32 - 1) + _frame(b"b"))

    _run(main)
    assert b"b" not in received


@pytest.mark.usefixtures("has_insides")
def test_what_on_frame_raises_is_raised_by_the_streams_task() -> None:
    """As an error of ours that nobody foresaw; even one that looks like the peer's."""

    def on_frame(_frame: bytes) -> None:
        raise ConnectionAbortedError("ours")

    async def main() -> None:
        with _pair() as (ours, theirs):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(FrameStream(ours, on_frame).run)
                await _until_it_waits()
                theirs.send(_frame(b"a"))

    with pytest.raises(ExceptionGroup) as raised:
        _run(main)
    assert raised.group_contains(ConnectionAbortedError)


@pytest.mark.usefixtures("has_insides")
def test_a_stream_may_be_closed_while_it_delivers() -> None:
    """The frames that came along are not delivered any more."""
    received: list[bytes] = []

    async def main() -> None:
        with _pair() as (ours, theirs):

            def on_frame(frame: bytes) -> None:
                received.append(frame)
                stream.close()

            stream = FrameStream(ours, on_frame)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(stream.run)
                await _until_it_waits()
                theirs.send(_frame(b"a") + _frame(b"b"))
            assert repr(direct.direct_reads()) in {"None", "<DirectReads, 0 offered>"}

    _run(main)
    assert received == [b"a"]
