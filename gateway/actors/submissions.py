"""Work on its way to the workers.

Owns what the turns of one moment hand over, until it is sent. Must not know sockets, nor what the
frames say.

Requests that came together are placed one after the other in one turn of the loop. What they submit
leaves behind them, in the next, for each worker in one piece: it wakes once for all of it. A turn
that is over by then has nothing to be aborted.
"""

from collections.abc import Callable
from typing import final

from gateway.actors.attempt import Attempt
from gateway.actors.bell import Bell
from protocol.ids import WorkerId


@final
class Submissions:
    """`send` is called for each worker with all that still wait for it, in order."""

    def __init__(self, send: Callable[[WorkerId, list[bytes]], None]) -> None:
        self._send = send
        self._waiting: dict[Attempt, bytes] = {}
        self._has_some = Bell()

    def add(self, attempt: Attempt, frame: bytes) -> None:
        """Send it in the next turn of the loop."""
        self._waiting[attempt] = frame
        self._has_some.ring()

    def withdraw(self, attempt: Attempt) -> bool:
        """Whether it was not sent yet, and will not be."""
        return self._waiting.pop(attempt, None) is not None

    async def run(self) -> None:
        """Send what comes until cancelled."""
        while True:
            while self._waiting:
                self._send_all()
            await self._has_some.wait()

    def _send_all(self) -> None:
        waiting, self._waiting = self._waiting, {}
        by_worker: dict[WorkerId, list[bytes]] = {}
        for attempt, frame in waiting.items():
            if attempt.outcome is None:
                by_worker.setdefault(attempt.placement.worker_id, []).append(frame)
        for worker_id, frames in by_worker.items():
            self._send(worker_id, frames)
