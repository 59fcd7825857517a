"""The file of stored responses: real SQLite in a temporary folder."""

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.store import AddEvents, AddItems, Insert, Remove, ResponseStore, SetObject, StoreBounds
from protocol.errors import ConfigError

WIDE = StoreBounds(100, 2**20, 1000, 2**24)
SECRET = "a-secret-that-nobody-may-find"


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "state" / "responses.sqlite"


@contextmanager
def opened(
    path: Path,
    bounds: StoreBounds = WIDE,
    process: int = 0,
    clock: Clock | None = None,
    steady: Clock | None = None,
) -> Iterator[ResponseStore]:
    """`clock` is both clocks, unless `steady` is the other one."""
    clock = clock or Clock()
    with closing(ResponseStore(path, bounds, process, clock, steady or clock)) as store:
        yield store


def insert(
    number: int,
    *,
    owner: str = "k",
    previous: int | None = None,
    text: str = "",
    is_open: bool = False,
) -> Insert:
    made = {"id": f"resp_{number}", "output": [{"text": text}]}
    return Insert(
        id=f"resp_{number}",
        owner=owner,
        created_at=1,
        previous_id=None if previous is None else f"resp_{previous}",
        is_background=True,
        is_open=is_open,
        object=msgspec.json.encode(made),
        input=msgspec.json.encode([{"said": number}]),
    )


def _figures(store: ResponseStore) -> tuple[int, int]:
    """How many responses and conversations are stored, and their bytes."""
    ((num, num_bytes),) = store._read("SELECT total(num), total(num_bytes) FROM held", ())
    return int(num), int(num_bytes)


def item(item_id: str, text: str = "") -> tuple[str, bytes]:
    return item_id, msgspec.json.encode({"id": item_id, "text": text})


def test_a_response_outlives_the_process_and_belongs_to_its_key(path: Path) -> None:
    """Another key's id does not exist, whatever is asked of it."""
    with opened(path) as store:
        store.write([insert(1), AddEvents("resp_1", 0, 3, b"abc"), AddEvents("resp_1", 4, 4, b"d")])
    with opened(path) as store:
        found = store.response("k", "resp_1")
        assert found is not None
        assert (found.object["id"], found.is_open, found.has_events) == ("resp_1", False, True)
        assert store.events("k", "resp_1", 3) == [b"d"]
        assert store.events("k", "resp_1", -1) == [b"abc", b"d"]
        assert store.response("other", "resp_1") is None
        assert store.events("other", "resp_1", -1) is None
        assert store.chain("other", "resp_1") is None
        assert store.inputs("other", "resp_1") == []
        assert not store.delete_response("other", "resp_1")
        store.cancel("other", "resp_1")
    assert path.stat().st_mode & 0o777 == 0o600


def test_a_chain_is_whole_or_not_there(path: Path) -> None:
    """Oldest first; using it keeps all of it from expiring; a gap in it is its end."""
    clock = Clock()
    with opened(path, clock=clock) as store:
        store.write([insert(1), insert(2, previous=1), insert(3, previous=2)])
        clock.now = 2000.0
        chain = store.chain("k", "resp_3")
        assert chain is not None
        assert [given[0]["said"] for given, _ in chain] == [1, 2, 3]
        assert store.expire(clock.now - 1500.0) == 0
        assert store.delete_response("k", "resp_2")
        assert store.chain("k", "resp_3") is None
        assert [given[0]["said"] for given, _ in store.inputs("k", "resp_3")] == [3]
        assert store.expire(clock.now - 2500.0) == 2


def test_a_circle_ends(path: Path) -> None:
    """No request makes one, but a file may hold anything."""
    with opened(path) as store:
        store.write([insert(1, previous=2), insert(2, previous=1)])
        assert store.chain("k", "resp_1") is None


def _bytes_of(path: Path) -> bytes:
    """All that is in the file and in those beside it, unpacked where it is packed."""
    return b"".join(file.read_bytes() for file in path.parent.iterdir())


def test_deleting_really_deletes(path: Path) -> None:
    """Responses, events, items and conversations; neither the file nor its log hold them then.
    Incompressible texts stay as they are inside zlib's format.
    """
    noise = "".join(f"{number * 7919 % 1_000_003:x}" for number in range(4000))
    with opened(path) as store:
        store.write([insert(1), AddEvents("resp_1", 0, 1, noise.encode())])
        store.create_conversation("k", "conv_1", {"note": noise}, [item("i", noise)])
        columns = ("data FROM events", "item FROM items", "metadata FROM conversations")
        packed = [_packed(path, f"SELECT {column}")[0] for column in columns]
        event, one, metadata = (blob[50:90] for blob in packed)
        assert all(piece in _bytes_of(path) for piece in (event, one, metadata))
        assert store.delete_response("k", "resp_1")
        assert event not in _bytes_of(path)
        assert store.delete_item("k", "conv_1", "i")
        assert one not in _bytes_of(path)
        assert metadata in _bytes_of(path)
        assert store.delete_conversation("k", "conv_1")
        assert metadata not in _bytes_of(path)
        assert _figures(store) == (0, 0)


