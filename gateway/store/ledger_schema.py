"""The ledger's file and tables.

Owns how the file is made (only its owner may read it), opened and recognised. Must not know what
the rows mean.
"""

import os
import sqlite3
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Final

from protocol.errors import ConfigError

APPLICATION_ID: Final = 0x4845_524D
"""HERM: in the file's header, so that no other SQLite file is taken for a ledger."""
SCHEMA_VERSION: Final = 1
BUSY_S: Final = 5.0
"""Only a backup or a checkpoint of a reader can hold the file for so long."""

_TABLES: Final = f"""
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
PRAGMA application_id = {APPLICATION_ID};
PRAGMA user_version = {SCHEMA_VERSION};
"""


def open_for_writing(path: Path, currency: str) -> sqlite3.Connection:
    """The ledger at `path`, made if it is missing, for nobody but its owner (0600).

    Every commit is on the disk when it returns (`synchronous = FULL`). The connection may be used
    from any thread, by one at a time. Raises `ConfigError` if the file is no ledger, of another
    version or of another currency; `OSError` and `sqlite3.Error` if it cannot be made or opened.
    """
    os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
    with ExitStack() as stack:
        connection = stack.enter_context(
            closing(
                sqlite3.connect(path, timeout=BUSY_S, isolation_level=None, check_same_thread=False)
            )
        )
        # A foreign file must be recognised before anything is written to it.
        if not _is_empty(connection):
            check_is_ledger(connection, path)
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = FULL")
        if _is_empty(connection):
            connection.executescript(f"BEGIN IMMEDIATE;{_TABLES}COMMIT;")
        _check_currency(connection, path, currency)
        stack.pop_all()
        return connection


def open_for_reading(path: Path) -> sqlite3.Connection:
    """The ledger at `path`, which nobody can change through this connection.

    Raises `ConfigError` if the file is no ledger or of another version, `sqlite3.Error` if it
    cannot be opened.
    """
    address = f"{path.absolute().as_uri()}?mode=ro"
    with ExitStack() as stack:
        connection = stack.enter_context(
            closing(sqlite3.connect(address, timeout=BUSY_S, isolation_level=None, uri=True))
        )
        check_is_ledger(connection, path)
        stack.pop_all()
        return connection


def check_is_ledger(connection: sqlite3.Connection, path: Path) -> None:
    """Raise `ConfigError` for a file of something else, or of another version of Herma."""
    if _pragma(connection, "application_id") != APPLICATION_ID:
        raise ConfigError(
            f"{path} is a database, but no ledger of Herma; name another [ledger] path"
        )
    version = _pragma(connection, "user_version")
    if version != SCHEMA_VERSION:
        raise ConfigError(
            f"the ledger {path} has version {version}, this Herma reads version {SCHEMA_VERSION}; "
            "move it away, or run the Herma that wrote it"
        )


def currency_of(connection: sqlite3.Connection) -> str:
    """The currency of all amounts in the ledger."""
    with closing(connection.execute("SELECT value FROM meta WHERE name = 'currency'")) as rows:
        row = rows.fetchone()
    return str(row[0]) if row is not None else ""


def _check_currency(connection: sqlite3.Connection, path: Path, currency: str) -> None:
    connection.execute("INSERT OR IGNORE INTO meta VALUES ('currency', ?)", (currency,))
    known = currency_of(connection)
    if known != currency:
        raise ConfigError(
            f"the ledger {path} counts in {known}, but [ledger] currency is {currency}; amounts of "
            "two currencies cannot be added, so take another path"
        )


def _is_empty(connection: sqlite3.Connection) -> bool:
    return _pragma(connection, "schema_version") == 0


def _pragma(connection: sqlite3.Connection, name: str) -> int:
    return int(connection.execute(f"PRAGMA {name}").fetchone()[0])
