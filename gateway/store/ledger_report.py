"""Sums of the ledger, for `herma usage`.

Owns the sums over the files of all processes that share a port. Reads beside a running gateway
without disturbing it. Must not write.
"""

import functools
import re
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Final, Literal

from gateway.store.ledger import LEDGER, DayTotal, currency_of
from gateway.store.sqlite_file import DiskFull, is_full, open_for_reading
from protocol.errors import ConfigError

Column = Literal["day", "key", "model", "provider", "conversation"]

# Reservations count as unsettled requests: if the gateway was killed, they stay open.
_ROWS: Final = """
SELECT {by}SUM(requests), SUM(prompt_tokens), SUM(cached_tokens), SUM(completion_tokens),
       SUM(cost * is_settled), SUM(requests * (1 - is_settled)), SUM(cost * (1 - is_settled)),
       SUM(requests * (1 - is_priced))
FROM (
    SELECT day, key, model, provider, is_settled, is_priced, requests, prompt_tokens,
           cached_tokens, completion_tokens, cost
    FROM usage
    UNION ALL
    SELECT day, key, model, provider, 0, is_priced, 1, prompt_tokens, 0, completion_tokens, cost
    FROM reservations
)
WHERE day >= ?
"""


_OF_CONVERSATIONS: Final = """
SELECT {by}SUM(requests), SUM(prompt_tokens), SUM(cached_tokens), SUM(completion_tokens), SUM(cost),
       0, 0, 0
FROM conversation_usage WHERE day >= ?
"""
_HAS_CONVERSATIONS: Final = "SELECT 1 FROM sqlite_master WHERE name = 'conversation_usage'"


@dataclass(frozen=True, slots=True)
class LedgerRow:
    """Sums over the requests of one `group`. Tokens are those of all `requests`; `cost` is the cost
    of the settled ones, `unsettled_cost` the most that the others can have cost, in micro-units.
    `unpriced` requests are in neither.
    """

    group: tuple[str, ...]
    requests: int
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    cost: int
    unsettled: int
    unsettled_cost: int
    unpriced: int


@dataclass(frozen=True, slots=True)
class LedgerReport:
    """All rows in the order of their groups, and their sum, which is None if there are none."""

    currency: str
    rows: tuple[LedgerRow, ...]
    total: LedgerRow | None


def read_report(path: Path, by: Sequence[Column], first_day: str) -> LedgerReport | None:
    """The usage from `first_day` on (2026-11-01), grouped `by` columns, in the ledger at `path` and
    those of further processes beside it. By conversation it is the usage of ended requests that
    belong to one. None if no ledger exists, or it is still empty.

    Raises `ConfigError` if a file cannot be read, is no ledger or of another currency.
    """
    files = ([path] if path.exists() else []) + ledgers_beside(path)
    found = (_read_file(file, by, first_day) for file in files)
    reports = [report for report in found if report is not None]
    if len({report.currency for report in reports}) > 1:
        raise ConfigError(
            f"the ledgers {path} and beside it are of several currencies; amounts of two "
            "currencies cannot be added, so move the old ones away"
        )
    return functools.reduce(_both, reports) if reports else None


def spent_beside(path: Path, first_day: str) -> list[DayTotal]:
    """What further processes, in earlier runs, have spent at providers from `first_day` on."""
    by: tuple[Column, ...] = ("day", "key", "provider")
    reports = (_read_file(file, by, first_day) for file in ledgers_beside(path))
    rows = (row for report in reports if report is not None for row in report.rows)
    return [
        DayTotal(day, key, provider, row.cost + row.unsettled_cost)
        for row in rows
        for day, key, provider in [row.group]
        if provider
    ]


def ledgers_beside(path: Path) -> list[Path]:
    """The files of further processes: ledger.1.sqlite, ledger.2.sqlite ... beside ledger.sqlite."""
    name = re.compile(rf"{re.escape(path.stem)}\.[1-9]\d*{re.escape(path.suffix)}")
    files = path.parent.glob("*") if path.parent.is_dir() else ()
    return sorted(file for file in files if name.fullmatch(file.name))


def _read_file(path: Path, by: Sequence[Column], first_day: str) -> LedgerReport | None:
    try:
        if (opened := open_for_reading(path, LEDGER)) is None:
            return None
        with closing(opened) as connection:
            # One transaction: groups and their sum are of the same moment.
            connection.execute("BEGIN")
            rows = _read(connection, by, first_day)
            total = _read(connection, (), first_day, of_conversations="conversation" in by)
            currency = currency_of(connection)
    except (OSError, sqlite3.Error) as error:
        text = f"cannot read the ledger {path}: {error}"
        # Beside a ledger that no process has open SQLite needs room, even for reading.
        raise (DiskFull(text, text) if is_full(error, path) else ConfigError(text)) from error
    return LedgerReport(currency, tuple(rows), total[0] if rows else None)


def _both(one: LedgerReport, other: LedgerReport) -> LedgerReport:
    rows = {row.group: row for row in one.rows}
    for row in other.rows:
        rows[row.group] = _sum(rows.get(row.group), row)
    total = one.total if other.total is None else _sum(one.total, other.total)
    return LedgerReport(one.currency, tuple(rows[group] for group in sorted(rows)), total)


def _sum(one: LedgerRow | None, other: LedgerRow) -> LedgerRow:
    if one is None:
        return other
    counts = (a + b for a, b in zip(astuple(one)[1:], astuple(other)[1:], strict=True))
    return LedgerRow(other.group, *counts)


def _read(
    connection: sqlite3.Connection,
    by: Sequence[Column],
    first_day: str,
    *,
    of_conversations: bool = False,
) -> list[LedgerRow]:
    columns = ", ".join(by)
    of_conversations = of_conversations or "conversation" in by
    if of_conversations and connection.execute(_HAS_CONVERSATIONS).fetchone() is None:
        return []
    form = _OF_CONVERSATIONS if of_conversations else _ROWS
    statement = form.format(by=f"{columns}, " if by else "")
    if by:
        statement += f"GROUP BY {columns} ORDER BY {columns}"
    found = connection.execute(statement, (first_day,))
    return [_row(values, len(by)) for values in found if values[len(by)] is not None]


def _row(values: tuple[object, ...], width: int) -> LedgerRow:
    group, sums = values[:width], [int(str(value)) for value in values[width:]]
    return LedgerRow(tuple(map(str, group)), *sums)
