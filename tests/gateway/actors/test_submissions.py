"""What turns submit in one moment leaves together, but for those that are over by then."""

import trio
from trio.testing import wait_all_tasks_blocked

from gateway.actors.attempt import STOPPED, Attempt
from gateway.actors.placement import Placement
from gateway.actors.submissions import Submissions
from protocol.ids import RequestId, WorkerId

WORKER = WorkerId(b"w" * 16)


def _attempt(number: int) -> Attempt:
    return Attempt(
        Placement(ticket=number, worker_id=WORKER, cached_tokens=0, reason="why"),
        RequestId(number.to_bytes(16, "big")),
        1,
        expected=0,
        on_tokens=lambda _item: None,
        on_accepted=lambda _message: None,
    )


async def test_those_of_one_moment_leave_together_and_in_order() -> None:
    """Nothing leaves while tasks of this turn of the loop may still submit."""
    sent: list[bytes] = []
    counts: list[int] = []
    submissions = Submissions(lambda _worker, frames: sent.extend(frames))

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


async def test_what_is_over_is_not_sent() -> None:
    """Neither what was withdrawn, nor what has ended; what was sent cannot be withdrawn."""
    sent: list[bytes] = []
    submissions = Submissions(lambda _worker, frames: sent.extend(frames))
    withdrawn, over, due = (_attempt(number) for number in range(3))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(submissions.run)
        for attempt in (withdrawn, over, due):
            submissions.add(attempt, b"%d" % attempt.placement.ticket)
        assert submissions.withdraw(withdrawn)
        assert not submissions.withdraw(withdrawn)
        over.end(STOPPED)
        await wait_all_tasks_blocked()
        assert sent == [b"2"]
        assert not submissions.withdraw(due)
        nursery.cancel_scope.cancel()
