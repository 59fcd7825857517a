"""The ledger's file: real SQLite in a temporary folder."""

import errno
import os
import signal
import sqlite3
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import astuple
from pathlib import Path

import pytest

from gateway.store import (
    BalanceKey,
    Cap,
    LedgerEntry,
    LedgerError,
    LedgerRow,
    LedgerStore,
    ReservationClaim,
    Settlement,
    check_ledger,
    read_report,
    spent_beside,
)
from gateway.store.ledger import LEDGER
from protocol.errors import ConfigError

DAY = "2026-11-21"
CLOUD = BalanceKey("provider", "cloud", DAY)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "state" / "ledger.sqlite"


@contextmanager
def opened(path: Path, currency: str = "USD") -> Iterator[LedgerStore]:
    store = LedgerStore(path, currency)
    try:
        yield store
    finally:
        store.close()


def reservation(
    number: int, *, cost: int = 100, key: str = "k", most: int = 10_000
) -> ReservationClaim:
    worst = LedgerEntry(DAY, key, "m", "cloud", False, True, 1, 1000, 0, 50, cost)
    return ReservationClaim(number, worst, (Cap(CLOUD, most),))


def spent(store: LedgerStore, *places: BalanceKey) -> list[tuple[int, int]]:
    """What others have spent and reserved, as `store` sees it."""
    seen = store.look(places)
    return [tuple(seen[place]) for place in places]


def entry(
    *,
    cost: int = 7,
    provider: str = "cloud",
    day: str = DAY,
    settled: bool = True,
    key: str = "k",
) -> LedgerEntry:
    return LedgerEntry(
        day=day,
        key=key,
        model="m",
        provider=provider,
        is_settled=settled,
        is_priced=True,
        requests=1,
        prompt_tokens=10,
        cached_tokens=4,
        completion_tokens=3,
        cost=cost,
    )


def total_of(path: Path) -> LedgerRow:
    report = read_report(path, (), "2000-01-01")
    assert report is not None
    assert report.total is not None
    return report.total


def test_only_the_owner_may_read_it(path: Path) -> None:
    """Usage is private: the file has mode 0600."""
    with opened(path) as store:
        store.write([], [], [entry()])
        names = {file.name: stat.S_IMODE(file.stat().st_mode) for file in path.parent.iterdir()}
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert "ledger.sqlite-wal" in names
    assert set(names.values()) == {0o600}


def test_a_settlement_takes_the_reservations_place(path: Path) -> None:
    """Until then the worst case counts, as unsettled; a second settlement changes nothing."""
    with opened(path) as store:
        store.write([reservation(1), reservation(2)], [], [])
        before = total_of(path)
        assert (before.cost, before.unsettled, before.unsettled_cost) == (0, 2, 200)
        for _ in range(2):
            store.write([], [Settlement(1, entry(cost=60)), Settlement(2, None)], [])
        after = total_of(path)
        assert (after.requests, after.cost, after.unsettled) == (1, 60, 0)
        assert (after.prompt_tokens, after.cached_tokens, after.completion_tokens) == (10, 4, 3)


def test_the_next_run_finds_what_was_left_open(path: Path) -> None:
    """The next run finds what was left open as spent, since it may have been charged; local usage
    is no spending.
    """
    with opened(path) as store:
        store.write([reservation(1), reservation(2, key="other")], [], [entry(cost=7)])
        store.write([], [], [entry(provider="", cost=0), entry(day="2026-10-01")])
    with opened(path) as store:
        places = CLOUD, CLOUD._replace(window="2026-11"), BalanceKey("key", "other", DAY)
        assert spent(store, *places) == [(207, 0), (207, 0), (100, 0)]
        assert total_of(path).unsettled == 2
        store.write([reservation(1)], [], [])


