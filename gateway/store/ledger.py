"""The ledger: usage and cost in one SQLite file.

Owns the tables and the transactions of all gateway processes that share the file. Days are UTC
dates as text (2026-11-21), amounts micro-units of the ledger's currency. Every call blocks, so it
belongs in a thread, one call at a time. Must not know tasks, nor why a window has a cap.
"""

import os
import sqlite3
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from gateway.store.balances import (
    Balance,
    BalanceKey,
    Balances,
    Cap,
    SharedBalances,
    add_cost,
    places_of,
)
from gateway.store.common_limits import CommonLimits, StoreUnreachable, Wish
from gateway.store.conversation_sums import (
    NO_USES,
    ConversationSums,
    HoldEnd,
    SumHold,
    SumReached,
    UseName,
    UseSums,
)
from gateway.store.gateway_slot import GatewaySlot
from gateway.store.sqlite_file import (
    BUSY_S,
    FileKind,
    looking,
    open_file,
    words_of_failure,
)
from housekeeping.state_file import make_private
from protocol.errors import ConfigError, HermaError

APPLICATION_ID: Final = 0x4845_524D
"""HERM, in the file's header: no other SQLite file is mistaken for a ledger."""
SCHEMA_VERSION: Final = 1

_TABLES: Final = """
CREATE TABLE meta (name TEXT PRIMARY KEY, value TEXT NOT NULL) STRICT, WITHOUT ROWID;
CREATE TABLE usage (
    day TEXT NOT NULL, key TEXT NOT NULL, model TEXT NOT NULL, provider TEXT NOT NULL,
    is_settled INTEGER NOT NULL, is_priced INTEGER NOT NULL,
    requests INTEGER NOT NULL, prompt_tokens INTEGER NOT NULL, cached_tokens INTEGER NOT NULL,
    completion_tokens INTEGER NOT NULL, cost INTEGER NOT NULL,
    PRIMARY KEY (day, key, model, provider, is_settled, is_priced)
) STRICT, WITHOUT ROWID;
CREATE TABLE reservations (
    id INTEGER PRIMARY KEY, day TEXT NOT NULL, key TEXT NOT NULL, model TEXT NOT NULL,
    provider TEXT NOT NULL, prompt_tokens INTEGER NOT NULL, completion_tokens INTEGER NOT NULL,
    cost INTEGER NOT NULL, is_priced INTEGER NOT NULL
) STRICT;
"""
LEDGER: Final = FileKind("ledger", "[ledger] path", APPLICATION_ID, SCHEMA_VERSION, _TABLES)
_RESERVE: Final = "INSERT INTO reservations VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)"
_RELEASE: Final = """
DELETE FROM reservations WHERE id IN (SELECT value FROM json_each(?))
RETURNING id, day, key, provider, cost
"""
_PATIENT: Final = f"PRAGMA busy_timeout = {int(BUSY_S * 1000)}"
_RETRY_S: Final = 0.002
_SLOT_BITS: Final = 40
"""The number of low bits of a reservation's id that count within a process; the bits above are
the slot of its process.
"""
_ADD: Final = """
INSERT INTO usage VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT DO UPDATE SET
    requests = requests + excluded.requests,
    prompt_tokens = prompt_tokens + excluded.prompt_tokens,
    cached_tokens = cached_tokens + excluded.cached_tokens,
    completion_tokens = completion_tokens + excluded.completion_tokens,
    cost = cost + excluded.cost
"""
_LEFT_OPEN: Final = """
SELECT day, key, model, provider, 0, is_priced, COUNT(*), SUM(prompt_tokens), 0,
       SUM(completion_tokens), SUM(cost)
FROM reservations WHERE id BETWEEN ? AND ? GROUP BY day, key, model, provider, is_priced
"""
_SLOTS: Final = """
SELECT id >> 40 FROM reservations UNION SELECT id >> 40 FROM conversation_holds
"""
_TOTALS: Final = """
SELECT day, key, provider, SUM(cost) FROM usage
WHERE day >= ? AND provider != '' GROUP BY day, key, provider
"""


