"""Inline reads: no other task waits longer, nothing is lost or comes twice."""

import os
import select
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from queue import SimpleQueue
from types import SimpleNamespace

import outcome
import pytest
import trio

from protocol.transport import inline_reads
from protocol.transport.inline_reads import InlineReads
from tests.fakes.inline_loop import run_with_inline_reads, socket_pair

PATIENCE_S = 30.0


class _Steps(trio.abc.Instrument):
    """Counts what the loop runs."""

    def __init__(self) -> None:
        self.count = 0

    def before_task_step(self, _task: trio.lowlevel.Task) -> None:
        self.count += 1


def _reads() -> InlineReads:
    reads = inline_reads.inline_reads()
    assert reads is not None
    return reads


def test_no_task_wakes_for_what_a_callback_reads() -> None:
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
        with socket_pair() as (ours, theirs):
            token, over = trio.lowlevel.current_trio_token(), trio.Event()

            def take() -> None:
                assert ours.recv(10) == b"x"
                counts.append(steps.count)
                taken.set()

            _reads().register(ours.fileno(), take)
            end = lambda: token.run_sync_soon(over.set)  # noqa: E731
            thread = threading.Thread(target=send, args=(theirs, end))
            thread.start()
            await over.wait()
            thread.join()
            _reads().unregister(ours.fileno())

    run_with_inline_reads(main, steps)
    assert len(counts) == 100
    # The first may come before the loop sleeps.
    assert counts[-1] == counts[1]


def test_a_task_that_a_callback_wakes_runs_at_once() -> None:
    """The loop's wait ends with it, though nothing else happens."""

    async def main() -> None:
        with socket_pair() as (ours, theirs):
            came = trio.Event()

            def take() -> None:
                ours.recv(10)
                came.set()

            _reads().register(ours.fileno(), take)
            theirs.send(b"x")
            began_at = trio.current_time()
            with trio.fail_after(PATIENCE_S):
                await came.wait()
            assert trio.current_time() < began_at + PATIENCE_S
            _reads().unregister(ours.fileno())

    run_with_inline_reads(main)


def test_what_a_callback_leaves_wakes_the_task_that_waits_for_it() -> None:
    """Two of three bytes are left, and then the end; the task finds both."""

    async def main() -> None:
        with socket_pair() as (ours, theirs):
            taken: list[bytes] = []
            _reads().register(ours.fileno(), lambda: taken.append(ours.recv(1)))
            theirs.send(b"abc")
            theirs.shutdown(socket.SHUT_WR)
            with trio.fail_after(PATIENCE_S):
                await trio.lowlevel.wait_readable(ours)
            assert [*taken, ours.recv(10), ours.recv(10)] == [b"a", b"bc", b""]
            _reads().unregister(ours.fileno())

    run_with_inline_reads(main)


def test_a_deadline_ends_the_wait() -> None:
    """Though nothing comes."""

    async def main() -> None:
        with socket_pair() as (ours, _):
            _reads().register(ours.fileno(), lambda: None)
            with trio.move_on_after(0.01) as scope:
                await trio.sleep_forever()
            assert scope.cancelled_caught
            _reads().unregister(ours.fileno())

    run_with_inline_reads(main)


def test_deadlines_and_other_sockets_are_served_while_one_never_rests() -> None:
    """A socket that is never emptied does not block others."""

    async def main() -> None:
        with socket_pair() as (ours, theirs), socket_pair() as (other, its_peer):
            theirs.send(b"x")
            _reads().register(ours.fileno(), lambda: None)
            with trio.move_on_after(0.01) as scope:
                await trio.sleep_forever()
            assert scope.cancelled_caught
            its_peer.send(b"y")
            with trio.fail_after(PATIENCE_S):
                await trio.lowlevel.wait_readable(other)
            _reads().unregister(ours.fileno())

    run_with_inline_reads(main)


def test_an_unregistered_callback_is_not_called() -> None:
    """An unregistered callback is not called, for later data or for another socket of the same
    number.
    """

    async def main() -> None:
        taken: list[str] = []
        with socket_pair() as (first, its_peer), socket_pair() as (second, other_peer):
            number = os.dup(first.fileno())
            _reads().register(number, lambda: taken.append("first"))
            _reads().unregister(number)
            _reads().unregister(number)
            its_peer.send(b"x")
            with trio.fail_after(PATIENCE_S):
                await trio.lowlevel.wait_readable(first)
            _reads().register(number, lambda: taken.append("again"))
            _reads().unregister(number)
            os.dup2(second.fileno(), number)
            _reads().register(number, lambda: taken.append("second"))
            other_peer.send(b"x")
            with trio.move_on_after(0.01):
                await trio.sleep_forever()
            _reads().unregister(number)
            os.close(number)
        assert set(taken) == {"second"}

    run_with_inline_reads(main)


def test_inline_reads_are_off_by_default() -> None:
    """Inline reads are off by default, and a caller can see that."""

    async def main() -> None:
        assert inline_reads.inline_reads() is None

    trio.run(main)


def test_a_guest_loop_has_no_inline_reads() -> None:
    """A guest loop has no inline reads, because it waits in another thread, where nothing may be
    read.
    """
    calls: SimpleQueue[Callable[[], object]] = SimpleQueue()
    over: list[outcome.Outcome[object]] = []

    async def main() -> InlineReads | None:
        inline_reads.enable_inline_reads()
        await trio.sleep(0.001)
        return inline_reads.inline_reads()

    trio.lowlevel.start_guest_run(
        main, run_sync_soon_threadsafe=calls.put, done_callback=over.append
    )
    while not over:
        calls.get(timeout=PATIENCE_S)()
    assert over[0].unwrap() is None


