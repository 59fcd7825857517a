"""The reading side of the ledger.

Owns the sums that `herma usage` shows. Reads beside a running gateway without disturbing it. Must
not write.
"""

import sqlite3
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from gateway.ledger.schema import currency_of, open_for_reading
from protocol.errors import ConfigError

Column = Literal["day", "key", "model", "provider"]

# Requests that are out now count as unsettled: if the gateway was killed, nobody will settle them.
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


@dataclass(frozen=True, slots=True)
class Row:
    """Sums over requests that agree in `group`, whose values are in the order asked for. Tokens
    are those of all `requests`; `cost` is what the settled ones cost, `unsettled_cost` what the
    others can have cost at most, both in micro-units. `unpriced` ones are in neither.
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
class Report:
    """All rows in the order of their groups, and the sum of them; None if there are none."""

    currency: str
    rows: tuple[Row, ...]
    total: Row | None


def read_report(path: Path, by: Sequence[Column], first_day: str) -> Report | None:
    """The usage from `first_day` on (2026-11-01); None if there is no ledger at `path` yet.

    Raises `ConfigError` if the file cannot be read or is no ledger.
    """
    if not path.exists():
        return None
    try:
        with closing(open_for_reading(path)) as connection:
            # One transaction: groups and their sum are of the same moment.
            connection.execute("BEGIN")
            rows = _read(connection, by, first_day)
            total = _read(connection, (), first_day)
            currency = currency_of(connection)
    except (OSError, sqlite3.Error) as error:
        raise ConfigError(f"cannot read the ledger {path}: {error}") from error
    return Report(currency, tuple(rows), total[0] if rows else None)


def _read(connection: sqlite3.Connection, by: Sequence[Column], first_day: str) -> list[Row]:
    columns = ", ".join(by)
    statement = _ROWS.format(by=f"{columns}, " if by else "")
    if by:
        statement += f"GROUP BY {columns} ORDER BY {columns}"
    found = connection.execute(statement, (first_day,))
    return [_row(values, len(by)) for values in found if values[len(by)] is not None]


def _row(values: tuple[object, ...], width: int) -> Row:
    group, sums = values[:width], [int(str(value)) for value in values[width:]]
    return Row(tuple(map(str, group)), *sums)