def test_a_batch_is_written_whole_or_not_at_all(path: Path) -> None:
    """The second reservation of a number fails, and takes everything with it."""
    with opened(path) as store:
        store.write([reservation(1)], [], [])
        with pytest.raises(LedgerError):
            store.write([reservation(2), reservation(1)], [], [entry()])
        assert total_of(path).requests == 1
        store.write([reservation(2)], [], [entry()])
        assert total_of(path).requests == 3


def test_what_was_written_survives_a_kill(path: Path) -> None:
    """kill -9 right after the write returned; the lock is gone as well."""
    code = (
        "import sys, time; from pathlib import Path; from tests.gateway.store.test_ledger import *;"
        "store = LedgerStore(Path(sys.argv[1]), 'USD'); store.write([reservation(1)], [], []);"
        "print('written', flush=True); time.sleep(60)"
    )
    argv = [sys.executable, "-c", code, str(path)]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, env={**os.environ, "PYTHONPATH": "."}) as p:
        assert p.stdout is not None
        assert p.stdout.readline() == b"written\n"
        p.send_signal(signal.SIGKILL)
    with opened(path) as store:
        assert spent(store, CLOUD) == [(100, 0)]


@pytest.mark.parametrize("columns", [("day",), ("key", "provider"), ("provider", "model", "key")])
def test_rows_add_up(path: Path, columns: tuple[str, ...]) -> None:
    """The sum of the rows is the total, however they are grouped."""
    with opened(path) as store:
        store.write(
            [reservation(1)], [], [entry(), entry(provider="", cost=0), entry(day="2026-11-20")]
        )
        report = read_report(path, columns, "2026-11-01")  # type: ignore[arg-type]
    assert report is not None
    assert report.total is not None
    for field in ("requests", "prompt_tokens", "cost", "unsettled_cost"):
        assert sum(getattr(row, field) for row in report.rows) == getattr(report.total, field)
    assert report.currency == "USD"


def test_the_files_of_several_processes_are_one_report(path: Path) -> None:
    """Rows of the same group are added up, and the total is that of all files; a file of another
    name is nobody's.
    """
    first, second, foreign = (path.with_name(f"ledger{n}.sqlite") for n in ("", ".1", ".old"))
    for number, file in enumerate((first, second, foreign), start=1):
        with opened(file) as store:
            store.write(
                [reservation(1)], [], [entry(), entry(provider="", cost=0), entry(key=f"k{number}")]
            )
    one, both = total_of(second), read_report(first, ("key",), DAY)
    assert both is not None
    assert both.total == LedgerRow((), *(2 * count for count in astuple(one)[1:]))
    assert [(row.group, row.requests) for row in both.rows] == [
        (("k",), 6),
        (("k1",), 1),
        (("k2",), 1),
    ]
    first.unlink()
    assert total_of(first) == one


def test_ledgers_beside_count_as_spent(path: Path) -> None:
    """Ledgers beside this one count as spent: earlier versions kept one for each process."""
    beside = path.with_name("ledger.1.sqlite")
    with opened(path) as store:
        store.write([], [], [entry()])
    with opened(beside) as store:
        store.write([reservation(1)], [], [entry(), entry(provider="", cost=0)])
        (total,) = spent_beside(path, DAY)
    assert (total.day, total.key, total.provider) == (DAY, "k", "cloud")
    assert total.cost == entry().cost + 100
    assert spent_beside(path, "2099-01-01") == []
    with closing(LedgerStore(path, "USD", DAY, [total])) as store:
        assert spent(store, CLOUD) == [(2 * entry().cost + 100, 0)]


def test_ledgers_of_two_currencies_are_not_added(path: Path) -> None:
    """Ledgers of two currencies are not added, not even to be shown."""
    for name, currency in (("ledger.sqlite", "USD"), ("ledger.1.sqlite", "EUR")):
        with opened(path.with_name(name), currency):
            pass
    with pytest.raises(ConfigError, match="several currencies"):
        read_report(path, (), DAY)


