"""What turns submit in one moment leaves together, but for those that are over by then."""

import os
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from gateway.link.attempts import STOPPED, Attempt
from gateway.link.submissions import LOOK_AGAIN_S, ROOM_BYTES, Submissions
from gateway.routing.lease import Lease
from gateway.runtime import Accounts
from protocol.ids import RequestId, WorkerId
from protocol.transport import LocalDealer, LocalRouter
from tests.fakes.links import fresh_id, until

WORKER = WorkerId(b"w" * 16)


def _nothing_waits(_worker: WorkerId) -> int:
    return 0


def _attempt(number: int, worker_id: WorkerId = WORKER) -> Attempt:
    return Attempt(
        Lease(ticket=number, worker_id=worker_id, cached_tokens=0, reason="why"),
        RequestId(number.to_bytes(16, "big")),
        1,
        expected=0,
        on_tokens=lambda _item: False,
        on_accepted=lambda _message: None,
    )


async def test_those_of_one_moment_leave_together_and_in_order() -> None:
    """Nothing leaves while tasks of this turn of the loop may still submit."""
    sent: list[bytes] = []
    counts: list[int] = []
    submissions = Submissions(lambda _worker, frames: sent.extend(frames), _nothing_waits)

    async def submit(number: int) -> None:
        submissions.add(_attempt(number), b"%d" % number)
        counts.append(len(sent))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(submissions.run)
        await wait_all_tasks_blocked()
        for number in range(5):
            await submit(number)
        assert not sent
        await wait_all_tasks_blocked()
        assert sent == [b"0", b"1", b"2", b"3", b"4"]
        async with trio.open_nursery() as turns:
            for number in range(5):
                turns.start_soon(submit, number)
        await wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    assert len(sent) == 10
    assert counts[5:] == [5] * 5


async def test_accounts_of_a_cycle_are_written_behind_its_frames() -> None:
    """Together, and before the next cycle; those of beginnings wait for an end."""
    done: list[object] = []
    accounts = Accounts()
    submissions = Submissions(lambda _worker, frames: done.extend(frames), _nothing_waits, accounts)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(submissions.run)
        await wait_all_tasks_blocked()
        accounts.begin(partial(done.append, "begun"))
        await trio.lowlevel.checkpoint()
        assert not done
        accounts.end(partial(done.append, "ended"))
        submissions.add(_attempt(1), b"1")
        await trio.lowlevel.checkpoint()
        assert done == [b"1", "begun", "ended"]
        nursery.cancel_scope.cancel()
    accounts.end(partial(done.append, "last"))
    assert done[3:] == ["last"]


async def test_a_task_that_an_account_wakes_runs_at_once() -> None:
    """The loop was about to sleep, with nothing to wake it for a minute."""
    woken, accounts = trio.Event(), Accounts()
    submissions = Submissions(lambda _worker, _frames: None, _nothing_waits, accounts)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(submissions.run)
        await wait_all_tasks_blocked()
        accounts.end(woken.set)
        began_at = trio.current_time()
        with trio.move_on_after(60):
            await woken.wait()
        assert trio.current_time() - began_at < 30
        nursery.cancel_scope.cancel()


async def test_they_leave_before_anything_else_is_done() -> None:
    """Submissions are sent in the same cycle of the loop, before it sleeps or runs again."""
    sent: list[bytes] = []
    submissions = Submissions(lambda _worker, frames: sent.extend(frames), _nothing_waits)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(submissions.run)
        await wait_all_tasks_blocked()
        for number in range(20):
            submissions.add(_attempt(number), b"%d" % number)
            await trio.lowlevel.checkpoint()
            assert len(sent) == number + 1
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("is_sent", [True, False])
async def test_a_send_that_loses_the_worker_ends_its_attempt_at_once(is_sent: bool) -> None:
    """The loop is about to sleep, with nothing to wake it for a long time. What is sent may be
    another's, who does not hear of it: a health probe.
    """
    attempt = _attempt(1)

    def lose(_worker: WorkerId, _frames: list[bytes]) -> bool:
        attempt.lose()
        return True

    submissions = Submissions(lose, _nothing_waits)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(submissions.run)
        await wait_all_tasks_blocked()
        began_at = trio.current_time()
        with trio.move_on_after(60):
            submissions.add(attempt if is_sent else _attempt(2), b"1")
            await attempt.wait()
        assert trio.current_time() - began_at < 30
        nursery.cancel_scope.cancel()


async def _fails_to_send(send: Callable[[WorkerId, list[bytes]], None]) -> None:
    """`send` raises, and so does what runs it."""
    submissions = Submissions(send, _nothing_waits)
    with trio.fail_after(60), pytest.RaisesGroup(pytest.RaisesExc(RuntimeError, match="confused")):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(submissions.run)
            await wait_all_tasks_blocked()
            submissions.add(_attempt(1), b"1")


async def test_a_fault_in_sending_is_not_swallowed() -> None:
    """A fault in sending ends the link, as its other faults do, though trio only logs what an
    instrument raises.
    """

    def send(_worker: WorkerId, _frames: list[bytes]) -> None:
        raise RuntimeError("the socket is confused")

    await _fails_to_send(send)


