"""Stored responses and conversations: one SQLite file for all gateway processes of a host.

Owns the tables, the statements, the bounds and the deletion: deleted data is overwritten
(`secure_delete`), and the write-ahead log that still held it is emptied. Each row has an owner, the
name of an API key; another owner's rows do not exist for the caller. Times are Unix seconds, those
of uses as `use_time.py` counts them. Every call blocks, so it belongs in a thread, one call at a
time. Must not know what a response says.

A response keeps only the items that its own request added. The earlier ones are found by
`previous_id`, so a conversation of n turns needs n times the space of a turn.
"""

import os
import sqlite3
import time
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec

from gateway.store.sqlite_file import FileKind, lock, looking, open_file, words_of_failure
from gateway.store.use_time import Seen, UseTime, begun
from housekeeping.state_file import make_private
from protocol.errors import HermaError

_TABLES: Final = """
CREATE TABLE responses (
    id TEXT PRIMARY KEY, owner TEXT NOT NULL, process INTEGER NOT NULL, created_at INTEGER NOT NULL,
    used_at INTEGER NOT NULL, previous_id TEXT, is_background INTEGER NOT NULL,
    is_open INTEGER NOT NULL, is_cancelled INTEGER NOT NULL, num_bytes INTEGER NOT NULL,
    object BLOB NOT NULL, input BLOB NOT NULL
) STRICT;
CREATE INDEX responses_by_use ON responses (owner, used_at);
CREATE INDEX responses_open ON responses (process) WHERE is_open;
CREATE TABLE events (
    response_id TEXT NOT NULL REFERENCES responses ON DELETE CASCADE, first INTEGER NOT NULL,
    last INTEGER NOT NULL, data BLOB NOT NULL, PRIMARY KEY (response_id, first)
) STRICT;
CREATE TABLE conversations (
    id TEXT PRIMARY KEY, owner TEXT NOT NULL, created_at INTEGER NOT NULL, used_at INTEGER NOT NULL,
    num_bytes INTEGER NOT NULL, metadata BLOB NOT NULL
) STRICT;
CREATE INDEX conversations_by_use ON conversations (owner, used_at);
CREATE TABLE items (
    conversation_id TEXT NOT NULL REFERENCES conversations ON DELETE CASCADE,
    position INTEGER NOT NULL, id TEXT NOT NULL, item BLOB NOT NULL,
    PRIMARY KEY (conversation_id, position)
) STRICT;
CREATE INDEX items_by_id ON items (conversation_id, id);
CREATE TABLE held (
    owner TEXT PRIMARY KEY, num INTEGER NOT NULL, num_bytes INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
"""
_COUNTS: Final = """
CREATE TRIGGER {table}_added AFTER INSERT ON {table} BEGIN
    INSERT INTO held VALUES (new.owner, 1, new.num_bytes) ON CONFLICT DO UPDATE
    SET num = num + 1, num_bytes = num_bytes + new.num_bytes;
END;
CREATE TRIGGER {table}_changed AFTER UPDATE OF num_bytes ON {table} BEGIN
    UPDATE held SET num_bytes = num_bytes + new.num_bytes - old.num_bytes WHERE owner = new.owner;
END;
CREATE TRIGGER {table}_removed AFTER DELETE ON {table} BEGIN
    UPDATE held SET num = num - 1, num_bytes = num_bytes - old.num_bytes WHERE owner = old.owner;
END;
"""
RESPONSES: Final = FileKind(
    "file of stored responses",
    "[gateway.responses] path",
    0x4845_5253,
    1,
    _TABLES + "".join(_COUNTS.format(table=table) for table in ("responses", "conversations")),
)
"""The kind of this file. Its id in the header spells HERS."""