def _packed(path: Path, statement: str) -> list[bytes]:
    with closing(sqlite3.connect(path)) as raw:
        return [blob for (blob,) in raw.execute(statement)]


def test_what_expires_is_overwritten_too(path: Path) -> None:
    """What expires is overwritten too, with the next scrub."""
    clock = Clock()
    with opened(path, clock=clock) as store:
        store.write([insert(1, text=SECRET), insert(2, is_open=True)])
        (blob, _) = _packed(path, "SELECT object FROM responses ORDER BY id")
        assert store.expire(clock.now - 1001.0) == 1, "what runs does not expire"
        store.scrub()
        assert blob[2:] not in _bytes_of(path)


def test_bounds_let_go_of_what_was_used_longest_ago(path: Path) -> None:
    """Bounds delete what was used longest ago, of the key that is over its own bound, else of all
    keys; responses that run stay.
    """
    clock = Clock()
    with opened(path, StoreBounds(3, 2**20, 4, 2**20), clock=clock) as store:
        for number in range(3):
            clock.now += 1
            store.write([insert(number)])
        clock.now += 1
        assert store.response("k", "resp_0") is not None
        store.write([insert(3, is_open=True)])
        assert store.response("k", "resp_1") is None
        store.write([insert(10, owner="a"), insert(11, owner="b")])
        assert _figures(store)[0] == 4
        assert store.response("k", "resp_3") is not None


def test_a_key_s_bytes_are_bounded(path: Path) -> None:
    """Events and items count, packed."""
    text = "".join(f"{number * 7919 % 1_000_003:x}" for number in range(2000))
    with opened(path, StoreBounds(100, 12_000, 100, 2**20)) as store:
        store.write([insert(1, text=text)])
        store.write([insert(2, text=text)])
        assert store.response("k", "resp_1") is not None
        store.write([AddEvents("resp_2", 0, 1, text.encode())])
        store.create_conversation("k", "conv_1", {}, [])
        store.write([AddItems("conv_1", "k", [item("i", text)])])
        assert store.response("k", "resp_1") is None
        num, num_bytes = _figures(store)
        assert num_bytes <= 12_000
        assert num > 0


def test_conversations_keep_their_order(path: Path) -> None:
    """Conversations keep the order of items, also when items are deleted and added; another key has
    no conversation of that id.
    """
    with opened(path) as store:
        store.create_conversation("k", "conv_1", {"a": "b"}, [item("i0"), item("i1")])
        assert store.delete_item("k", "conv_1", "i0")
        assert not store.delete_item("other", "conv_1", "i1")
        store.write([AddItems("conv_1", "k", [item("i2")]), AddItems("conv_1", "x", [item("no")])])
        found = store.items("k", "conv_1")
        assert found is not None
        assert [one["id"] for one in found] == ["i1", "i2"]
        assert store.items("other", "conv_1") is None
        store.set_metadata("k", "conv_1", {"c": "d"})
        assert store.conversation("k", "conv_1") == (1000, {"c": "d"})
        store.set_metadata("other", "conv_1", {})
        assert not store.delete_conversation("other", "conv_1")


def test_what_was_open_is_found_by_the_same_process_and_by_the_first(path: Path) -> None:
    """Responses that were open are found by the same process and by the first; processes that still
    run keep theirs.
    """
    for process in range(3):
        with opened(path, process=process) as store:
            store.write([insert(process, is_open=True)])
    with opened(path, process=1) as store:
        assert [row[0] for row in store.left_open(2)] == ["resp_1"]
    with opened(path, process=0) as store:
        assert [row[0] for row in store.left_open(2)] == ["resp_0", "resp_2"]
        store.cancel("k", "resp_0")
        assert store.cancelled() == ["resp_0"]
        store.write([SetObject("resp_0", b"{}", is_open=False)])
        assert store.cancelled() == []


def test_two_processes_write_one_file(path: Path) -> None:
    """Each sees what the other has written; a second one of the same number is refused."""
    with opened(path, process=0) as first, opened(path, process=1) as second:
        first.write([insert(1)])
        second.write([insert(2, previous=1)])
        assert first.chain("k", "resp_2") is not None
        assert second.delete_response("k", "resp_1")
        assert first.response("k", "resp_1") is None
        with pytest.raises(ConfigError, match="another gateway uses"):
            ResponseStore(path, WIDE, 1)


