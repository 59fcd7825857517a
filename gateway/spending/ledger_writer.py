"""The one task that writes the ledger.

Owns the queue before the disk. Entries that arrive during a commit wait for the next one, so 40
requests cost two or three syncs and not 40. The event loop never waits for SQLite: each batch is
one call in a thread, one at a time. While there are limits, the task also reads what other
processes have written, twice a second. While the ledger cannot be written, reservations are refused
and what has ended waits for it (`OpenClaims` bounds that). Must not know limits or prices.
"""

import logging
import math
from collections.abc import Callable, Iterable
from operator import add
from typing import Any, Final, TypeVar

import trio

from gateway.runtime import Wakeup
from gateway.spending.open_claims import OpenClaims
from gateway.store import (
    BalanceKey,
    Balances,
    DiskFull,
    HoldEnd,
    LateLedger,
    LedgerEntry,
    LedgerError,
    LedgerStore,
    OfConversations,
    ReservationClaim,
    Settlement,
    SumHold,
    SumReached,
    Usages,
    UseName,
    UseSums,
    add_to,
)
from gateway.telemetry import StoreTrouble
from housekeeping.tick import next_tick
from protocol.errors import HermaError

MAX_WAITING: Final = 1024
"""Reservations that wait for the disk; each is a client's request."""

MAX_USES: Final = 16_384
"""Sums by conversation that wait for the disk. While it cannot be written, further conversations
are counted together, as `OTHERS`.
"""
OTHERS: Final = "(others)"

USAGE_DELAY_S: Final = 0.5
"""Usage is written after this delay, so that a kill loses less than a second of it."""

SETTLE_DELAY_S: Final = 0.05
"""A settlement waits so long for a reservation whose sync it can share: a request whose client asks
one after the other then costs one sync, not two. Until it is written the reservation counts at its
worst case, for other processes and after a kill.
"""

LOOK_S: Final = 0.4
"""Changes by another process are read after at most 1.25 times this, and with every reservation.
It is the tick of a process at rest, which so wakes no more often.
"""

RETRY_S: Final = 0.5

_Asked = TypeVar("_Asked", ReservationClaim, SumHold)

_log = logging.getLogger(__name__)


class LedgerFull(HermaError):
    """`MAX_WAITING` requests wait for the disk already, or `MAX_OPEN` are under way."""

    cause = "too many requests wait for the ledger"


class _Batch:
    """Reservations that reach the disk together; `error` is why they never did."""

    __slots__ = ("error", "holds", "is_done", "reached", "refused", "rows", "written")

    def __init__(self) -> None:
        self.rows: dict[int, ReservationClaim] = {}
        self.holds: dict[int, SumHold] = {}
        self.reached: dict[int, SumReached] = {}
        self.refused: frozenset[int] = frozenset()
        self.written = Wakeup()
        self.is_done = False
        self.error: LedgerError | None = None

    def end(self, error: LedgerError | None) -> None:
        """Let go all who wait for this batch."""
        self.error, self.is_done = error, True
        self.written.ring()