def test_days_before_the_first_are_left_out(path: Path) -> None:
    """Days before the first one are left out, and without any rows there is no total."""
    with opened(path) as store:
        store.write([], [], [entry(day="2026-11-19"), entry(day="2026-11-20")])
        report, nothing = (read_report(path, ("day",), day) for day in ("2026-11-20", DAY))
    assert report is not None
    assert [row.group for row in report.rows] == [("2026-11-20",)]
    assert nothing is not None
    assert nothing.total is None


def test_without_a_ledger_there_is_no_report(path: Path) -> None:
    """Without a ledger there is no report, and reading makes no file."""
    assert read_report(path, ("key",), DAY) is None
    assert not path.parent.exists()


def test_a_reader_can_change_nothing(path: Path) -> None:
    """A reader can change nothing, also when no gateway runs."""
    with opened(path) as store:
        store.write([], [], [entry()])
    before = path.read_bytes()
    assert total_of(path).requests == 1
    assert path.read_bytes() == before


def test_an_empty_file_has_no_usage(path: Path) -> None:
    """A full disk left it without tables: `herma usage` may read it before a gateway fills it."""
    path.parent.mkdir()
    path.touch()
    assert read_report(path, (), DAY) is None
    with opened(path) as store:
        store.write([], [], [entry()])
    assert total_of(path).requests == 1


def test_a_foreign_file_is_left_alone(path: Path) -> None:
    """Another program's database is neither read nor written."""
    path.parent.mkdir()
    with closing(sqlite3.connect(path)) as other:
        other.execute("CREATE TABLE t (x)")
    before = path.read_bytes()
    for opening in (lambda: LedgerStore(path, "USD"), lambda: read_report(path, (), DAY)):
        with pytest.raises(ConfigError, match="not a ledger"):
            opening()
    assert path.read_bytes() == before
    path.write_bytes(b"no database at all, but long enough to look like one " * 20)
    for opening in (lambda: LedgerStore(path, "USD"), lambda: read_report(path, (), DAY)):
        with pytest.raises(ConfigError, match="cannot"):
            opening()
    for opening in (lambda: LedgerStore(path, "USD"), lambda: check_ledger(path, "USD")):
        with pytest.raises(ConfigError, match="restore a copy, or move it away"):
            opening()


def test_a_look_at_a_ledger_changes_nothing(path: Path) -> None:
    """A look at a ledger, in use or not, changes nothing, and finds what opening it would find."""
    check_ledger(path, "USD")
    assert not path.parent.exists()
    with opened(path) as store:
        store.write([], [], [entry()])
        check_ledger(path, "USD")
        with pytest.raises(ConfigError, match=r"USD.*EUR"):
            check_ledger(path, "EUR")
        assert total_of(path).requests == 1
    before = sorted(path.parent.iterdir())
    with pytest.raises(ConfigError, match=r"USD.*EUR"):
        check_ledger(path, "EUR")
    with closing(sqlite3.connect(path)) as other:
        other.execute("PRAGMA user_version = 99")
    with pytest.raises(ConfigError, match=r"version 99.*version 1"):
        check_ledger(path, "USD")
    assert sorted(path.parent.iterdir()) == before


def test_another_version_and_another_currency_are_refused(path: Path) -> None:
    """A ledger of another version or another currency is refused, and the error names both."""
    with opened(path):
        pass
    with pytest.raises(ConfigError, match=r"USD.*EUR"):
        LedgerStore(path, "EUR")
    with closing(sqlite3.connect(path)) as other:
        other.execute("PRAGMA user_version = 99")
    with pytest.raises(ConfigError, match=r"version 99.*version 1"):
        LedgerStore(path, "USD")
    with pytest.raises(ConfigError, match=r"version 99.*version 1"):
        read_report(path, (), DAY)


def test_a_place_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    """A place that cannot be written is one line with the remedy in it."""
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match=r"set \[ledger\] path"):
        LedgerStore(tmp_path / "file" / "ledger.sqlite", "USD")
    full = LEDGER.cannot_open(tmp_path, OSError(errno.ENOSPC, "No space left on device"))
    assert str(full).endswith("No space left on device; free space on its disk")