_CHAIN: Final = """
WITH RECURSIVE chain (id, previous_id, depth) AS (
    SELECT id, previous_id, 0 FROM responses WHERE id = :id AND owner = :owner
    UNION ALL
    SELECT r.id, r.previous_id, depth + 1 FROM chain JOIN responses r ON r.id = chain.previous_id
    WHERE r.owner = :owner AND depth < 10000
)
{rest}
"""
_CHAIN_USED: Final = _CHAIN.format(
    rest="UPDATE responses SET used_at = max(used_at, :now) WHERE id IN (SELECT id FROM chain)"
)
_CHAIN_READ: Final = _CHAIN.format(
    rest="SELECT r.input, r.object, r.previous_id FROM chain JOIN responses r USING (id) "
    "ORDER BY depth DESC"
)
_CLOCK: Final = """
CREATE TABLE IF NOT EXISTS clock (
    id INTEGER PRIMARY KEY CHECK (id = 0), use_time REAL NOT NULL, unix_time REAL NOT NULL
) STRICT
"""
"""The table of the use clock. Not every file of version 1 has it, and programs that do not know it
need not read it.
"""
_SEEN: Final = """
INSERT INTO clock VALUES (0, ?, ?) ON CONFLICT DO UPDATE
SET use_time = max(use_time, excluded.use_time), unix_time = excluded.unix_time
"""
_NEWEST: Final = """
SELECT max(used_at) FROM (SELECT used_at FROM responses UNION ALL SELECT used_at FROM conversations)
"""
_DELETE: Final = "DELETE FROM {table} WHERE id = ? AND owner = ?"
_REMOVE: Final = "DELETE FROM {table} WHERE id = ?"
_EXPIRE: Final = "DELETE FROM {table} WHERE used_at < ? AND {rest}"
_GROW: Final = "UPDATE {table} SET num_bytes = num_bytes + ? WHERE id = ?"
_OLDEST: Final = """
SELECT 'responses', id, num_bytes, used_at FROM responses WHERE {owner} NOT is_open
UNION ALL SELECT 'conversations', id, num_bytes, used_at FROM conversations WHERE {owner} TRUE
ORDER BY used_at LIMIT 64
"""

_encode: Final = msgspec.json.Encoder().encode
_decode: Final = msgspec.json.Decoder().decode

Item = dict[str, Any]


class StoreBounds(NamedTuple):
    """How much is kept, per owner and in all. The least recently used entries are deleted first."""

    owner_num: int
    owner_bytes: int
    num: int
    num_bytes: int


class StoredResponse(NamedTuple):
    """A response; `object` as the API shows it. `is_open`: it has not ended. `has_events`: its
    stream is stored too, as far as it has come.
    """

    object: Item
    is_background: bool
    is_open: bool
    has_events: bool


class Insert(NamedTuple):
    """A new response. `input` are the items that its request added."""

    id: str
    owner: str
    created_at: int
    previous_id: str | None
    is_background: bool
    is_open: bool
    object: bytes
    input: bytes


class AddEvents(NamedTuple):
    """The events `first` to `last` of a response's stream, as they were sent."""

    id: str
    first: int
    last: int
    data: bytes


class SetObject(NamedTuple):
    """The present state of a response, in JSON."""

    id: str
    object: bytes
    is_open: bool


class Remove(NamedTuple):
    """Delete a response."""

    id: str


class AddItems(NamedTuple):
    """Items (JSON, with ids) at the end of a conversation; nothing if it has been deleted."""

    conversation_id: str
    owner: str
    items: list[tuple[str, bytes]]


Change = Insert | AddEvents | SetObject | Remove | AddItems


class ResponseStoreError(HermaError):
    """The file could not be read or written; the text is for the operator. `cause` is the reason
    without a path.
    """

    def __init__(self, text: str, cause: str = "") -> None:
        super().__init__(text)
        self.cause = cause or text


def check_responses(path: Path) -> None:
    """Raise `ConfigError` if what is at `path` cannot hold responses; nothing is written."""
    with looking(path, RESPONSES):
        pass


