"""The one task that writes the ledger.

Owns the queue before the disk. What arrives during a commit waits for the next one, so 40 requests
cost two or three syncs and not 40. The event loop never waits for SQLite: each batch is one call in
a thread, one at a time. Must not know limits or prices.
"""

import logging
from collections.abc import Callable
from typing import Final

import trio

from gateway.api import Usage
from gateway.store import DayTotal, Entry, LedgerError, LedgerStore, Settlement
from protocol.errors import HermaError

MAX_WAITING: Final = 1024
"""Reservations that wait for the disk; each is a client's request."""

LOCAL_DELAY_S: Final = 0.5
"""Local usage is written after this delay: half of the second that a kill may lose."""

RETRY_S: Final = 0.5

_log = logging.getLogger(__name__)

_Place = tuple[str, str, str]
"""Day, key and model."""
_Counts = tuple[int, int, int, int]
"""Requests, prompt tokens, cached tokens, completion tokens."""


class LedgerFull(HermaError):
    """`MAX_WAITING` requests wait for the disk already."""


class _Waiting:
    """A reservation on its way to the disk; `error` is why it never arrived."""

    def __init__(self, reservation_id: int, worst: Entry) -> None:
        self.row = reservation_id, worst
        self.done = trio.Event()
        self.error: LedgerError | None = None


class LedgerWriter:
    """Queues what is to be written; `run` writes it."""

    def __init__(self) -> None:
        self._waiting: list[_Waiting] = []
        self._settlements: list[Settlement] = []
        self._local: dict[_Place, _Counts] = {}
        self._has_work = trio.Event()
        self._thread = trio.CapacityLimiter(1)

    async def run(
        self,
        open_store: Callable[[], LedgerStore],
        first_day: str,
        *,
        task_status: trio.TaskStatus[list[DayTotal]] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """Open the ledger, report what was spent from `first_day` on, then write until cancelled;
        what is queued by then is written too. Raises `ConfigError` if the ledger cannot be opened.
        """
        store = await trio.to_thread.run_sync(open_store, limiter=self._thread)
        try:
            totals = await trio.to_thread.run_sync(store.totals, first_day, limiter=self._thread)
            task_status.started(totals)
            while True:
                await self._wait_for_work()
                if not await self._write(store):
                    await trio.sleep(RETRY_S)
        finally:
            await self._write(store)
            with trio.CancelScope(shield=True):
                await trio.to_thread.run_sync(store.close, limiter=self._thread)

    async def reserve(self, reservation_id: int, worst: Entry) -> None:
        """Return once the reservation is on the disk, with the most that it can cost.

        Raises `LedgerFull` or `LedgerError` if it will not be written. After a cancellation it may
        be, so settle it.
        """
        if len(self._waiting) >= MAX_WAITING:
            raise LedgerFull("too many requests wait for the ledger")
        waiting = _Waiting(reservation_id, worst)
        self._waiting.append(waiting)
        self._has_work.set()
        await waiting.done.wait()
        if waiting.error is not None:
            raise waiting.error

    def settle(self, settlement: Settlement) -> None:
        """Write the end of a reservation soon. There are never more of these than reservations."""
        self._settlements.append(settlement)
        self._has_work.set()

    def record(self, day: str, key: str, model: str, usage: Usage) -> None:
        """Write one request of our own workers within `LOCAL_DELAY_S`, added up until then."""
        if not self._local:
            self._has_work.set()
        counts = 1, usage.prompt_tokens, usage.cached_tokens, usage.completion_tokens
        self._add((day, key, model), counts)

    def _add(self, place: _Place, counts: _Counts) -> None:
        a, b = self._local.get(place, (0, 0, 0, 0)), counts
        self._local[place] = (a[0] + b[0], a[1] + b[1], a[2] + b[2], a[3] + b[3])

    async def _wait_for_work(self) -> None:
        await self._has_work.wait()
        self._has_work = trio.Event()
        if not self._waiting and not self._settlements:
            # Only local usage, for which no request waits: a reservation may come first.
            with trio.move_on_after(LOCAL_DELAY_S):
                await self._has_work.wait()

    async def _write(self, store: LedgerStore) -> bool:
        """Write what is queued and return whether that succeeded. Shielded from cancellation, which
        would lose what was taken off the queue.
        """
        waiting, self._waiting = self._waiting, []
        settlements, self._settlements = self._settlements, []
        local, self._local = self._local, {}
        if not (waiting or settlements or local):
            return True
        reservations = [one.row for one in waiting]
        entries = [Entry(*place, "", True, True, *counts, 0) for place, counts in local.items()]
        failure = None
        try:
            with trio.CancelScope(shield=True):
                await trio.to_thread.run_sync(
                    store.write, reservations, settlements, entries, limiter=self._thread
                )
        except LedgerError as error:
            _log.error("%s", error)
            failure = error
            # Settlements and local usage go into the next batch; reservations are refused.
            self._settlements[:0] = settlements
            for place, counts in local.items():
                self._add(place, counts)
            self._has_work.set()
        for one in waiting:
            one.error = failure
            one.done.set()
        return failure is None
