"""Attempts that wait for their first token, each with a time by which it must come.

Owns the one timer of all of them: a cancel scope with a deadline for each cost more than the rest
of what a request waits for. Must not know tokens, workers or what follows.
"""

from collections.abc import Callable
from typing import Final

import trio

from gateway.link import OVERDUE, Attempt
from gateway.runtime import coalesced_tick

SWEEP_S: Final = 0.4
"""How late an attempt may be found overdue. Deadlines are of minutes; waking up costs 0.1 ms."""


class FirstTokens:
    """Ends the attempts whose time is over."""

    def __init__(self) -> None:
        self._due_at: dict[Attempt, float] = {}
        self._news: trio.Event | None = None
        self._now: Callable[[], float] = trio.current_time

    def await_for(self, attempt: Attempt, within_s: float) -> None:
        """Give `attempt` so long, unless it is no longer awaited by then."""
        self._due_at[attempt] = self._now() + within_s
        if self._news is not None:
            self._news.set()
            self._news = None

    def no_more(self, attempt: Attempt) -> None:
        """Its first token is here, or it has ended; both may be told."""
        self._due_at.pop(attempt, None)

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Look at the clock until cancelled, while anything is awaited."""
        # What `trio.current_time` asks at the end of three calls.
        self._now = trio.lowlevel.current_clock().current_time
        task_status.started()
        while True:
            if not self._due_at:
                self._news = trio.Event()
                await self._news.wait()
            await coalesced_tick(SWEEP_S)
            self._sweep(self._now())

    def _sweep(self, now: float) -> None:
        # Apart from `run`, whose names would keep the last attempt until the next sweep.
        for attempt, due_at in self._due_at.items():
            if now >= due_at:
                attempt.end(OVERDUE)
