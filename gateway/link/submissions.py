"""Submissions: work that waits to be sent to the workers.

Owns the frames of submitted work until they are sent. Must not know sockets or what the frames
mean.

Accounts of requests that have ended in a cycle are written at its end, behind the frames.

Requests that arrive together are placed one after the other in one cycle of trio's loop. Their
frames are sent at the end of the cycle, all frames of a worker in one call, so that the worker
wakes once. A request that is over by then needs no abort.

A trio instrument runs at the end of a cycle. A task could send as well, but would run in the next
cycle, a hundred function calls later. The task is woken only for frames that could not be sent.

More work than a link can take may arrive at once: when a worker dies, all its sequences move to
another worker. The excess waits here, so that it does not overflow the other worker's link.
"""

from collections.abc import Callable
from typing import Final, final

import outcome
import trio

from gateway.link.attempts import Attempt
from gateway.runtime import Accounts, Wakeup
from protocol.ids import WorkerId
from protocol.transport import MAX_BACKLOG_BYTES

ROOM_BYTES: Final = MAX_BACKLOG_BYTES // 2
"""Frames are held back while more bytes than this wait on their worker's link; a frame that is
larger than this is sent alone.
"""
LOOK_AGAIN_S: Final = 0.002


@final
class Submissions(trio.abc.Instrument):
    """`send` is called for each worker with the frames, in order, for which its link has room; it
    returns True if the worker could not be reached and was disconnected. `waiting_bytes` returns
    how many bytes wait on a worker's link.
    """

    def __init__(
        self,
        send: Callable[[WorkerId, list[bytes]], bool | None],
        waiting_bytes: Callable[[WorkerId], int],
        accounts: Accounts | None = None,
    ) -> None:
        self._send = send
        self._accounts = accounts or Accounts()
        self._waiting_bytes = waiting_bytes
        self._waiting: dict[Attempt, bytes] = {}
        self._is_held = True
        self._failure: outcome.Error | None = None
        self._has_some = Wakeup()

    def add(self, attempt: Attempt, frame: bytes) -> None:
        """Send the frame at the end of this cycle of the loop."""
        self._waiting[attempt] = frame

    def withdraw(self, attempt: Attempt) -> bool:
        """Drop the attempt's frame. Returns False if it was sent already."""
        return self._waiting.pop(attempt, None) is not None

    async def run(self) -> None:
        """Send submitted frames until cancelled. Raises what `send` raises."""
        trio.lowlevel.add_instrument(self)
        self._accounts.start()
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
            self._accounts.stop()

    def before_io_wait(self, timeout: float) -> None:
        """Called by trio when all tasks of a cycle of the loop have run."""
        if self._waiting and not self._is_held:
            self._send_waiting()
        if self._accounts.is_due:
            self._accounts.write()
            if timeout > 0 and trio.lowlevel.current_statistics().tasks_runnable:
                self._wake()

    def _send_waiting(self) -> None:
        # trio would log what an instrument raises, and never call it again.
        result = outcome.capture(self._send_all)
        if isinstance(result, outcome.Error):
            self._failure = result
        elif result.value:
            return
        self._is_held = True
        self._wake()

    def _wake(self) -> None:
        """Wake the loop, which has already computed how long it sleeps, for the frames that are
        left or for a task that an account has woken.
        """
        trio.lowlevel.current_trio_token().run_sync_soon(self._has_some.ring)

    def _send_all(self) -> bool:
        """Send the frames that there is room for; the others wait on. Returns True if none waits
        and no worker was disconnected.
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
                frames = [self._waiting[attempt] for attempt in leaving]
                # Only `send` knows that a worker was lost: a health probe's lease never is.
                is_lost |= bool(self._send(worker_id, frames))
                for attempt in leaving:
                    self._waiting.pop(attempt, None)
        return not self._waiting and not is_lost

    def _leaving(self, due: list[Attempt], room: int) -> list[Attempt]:
        """The attempts of one worker whose frames fit, in order: no frame overtakes another."""
        num_leaving = 0
        for attempt in due:
            num_bytes = len(self._waiting[attempt])
            if num_bytes > room and room != ROOM_BYTES:
                break
            room -= num_bytes
            num_leaving += 1
        return due[:num_leaving]
