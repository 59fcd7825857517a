"""Work on its way to the workers.

Owns the frames of submitted work until they are sent. Must not know sockets or what the frames
mean.

Requests that came together are placed one after the other in one cycle of trio's loop. What they
submit is sent at the end of the cycle, all frames of a worker in one call, so that the worker wakes
once. A request that is over by then needs no abort.

The end of a cycle comes through a trio instrument: a task that sends would run in the next cycle,
which is a hundred function calls more between a request and its worker. The task is woken for
frames that could not be sent.

More than a link can take may come at once: all that a worker had moves to another when it dies. The
rest waits here; otherwise the worker that takes over would overflow its link as well.
"""

from collections.abc import Callable
from typing import Final, final

import outcome
import trio

from gateway.link.attempts import Attempt
from gateway.runtime import Wakeup
from protocol.ids import WorkerId
from protocol.transport import MAX_BACKLOG_BYTES

ROOM_BYTES: Final = MAX_BACKLOG_BYTES // 2
"""Bytes that may wait on a worker's link before more is held back; a larger frame goes alone."""
LOOK_AGAIN_S: Final = 0.002


@final
class Submissions(trio.abc.Instrument):
    """`send` is called for each worker with its waiting frames, in order, and no more at once than
    there is room for; it returns whether that lost the worker. `waiting_bytes` returns how much its
    link has not taken yet.
    """

    def __init__(
        self,
        send: Callable[[WorkerId, list[bytes]], bool | None],
        waiting_bytes: Callable[[WorkerId], int],
    ) -> None:
        self._send = send
        self._waiting_bytes = waiting_bytes
        self._waiting: dict[Attempt, bytes] = {}
        self._is_held = True
        self._failure: outcome.Error | None = None
        self._has_some = Wakeup()

    def add(self, attempt: Attempt, frame: bytes) -> None:
        """Send it at the end of this cycle of the loop."""
        self._waiting[attempt] = frame

    def withdraw(self, attempt: Attempt) -> bool:
        """Do not send it. Returns whether it was still waiting."""
        return self._waiting.pop(attempt, None) is not None

    async def run(self) -> None:
        """Send what comes until cancelled. Raises what sending raises."""
        trio.lowlevel.add_instrument(self)
        try:
            while True:
                if self._failure is not None:
                    self._failure.unwrap()
                while self._waiting:
                    self._send_all()
                    if self._waiting:
                        await trio.sleep(LOOK_AGAIN_S)
                self._is_held = False
                await self._has_some.wait()
        finally:
            trio.lowlevel.remove_instrument(self)

    def before_io_wait(self, timeout: float) -> None:  # noqa: ARG002 - trio's
        """All tasks of a cycle of the loop have run."""
        if self._is_held or not self._waiting:
            return
        # trio would log what an instrument raises, and never call it again.
        result = outcome.capture(self._send_all)
        if isinstance(result, outcome.Error):
            self._failure = result
        elif result.value:
            return
        self._is_held = True
        # The loop has already decided how long it sleeps; it must wake for the rest.
        trio.lowlevel.current_trio_token().run_sync_soon(self._has_some.ring)

    def _send_all(self) -> bool:
        """Send all that there is room for; the rest goes on waiting. Returns whether nothing waits
        and no worker was lost.
        """
        by_worker: dict[WorkerId, list[Attempt]] = {}
        for attempt in [*self._waiting]:
            if attempt.outcome is None:
                by_worker.setdefault(attempt.worker_id, []).append(attempt)
            else:
                del self._waiting[attempt]
        is_lost = False
        for worker_id, due in by_worker.items():
            leaving = self._leaving(due, ROOM_BYTES - self._waiting_bytes(worker_id))
            if leaving:
                # The attempts do not show that: a health probe's lease is never lost.
                frames = [self._waiting[attempt] for attempt in leaving]
                is_lost |= bool(self._send(worker_id, frames))
                for attempt in leaving:
                    self._waiting.pop(attempt, None)
        return not self._waiting and not is_lost

    def _leaving(self, due: list[Attempt], room: int) -> list[Attempt]:
        """Those of one worker that there is room for, in order: none overtakes one that waits."""
        num_leaving = 0
        for attempt in due:
            num_bytes = len(self._waiting[attempt])
            if num_bytes > room and room != ROOM_BYTES:
                break
            room -= num_bytes
            num_leaving += 1
        return due[:num_leaving]
