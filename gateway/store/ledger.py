"""The writing side of the ledger.

Owns the connection, the lock that keeps a second gateway out, and the statements. Every call
blocks, so it belongs in a thread; one call at a time. Must not know limits or tasks.
"""

import fcntl
import os
import sqlite3
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from gateway.store.ledger_entries import DayTotal, Entry, Reservation, Settlement
from gateway.store.ledger_schema import open_for_writing
from protocol.errors import ConfigError, HermaError

_RESERVE: Final = "INSERT INTO reservations VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)"
_RELEASE: Final = "DELETE FROM reservations WHERE id = ?"
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


class LedgerError(HermaError):
    """The ledger could not be written; the text is for the operator."""


class LedgerStore:
    """The ledger at `path`, open for as long as this lives, by one process at a time.

    Reservations that an earlier run has left open become unsettled usage: they may have been
    charged. Raises `ConfigError` with one line if it cannot be opened.
    """

    def __init__(self, path: Path, currency: str) -> None:
        self._path = path
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._lock = _lock(path)
        except OSError as error:
            raise _cannot_open(path, error) from error
        try:
            self._connection = open_for_writing(path, currency)
            self._keep_left_open()
        except (OSError, sqlite3.Error) as error:
            os.close(self._lock)
            raise _cannot_open(path, error) from error
        except ConfigError:
            os.close(self._lock)
            raise

    def totals(self, first_day: str) -> list[DayTotal]:
        """What was spent at providers from `first_day` on, by day, key and provider.

        Raises `ConfigError` if it cannot be read.
        """
        try:
            rows = self._connection.execute(_TOTALS, (first_day,)).fetchall()
        except sqlite3.Error as error:
            raise _cannot_open(self._path, error) from error
        return [DayTotal(day, key, provider, cost) for day, key, provider, cost in rows]

    def write(
        self,
        reservations: Sequence[Reservation],
        settlements: Sequence[Settlement],
        entries: Sequence[Entry],
    ) -> None:
        """Write all of it in one transaction, which is on the disk when this returns.

        A settlement whose reservation is not there (any more) changes nothing, so writing one
        again is safe. Raises `LedgerError` if nothing was written.
        """
        try:
            self._begin()
            self._connection.executemany(_RESERVE, map(_reservation_row, reservations))
            for settlement in settlements:
                released = self._connection.execute(_RELEASE, (settlement.reservation_id,))
                if released.rowcount and settlement.entry is not None:
                    self._connection.execute(_ADD, _entry_row(settlement.entry))
            self._connection.executemany(_ADD, map(_entry_row, entries))
            self._connection.execute("COMMIT")
        except sqlite3.Error as error:
            self._roll_back()
            raise LedgerError(f"cannot write the ledger {self._path}: {error}") from error

    def close(self) -> None:
        """Close the file and let others have it."""
        self._connection.close()
        os.close(self._lock)

    def _keep_left_open(self) -> None:
        self._begin()
        for row in self._connection.execute(_LEFT_OPEN).fetchall():
            self._connection.execute(_ADD, row)
        self._connection.execute("DELETE FROM reservations")
        self._connection.execute("COMMIT")

    def _begin(self) -> None:
        self._connection.execute("BEGIN IMMEDIATE")

    def _roll_back(self) -> None:
        if self._connection.in_transaction:
            self._connection.execute("ROLLBACK")


def _cannot_open(path: Path, error: Exception) -> ConfigError:
    return ConfigError(
        f"cannot open the ledger {path}: {error}; set [ledger] path to a place that can be written"
    )


def _lock(path: Path) -> int:
    """The kernel lets go of the lock when the process ends, however it ends."""
    file = os.open(f"{path}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        os.close(file)
        raise ConfigError(
            f"another gateway uses the ledger {path}; give each its own [ledger] path"
        ) from error
    return file


def _reservation_row(item: Reservation) -> tuple[int | str, ...]:
    return (
        item.id,
        item.day,
        item.key,
        item.model,
        item.provider,
        item.prompt_tokens,
        item.completion_tokens,
        item.cost,
        item.is_priced,
    )


def _entry_row(entry: Entry) -> tuple[int | str, ...]:
    return (
        entry.day,
        entry.key,
        entry.model,
        entry.provider,
        entry.is_settled,
        entry.is_priced,
        entry.requests,
        entry.prompt_tokens,
        entry.cached_tokens,
        entry.completion_tokens,
        entry.cost,
    )