def test_a_foreign_file_is_left_alone(path: Path) -> None:
    """The message names the setting."""
    path.parent.mkdir()
    with closing(sqlite3.connect(path)) as raw:
        raw.execute("CREATE TABLE theirs (x)")
    with pytest.raises(ConfigError, match=r"\[gateway.responses\] path"):
        ResponseStore(path, WIDE)


CHANGES = st.one_of(
    st.builds(lambda n, o: insert(n, owner=o), st.integers(0, 10**6), st.sampled_from("ab")),
    st.builds(lambda n, d: AddEvents(f"resp_{n}", 0, 1, d), st.integers(0, 9), st.binary()),
    st.builds(lambda n: Remove(f"resp_{n}"), st.integers(0, 9)),
    st.builds(lambda n: SetObject(f"resp_{n}", b'"x"', False), st.integers(0, 9)),
)


@settings(max_examples=25)
@given(st.lists(st.lists(CHANGES, max_size=4), max_size=8))
def test_the_counts_are_those_of_the_rows(
    tmp_path_factory: pytest.TempPathFactory, batches: list[list[Any]]
) -> None:
    """The counts equal the rows, whatever was added, grown, replaced and removed, and however a
    batch has failed.
    """
    path = tmp_path_factory.mktemp("counts") / "responses.sqlite"
    bounds = StoreBounds(4, 2**20, 6, 2**20)
    with opened(path, bounds) as store:
        seen: set[str] = set()
        for batch in batches:
            fresh = []
            for change in batch:
                if isinstance(change, Insert):
                    if change.id in seen:
                        continue
                    seen.add(change.id)
                if isinstance(change, AddEvents) and any(
                    isinstance(one, AddEvents) and one.id == change.id for one in fresh
                ):
                    continue
                fresh.append(change)
            with closing(sqlite3.connect(path)) as raw:
                raw.execute("DELETE FROM events")
                raw.execute("UPDATE responses SET num_bytes = length(object) + length(input)")
                raw.commit()
            store.write(fresh)
            with closing(sqlite3.connect(path)) as raw:
                row = raw.execute(
                    "SELECT count(*), total(length(object) + length(input) + coalesce((SELECT "
                    "sum(length(data)) FROM events WHERE response_id = id), 0)) FROM responses"
                ).fetchone()
            assert _figures(store) == (row[0], int(row[1]))
            assert row[0] <= 6


DAY_S = 86_400.0
NOW = 1.8e9
WRONG = [0.0, 1.7e9, NOW - DAY_S, 2.5e9, 4.0e9]


@pytest.mark.parametrize("wrong", WRONG)
@pytest.mark.parametrize("is_old_file", [False, True])
def test_a_clock_that_is_wrong_at_a_start_makes_nothing_expire(
    path: Path, wrong: float, is_old_file: bool
) -> None:
    """Ahead or behind by decades, then set right, at the first start or a later one; the order of
    uses stays too. An older version noted no time.
    """
    unix, steady = Clock(), Clock()
    for number, (at_start, later) in enumerate([(NOW, NOW), (wrong, NOW), (wrong, wrong)]):
        unix.now = at_start
        with opened(path, clock=unix, steady=steady) as store:
            assert store.expire(30 * DAY_S) == 0
            unix.now, steady.now = later + 60, steady.now + 60
            store.write([insert(number)])
            assert store.expire(30 * DAY_S) == 0
            uses = store._read("SELECT id FROM responses ORDER BY used_at, rowid", ())
            assert uses == [(f"resp_{one}",) for one in range(number + 1)]
            if is_old_file:
                store._connection.execute("DROP TABLE clock")
    unix.now = NOW
    with opened(path, clock=unix, steady=steady) as store:
        assert _figures(store)[0] == 3
        steady.now += 31 * DAY_S
        assert store.expire(30 * DAY_S) == 3


def test_time_that_passes_between_starts_counts(path: Path) -> None:
    """Each pause as long as it was, up to a day."""
    unix, steady = Clock(), Clock()
    for start in range(40):
        unix.now, steady.now = NOW + start * DAY_S, 5.0
        with opened(path, clock=unix, steady=steady) as store:
            if start == 0:
                store.write([insert(1)])
            assert store.expire(30.5 * DAY_S) == (1 if start == 31 else 0)


def test_a_conversation_tells_the_clock_of_its_creation(path: Path) -> None:
    """Clients see it."""
    unix, steady = Clock(), Clock()
    with opened(path, clock=unix, steady=steady) as store:
        unix.now = NOW
        assert store.create_conversation("k", "conv_1", {}, []) == int(NOW)