@pytest.mark.parametrize("missing", ["io_manager", "runq", "_epoll", "runner"])
def test_a_trio_without_what_is_needed_is_left_as_it_is(
    missing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A trio without what is needed is left as it is, and not half replaced."""
    manager = SimpleNamespace(_epoll=select.epoll())
    runner = SimpleNamespace(io_manager=manager, runq=[], is_guest=False)

    def insides() -> SimpleNamespace:
        if missing == "runner":
            raise ImportError("no such module")
        return runner

    if missing == "_epoll":
        del manager._epoll
    elif missing != "runner":
        delattr(runner, missing)
    monkeypatch.setattr(inline_reads, "_runner", insides)
    inline_reads.enable_inline_reads()
    assert inline_reads.inline_reads() is None
    assert getattr(runner, "io_manager", manager) is manager


def test_threads_wake_a_loop_with_inline_reads() -> None:
    """The work that threads hand over runs at once, although the loop would wait for long."""

    async def main() -> None:
        with socket_pair() as (ours, _):
            _reads().register(ours.fileno(), lambda: None)
            token, came = trio.lowlevel.current_trio_token(), trio.Event()
            thread = threading.Thread(target=token.run_sync_soon, args=(came.set,))
            with trio.fail_after(PATIENCE_S):
                thread.start()
                await came.wait()
            thread.join()
            _reads().unregister(ours.fileno())

    run_with_inline_reads(main)


@pytest.fixture(name="interruptible")
def _interruptible() -> Iterator[None]:
    """A process in the background was born ignoring interrupts, and so would trio."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interruptible")
def test_a_signal_ends_the_wait() -> None:
    """A signal ends the wait and wakes the task that waits for it; an interrupt ends the run as
    usual.
    """

    async def until_told() -> None:
        with socket_pair() as (ours, _):
            _reads().register(ours.fileno(), lambda: None)
            with trio.open_signal_receiver(signal.SIGUSR1) as signals, trio.fail_after(PATIENCE_S):
                killer = threading.Thread(target=os.kill, args=(os.getpid(), signal.SIGUSR1))
                killer.start()
                assert await anext(signals) == signal.SIGUSR1
                killer.join()
            _reads().unregister(ours.fileno())

    async def for_ever() -> None:
        with socket_pair() as (ours, theirs):

            def take() -> None:
                ours.recv(10)
                signal.raise_signal(signal.SIGINT)
                taken.append("to its end")

            _reads().register(ours.fileno(), take)
            theirs.send(b"x")
            with trio.fail_after(PATIENCE_S):
                await trio.sleep_forever()

    taken: list[str] = []
    run_with_inline_reads(until_told)
    with pytest.raises(KeyboardInterrupt):
        run_with_inline_reads(for_ever)
    assert taken == ["to its end"]


def test_a_callback_may_start_a_task_and_cancel_a_scope() -> None:
    """A callback may start a task and cancel a scope, as for a full socket and a client that left,
    which are found at once.
    """

    async def main() -> None:
        with socket_pair() as (ours, theirs), trio.fail_after(PATIENCE_S):
            steps: list[str] = []

            async def note() -> None:
                steps.append("started")

            def take() -> None:
                ours.recv(10)
                nursery.start_soon(note)
                scope.cancel()

            _reads().register(ours.fileno(), take)
            async with trio.open_nursery() as nursery:
                with trio.CancelScope() as scope:
                    theirs.send(b"x")
                    await trio.sleep_forever()
                assert scope.cancelled_caught
            assert steps == ["started"]
            _reads().unregister(ours.fileno())

    run_with_inline_reads(main)


def test_what_callbacks_submit_leaves_before_the_loop_waits_again() -> None:
    """The end of the loop's turn is noticed, though it only waited."""

    class Ends(trio.abc.Instrument):
        def before_io_wait(self, timeout: float) -> None:
            told.append(timeout)

    told: list[float] = []

    async def main() -> None:
        with socket_pair() as (ours, theirs), trio.fail_after(PATIENCE_S):
            came = trio.Event()

            def take() -> None:
                ours.recv(10)
                told.clear()
                came.set()

            _reads().register(ours.fileno(), take)
            trio.lowlevel.add_instrument(Ends())
            theirs.send(b"x")
            await came.wait()
            assert told == []
            await trio.lowlevel.checkpoint()
            assert len(told) == 1
            _reads().unregister(ours.fileno())

    run_with_inline_reads(main)


def test_one_callback_may_unregister_another() -> None:
    """A callback may unregister another one, which is then not called, though both sockets were
    ready.
    """

    async def main() -> None:
        with socket_pair() as (one, its_peer), socket_pair() as (two, other_peer):
            taken: list[str] = []
            came = trio.Event()

            def take(name: str, other: socket.socket) -> None:
                taken.append(name)
                _reads().unregister(other.fileno())
                came.set()

            _reads().register(one.fileno(), lambda: take("one", two))
            _reads().register(two.fileno(), lambda: take("two", one))
            its_peer.send(b"x")
            other_peer.send(b"x")
            with trio.fail_after(PATIENCE_S):
                await came.wait()
            assert len(taken) == 1
            _reads().unregister(one.fileno())
            _reads().unregister(two.fileno())

    run_with_inline_reads(main)
