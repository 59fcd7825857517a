"""The one timer of all attempts, in virtual time."""

import trio
from trio.testing import MockClock

from gateway.link.attempt import OVERDUE, Attempt
from gateway.routing.lease import Lease
from gateway.turn.first_tokens import SWEEP_S, FirstTokens
from protocol.ids import RequestId, WorkerId


def attempt(number: int) -> Attempt:
    placement = Lease(number, WorkerId(bytes(16)), 0, "the only one")
    return Attempt(
        placement,
        RequestId(bytes(16)),
        number,
        expected=0,
        on_tokens=lambda _: False,
        on_accepted=lambda _: None,
    )


async def test_each_attempt_has_its_own_time(
    autojump_clock: MockClock,
) -> None:
    timer, soon, later = FirstTokens(), attempt(1), attempt(2)
    began_at = trio.current_time()
    ended_s: dict[int, float] = {}

    async def wait_for(one: Attempt) -> None:
        assert await one.wait() is OVERDUE
        timer.no_more(one)
        ended_s[one.number] = trio.current_time() - began_at

    timer.await_for(later, 60.0)
    timer.await_for(soon, 1.0)
    async with trio.open_nursery() as nursery:
        await nursery.start(timer.run)
        async with trio.open_nursery() as waiters:
            waiters.start_soon(wait_for, soon)
            waiters.start_soon(wait_for, later)
        nursery.cancel_scope.cancel()
    assert 1.0 <= ended_s[1] <= 1.0 + 2 * SWEEP_S
    assert 60.0 <= ended_s[2] <= 60.0 + 2 * SWEEP_S


async def test_who_is_no_longer_awaited_is_left_alone(
    autojump_clock: MockClock,
) -> None:
    timer, answered = FirstTokens(), attempt(1)
    timer.await_for(answered, 1.0)
    timer.no_more(answered)
    timer.no_more(answered)
    async with trio.open_nursery() as nursery:
        await nursery.start(timer.run)
        await trio.sleep(5.0)
        nursery.cancel_scope.cancel()
    assert answered.outcome is None


async def test_nobody_looks_at_the_clock_while_nothing_is_awaited(
    autojump_clock: MockClock,
) -> None:
    """It sleeps without attempts; one that comes after a pause has its time all the same."""
    timer = FirstTokens()
    async with trio.open_nursery() as nursery:
        await nursery.start(timer.run)
        for number in range(3):
            await trio.sleep(100.0)
            statistics = trio.lowlevel.current_statistics()
            assert statistics.seconds_to_next_deadline > 10 * SWEEP_S
            one, began_at = attempt(number), trio.current_time()
            timer.await_for(one, 1.0)
            await one.wait()
            timer.no_more(one)
            assert 1.0 <= trio.current_time() - began_at <= 1.0 + 2 * SWEEP_S
        nursery.cancel_scope.cancel()
