"""Work on its way to the workers.

Owns what the turns of one moment hand over, until it is sent. Must not know sockets, nor what the
frames say.

Requests that came together are placed one after the other in one turn of the loop. What they submit
leaves behind them, in the next, for each worker in one piece: it wakes once for all of it. A turn
that is over by then has nothing to be aborted.

More than a link bears can come at once: all that a worker had moves to another when it dies. What
there is no room for waits here, lest its heir be lost for it too.
"""

from collections.abc import Callable
from typing import Final, final

import trio

from gateway.actors.attempt import Attempt
from gateway.actors.bell import Bell
from protocol.ids import WorkerId
from protocol.transport import MAX_BACKLOG_BYTES

ROOM_BYTES: Final = MAX_BACKLOG_BYTES // 2
"""What may wait on a worker's link before more is held back; a larger frame goes alone."""
LOOK_AGAIN_S: Final = 0.002


@final
class Submissions:
    """`send` is called for each worker with those that still wait for it, in order, and no more at
    once than there is room for; `waiting_bytes` tells how much its link has not taken yet.
    """

    def __init__(
        self,
        send: Callable[[WorkerId, list[bytes]], None],
        waiting_bytes: Callable[[WorkerId], int],
    ) -> None:
        self._send = send
        self._waiting_bytes = waiting_bytes
        self._waiting: dict[Attempt, bytes] = {}
        self._has_some = Bell()

    def add(self, attempt: Attempt, frame: bytes) -> None:
        """Send it in the next turn of the loop."""
        if not self._waiting:
            # Who found some was woken for them, and takes all.
            self._has_some.ring()
        self._waiting[attempt] = frame

    def withdraw(self, attempt: Attempt) -> bool:
        """Whether it was not sent yet, and will not be."""
        return self._waiting.pop(attempt, None) is not None

    async def run(self) -> None:
        """Send what comes until cancelled."""
        while True:
            while self._waiting:
                self._send_all()
                if self._waiting:
                    await trio.sleep(LOOK_AGAIN_S)
            await self._has_some.wait()

    def _send_all(self) -> None:
        """Send all that there is room for; the rest goes on waiting."""
        waiting, self._waiting = self._waiting, {}
        by_worker: dict[WorkerId, list[tuple[Attempt, bytes]]] = {}
        for attempt, frame in waiting.items():
            if attempt.outcome is None:
                by_worker.setdefault(attempt.worker_id, []).append((attempt, frame))
        for worker_id, due in by_worker.items():
            room = ROOM_BYTES - self._waiting_bytes(worker_id)
            frames: list[bytes] = []
            for attempt, frame in due:
                num_bytes = len(frame)
                if num_bytes <= room or room == ROOM_BYTES:
                    frames.append(frame)
                    room -= num_bytes
                else:
                    room = 0  # nor do those behind it overtake it
                    self._waiting[attempt] = frame
            if frames:
                self._send(worker_id, frames)
