"""One SQLite file: how it is opened, recognised and locked.

Owns what all stores of this package share. A file is ours by the application id in its header, and
has mode 0600. Must not know tables.
"""

import errno
import fcntl
import os
import sqlite3
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from protocol.errors import ConfigError

BUSY_S: Final = 5.0
"""The time to wait for a locked file. Only a backup, a reader's checkpoint or another process's
commit can hold a file this long.
"""

_FREE: Final = "free space on its disk"
_LEAST_ROOM_BYTES: Final = 2**17
_BROKEN: Final = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)


class DiskFull(ConfigError):
    """A file cannot be opened because its disk is full; `cause` says so without paths."""

    def __init__(self, text: str, cause: str) -> None:
        super().__init__(text)
        self.cause = cause


@dataclass(frozen=True, slots=True)
class FileKind:
    """What a file holds: its `name` in messages, the configuration key of its path, the id and
    version in its header, and the statements that create its tables.
    """

    name: str
    setting: str
    application_id: int
    version: int
    tables: str

    def cannot_open(self, path: Path, error: Exception) -> ConfigError:
        """The error for the operator."""
        remedy = f"set {self.setting} to a writable place"
        if isinstance(error, sqlite3.Error) and _code(error) in _BROKEN:
            remedy = (
                "restore a copy, or move it away with the files beside it: an empty one is made"
            )
        text = f"cannot open the {self.name} {path}: {error}; "
        if is_full(error, path):
            cause = getattr(error, "strerror", None) or error
            return DiskFull(f"{text}{_FREE}", f"{cause}: {_FREE}")
        return ConfigError(text + remedy)

    def check(self, connection: sqlite3.Connection, path: Path) -> None:
        """Raise `ConfigError` for a file of another kind or version."""
        if _pragma(connection, "application_id") != self.application_id:
            raise ConfigError(
                f"{path} is a database, but not a {self.name} of Herma; name another {self.setting}"
            )
        version = _pragma(connection, "user_version")
        if version != self.version:
            raise ConfigError(
                f"the {self.name} {path} has version {version}, this Herma reads version "
                f"{self.version}; move it away, or run the Herma that wrote it"
            )


def open_file(path: Path, kind: FileKind) -> sqlite3.Connection:
    """A connection that writes `path`, created with its tables if it is missing. The connection may
    be used from any thread, one at a time.
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
            kind.check(connection, path)
        connection.execute("PRAGMA journal_mode = WAL")
        _create(connection, kind)
        stack.pop_all()
        return connection


def open_for_reading(path: Path, kind: FileKind) -> sqlite3.Connection | None:
    """A read-only connection to the file at `path`; None if it is still empty: the process that
    makes it has not written its tables, or had no room for them.

    Raises `ConfigError` for a file of another kind or version, `sqlite3.Error` if it cannot be
    opened.
    """
    address = f"{path.absolute().as_uri()}?mode=ro"
    with ExitStack() as stack:
        connection = stack.enter_context(
            closing(sqlite3.connect(address, timeout=BUSY_S, isolation_level=None, uri=True))
        )
        if _is_empty(connection):
            return None
        kind.check(connection, path)
        stack.pop_all()
        return connection


@contextmanager
def looking(path: Path, kind: FileKind) -> Iterator[sqlite3.Connection | None]:
    """The file at `path` for a check, which creates and locks nothing; None if it does not exist.
    Raises the `ConfigError` that opening it would raise.
    """
    # A process that has the file open has made the files beside it.
    is_open = Path(f"{path}-wal").exists()
    address = f"{path.absolute().as_uri()}?mode=ro" + ("" if is_open else "&immutable=1")
    try:
        if not path.exists():
            yield None
            return
        with closing(sqlite3.connect(address, timeout=BUSY_S, uri=True)) as connection:
            is_made = not _is_empty(connection)
            if is_made:
                kind.check(connection, path)
            yield connection if is_made else None
    except (OSError, sqlite3.Error) as error:
        raise kind.cannot_open(path, error) from error


def lock(path: Path, kind: FileKind, suffix: str = ".lock") -> int:
    """The descriptor of a lock beside `path`. The kernel releases the lock when the process ends,
    however it ends. Raises `ConfigError` if another process holds it.
    """
    file = os.open(f"{path}{suffix}", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        os.close(file)
        raise ConfigError(
            f"another gateway uses the {kind.name} {path}; give each its own {kind.setting}"
        ) from error
    return file


def words_of_failure(error: Exception) -> str:
    """What an error of a file in use says, and what an operator does about it."""
    return f"{getattr(error, 'strerror', None) or error}{_remedy(error)}"


def _remedy(error: Exception) -> str:
    """The remedy for an error of the disk or of SQLite, after a colon; "" if the error's text names
    the remedy itself.
    """
    if isinstance(error, FileNotFoundError):
        return ": put the file back, or restart all gateways that have it"
    code = getattr(error, "sqlite_errorname", "")
    if code.startswith(("SQLITE_BUSY", "SQLITE_LOCKED")):
        return ": another program holds it (an open sqlite3, a backup); end that program"
    if code.startswith("SQLITE_FULL") or getattr(error, "errno", None) == errno.ENOSPC:
        return f": {_FREE}"
    if code.startswith(("SQLITE_CORRUPT", "SQLITE_NOTADB")):
        return ": it is damaged; restore a copy, and restart all gateways that have it"
    return ""


def _create(connection: sqlite3.Connection, kind: FileKind) -> None:
    """Create the tables, unless another process has just done so."""
    if not _is_empty(connection):
        return
    connection.execute("BEGIN IMMEDIATE")
    if not _is_empty(connection):
        connection.execute("COMMIT")
        return
    header = f"PRAGMA application_id = {kind.application_id};PRAGMA user_version = {kind.version};"
    for statement in _statements(kind.tables + header):
        connection.execute(statement)
    connection.execute("COMMIT")


def _statements(script: str) -> list[str]:
    """The statements of `script`, whole: a trigger holds semicolons of its own. `executescript`
    would commit the transaction first.
    """
    statements, begun = [], ""
    for part in script.split(";"):
        begun += part + ";"
        if sqlite3.complete_statement(begun) and begun.strip(" \n;"):
            statements.append(begun)
            begun = ""
    return statements


def _code(error: sqlite3.Error) -> int:
    """The primary code; 0 for an error of the module itself."""
    return getattr(error, "sqlite_errorcode", 0) & 0xFF


def is_full(error: Exception, path: Path) -> bool:
    """Whether the disk of a file is full."""
    if isinstance(error, sqlite3.Error):
        # Without room for the file that its processes share, SQLite speaks of input and output.
        is_disk_error = _code(error) in (sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CANTOPEN)
        return _code(error) == sqlite3.SQLITE_FULL or (is_disk_error and _has_no_room(path))
    return isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)


def _has_no_room(path: Path) -> bool:
    try:
        disk = os.statvfs(path.parent)
    except OSError:
        return False
    return disk.f_bavail * disk.f_frsize < _LEAST_ROOM_BYTES


def _is_empty(connection: sqlite3.Connection) -> bool:
    return _pragma(connection, "schema_version") == 0


def _pragma(connection: sqlite3.Connection, name: str) -> int:
    return int(connection.execute(f"PRAGMA {name}").fetchone()[0])
