"""A wake-up: code rings it, and every task that waits for it at that moment continues.

Owns the waiting tasks. Must not know what they wait for. `Wakeup.ring` does what
`trio.lowlevel.ParkingLot.unpark_all` does, at a third of its cost: mostly one task waits.

`break_off` ends the wait of a task by raising an error in it. A cancel scope could do the same at
any checkpoint, but costs 5 us to enter and leave.
"""

from typing import final

import msgspec
import trio


class _Wait(msgspec.Struct, eq=False):
    """One task that waits in the list `among`; trio calls it when the task is cancelled. A closure
    would take five times the memory, which thousands of silent streams hold.
    """

    task: trio.lowlevel.Task
    among: "list[_Wait]"
    error: Exception | None = None

    def __call__(self, _raise_cancel: object) -> trio.lowlevel.Abort:
        self.among.remove(self)
        return trio.lowlevel.Abort.SUCCEEDED


@final
class Wakeup:
    """`ring` wakes all tasks that wait; it has no effect on later ones."""

    __slots__ = ("_waiting",)

    def __init__(self) -> None:
        self._waiting: list[_Wait] = []

    def ring(self) -> None:
        """Wake all tasks that wait."""
        if self._waiting:
            for one in self._waiting:
                trio.lowlevel.reschedule(one.task)
            self._waiting.clear()

    async def wait(self) -> None:
        """Return at the next `ring`. Raises the error of `break_off`."""
        task = trio.lowlevel.current_task()
        wait = _Wait(task, self._waiting)
        self._waiting.append(wait)
        task.custom_sleep_data = wait
        await trio.lowlevel.wait_task_rescheduled(wait)
        if wait.error is not None:
            raise wait.error


def break_off(task: trio.lowlevel.Task, error: Exception) -> None:
    """Raise `error` in `task` if it waits for a `Wakeup`; do nothing otherwise."""
    # trio resets `custom_sleep_data` when it reschedules the task.
    wait = task.custom_sleep_data
    if isinstance(wait, _Wait):
        wait.among.remove(wait)
        wait.error = error
        trio.lowlevel.reschedule(task)