class LedgerEntry(msgspec.Struct, frozen=True, gc=False):
    """Usage of `requests` requests; the fields are the columns of `usage`, in order. `provider` is
    "" for our own workers. Without `is_settled` the end of the request was never seen, so tokens
    and cost are upper bounds. Without `is_priced` the price is unknown, and `cost` is 0.
    """

    day: str
    key: str
    model: str
    provider: str
    is_settled: bool
    is_priced: bool
    requests: int
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    cost: int


Usages = dict[tuple[str, str, str, str, bool, bool], LedgerEntry]
"""Usage by the fields that identify its row."""


def add_to(total: Usages, entry: LedgerEntry) -> None:
    """Count `entry` in `total`."""
    named = (
        entry.day,
        entry.key,
        entry.model,
        entry.provider,
        entry.is_settled,
        entry.is_priced,
    )
    if (known := total.get(named)) is not None:
        entry = LedgerEntry(
            *named,
            known.requests + entry.requests,
            known.prompt_tokens + entry.prompt_tokens,
            known.cached_tokens + entry.cached_tokens,
            known.completion_tokens + entry.completion_tokens,
            known.cost + entry.cost,
        )
    total[named] = entry


class Settlement(NamedTuple):
    """The end of a reservation. `entry` None: the provider charges nothing."""

    reservation_id: int
    entry: LedgerEntry | None


class ReservationClaim(NamedTuple):
    """A reservation to be made, unless it would exceed one of `caps`."""

    number: int
    worst: LedgerEntry
    caps: tuple[Cap, ...] = ()


class OfConversations(NamedTuple):
    """The changes of conversations that one transaction writes."""

    holds: Sequence[SumHold] = ()
    ends: Sequence[HoldEnd] = ()
    uses: Mapping[UseName, UseSums] = NO_USES


NO_CONVERSATIONS: Final = OfConversations()


class DayTotal(NamedTuple):
    """What one key has spent at one provider on one day, unsettled requests included."""

    day: str
    key: str
    provider: str
    cost: int


class LedgerError(HermaError):
    """The ledger could not be written or read; the text is for the operator. `cause` is the reason
    without paths and addresses.
    """

    def __init__(self, text: str, cause: str = "") -> None:
        super().__init__(text)
        self.cause = cause or text


