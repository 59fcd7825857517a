"""The turns being answered.

Owns who they are and how a shutdown ends the last of them: each with an error that it can still
tell its client. Must not know what turns do.

A turn waits for places and for workers on a `Wakeup`, where it can be broken off; what it waits for
elsewhere has to be `interruptible`, or short.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

import trio

from gateway.api import connection_lost
from gateway.runtime import break_off

CUT_AGAIN_S: Final = 0.05


class OpenTurns:
    """One per task: a turn that has others within it is one of them all the same."""

    def __init__(self) -> None:
        self._tasks: set[trio.lowlevel.Task] = set()
        self._scopes: set[trio.CancelScope] = set()
        self.close: Final[Callable[[trio.lowlevel.Task], None]] = self._tasks.remove
        """That turn is over."""

    @property
    def count(self) -> int:
        """Turns being answered now."""
        return len(self._tasks)

    def open(self) -> trio.lowlevel.Task:
        """This task answers one more turn; what comes back closes it."""
        task = trio.lowlevel.current_task()
        self._tasks.add(task)
        return task

    @contextmanager
    def interruptible(self) -> Iterator[None]:
        """Let the block, which waits for what is no bell, be cut too. Raises `ApiError` then."""
        with trio.CancelScope() as scope:
            self._scopes.add(scope)
            try:
                yield
            finally:
                self._scopes.remove(scope)
        if scope.cancelled_caught:
            raise connection_lost()

    async def cut(self) -> None:
        """End all turns that are open; return once they are over."""
        while self._tasks:
            for scope in self._scopes:
                scope.cancel()
            for task in self._tasks:
                break_off(task, connection_lost())
            await trio.sleep(CUT_AGAIN_S)
