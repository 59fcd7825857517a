"""What conversations have used, by all gateway processes of one ledger.

Owns three tables in the ledger's file: sums and holds of conversations with limits, and the usage
of all conversations by day. Each change belongs into a transaction of the ledger. Must not know why
a conversation has a limit.
"""

import sqlite3
from collections.abc import Mapping
from typing import Final, NamedTuple, final

_TABLES: Final = (
    """
CREATE TABLE IF NOT EXISTS conversations (
    key TEXT NOT NULL, name TEXT NOT NULL, began REAL NOT NULL, seen REAL NOT NULL,
    turns INTEGER NOT NULL, tokens INTEGER NOT NULL, cost INTEGER NOT NULL,
    PRIMARY KEY (key, name)
) STRICT, WITHOUT ROWID
""",
    """
CREATE TABLE IF NOT EXISTS conversation_holds (
    id INTEGER PRIMARY KEY, key TEXT NOT NULL, name TEXT NOT NULL, tokens INTEGER NOT NULL,
    cost INTEGER NOT NULL
) STRICT
""",
    """
CREATE TABLE IF NOT EXISTS conversation_usage (
    day TEXT NOT NULL, key TEXT NOT NULL, model TEXT NOT NULL, provider TEXT NOT NULL,
    conversation TEXT NOT NULL, requests INTEGER NOT NULL, prompt_tokens INTEGER NOT NULL,
    cached_tokens INTEGER NOT NULL, completion_tokens INTEGER NOT NULL, cost INTEGER NOT NULL,
    PRIMARY KEY (day, key, model, provider, conversation)
) STRICT, WITHOUT ROWID
""",
)
KEPT_S: Final = 30 * 86_400.0
"""Sums and usage that are older are deleted at a start."""
_SUMS: Final = "SELECT began, turns, tokens, cost FROM conversations WHERE key = ? AND name = ?"
_HELD: Final = """
SELECT COALESCE(SUM(tokens), 0), COALESCE(SUM(cost), 0) FROM conversation_holds
WHERE key = ? AND name = ?
"""
_ADD: Final = """
INSERT INTO conversations VALUES (?, ?, ?, ?, ?, ?, ?) ON CONFLICT DO UPDATE SET
    seen = excluded.seen, turns = turns + excluded.turns, tokens = tokens + excluded.tokens,
    cost = cost + excluded.cost
"""
_SPEND: Final = """
UPDATE conversations SET tokens = tokens + ?, cost = cost + ? WHERE key = ? AND name = ?
"""
_USE: Final = """
INSERT INTO conversation_usage VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT DO UPDATE SET
    requests = requests + excluded.requests, prompt_tokens = prompt_tokens + excluded.prompt_tokens,
    cached_tokens = cached_tokens + excluded.cached_tokens,
    completion_tokens = completion_tokens + excluded.completion_tokens,
    cost = cost + excluded.cost
"""


class ConversationLimits(NamedTuple):
    """The limits of a conversation; None: none. `cost` in micro-units."""

    tokens: int | None = None
    cost: int | None = None
    turns: int | None = None
    seconds: float | None = None


class SumHold(NamedTuple):
    """What a request may use at most, to be held for the conversation `name` of `key`, unless that
    exceeds `limits`. `turns` count at once. `now` in Unix seconds.
    """

    number: int
    key: str
    name: str
    now: float
    limits: ConversationLimits
    tokens: int = 0
    cost: int = 0
    turns: int = 0


class HoldEnd(NamedTuple):
    """The end of a hold, and what was used."""

    number: int
    tokens: int
    cost: int


class SumReached(NamedTuple):
    """A refused hold: of `limit`, `used` are used, and other requests hold `held`."""

    what: str
    limit: float
    used: float
    held: float = 0
    wanted: float = 0

    @property
    def is_for_others(self) -> bool:
        """Whether the request would fit if those under way used nothing."""
        return self.used + self.wanted <= self.limit


UseName = tuple[str, str, str, str, str]
"""The name under which usage is counted: day, key, model, provider, conversation."""
UseSums = tuple[int, int, int, int, int]
"""Counted usage: requests, prompt tokens, cached tokens, completion tokens, cost."""
NO_USES: Final[Mapping[UseName, UseSums]] = {}


@final
class ConversationSums:
    """The tables, on the ledger's `connection`."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        for table in _TABLES:
            connection.execute(table)

    def forget_old(self, now: float) -> None:
        """Delete what was not used for `KEPT_S`."""
        before = now - KEPT_S
        self._connection.execute("DELETE FROM conversations WHERE seen < ?", (before,))
        self._connection.execute(
            "DELETE FROM conversation_usage WHERE day < date(?, 'unixepoch')", (before,)
        )

    def hold(self, entry: int, hold: SumHold) -> SumReached | None:
        """Make the hold with the id `entry`; or return the limit that it would exceed."""
        named = hold.key, hold.name
        row = self._connection.execute(_SUMS, named).fetchone()
        began, turns, tokens, cost = row if row is not None else (hold.now, 0, 0, 0)
        held_tokens, held_cost = self._connection.execute(_HELD, named).fetchone()
        limits = hold.limits
        for what, limit, used, held, wanted in (
            ("seconds", limits.seconds, hold.now - began, 0, 0),
            ("turns", limits.turns, turns, 0, hold.turns),
            ("tokens", limits.tokens, tokens, held_tokens, hold.tokens),
            ("cost", limits.cost, cost, held_cost, hold.cost),
        ):
            is_asked = wanted > 0 or what == "seconds"
            if limit is not None and is_asked and used + held + wanted > limit:
                return SumReached(what, limit, used, held, wanted)
        self._connection.execute(_ADD, (*named, hold.now, hold.now, hold.turns, 0, 0))
        self._connection.execute(
            "INSERT INTO conversation_holds VALUES (?, ?, ?, ?, ?)",
            (entry, *named, hold.tokens, hold.cost),
        )
        return None

    def end(self, entry: int, tokens: int, cost: int) -> None:
        """Replace the hold `entry`, if there is one, by what was used."""
        row = self._connection.execute(
            "DELETE FROM conversation_holds WHERE id = ? RETURNING key, name", (entry,)
        ).fetchone()
        if row is not None:
            self._connection.execute(_SPEND, (tokens, cost, *row))

    def bury(self, first: int, last: int) -> None:
        """Count the holds of an ended process as used: the requests may have used them."""
        rows = self._connection.execute(
            "DELETE FROM conversation_holds WHERE id BETWEEN ? AND ? "
            "RETURNING key, name, tokens, cost",
            (first, last),
        ).fetchall()
        for key, name, tokens, cost in rows:
            self._connection.execute(_SPEND, (tokens, cost, key, name))

    def add_uses(self, uses: Mapping[UseName, UseSums]) -> None:
        """Count usage by the day."""
        self._connection.executemany(_USE, [(*name, *sums) for name, sums in uses.items()])