async def test_a_fault_in_sending_is_raised_even_if_it_passes() -> None:
    """A fault in sending is raised even if it passes: a message may be lost, and trio no longer
    calls an instrument that raised.
    """
    sent: list[bytes] = []

    def send(_worker: WorkerId, frames: list[bytes]) -> None:
        if not sent:
            sent.extend(frames)
            raise RuntimeError("the socket is confused")

    await _fails_to_send(send)
    assert sent == [b"1"]


async def test_what_is_over_is_not_sent() -> None:
    """A request that was withdrawn or has ended is not sent; one that was sent cannot be
    withdrawn.
    """
    sent: list[bytes] = []
    submissions = Submissions(lambda _worker, frames: sent.extend(frames), _nothing_waits)
    withdrawn, over, due = (_attempt(number) for number in range(3))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(submissions.run)
        for attempt in (withdrawn, over, due):
            submissions.add(attempt, b"%d" % attempt.lease.ticket)
        assert submissions.withdraw(withdrawn)
        assert not submissions.withdraw(withdrawn)
        over.end(STOPPED)
        await wait_all_tasks_blocked()
        assert sent == [b"2"]
        assert not submissions.withdraw(due)
        nursery.cancel_scope.cancel()


async def test_what_there_is_no_room_for_waits() -> None:
    """Submissions without room wait in order, and can be withdrawn; those for another worker do not
    wait for them.
    """
    sent: list[bytes] = []
    unread = {WORKER: ROOM_BYTES - 1}

    def send(_worker: WorkerId, frames: list[bytes]) -> None:
        sent.extend(frames)
        unread[WORKER] += sum(map(len, frames))

    submissions = Submissions(send, lambda worker: unread.get(worker, 0))
    attempts = [_attempt(number) for number in range(4)]
    other = _attempt(9, WorkerId(b"o" * 16))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(submissions.run)
        for attempt in (*attempts, other):
            submissions.add(attempt, b"%d" % attempt.lease.ticket)
        await until(lambda: sent == [b"0", b"9"])
        await trio.sleep(0.02)
        assert submissions.withdraw(attempts[1])
        attempts[2].end(STOPPED)
        assert sent == [b"0", b"9"]
        unread[WORKER] = 0
        await until(lambda: sent == [b"0", b"9", b"3"])
        nursery.cancel_scope.cancel()


async def test_for_room_it_is_looked_at_times() -> None:
    """The room is looked at at set times, and not in each turn of the loop, which the look itself
    would bring about.
    """
    looks: list[float] = []

    def waiting_bytes(_worker: WorkerId) -> int:
        looks.append(trio.current_time())
        return ROOM_BYTES

    submissions = Submissions(lambda _worker, _frames: None, waiting_bytes)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(submissions.run)
        await wait_all_tasks_blocked()
        submissions.add(_attempt(1), b"1")
        await until(lambda: len(looks) >= 10)
        nursery.cancel_scope.cancel()
    # The first by the loop's turn, and by the task that it wakes.
    assert looks[9] - looks[1] >= 8 * LOOK_AGAIN_S


async def test_after_its_end_nothing_is_sent() -> None:
    """After its end the sender sends nothing, and the loop no longer calls it."""
    sent: list[bytes] = []
    submissions = Submissions(lambda _worker, frames: sent.extend(frames), _nothing_waits)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(submissions.run)
        await wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    submissions.add(_attempt(1), b"1")
    await wait_all_tasks_blocked()
    assert not sent


async def test_a_frame_larger_than_the_room_goes_alone() -> None:
    """A frame larger than the room goes alone, once nothing waits, and no other frame
    overtakes it.
    """
    sent: list[list[int]] = []
    unread = {WORKER: 1}
    submissions = Submissions(
        lambda _worker, frames: sent.append([len(frame) for frame in frames]), unread.__getitem__
    )
    async with trio.open_nursery() as nursery:
        nursery.start_soon(submissions.run)
        for number, num_bytes in enumerate((10, 2 * ROOM_BYTES, 20)):
            submissions.add(_attempt(number), bytes(num_bytes))
        await trio.sleep(0.02)
        assert sent == [[10]]
        unread[WORKER] = 0
        await until(lambda: len(sent) == 3)
        assert sent[1:] == [[2 * ROOM_BYTES], [20]]
        nursery.cancel_scope.cancel()


async def test_a_burst_over_the_bound_of_a_link_does_not_fill_it(tmp_path: Path) -> None:
    """A dead worker's 400 long prompts move at once to another of this machine, which reads."""
    prompt = os.urandom(60_000)
    came: list[bytes] = []
    router = LocalRouter(lambda _peer, _frame: None, lambda _peer: None)
    submissions = Submissions(router.send_all, router.waiting_bytes)
    identity = fresh_id()
    dealer = LocalDealer(identity, came.append)
    dealer.connect(router.bind(f"ipc://{tmp_path}/herma.sock"))
    async with trio.open_nursery() as nursery:
        await nursery.start(router.run)
        await nursery.start(dealer.run)
        await until(lambda: identity in router._streams)
        nursery.start_soon(submissions.run)
        for number in range(400):
            attempt = _attempt(number, identity)
            submissions.add(attempt, b"%03d" % number + prompt)
        await until(lambda: len(came) == 400)
        assert [int(frame[:3]) for frame in came] == list(range(400))
        nursery.cancel_scope.cancel()
