"""The one task that writes the ledger.

Owns the queue before the disk. What comes while a commit is on its way waits for the next one, so
40 requests cost two or three syncs and not 40. The loop never waits for SQLite: each batch is one
call in a thread, one at a time. Must not know limits or prices.
"""

import logging
from collections.abc import Callable
from typing import Final

import trio

from gateway.api import Usage
from gateway.store import DayTotal, LedgerError, LedgerStore, LocalUse, Reservation, Settlement
from protocol.errors import HermaError

MAX_WAITING: Final = 1024
"""Reservations that wait for the disk; each is a client's request."""

LOCAL_DELAY_S: Final = 0.5
"""Local usage is written so much later: half of the second that a kill may lose."""

RETRY_S: Final = 0.5

_log = logging.getLogger(__name__)

Place = tuple[str, str, str]
"""Day, key and model."""


class LedgerFull(HermaError):
    """More requests wait for the disk than may."""


class _Waiting:
    """A reservation on its way to the disk; `error` is why it never arrived."""

    def __init__(self, reservation: Reservation) -> None:
        self.reservation = reservation
        self.done = trio.Event()
        self.error: LedgerError | None = None


class LedgerWriter:
    """Queues what is to be written; `run` writes it."""

    def __init__(self) -> None:
        self._waiting: list[_Waiting] = []
        self._settlements: list[Settlement] = []
        self._local: dict[Place, LocalUse] = {}
        self._news = trio.Event()
        self._thread = trio.CapacityLimiter(1)

    async def run(
        self,
        open_store: Callable[[], LedgerStore],
        first_day: str,
        *,
        task_status: trio.TaskStatus[list[DayTotal]] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """Open the ledger, report what is in it from `first_day` on, then write until cancelled;
        what is queued by then is written too. Raises `ConfigError` if it cannot be opened.
        """
        store = await trio.to_thread.run_sync(open_store, limiter=self._thread)
        try:
            totals = await trio.to_thread.run_sync(store.totals, first_day, limiter=self._thread)
            task_status.started(totals)
            while True:
                await self._wait_for_news()
                if not await self._write(store):
                    await trio.sleep(RETRY_S)
        finally:
            await self._write(store)
            with trio.CancelScope(shield=True):
                await trio.to_thread.run_sync(store.close, limiter=self._thread)

    async def reserve(self, reservation: Reservation) -> None:
        """Return once `reservation` is on the disk.

        Raises `LedgerFull` or `LedgerError` if it never will be. After a cancellation it may be:
        settle it.
        """
        if len(self._waiting) >= MAX_WAITING:
            raise LedgerFull("too many requests wait for the ledger")
        waiting = _Waiting(reservation)
        self._waiting.append(waiting)
        self._news.set()
        await waiting.done.wait()
        if waiting.error is not None:
            raise waiting.error

    def settle(self, settlement: Settlement) -> None:
        """Write the end of a reservation soon. There are never more of these than reservations."""
        self._settlements.append(settlement)
        self._news.set()

    def record(self, day: str, key: str, model: str, usage: Usage) -> None:
        """Write what our own workers did within `LOCAL_DELAY_S`; it is added up until then."""
        place = day, key, model
        if place not in self._local:
            self._local[place] = LocalUse()
            if len(self._local) == 1:
                self._news.set()
        use = self._local[place]
        use.prompt_tokens += usage.prompt_tokens
        use.cached_tokens += usage.cached_tokens
        use.completion_tokens += usage.completion_tokens
        use.requests += 1

    async def _wait_for_news(self) -> None:
        await self._news.wait()
        self._news = trio.Event()
        if not self._waiting and not self._settlements:
            # Only local usage: nobody waits for it, but anything else may come first.
            with trio.move_on_after(LOCAL_DELAY_S):
                await self._news.wait()

    async def _write(self, store: LedgerStore) -> bool:
        """Write what is queued; whether that went well. Not cancelled: what was taken off the queue
        would be lost.
        """
        waiting, self._waiting = self._waiting, []
        settlements, self._settlements = self._settlements, []
        local, self._local = self._local, {}
        if not (waiting or settlements or local):
            return True
        try:
            with trio.CancelScope(shield=True):
                await trio.to_thread.run_sync(
                    store.write,
                    [one.reservation for one in waiting],
                    settlements,
                    [use.entry(*place) for place, use in local.items()],
                    limiter=self._thread,
                )
        except LedgerError as error:
            _log.error("%s", error)
            self._take_back(settlements, local)
            _tell(waiting, error)
            return False
        _tell(waiting, None)
        return True

    def _take_back(self, settlements: list[Settlement], local: dict[Place, LocalUse]) -> None:
        """Nothing of the batch was written: what nobody waits for goes into the next one."""
        self._settlements[:0] = settlements
        later, self._local = self._local, local
        for place, use in later.items():
            local.setdefault(place, LocalUse()).add(use)
        self._news.set()


def _tell(waiting: list[_Waiting], error: LedgerError | None) -> None:
    for one in waiting:
        one.error = error
        one.done.set()
