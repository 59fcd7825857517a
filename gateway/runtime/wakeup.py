"""A wake-up: code rings it, and every task that waits for it at that moment continues.

Owns the waiting tasks. Must not know what they wait for. `Wakeup.ring` does what
`trio.lowlevel.ParkingLot.unpark_all` does, at a third of its cost: mostly one task waits.

`break_off` ends the wait of a task by raising an error in it. A cancel scope could do the same at
any checkpoint, but costs 5 us to enter and leave.
"""

from functools import partial
from typing import final

import trio


@final
class Wakeup:
    """`ring` wakes all tasks that wait; it has no effect on later ones."""

    __slots__ = ("_errors", "_waiting")

    def __init__(self) -> None:
        self._waiting: list[trio.lowlevel.Task] = []
        self._errors: dict[trio.lowlevel.Task, Exception] | None = None

    def ring(self) -> None:
        """Wake all tasks that wait."""
        if self._waiting:
            waiting, self._waiting = self._waiting, []
            for task in waiting:
                trio.lowlevel.reschedule(task)

    async def wait(self) -> None:
        """Return at the next `ring`. Raises the error of `break_off`."""
        task = trio.lowlevel.current_task()
        self._waiting.append(task)
        task.custom_sleep_data = self

        # A closure would take twice the memory, in each task that waits.
        await trio.lowlevel.wait_task_rescheduled(partial(self._leave, task))
        if self._errors and (error := self._errors.pop(task, None)) is not None:
            raise error

    def _leave(self, task: trio.lowlevel.Task, _raise_cancel: object) -> trio.lowlevel.Abort:
        self._waiting.remove(task)
        return trio.lowlevel.Abort.SUCCEEDED

    def _break_off(self, task: trio.lowlevel.Task, error: Exception) -> None:
        self._waiting.remove(task)
        self._errors = {**(self._errors or {}), task: error}
        trio.lowlevel.reschedule(task)


def break_off(task: trio.lowlevel.Task, error: Exception) -> None:
    """Raise `error` in `task` if it waits for a `Wakeup`; do nothing otherwise."""
    # trio resets `custom_sleep_data` when it reschedules the task.
    wakeup = task.custom_sleep_data
    if isinstance(wakeup, Wakeup):
        wakeup._break_off(task, error)  # noqa: SLF001 - both are one idea
