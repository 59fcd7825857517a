"""Waiting for what others bring about, and giving up."""

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from gateway.runtime.wakeup import Wakeup, break_off


async def test_a_ring_wakes_those_that_wait_now() -> None:
    """All of them, once; it is not kept for who comes later."""
    wakeup, woken = Wakeup(), 0

    async def wait() -> None:
        nonlocal woken
        await wakeup.wait()
        woken += 1

    wakeup.ring()
    async with trio.open_nursery() as nursery:
        for _ in range(3):
            nursery.start_soon(wait)
        await wait_all_tasks_blocked()
        assert woken == 0
        wakeup.ring()
        await wait_all_tasks_blocked()
        nursery.start_soon(wait)
        await wait_all_tasks_blocked()
        assert woken == 3
        wakeup.ring()


async def test_who_is_cancelled_waits_no_more() -> None:
    """A ring afterwards finds nobody, and the others still."""
    wakeup = Wakeup()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(wakeup.wait)
        await wait_all_tasks_blocked()
        with trio.move_on_after(0) as scope:
            await wakeup.wait()
        assert scope.cancelled_caught
        wakeup.ring()


async def test_a_wait_is_broken_off_for_one_task_alone() -> None:
    """A wait is broken off by an error in one task alone; its neighbour waits on, and the task can
    wait again.
    """
    wakeup = Wakeup()
    tasks: list[trio.lowlevel.Task] = []
    broken: list[str] = []

    async def wait(*, twice: bool) -> None:
        tasks.append(trio.lowlevel.current_task())
        if twice:
            with pytest.raises(ValueError, match="enough"):
                await wakeup.wait()
            broken.append("one")
        await wakeup.wait()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(lambda: wait(twice=True))
        await wait_all_tasks_blocked()
        nursery.start_soon(lambda: wait(twice=False))
        await wait_all_tasks_blocked()
        break_off(tasks[0], ValueError("enough"))
        # It no longer waits: the first reason counts.
        break_off(tasks[0], ValueError("again"))
        await wait_all_tasks_blocked()
        assert broken == ["one"]
        wakeup.ring()


async def test_who_waits_elsewhere_is_left_alone() -> None:
    """Sleep is no bell."""
    task = None

    async def sleep() -> None:
        nonlocal task
        task = trio.lowlevel.current_task()
        await trio.sleep(0.01)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(sleep)
        await wait_all_tasks_blocked()
        assert task is not None
        break_off(task, ValueError("enough"))