class LedgerStore:
    """The ledger at `path`, which several processes may hold open.

    Reservations that a process left open when it ended become unsettled usage, because they may
    have been charged. The first process counts what was spent from `first_day` on, in this file and
    `beside` it. `common` makes the limits that are shared with other hosts, from the names of
    this ledger and of theirs. Raises `ConfigError` with one line if the ledger cannot be opened.
    """

    def __init__(
        self,
        path: Path,
        currency: str,
        first_day: str = "",
        beside: Iterable[DayTotal] = (),
        common: Callable[[str, list[str]], CommonLimits] | None = None,
    ) -> None:
        self._path = path
        self._has_exchanged = False
        self.reached: dict[int, SumReached] = {}
        """The holds of the last `write` that would exceed a limit."""
        self.trouble = ""
        """Why the last claims could not be shared with other hosts; empty if they could."""
        self._common: CommonLimits | None = None
        with ExitStack() as stack:
            try:
                make_private(path.parent)
                self._slot = GatewaySlot(path, LEDGER)
                stack.callback(self._slot.close)
                if not self._slot.is_first:
                    path.stat()  # a new file would not have the amounts of the others
                self._connection = open_file(path, LEDGER)
                self._file = _identity(path)
                stack.callback(self._connection.close)
                # A commit returns when its data is on disk: reservations survive a power cut.
                self._connection.execute("PRAGMA synchronous = FULL")
                _check_currency(self._connection, path, currency)
                self._balances = SharedBalances(self._connection)
                self._conversations = ConversationSums(self._connection)
                self._prepare(first_day, beside)
                self._common = None if common is None else common(*_names_in(self._connection))
                self._slot.admit_others()
            except (OSError, sqlite3.Error) as error:
                raise LEDGER.cannot_open(path, error) from error
            stack.pop_all()

    def write(
        self,
        claims: Iterable[ReservationClaim],
        settlements: Iterable[Settlement],
        entries: Iterable[LedgerEntry],
        of_conversations: OfConversations = NO_CONVERSATIONS,
    ) -> frozenset[int]:
        """Write everything in one transaction, which is on the disk when this returns. Returns the
        numbers of the claims that would exceed a cap, and are not written; `reached` has the holds
        of conversations that would exceed a limit.

        A settlement whose reservation does not exist (any more) changes nothing, so writing one
        twice is safe; that of a claim takes it back. Raises `LedgerError` if nothing was written.
        """
        ends = dict(settlements)
        try:
            self._check_place()
            with self._transaction(is_own=True):
                total: Usages = {}
                for entry in (*self._release(ends), *entries):
                    add_to(total, entry)
                for entry in total.values():
                    self._change(entry.provider, entry.key, entry.day, entry.cost, 0)
                self._connection.executemany(_ADD, map(msgspec.structs.astuple, total.values()))
                new = [one for one in claims if one.number not in ends]
                refused = self._refused(new)
                rows = (self._row(one) for one in new if one.number not in refused)
                self._connection.executemany(_RESERVE, rows)
                self._hold(of_conversations)
        except (OSError, sqlite3.Error) as error:
            why = words_of_failure(error)
            raise LedgerError(f"cannot write the ledger {self._path}: {why}", why) from error
        return refused

    def _hold(self, given: OfConversations) -> None:
        """Write ends and holds of conversations. Ends come first, because what they give back may
        be held again. A hold that has ended before it was written is not written any more.
        """
        if given is NO_CONVERSATIONS:
            return
        for end in given.ends:
            self._conversations.end(self._id(end.number), end.tokens, end.cost)
        ended = {end.number for end in given.ends}
        self.reached = {}
        for one in given.holds:
            if one.number in ended:
                continue
            reached = self._conversations.hold(self._id(one.number), one)
            if reached is not None:
                self.reached[one.number] = reached
        self._conversations.add_uses(given.uses)

    def look(self, places: Iterable[BalanceKey]) -> dict[BalanceKey, Balance]:
        """Release the reservations of ended processes, and return what all other processes have
        spent and reserved in `places`. Raises `LedgerError`.
        """
        try:
            for (slot,) in self._connection.execute(_SLOTS).fetchall():
                if slot != self._slot.index:
                    self._bury(slot)
            self._balances.begin()
            return self._elsewhere(tuple(places))
        except StoreUnreachable as error:
            raise LedgerError(str(error), f"shared limits: {error.cause}") from error
        except (OSError, sqlite3.Error) as error:
            why = words_of_failure(error)
            raise LedgerError(f"cannot read the ledger {self._path}: {why}", why) from error

    def _elsewhere(self, places: tuple[BalanceKey, ...]) -> dict[BalanceKey, Balance]:
        found = self._balances.elsewhere(places)
        if self._common is not None:
            if not self._common.is_known():
                with self._transaction():
                    self._tell(self._balances.changes(), ())
            for place, balance in self._common.elsewhere(places).items():
                add_cost(found, (place,), balance)
        return found

    def close(self) -> None:
        """Close the file. Open reservations become unsettled usage: they may be charged."""
        if self._common is not None:
            self._common.close()
        self._connection.close()
        self._slot.close()

    def _check_place(self) -> None:
        """Raise `LedgerError` if the file was moved or replaced, because a process that starts now
        would not see what this one writes.
        """
        if _identity(self._path) != self._file:
            why = "is another file than at the start; restart all gateways"
            raise LedgerError(f"the ledger {self._path} {why}", f"the ledger {why}")

    @contextmanager
    def _transaction(self, *, is_own: bool = False) -> Iterator[None]:
        self._begin()
        with ExitStack() as stack:
            stack.callback(self._roll_back)
            self._balances.begin()
            self._has_exchanged = False
            yield
            self._balances.write()
            self._connection.execute("COMMIT")
            stack.pop_all()
        if self._common is not None:
            if self._has_exchanged:
                self._common.committed()
            elif self._balances.changes():
                self._common.forget()
        self._balances.committed(is_own=is_own)

    def _refused(self, claims: Sequence[ReservationClaim]) -> frozenset[int]:
        """Reserve the claims that fit into the caps here and on other hosts; returns the others."""
        changes = {} if self._common is None else self._balances.changes()
        refused = frozenset([one.number for one in claims if not self._reserve(one)])
        if self._common is None or not (claims or changes):
            return refused
        fits = [one for one in claims if one.number not in refused]
        self.trouble = ""
        try:
            beyond = self._tell(changes, fits)
        except StoreUnreachable as error:
            self.trouble = error.cause
            # The next `look` reports the failure. Claims without a limit are accepted.
            beyond = frozenset(one.number for one in fits if one.caps)
        for one in fits:
            if one.number in beyond:
                self._balances.change(_places(one.worst), 0, -one.worst.cost)
        return refused | beyond

    def _tell(self, changes: Balances, claims: Sequence[ReservationClaim]) -> frozenset[int]:
        """Send `changes` to the server for shared limits; returns claims that do not fit there."""
        assert self._common is not None
        wishes = [Wish(one.number, one.worst.cost, _places(one.worst), one.caps) for one in claims]
        beyond = self._common.exchange(lambda: self._balances.everything(changes), changes, wishes)
        self._has_exchanged = True
        _note_hosts(self._connection, self._common.others)
        return beyond

    def _begin(self) -> None:
        """Begin a transaction when the transactions of other processes have ended. SQLite's own
        wait sleeps for up to 100 ms between its tries, although a commit takes 5 ms.
        """
        ends_at = time.monotonic() + BUSY_S
        self._connection.execute("PRAGMA busy_timeout = 0")
        with ExitStack() as stack:
            stack.callback(self._connection.execute, _PATIENT)
            while not self._has_begun(ends_at):
                time.sleep(_RETRY_S)

    def _has_begun(self, ends_at: float) -> bool:
        try:
            self._connection.execute("BEGIN IMMEDIATE")
        except sqlite3.OperationalError as error:
            is_busy = error.sqlite_errorcode & 0xFF == sqlite3.SQLITE_BUSY
            if not is_busy or time.monotonic() > ends_at:
                raise
            return False
        return True

    def _roll_back(self) -> None:
        if self._connection.in_transaction:
            self._connection.execute("ROLLBACK")

    def _prepare(self, first_day: str, beside: Iterable[DayTotal]) -> None:
        with self._transaction():
            if not self._slot.is_first:
                self._keep_left_open(self._slot.index)
                return
            for (slot,) in self._connection.execute(_SLOTS).fetchall():
                self._keep_left_open(slot)
            self._conversations.forget_old(time.time())
            totals: dict[BalanceKey, Balance] = {}
            rows = self._connection.execute(_TOTALS, (first_day,))
            for day, key, provider, cost in (*rows, *beside):
                add_cost(totals, places_of(provider, key, day), Balance(cost))
            self._balances.rebuild(totals)

    def _bury(self, slot: int) -> None:
        lock = self._slot.take_over(slot)
        if lock is None:
            return
        try:
            with self._transaction():
                self._keep_left_open(slot)
        finally:
            os.close(lock)

    def _keep_left_open(self, slot: int) -> None:
        """Turn the reservations of an ended process into unsettled usage."""
        span = slot << _SLOT_BITS, (slot + 1 << _SLOT_BITS) - 1
        self._conversations.bury(*span)
        left = [LedgerEntry(*row) for row in self._connection.execute(_LEFT_OPEN, span).fetchall()]
        for one in left:
            self._change(one.provider, one.key, one.day, one.cost, -one.cost)
        self._connection.executemany(_ADD, map(msgspec.structs.astuple, left))
        self._connection.execute("DELETE FROM reservations WHERE id BETWEEN ? AND ?", span)

    def _release(self, ends: dict[int, LedgerEntry | None]) -> list[LedgerEntry]:
        """Delete these reservations. Returns the usage of the requests that existed."""
        if not ends:
            return []
        first = self._id(0)
        ids = msgspec.json.encode([first + number for number in ends]).decode()
        released = self._connection.execute(_RELEASE, (ids,)).fetchall()
        for (provider, key, day), freed in _sums_of(released).items():
            self._change(provider, key, day, 0, -freed)
        entries = [ends[number - first] for number, *_ in released]
        return [entry for entry in entries if entry is not None]

    def _reserve(self, claim: ReservationClaim) -> bool:
        return self._balances.reserve(_places(claim.worst), claim.worst.cost, claim.caps)

    def _change(self, provider: str, key: str, day: str, spent: int, reserved: int) -> None:
        if provider:
            self._balances.change(places_of(provider, key, day), spent, reserved)

    def _id(self, number: int) -> int:
        return (self._slot.index << _SLOT_BITS) + number

    def _row(self, claim: ReservationClaim) -> tuple[str | int, ...]:
        """A reservation as its table has it."""
        worst = claim.worst
        return (
            self._id(claim.number),
            worst.day,
            worst.key,
            worst.model,
            worst.provider,
            worst.prompt_tokens,
            worst.completion_tokens,
            worst.cost,
            worst.is_priced,
        )


