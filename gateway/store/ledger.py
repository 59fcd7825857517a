"""The ledger: usage and cost in one SQLite file.

Owns the tables, the statements, and the lock that keeps a second gateway out. Days are UTC dates as
text (2026-11-21), amounts micro-units of the ledger's currency. Every call blocks, so it belongs in
a thread, one call at a time. Must not know limits or tasks.
"""

import os
import sqlite3
from collections.abc import Iterable
from contextlib import ExitStack
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from gateway.store.sqlite_file import FileKind, lock, open_file
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
DELETE FROM reservations WHERE id IN (SELECT value FROM json_each(?)) RETURNING id
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
FROM reservations GROUP BY day, key, model, provider, is_priced
"""
_TOTALS: Final = """
SELECT day, key, provider, SUM(cost) FROM usage
WHERE day >= ? AND provider != '' GROUP BY day, key, provider
"""


class Entry(msgspec.Struct, frozen=True, gc=False):
    """Usage of `requests` requests; its fields are the columns of `usage`, in order. `provider` ""
    is our own workers. `is_settled` False: the end was never seen, so tokens and cost are upper
    bounds. `is_priced` False: the price is unknown, and `cost` is 0.
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


Usages = dict[tuple[str, str, str, str, bool, bool], Entry]
"""Usage by what names its row."""


def add_to(total: Usages, entry: Entry) -> None:
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
        entry = Entry(
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
    entry: Entry | None


class DayTotal(NamedTuple):
    """What one key has spent at one provider on one day, unsettled requests included."""

    day: str
    key: str
    provider: str
    cost: int


class LedgerError(HermaError):
    """The ledger could not be written; the text is for the operator."""


class LedgerStore:
    """The ledger at `path`, held open by one process at a time.

    Reservations that an earlier run left open become unsettled usage, because they may have been
    charged. Raises `ConfigError` with one line if the ledger cannot be opened.
    """

    def __init__(self, path: Path, currency: str) -> None:
        self._path = path
        with ExitStack() as stack:
            try:
                path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                self._lock = lock(path, LEDGER)
                stack.callback(os.close, self._lock)
                self._connection = open_file(path, LEDGER)
                stack.callback(self._connection.close)
                # What a bill rests on is on the disk when its commit returns.
                self._connection.execute("PRAGMA synchronous = FULL")
                _check_currency(self._connection, path, currency)
                self._keep_left_open()
            except (OSError, sqlite3.Error) as error:
                raise LEDGER.cannot_open(path, error) from error
            stack.pop_all()

    def totals(self, first_day: str) -> list[DayTotal]:
        """What was spent at providers from `first_day` on, by day, key and provider.

        Raises `ConfigError` if the ledger cannot be read.
        """
        try:
            return [DayTotal(*row) for row in self._connection.execute(_TOTALS, (first_day,))]
        except sqlite3.Error as error:
            raise LEDGER.cannot_open(self._path, error) from error

    def write(
        self,
        reservations: Iterable[tuple[int, Entry]],
        settlements: Iterable[Settlement],
        entries: Iterable[Entry],
    ) -> None:
        """Write everything in one transaction, which is on the disk when this returns.

        A settlement whose reservation does not exist (any more) changes nothing, so writing one
        twice is safe. Raises `LedgerError` if nothing was written.
        """
        try:
            self._connection.execute("BEGIN IMMEDIATE")
            self._connection.executemany(_RESERVE, (_row(*one) for one in reservations))
            ended = self._release(settlements)
            total: Usages = {}
            for entry in (*ended, *entries):
                add_to(total, entry)
            self._connection.executemany(_ADD, map(msgspec.structs.astuple, total.values()))
            self._connection.execute("COMMIT")
        except sqlite3.Error as error:
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")
            raise LedgerError(f"cannot write the ledger {self._path}: {error}") from error

    def _release(self, settlements: Iterable[Settlement]) -> list[Entry]:
        """Delete what was reserved for them. Returns the usage of those that were."""
        ends = dict(settlements)
        if not ends:
            return []
        released = self._connection.execute(_RELEASE, (msgspec.json.encode([*ends]).decode(),))
        entries = [ends[number] for (number,) in released.fetchall()]
        return [entry for entry in entries if entry is not None]

    def close(self) -> None:
        """Close the file and release the lock."""
        self._connection.close()
        os.close(self._lock)

    def _keep_left_open(self) -> None:
        self._connection.execute("BEGIN IMMEDIATE")
        self._connection.executemany(_ADD, self._connection.execute(_LEFT_OPEN).fetchall())
        self._connection.execute("DELETE FROM reservations")
        self._connection.execute("COMMIT")


def _row(number: int, worst: Entry) -> tuple[str | int, ...]:
    """A reservation as its table has it."""
    return (
        number,
        worst.day,
        worst.key,
        worst.model,
        worst.provider,
        worst.prompt_tokens,
        worst.completion_tokens,
        worst.cost,
        worst.is_priced,
    )


def currency_of(connection: sqlite3.Connection) -> str:
    """The currency of all amounts in the ledger."""
    row = connection.execute("SELECT value FROM meta WHERE name = 'currency'").fetchone()
    return str(row[0]) if row is not None else ""


def _check_currency(connection: sqlite3.Connection, path: Path, currency: str) -> None:
    connection.execute("INSERT OR IGNORE INTO meta VALUES ('currency', ?)", (currency,))
    known = currency_of(connection)
    if known != currency:
        raise ConfigError(
            f"the ledger {path} counts in {known}, but [ledger] currency is {currency}; amounts of "
            "two currencies cannot be added, so take another path"
        )
