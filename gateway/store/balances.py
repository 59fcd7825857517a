"""What is spent and reserved in each window, by all gateway processes of one ledger.

Owns the table `windows`, which is the sum of the usage and the reservations beside it, and the
check of a cost against it. Both belong into the transaction that changes those. Must not know
periods, currencies or which processes live.
"""

import functools
import sqlite3
from collections.abc import Iterable, Mapping
from typing import Final, Literal, NamedTuple, final

_TABLE: Final = """
CREATE TABLE IF NOT EXISTS windows (
    kind TEXT NOT NULL, name TEXT NOT NULL, window TEXT NOT NULL,
    spent INTEGER NOT NULL, reserved INTEGER NOT NULL, PRIMARY KEY (kind, name, window)
) STRICT, WITHOUT ROWID
"""
_READ: Final = "SELECT spent, reserved FROM windows WHERE kind = ? AND name = ? AND window = ?"
_NEWEST: Final = "SELECT MAX(substr(window, 1, 7)) FROM windows"
_ALL: Final = """
SELECT kind, name, window, spent, reserved FROM windows
WHERE window >= strftime('%Y-%m', ? || '-01', '-1 month')
"""
_ADD: Final = """
INSERT INTO windows VALUES (?, ?, ?, ?, ?) ON CONFLICT DO UPDATE SET
    spent = spent + excluded.spent, reserved = reserved + excluded.reserved
"""
_MOST_KNOWN: Final = 4096
"""The most rows that are kept in memory; the table has all rows."""


class BalanceKey(NamedTuple):
    """A window of one provider or key: `window` is a day (2026-11-21) or a month (2026-11)."""

    kind: Literal["provider", "key"]
    name: str
    window: str


class Balance(NamedTuple):
    """Micro-units."""

    spent: int = 0
    reserved: int = 0

    def plus(self, other: "Balance") -> "Balance":
        """The sum of both."""
        return Balance(self.spent + other.spent, self.reserved + other.reserved)

    def minus(self, other: "Balance") -> "Balance":
        """This balance less `other`."""
        return Balance(self.spent - other.spent, self.reserved - other.reserved)


NOTHING: Final = Balance()
Balances = Mapping[BalanceKey, Balance]


class Cap(NamedTuple):
    """The most that may be spent and reserved in one window, in micro-units."""

    place: BalanceKey
    limit: int


@functools.lru_cache(maxsize=256)
def places_of(provider: str, key: str, day: str) -> tuple[BalanceKey, ...]:
    """The windows in which a cost counts. Cached: most requests are of few keys, on one day."""
    month = day[:7]
    return (
        BalanceKey("provider", provider, day),
        BalanceKey("provider", provider, month),
        BalanceKey("key", key, day),
        BalanceKey("key", key, month),
    )


def add_cost(
    totals: dict[BalanceKey, Balance], places: Iterable[BalanceKey], change: Balance
) -> None:
    """Count `change` in each of `places`."""
    if change == NOTHING:
        return
    for place in places:
        totals[place] = totals.get(place, NOTHING).plus(change)


@final
class SharedBalances:
    """The table, as one process uses it: the amounts that this process has changed are also
    kept separately.
    """

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        self._version = -1
        self._known: dict[BalanceKey, Balance] = {}
        self._own: dict[BalanceKey, Balance] = {}
        self._changes: dict[BalanceKey, list[int]] = {}
        self._month = ""
        connection.execute(_TABLE)

    def begin(self) -> None:
        """A transaction has begun: see what other processes have changed, if they have."""
        self._changes = {}
        (version,) = self._connection.execute("PRAGMA data_version").fetchone()
        if version != self._version or len(self._known) > _MOST_KNOWN:
            self._version = version
            self._known.clear()

    def reserve(self, places: Iterable[BalanceKey], cost: int, caps: Iterable[Cap]) -> bool:
        """Reserve `cost` in this transaction; False, and nothing, if it is above a cap."""
        for place, limit in caps:
            if sum(self._now(place)) + cost > limit:
                return False
        self.change(places, 0, cost)
        return True

    def change(self, places: Iterable[BalanceKey], spent: int, reserved: int) -> None:
        """Count the amounts in this transaction, whatever the caps are."""
        changes = self._changes
        for place in places:
            if (sums := changes.get(place)) is None:
                changes[place] = [spent, reserved]
            else:
                sums[0] += spent
                sums[1] += reserved

    def changes(self) -> dict[BalanceKey, Balance]:
        """What this transaction has changed so far."""
        return {place: Balance(*sums) for place, sums in self._changes.items() if any(sums)}

    def everything(self, changes: Balances) -> dict[BalanceKey, Balance]:
        """The whole table of this month and the one before, and `changes`."""
        (newest,) = self._connection.execute(_NEWEST).fetchone()
        rows = self._connection.execute(_ALL, (newest,))
        found = {
            BalanceKey(kind, name, window): Balance(*held) for kind, name, window, *held in rows
        }
        for place, change in changes.items():
            add_cost(found, (place,), change)
        return found

    def write(self) -> None:
        """Write this transaction's changes, before its commit."""
        rows = ((*place, *change) for place, change in self._changes.items() if any(change))
        self._connection.executemany(_ADD, rows)

    def committed(self, *, is_own: bool) -> None:
        """The transaction's changes are on the disk. `is_own`: of this process's requests."""
        changes, self._changes = self.changes(), {}
        for place, change in changes.items():
            if place in self._known:
                self._known[place] = self._known[place].plus(change)
            if not is_own:
                continue
            if (month := place.window[:7]) > self._month:
                self._turn_to(month)
            self._own[place] = self._own.get(place, NOTHING).plus(change)

    def elsewhere(self, places: Iterable[BalanceKey]) -> dict[BalanceKey, Balance]:
        """The amounts that all other processes, earlier ones included, have spent and reserved."""
        return {place: self._read(place).minus(self._own.get(place, NOTHING)) for place in places}

    def rebuild(self, totals: Balances) -> None:
        """Replace the table, and this transaction's changes, by `totals`."""
        self._connection.execute("DELETE FROM windows")
        self._known.clear()
        self._changes = {place: list(sums) for place, sums in totals.items()}

    def _now(self, place: BalanceKey) -> Balance:
        return self._read(place).plus(Balance(*self._changes.get(place, NOTHING)))

    def _read(self, place: BalanceKey) -> Balance:
        if (known := self._known.get(place)) is None:
            row = self._connection.execute(_READ, place).fetchone()
            known = self._known[place] = NOTHING if row is None else Balance(*row)
        return known

    def _turn_to(self, month: str) -> None:
        """Forget own changes before the last month: requests may cross midnight."""
        kept, self._month = self._month, month
        self._own = {place: one for place, one in self._own.items() if place.window[:7] >= kept}