def _sums_of(
    released: Iterable[tuple[int, str, str, str, int]],
) -> dict[tuple[str, str, str], int]:
    """The sums of the reservations by provider, key and day, because most requests share these."""
    sums: dict[tuple[str, str, str], int] = {}
    for _, day, key, provider, cost in released:
        named = provider, key, day
        sums[named] = sums.get(named, 0) + cost
    return sums


def _identity(path: Path) -> tuple[int, int]:
    status = path.stat()
    return status.st_dev, status.st_ino


def _places(worst: LedgerEntry) -> tuple[BalanceKey, ...]:
    return places_of(worst.provider, worst.key, worst.day)


def _names_in(connection: sqlite3.Connection) -> tuple[str, list[str]]:
    """The name of this ledger among those of other hosts, and the names that it has met."""
    connection.execute("INSERT OR IGNORE INTO meta VALUES ('host', lower(hex(randomblob(8))))")
    connection.execute("INSERT OR IGNORE INTO meta VALUES ('hosts', '')")
    (name,), (others,) = connection.execute(
        "SELECT value FROM meta WHERE name IN ('host', 'hosts') ORDER BY name"
    ).fetchall()
    return str(name), str(others).split()


def _note_hosts(connection: sqlite3.Connection, others: Iterable[str]) -> None:
    connection.execute(
        "UPDATE meta SET value = ?1 WHERE name = 'hosts' AND value != ?1",
        (" ".join(sorted(others)),),
    )


def currency_of(connection: sqlite3.Connection) -> str:
    """The currency of all amounts in the ledger."""
    row = connection.execute("SELECT value FROM meta WHERE name = 'currency'").fetchone()
    return str(row[0]) if row is not None else ""


def _check_currency(connection: sqlite3.Connection, path: Path, currency: str) -> None:
    connection.execute("INSERT OR IGNORE INTO meta VALUES ('currency', ?)", (currency,))
    _compare_currency(connection, path, currency)


def check_ledger(path: Path, currency: str) -> None:
    """Raise `ConfigError` if what is at `path` cannot be the ledger of amounts in `currency`;
    nothing is written.
    """
    with looking(path, LEDGER) as connection:
        if connection is not None and currency_of(connection):
            _compare_currency(connection, path, currency)


def _compare_currency(connection: sqlite3.Connection, path: Path, currency: str) -> None:
    known = currency_of(connection)
    if known != currency:
        raise ConfigError(
            f"the ledger {path} counts in {known}, but [ledger] currency is {currency}; amounts of "
            "two currencies cannot be added, so take another path"
        )