class ResponseStore:
    """The file at `path`, used by the gateway process `process`. `unix_time` is the clock, which
    may be wrong; `steady` is one that is never set.

    Raises `ConfigError` if the file cannot be opened, or if another gateway has the same process
    number.
    """

    def __init__(
        self,
        path: Path,
        bounds: StoreBounds,
        process: int = 0,
        unix_time: Callable[[], float] = time.time,
        steady: Callable[[], float] = time.monotonic,
    ) -> None:
        self._path = path
        self._bounds = bounds
        self._process = process
        self._unix_time = unix_time
        with ExitStack() as stack:
            try:
                make_private(path.parent)
                self._lock = lock(path, RESPONSES, f".{process}.lock")
                stack.callback(os.close, self._lock)
                self._connection = open_file(path, RESPONSES)
                stack.callback(self._connection.close)
                self._connection.execute("PRAGMA secure_delete = ON")
                self._connection.execute("PRAGMA foreign_keys = ON")
                # A crash of the machine may lose the last commits, never the file.
                self._connection.execute("PRAGMA synchronous = NORMAL")
                self._connection.execute(_CLOCK)
                self._use_time = UseTime(self._begun(), steady)
            except (OSError, sqlite3.Error) as error:
                raise RESPONSES.cannot_open(path, error) from error
            stack.pop_all()

    def _begun(self) -> float:
        seen = self._connection.execute("SELECT use_time, unix_time FROM clock").fetchone()
        (newest,) = self._connection.execute(_NEWEST).fetchone()
        return begun(seen and Seen(*seen), newest, self._unix_time())

    def _now(self) -> int:
        return int(self._use_time.now())

    def close(self) -> None:
        """Close the file and release the lock."""
        self._connection.close()
        os.close(self._lock)

    def write(self, changes: Iterable[Change]) -> None:
        """Make the changes in one transaction, then delete what exceeds the bounds."""
        with self._transaction() as connection:
            owners = {""}
            for change in changes:
                match change:
                    case Insert():
                        owners.add(change.owner)
                        self._insert(change)
                    case AddEvents(response_id, first, last, data):
                        packed = zlib.compress(data, 1)
                        row = (response_id, first, last, packed, response_id)
                        done = connection.execute(
                            "INSERT INTO events SELECT ?, ?, ?, ? "
                            "WHERE EXISTS (SELECT 1 FROM responses WHERE id = ?)",
                            row,
                        )
                        self._grow("responses", response_id, len(packed) * done.rowcount)
                    case SetObject():
                        self._set_object(change)
                    case Remove(response_id):
                        self._remove("responses", response_id)
                    case AddItems():
                        owners.add(change.owner)
                        self._add_items(change)
            for owner in owners:
                self._make_room(owner)

    def response(self, owner: str, response_id: str) -> StoredResponse | None:
        """The response of that id, which counts as used now."""
        with self._transaction() as connection:
            found = connection.execute(
                "UPDATE responses SET used_at = max(used_at, ?) WHERE id = ? AND owner = ? "
                "RETURNING object, is_background, is_open, is_background OR EXISTS "
                "(SELECT 1 FROM events WHERE response_id = responses.id)",
                (self._now(), response_id, owner),
            ).fetchone()
        return found and StoredResponse(_unpack(found[0]), *map(bool, found[1:]))

    def chain(self, owner: str, response_id: str) -> list[tuple[list[Item], Item]] | None:
        """The items and objects of the response and of all responses before it in the conversation,
        oldest first. All count as used now. None if one of them is gone.
        """
        asked = {"id": response_id, "owner": owner, "now": self._now()}
        with self._transaction() as connection:
            connection.execute(_CHAIN_USED, asked)
            rows = connection.execute(_CHAIN_READ, asked).fetchall()
        if not rows or rows[0][2] is not None:
            return None
        return [(_unpack(given), _unpack(made)) for given, made, _ in rows]

    def items_of(self, owner: str, response_ids: Iterable[str]) -> dict[str, Item]:
        """The items of these responses, given and made, by their ids. Responses that are there
        count as used now; the others add nothing.
        """
        now, found = self._now(), dict[str, Item]()
        with self._transaction() as connection:
            for response_id in response_ids:
                row = connection.execute(
                    "UPDATE responses SET used_at = max(used_at, ?) WHERE id = ? AND owner = ? "
                    "RETURNING input, object",
                    (now, response_id, owner),
                ).fetchone()
                if row is not None:
                    items = (*_unpack(row[0]), *_unpack(row[1])["output"])
                    found.update((item["id"], item) for item in items)
        return found

    def inputs(self, owner: str, response_id: str) -> list[tuple[list[Item], Item]]:
        """Like `chain`, but skips responses that are gone, and does not count as a use."""
        rows = self._read(_CHAIN_READ, {"id": response_id, "owner": owner})
        return [(_unpack(given), _unpack(made)) for given, made, _ in rows]

    def events(self, owner: str, response_id: str, after: int) -> list[bytes] | None:
        """The batches of events with numbers above `after`, the first of which may hold smaller
        ones too; None if there is no such response.
        """
        asked = (response_id, owner)
        if not self._read("SELECT 1 FROM responses WHERE id = ? AND owner = ?", asked):
            return None
        rows = self._read(
            "SELECT data FROM events WHERE response_id = ? AND last > ? ORDER BY first",
            (response_id, after),
        )
        return [zlib.decompress(data) for (data,) in rows]

    def cancel(self, owner: str, response_id: str) -> StoredResponse | None:
        """Mark a background response as cancelled, for the process that runs it."""
        with self._transaction() as connection:
            connection.execute(
                "UPDATE responses SET is_cancelled = 1 "
                "WHERE id = ? AND owner = ? AND is_open AND is_background",
                (response_id, owner),
            )
        return self.response(owner, response_id)

    def cancelled(self) -> list[str]:
        """Cancelled responses that this process runs or has run."""
        rows = self._read(
            "SELECT id FROM responses WHERE is_open AND process = ? AND is_cancelled",
            (self._process,),
        )
        return [response_id for (response_id,) in rows]

    def delete_response(self, owner: str, response_id: str) -> bool:
        """Delete the response; False if there is none."""
        return self._delete("responses", owner, response_id)

    def create_conversation(
        self, owner: str, conversation_id: str, metadata: object, items: list[tuple[str, bytes]]
    ) -> int:
        """Create a conversation with items; returns its time of creation."""
        created, packed = int(self._unix_time()), _pack(_encode(metadata))
        with self._transaction() as connection:
            row = (conversation_id, owner, created, self._now(), len(packed), packed)
            connection.execute("INSERT INTO conversations VALUES (?, ?, ?, ?, ?, ?)", row)
            self._add_items(AddItems(conversation_id, owner, items))
            self._make_room(owner)
        return created

    def conversation(self, owner: str, conversation_id: str) -> tuple[int, Any] | None:
        """When the conversation was created, and its metadata. It counts as used now."""
        with self._transaction() as connection:
            row = connection.execute(
                "UPDATE conversations SET used_at = max(used_at, ?) WHERE id = ? AND owner = ? "
                "RETURNING created_at, metadata",
                (self._now(), conversation_id, owner),
            ).fetchone()
        return row and (row[0], _unpack(row[1]))

    def set_metadata(self, owner: str, conversation_id: str, metadata: object) -> None:
        """Replace the metadata of a conversation."""
        packed = _pack(_encode(metadata))
        with self._transaction() as connection:
            connection.execute(
                "UPDATE conversations SET num_bytes = num_bytes - length(metadata) + ?, "
                "metadata = ? WHERE id = ? AND owner = ?",
                (len(packed), packed, conversation_id, owner),
            )

    def items(self, owner: str, conversation_id: str) -> list[Item] | None:
        """All items of a conversation in their order; None if there is no such conversation."""
        if self.conversation(owner, conversation_id) is None:
            return None
        rows = self._read(
            "SELECT item FROM items WHERE conversation_id = ? ORDER BY position", (conversation_id,)
        )
        return [_unpack(item) for (item,) in rows]

    def delete_item(self, owner: str, conversation_id: str, item_id: str) -> bool:
        """Delete an item; False if there is none."""
        with self._transaction() as connection:
            rows = connection.execute(
                "DELETE FROM items WHERE conversation_id = ? AND id = ? AND EXISTS "
                "(SELECT 1 FROM conversations WHERE id = ? AND owner = ?) RETURNING length(item)",
                (conversation_id, item_id, conversation_id, owner),
            ).fetchall()
            self._grow("conversations", conversation_id, -sum(size for (size,) in rows))
        self.scrub()
        return bool(rows)

    def delete_conversation(self, owner: str, conversation_id: str) -> bool:
        """Delete a conversation and its items; False if there is none."""
        return self._delete("conversations", owner, conversation_id)

    def expire(self, unused_s: float) -> int:
        """Delete entries that were not used for that long; returns their number. Notes the time,
        from which the next start goes on.
        """
        now = self._use_time.now()
        with self._transaction() as connection:
            connection.execute(_SEEN, (now, self._unix_time()))
            expired = 0
            for table, rest in (("responses", "NOT is_open"), ("conversations", "TRUE")):
                statement = _EXPIRE.format(table=table, rest=rest)
                expired += connection.execute(statement, (now - unused_s,)).rowcount
        return expired

    def left_open(self, num_processes: int) -> list[tuple[str, Item, list[bytes]]]:
        """Responses that an earlier run of this process, or a process that no longer exists, did
        not end: their ids, objects and batches of events.
        """
        first = num_processes if self._process == 0 else 2**31
        rows = self._read(
            "SELECT id, object FROM responses WHERE is_open AND (process = ? OR process >= ?)",
            (self._process, first),
        )
        return [(row_id, _unpack(made), self._all_events(row_id)) for row_id, made in rows]

    def scrub(self) -> None:
        """Empty the write-ahead log, which still holds pages from before a deletion."""
        try:
            self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
        except sqlite3.Error as error:
            raise self._failed("write", error) from error

    def _all_events(self, response_id: str) -> list[bytes]:
        rows = self._read(
            "SELECT data FROM events WHERE response_id = ? ORDER BY first", (response_id,)
        )
        return [zlib.decompress(data) for (data,) in rows]

    def _insert(self, new: Insert) -> None:
        made, given, now = _pack(new.object), _pack(new.input), self._now()
        self._connection.execute(
            "INSERT INTO responses VALUES (?, ?, ?, ?, ?, ?, ?, ?, 0, ?, ?, ?)",
            (
                new.id, new.owner, self._process, new.created_at, now, new.previous_id,
                new.is_background, new.is_open, len(made) + len(given), made, given,
            ),
        )  # fmt: skip

    def _set_object(self, change: SetObject) -> None:
        packed = _pack(change.object)
        self._connection.execute(
            "UPDATE responses SET num_bytes = num_bytes - length(object) + ?, object = ?, "
            "is_open = ? WHERE id = ?",
            (len(packed), packed, change.is_open, change.id),
        )

    def _add_items(self, change: AddItems) -> None:
        connection, parent = self._connection, change.conversation_id
        if not connection.execute(
            "UPDATE conversations SET used_at = max(used_at, ?) WHERE id = ? AND owner = ?",
            (self._now(), parent, change.owner),
        ).rowcount:
            return
        statement = "SELECT coalesce(max(position), -1) FROM items WHERE conversation_id = ?"
        (last,) = connection.execute(statement, (parent,)).fetchone()
        rows = [
            (parent, last + 1 + at, item_id, _pack(item))
            for at, (item_id, item) in enumerate(change.items)
        ]
        connection.executemany("INSERT INTO items VALUES (?, ?, ?, ?)", rows)
        self._grow("conversations", parent, sum(len(row[-1]) for row in rows))

    def _grow(self, table: str, row_id: str, num_bytes: int) -> None:
        if num_bytes:
            self._connection.execute(_GROW.format(table=table), (num_bytes, row_id))

    def _remove(self, table: str, row_id: str) -> None:
        self._connection.execute(_REMOVE.format(table=table), (row_id,))

    def _delete(self, table: str, owner: str, row_id: str) -> bool:
        with self._transaction() as connection:
            done = connection.execute(_DELETE.format(table=table), (row_id, owner))
        self.scrub()
        return bool(done.rowcount)

    def _make_room(self, owner: str) -> None:
        """Delete the least recently used entries, of this owner and then of all, until all fits."""
        bounds = self._bounds
        mine = "SELECT num, num_bytes FROM held WHERE owner = ?"
        self._shrink(mine, (owner,), "owner = ? AND", bounds.owner_num, bounds.owner_bytes)
        everything = "SELECT total(num), total(num_bytes) FROM held"
        self._shrink(everything, (), "", bounds.num, bounds.num_bytes)

    def _shrink(
        self, statement: str, asked: tuple[str, ...], owner: str, num: int, num_bytes: int
    ) -> None:
        connection = self._connection
        held, held_bytes = connection.execute(statement, asked).fetchone() or (0, 0)
        while held > num or held_bytes > num_bytes:
            oldest = connection.execute(_OLDEST.format(owner=owner), asked * 2).fetchall()
            if not oldest:
                return
            for table, row_id, size, _ in oldest:
                if held <= num and held_bytes <= num_bytes:
                    return
                self._remove(table, row_id)
                held, held_bytes = held - 1, held_bytes - size

    def _read(self, statement: str, asked: Sequence[object] | dict[str, object]) -> list[Any]:
        try:
            return self._connection.execute(statement, asked).fetchall()
        except sqlite3.Error as error:
            raise self._failed("read", error) from error

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        """Run the block in one transaction; an error rolls it back. Raises `ResponseStoreError`."""
        try:
            self._connection.execute("BEGIN IMMEDIATE")
            yield self._connection
            self._connection.execute("COMMIT")
        except sqlite3.Error as error:
            raise self._failed("write", error) from error
        finally:
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")

    def _failed(self, verb: str, error: Exception) -> ResponseStoreError:
        why = words_of_failure(error)
        text = f"cannot {verb} the {RESPONSES.name} {self._path}: {why}"
        return ResponseStoreError(text, why)


def _pack(data: bytes) -> bytes:
    return zlib.compress(data, 1)


def _unpack(data: bytes) -> Any:  # noqa: ANN401 (JSON of any shape)
    return _decode(zlib.decompress(data))
