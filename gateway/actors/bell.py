"""What a task waits for that others bring about.

Owns who waits. Must not know what for. Ringing wakes those that wait now and is forgotten, as with
`ParkingLot.unpark_all`, at a third of its cost: most of the time one task waits.
"""

from typing import final

import trio


@final
class Bell:
    """Tasks wait for it, `ring` wakes them all."""

    __slots__ = ("_waiting",)

    def __init__(self) -> None:
        self._waiting: list[trio.lowlevel.Task] = []

    def ring(self) -> None:
        """Wake whoever waits."""
        if self._waiting:
            waiting, self._waiting = self._waiting, []
            for task in waiting:
                trio.lowlevel.reschedule(task)

    async def wait(self) -> None:
        """Return at the next ring."""
        task = trio.lowlevel.current_task()
        self._waiting.append(task)

        def leave(_: object) -> trio.lowlevel.Abort:
            self._waiting.remove(task)
            return trio.lowlevel.Abort.SUCCEEDED

        await trio.lowlevel.wait_task_rescheduled(leave)
