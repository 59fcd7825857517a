"""Background responses, which are computed while no client waits.

Owns their tasks, their number and their cancellation, and how a client follows the stream of one
from any event on, at any gateway process: first the events in the archive, then new ones as they
come. Must not know what an event says.
"""

from collections.abc import Awaitable, Callable
from typing import Final

import trio

from gateway.api import ApiError, busy, events_after, number_of
from gateway.responses.archive import Archive
from gateway.responses.record import ResponseRecord
from gateway.store import StoredResponse

TICK_S: Final = 0.5
"""The interval at which streams are archived, so that a kill loses no more of them, and at which a
process notices a cancellation that another process received.
"""
POLL_S: Final = 0.25
CANCEL_S: Final = 5.0
"""How long a cancellation waits for the process that runs the response, which may be gone."""
RETRY_AFTER_S: Final = 5

_SIGN_OF_LIFE: Final = b": still running\n\n"

Send = Callable[[bytes], Awaitable[None]]


class BackgroundRun:
    """A running background response. `is_cancelled`: its client has cancelled it."""

    def __init__(self, record: ResponseRecord) -> None:
        self.record = record
        self.scope = trio.CancelScope()
        self.is_cancelled = False

    def cancel(self) -> None:
        """End the response; its content so far is kept."""
        self.is_cancelled = True
        self.scope.cancel()


class Background:
    """All background responses of one process, at most `most` at a time."""

    def __init__(self, archive: Archive, most: int) -> None:
        self._archive = archive
        self._most = most
        self._running: dict[str, BackgroundRun] = {}
        self._nursery: trio.Nursery | None = None
        self._has_some = trio.Event()

    async def run(self) -> None:
        """Own the tasks until cancelled, which ends them all."""
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            while True:
                if not self._running:  # without responses no tick wakes the gateway
                    self._has_some = trio.Event()
                    await self._has_some.wait()
                await trio.sleep(TICK_S)
                await self._tick()

    def check_room(self) -> None:
        """Raise `ApiError` 429 if no more may start."""
        if len(self._running) >= self._most:
            text = (
                f"{self._most} responses run in the background, as many as may "
                "([gateway.responses] max_background)."
            )
            raise busy(text, RETRY_AFTER_S)

    def start(
        self,
        response_id: str,
        record: ResponseRecord,
        work: Callable[[BackgroundRun], Awaitable[None]],
    ) -> None:
        """Run `work` in a task. It must bring the record to its end even if it is cancelled."""
        if self._nursery is None:
            raise RuntimeError("the background does not run")
        running = self._running[response_id] = BackgroundRun(record)
        self._has_some.set()
        self._nursery.start_soon(self._run_one, response_id, running, work)

    async def cancel(self, owner: str, response_id: str) -> StoredResponse | None:
        """Cancel the response, in whichever process it runs; returns its state after that."""
        store, archive = self._archive.store, self._archive
        found = await archive.ask(store.cancel, owner, response_id)
        with trio.move_on_after(CANCEL_S):
            while found is not None and found.is_open and found.is_background:
                mine = self._running.get(response_id)
                if mine is not None:
                    mine.cancel()
                await trio.sleep(POLL_S if mine is None else 0)
                found = await archive.ask(store.response, owner, response_id)
        return found

    async def follow(
        self, owner: str, response_id: str, after: int, keep_alive_s: float, send: Send
    ) -> None:
        """Send the events with numbers above `after` until the stream's end, and a comment after
        each `keep_alive_s` without one.
        """
        archive, quiet_since = self._archive, trio.current_time()
        while True:
            stored = await archive.ask(archive.store.response, owner, response_id)
            if stored is None:
                return  # the response was deleted meanwhile
            batches = await archive.ask(archive.store.events, owner, response_id, after)
            last = after
            for batch in batches or ():
                after = await _send_after(batch, after, send)
            if after > last:
                quiet_since = trio.current_time()
            if not stored.is_open:
                return
            running = self._running.get(response_id)
            if running is not None:
                after = await _follow_live(running.record, after, keep_alive_s, send)
                quiet_since = trio.current_time()
                continue
            await trio.sleep(POLL_S)
            if trio.current_time() - quiet_since >= keep_alive_s:
                await send(_SIGN_OF_LIFE)
                quiet_since = trio.current_time()

    async def _run_one(
        self,
        response_id: str,
        running: BackgroundRun,
        work: Callable[[BackgroundRun], Awaitable[None]],
    ) -> None:
        try:
            with running.scope:
                await work(running)
        finally:
            del self._running[response_id]

    async def _tick(self) -> None:
        for running in self._running.values():
            running.record.flush()
        if not (self._running and self._archive.is_shared):
            return
        try:
            cancelled = await self._archive.ask(self._archive.store.cancelled)
        except ApiError:
            return  # the archive has said why; the next tick asks again
        for response_id in cancelled:
            if (mine := self._running.get(response_id)) is not None:
                mine.cancel()


async def _follow_live(record: ResponseRecord, after: int, keep_alive_s: float, send: Send) -> int:
    """Send new events until the archive has more than was sent, or the stream is over. Returns the
    number of the last event that was sent.
    """
    while record.last <= after and not record.has_ended:
        if data := events_after(record.tail(), after):
            after = await _send_after(data, after, send)
            continue
        with trio.move_on_after(keep_alive_s) as silence:
            await record.news()
        if silence.cancelled_caught:
            await send(_SIGN_OF_LIFE)
    return after


async def _send_after(data: bytes, after: int, send: Send) -> int:
    """Send the events in `data` with numbers above `after`; returns the last number sent."""
    if rest := events_after(data, after):
        await send(rest)
        return number_of(rest[rest.rindex(b"\ndata: ") : -2])
    return after
