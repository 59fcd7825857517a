"""Work on long bodies and prompts, in threads.

Owns the threads that decode, render and encode, and the wait for one; `EncodingQueue` says whose
turn it is. Must not know what the work is.
"""

import math
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Final, TypeVar, final

import trio

from gateway.api import busy, guard_tools
from gateway.routing import EncodingQueue, EncodingVisit
from gateway.turn.caller import Caller

T = TypeVar("T")

NUM_THREADS: Final = 2
"""Encoding is bound by CPU cores; more threads would take cores from the token path."""
_RETRY_AFTER_S: Final = 5
_TOOLS_LOCK: Final = threading.Lock()


@final
class Encoding:
    """The threads of one process."""

    def __init__(self, num_threads: int = NUM_THREADS) -> None:
        guard_tools(_TOOLS_LOCK)
        self._queue = EncodingQueue(num_threads)
        self._starts: dict[EncodingVisit, trio.Event] = {}
        # Only the queue bounds the threads: this limiter must not make a started step wait.
        self._limiter: Final = trio.CapacityLimiter(math.inf)

    def __repr__(self) -> str:
        return f"<Encoding {self._queue!r}>"

    @contextmanager
    def visit(self, caller: Caller, num_bytes: int) -> Iterator[EncodingVisit]:
        """Count a request with `num_bytes` of text among the requests of its key while the block
        runs. Raises `ApiError` 429 for a long text while many wait.
        """
        if not self._queue.has_room(num_bytes):
            raise busy("Many long requests wait to be read; ask again soon.", _RETRY_AFTER_S)
        visit = self._queue.enter(caller.key, caller.session or "", caller.weight, num_bytes)
        try:
            yield visit
        finally:
            self._queue.leave(visit)

    async def run(self, caller: Caller, num_bytes: int, work: Callable[[], T]) -> T:
        """The result of `work` on `num_bytes` of text, in a thread, at the caller's turn."""
        with self.visit(caller, num_bytes) as visit:
            return await self.step(visit, num_bytes, work)

    async def step(self, visit: EncodingVisit, num_bytes: int, work: Callable[[], T]) -> T:
        """The result of one step of a visit. If cancelled, the thread works on alone, and keeps its
        place until it is done.
        """
        start = self._starts[visit] = trio.Event()
        self._queue.ask(visit, num_bytes)
        self._begin_next()
        try:
            await start.wait()
            # The client may have left since the start. From here on nothing is cancelled before the
            # thread has begun, which gives the place back.
            await trio.lowlevel.checkpoint_if_cancelled()
        except trio.Cancelled:
            if start.is_set():
                self._end(visit)
            else:
                del self._starts[visit]
                self._queue.cancel(visit)
            raise
        token = trio.lowlevel.current_trio_token()

        def run() -> T:
            try:
                return work()
            finally:
                # The loop ends while the thread works if the gateway stops.
                with suppress(trio.RunFinishedError):
                    token.run_sync_soon(self._end, visit)

        return await trio.to_thread.run_sync(run, limiter=self._limiter, abandon_on_cancel=True)

    def _begin_next(self) -> None:
        while (visit := self._queue.next()) is not None:
            self._starts.pop(visit).set()

    def _end(self, visit: EncodingVisit) -> None:
        self._queue.end(visit)
        self._begin_next()