class LedgerWriter:
    """A queue of ledger entries, which `run` writes. `see` gets what all other processes have spent
    and reserved in `places`. `unshared_for`: why the last reservations could not be shared with
    other hosts, in words for clients; empty if they could. `trouble` is told when the ledger cannot
    be written or read, and when it can again.
    """

    def __init__(
        self,
        places: Callable[[], Iterable[BalanceKey]],
        see: Callable[[Balances], None],
        trouble: StoreTrouble,
        settle_delay_s: float = SETTLE_DELAY_S,
    ) -> None:
        self._places = places
        self._see = see
        self._waiting = _Batch()
        self._reservations: OpenClaims[Settlement] = OpenClaims()
        self._holds: OpenClaims[HoldEnd] = OpenClaims()
        self._usage: Usages = {}
        self._uses: dict[UseName, UseSums] = {}
        self._has_work = trio.Event()
        self._looks_at = 0.0
        self._is_stuck = False
        self._trouble = trouble
        self.unshared_for = ""
        self._settle_delay_s = settle_delay_s
        self._thread = trio.CapacityLimiter(1)

    async def run(
        self,
        open_store: Callable[[], LedgerStore],
        *,
        task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """Open the ledger, read it, then write until cancelled; entries queued by then are written
        too. One whose disk is full is opened later. Raises `ConfigError` if the ledger cannot be
        opened for another reason.
        """
        store: LedgerStore | LateLedger
        try:
            store = await trio.to_thread.run_sync(open_store, limiter=self._thread)
        except DiskFull:
            store = LateLedger(open_store)
        try:
            await self._look(store)
            task_status.started()
            while True:
                await self._wait_for_work()
                if not await self._write(store):
                    await trio.sleep(RETRY_S)
                if trio.current_time() >= self._looks_at:
                    await self._look(store)
        finally:
            await self._write(store)
            with trio.CancelScope(shield=True):
                await trio.to_thread.run_sync(store.close, limiter=self._thread)

    async def reserve(self, claim: ReservationClaim) -> bool:
        """Return once the reservation is on the disk, with the most that it can cost, or False if
        it would exceed a cap, because of what another process has spent or reserved.

        Raises `LedgerFull` or `LedgerError` if it will not be written. After a cancellation, or a
        `break_off`, it may be, so settle it.
        """
        batch = self._waiting
        await self._written_with(batch, batch.rows, self._reservations, claim)
        return claim.number not in batch.refused

    async def hold(self, hold: SumHold) -> SumReached | None:
        """Return once the hold is on the disk, or the limit that it would exceed. Raises as
        `reserve`; a wait that is cut off may leave it there, so end it.
        """
        batch = self._waiting
        await self._written_with(batch, batch.holds, self._holds, hold)
        return batch.reached.get(hold.number)

    async def _written_with(
        self, batch: _Batch, among: dict[int, _Asked], under_way: OpenClaims[Any], one: _Asked
    ) -> None:
        """Return once the batch is on the disk, with `one` `among` its claims."""
        if len(among) >= MAX_WAITING or under_way.is_full:
            raise LedgerFull(LedgerFull.cause)
        among[one.number] = one
        self._has_work.set()
        while not batch.is_done:
            await batch.written.wait()
        if batch.error is not None:
            raise batch.error

    def end_hold(self, end: HoldEnd) -> None:
        """Write the end of a hold soon."""
        if self._waiting.holds.pop(end.number, None) is None:
            self._holds.end(end.number, end)
        self._has_work.set()

    def record_use(self, name: UseName, sums: UseSums) -> None:
        """Write usage of a conversation. It is added up and written within `USAGE_DELAY_S`."""
        if not self._usage and not self._uses:
            self._has_work.set()
        if len(self._uses) >= MAX_USES and name not in self._uses:
            name = (*name[:-1], OTHERS)
        if (before := self._uses.get(name)) is not None:
            requests, prompt, cached, completion, cost = map(add, before, sums)
            sums = requests, prompt, cached, completion, cost
        self._uses[name] = sums

    def settle(self, settlement: Settlement) -> None:
        """Write the end of a reservation with the next one, or `SETTLE_DELAY_S` later."""
        number = settlement.reservation_id
        if self._waiting.rows.pop(number, None) is not None:
            return
        if not self._reservations.ends:
            self._has_work.set()
        self._reservations.end(number, settlement)

    def record(self, usage: LedgerEntry) -> None:
        """Write usage without a reservation. It is added up and written within `USAGE_DELAY_S`."""
        if not self._usage:
            self._has_work.set()
        add_to(self._usage, usage)

    def look_soon(self) -> None:
        """Read the ledger soon, because `places` have changed."""
        self._looks_at = 0.0
        self._has_work.set()

    async def _wait_for_work(self) -> None:
        with trio.move_on_at(self._looks_at):
            await self._has_work.wait()
        due_at = math.inf
        while self._has_work.is_set():
            self._has_work = trio.Event()
            batch = self._waiting
            if batch.rows or batch.holds or self._holds.ends:
                return
            # These entries have no request that waits for them; a reservation may come before they
            # are due.
            delay_s = self._settle_delay_s if self._reservations.ends else USAGE_DELAY_S
            due_at = min(due_at, trio.current_time() + delay_s)
            with trio.move_on_at(due_at):
                await self._has_work.wait()

    async def _write(self, store: LedgerStore | LateLedger) -> bool:
        """Write the queued entries; returns whether that succeeded. Shielded from cancellation,
        which would lose the entries that were taken off the queue.
        """
        batch, self._waiting = self._waiting, _Batch()
        settlements = self._reservations.begin_write(batch.rows)
        ends = self._holds.begin_write(batch.holds)
        usage, self._usage = self._usage, {}
        uses, self._uses = self._uses, {}
        is_idle = not (batch.rows or batch.holds or settlements or ends or usage or uses)
        if is_idle and not self._is_stuck:
            return True
        parts: list[Any] = [batch.rows.values(), settlements.values(), usage.values()]
        if batch.holds or ends or uses:
            holds = tuple(batch.holds.values())
            parts.append(OfConversations(holds, tuple(ends.values()), uses))
        try:
            with trio.CancelScope(shield=True):
                batch.refused = await trio.to_thread.run_sync(
                    store.write, *parts, limiter=self._thread
                )
        except LedgerError as error:
            self._reservations.not_written(settlements, batch.rows)
            self._holds.not_written(ends, batch.holds)
            for name, sums in uses.items():
                self.record_use(name, sums)
            for entry in usage.values():
                add_to(self._usage, entry)
            self._fail(batch, error)
            return False
        batch.reached = store.reached if batch.holds else {}
        self._reservations.written(settlements, batch.refused)
        self._holds.written(ends, batch.reached)
        self.unshared_for = store.trouble
        self._is_stuck = False
        if self._trouble.end("write"):
            _log.warning("the ledger is written again, with what has waited")
        if batch.refused:
            await self._look(store)
        batch.end(None)
        return True

    def _fail(self, batch: _Batch, error: LedgerError) -> None:
        """Refuse the claims of `batch`, and those that came since: they would wait as long."""
        # Tried every second or so: a full disk may hold this log too.
        if self._trouble.begin("write", str(error), error.cause):
            _log.error("%s; it is tried again until it succeeds", error)
        self._is_stuck = True
        since, self._waiting = self._waiting, _Batch()
        self._has_work.set()
        batch.end(error)
        since.end(error)

    async def _look(self, store: LedgerStore | LateLedger) -> None:
        places = tuple(self._places())
        self._looks_at = next_tick(trio.current_time(), LOOK_S) if places else math.inf
        try:
            with trio.CancelScope(shield=True):
                self._see(await trio.to_thread.run_sync(store.look, places, limiter=self._thread))
        except LedgerError as error:
            self._looks_at = next_tick(trio.current_time(), LOOK_S)
            if self._trouble.begin("read", str(error), error.cause):
                _log.error("%s", error)
        else:
            self._trouble.end("read")
