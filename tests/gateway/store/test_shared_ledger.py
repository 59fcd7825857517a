"""One ledger in the hands of several gateway processes: limits hold for all of them together."""

import fcntl
import os
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from gateway.store import (
    BalanceKey,
    Cap,
    LedgerEntry,
    LedgerError,
    LedgerStore,
    ReservationClaim,
    Settlement,
    places_of,
    read_report,
)
from gateway.store.gateway_slot import MAX_GATEWAYS, GatewaySlot
from gateway.store.ledger import LEDGER
from protocol.errors import ConfigError
from tests.fakes.worker import PATIENCE_S

DAY = "2026-11-21"
CLOUD = BalanceKey("provider", "cloud", DAY)
WORTH = 10
IN_MEMORY = Path("/dev/shm")
"""Where a sync costs nothing."""


def claim(number: int, cost: int = 1, key: str = "k") -> ReservationClaim:
    worst = LedgerEntry(DAY, key, "m", "cloud", False, True, 1, 1000, 0, 50, cost)
    return ReservationClaim(
        number, worst, (Cap(CLOUD, WORTH), Cap(BalanceKey("key", key, DAY), WORTH // 2))
    )


def settled(cost: int, key: str = "k") -> LedgerEntry:
    return LedgerEntry(DAY, key, "m", "cloud", True, True, 1, 10, 0, 3, cost)


@contextmanager
def shared(path: Path, count: int = 2) -> Iterator[list[LedgerStore]]:
    with ExitStack() as stack:
        stores = [LedgerStore(path, "USD") for _ in range(count)]
        for store in stores:
            stack.callback(store.close)
        yield stores


def test_both_together_keep_a_limit(tmp_path: Path) -> None:
    """What one has reserved is missing for the other, until it is settled for less."""
    with shared(tmp_path / "ledger") as (one, other):
        assert one.write([claim(1, 4)], [], []) == frozenset()
        claims = [claim(number, 3, "other") for number in (1, 2)]
        assert other.write([*claims, claim(3, 3)], [], []) == {2, 3}
        assert other.look([CLOUD])[CLOUD] == (0, 4)
        one.write([], [Settlement(1, settled(2))], [])
        assert other.look([CLOUD])[CLOUD] == (2, 0)
        assert other.write([claim(4, 3)], [], []) == frozenset()
        assert one.look([CLOUD])[CLOUD] == (0, 6)


def test_what_an_ended_process_has_reserved_is_spent(tmp_path: Path) -> None:
    """What an ended process had reserved counts as spent, because it may have been charged. The
    other processes see this at their next look, a new one at its start.
    """
    path = tmp_path / "ledger"
    with shared(path) as (one, other):
        gone = LedgerStore(path, "USD")
        gone.write([claim(1, 4)], [], [])
        assert one.look([CLOUD])[CLOUD] == (0, 4)
        gone.close()
        assert [store.look([CLOUD])[CLOUD] for store in (other, one)] == [(4, 0)] * 2
        gone = LedgerStore(path, "USD")
        gone.write([claim(1, 1, "late")], [], [])
        gone.close()
        with shared(path, 1) as (heir,):
            assert heir.look([CLOUD])[CLOUD] == (5, 0)
            assert heir.write([claim(1, 6, "new"), claim(2, 5, "new")], [], []) == {1}
        report = read_report(path, (), DAY)
        assert report is not None
        assert report.total is not None
        assert (report.total.requests, report.total.unsettled_cost) == (3, 10)


def test_a_ledger_that_is_gone_is_not_written(tmp_path: Path) -> None:
    """A ledger that is gone is not written, and not made anew beside a process that has it open:
    that would begin every limit again.
    """
    path, away = tmp_path / "ledger", tmp_path / "away"
    with shared(path, 1) as (store,):
        path.rename(away)
        with pytest.raises(LedgerError, match=r"No such file.*: put the file back"):
            store.write([claim(1)], [], [])
        with pytest.raises(ConfigError, match="No such file"):
            LedgerStore(path, "USD")
        path.touch()
        with pytest.raises(LedgerError, match="restart all gateways"):
            store.write([claim(1)], [], [])
        away.rename(path)
        assert store.write([claim(1)], [], []) == frozenset()


def test_a_ledger_that_another_program_holds_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SQLite's own words name neither."""
    monkeypatch.setattr("gateway.store.ledger.BUSY_S", 0.05)
    path = tmp_path / "ledger"
    with shared(path, 1) as (store,), closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN EXCLUSIVE")
        with pytest.raises(LedgerError, match=r"locked: another program holds it"):
            store.write([claim(1)], [], [])
        other.execute("ROLLBACK")
        assert store.write([claim(1)], [], []) == frozenset()


def test_a_claim_that_is_given_up_while_it_waits_is_not_made(tmp_path: Path) -> None:
    """A claim that is given up while it waits is not made: its settlement is in the same
    transaction.
    """
    with shared(tmp_path / "ledger") as (one, other):
        one.write([claim(1, 4)], [Settlement(1, None)], [])
        assert other.look([CLOUD])[CLOUD] == (0, 0)


def test_a_ledger_that_is_kept_alone_is_refused(tmp_path: Path) -> None:
    """A ledger that is kept alone, by a version that shares none, is refused: two processes would
    each miss the other's reservations.
    """
    path = tmp_path / "ledger"
    with shared(path, 1):
        pass
    file = os.open(f"{path}.lock", os.O_RDWR)
    fcntl.flock(file, fcntl.LOCK_EX)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("gateway.store.gateway_slot.BUSY_S", 0.0)
        with pytest.raises(ConfigError, match="another gateway"):
            LedgerStore(path, "USD")
    os.close(file)
    with shared(path):
        pass


def test_there_are_slots_for_so_many(tmp_path: Path) -> None:
    """One more is an error that names the file."""
    path = tmp_path / "ledger"
    slots = []
    for _ in range(MAX_GATEWAYS):
        slots.append(GatewaySlot(path, LEDGER))
        slots[-1].admit_others()
    assert [slot.index for slot in slots] == list(range(MAX_GATEWAYS))
    with pytest.raises(ConfigError, match=f"{MAX_GATEWAYS} gateways use the ledger"):
        GatewaySlot(path, LEDGER)
    slots.pop(3).close()
    slots.append(GatewaySlot(path, LEDGER))
    assert slots[-1].index == 3
    for slot in slots:
        slot.close()


class SharedMachine(RuleBasedStateMachine):
    """Three processes, of which any may die at any moment. The model is what can have been charged:
    the settled costs, and the worst case of each request that was admitted and not settled.
    """

    def __init__(self) -> None:
        super().__init__()
        self.folder = TemporaryDirectory(dir=IN_MEMORY if IN_MEMORY.is_dir() else None)
        self.path = Path(self.folder.name) / "ledger"
        self.stores = [LedgerStore(self.path, "USD") for _ in range(3)]
        self.open: list[list[ReservationClaim]] = [[] for _ in self.stores]
        self.charged: list[tuple[str, int]] = []
        self.next = 1

    def teardown(self) -> None:
        for store in self.stores:
            store.close()
        self.folder.cleanup()

    @rule(
        at=st.integers(0, 2),
        costs=st.lists(st.tuples(st.integers(1, 4), st.sampled_from("abc")), max_size=6),
    )
    def reserve(self, at: int, costs: list[tuple[int, str]]) -> None:
        """A refusal has a reason."""
        claims = [claim(self.next + n, cost, key) for n, (cost, key) in enumerate(costs)]
        self.next += len(claims)
        refused = self.stores[at].write(claims, [], [])
        for one in claims:
            held = self._held(one.worst.key)
            fits = sum(held) + one.worst.cost <= WORTH
            fits = fits and held[1] + one.worst.cost <= WORTH // 2
            assert fits is (one.number not in refused)
            if fits:
                self.open[at].append(one)

    @precondition(lambda self: any(self.open))
    @rule(data=st.data(), share=st.integers(0, 4))
    def settle(self, data: st.DataObject, share: int) -> None:
        """For all of it, a part, or nothing; twice changes nothing."""
        at = data.draw(st.sampled_from([at for at in range(3) if self.open[at]]))
        one = self.open[at].pop(data.draw(st.integers(0, len(self.open[at]) - 1)))
        cost = one.worst.cost * share // 4
        end = Settlement(one.number, settled(cost, one.worst.key) if share else None)
        for _ in range(2):
            self.stores[at].write([], [end], [])
        self.charged.append((one.worst.key, cost))

    @rule(at=st.integers(0, 2), is_at_once=st.booleans())
    def die(self, at: int, is_at_once: bool) -> None:
        """Another takes its place, before or after the others have looked."""
        self.stores[at].close()
        self.charged += [(one.worst.key, one.worst.cost) for one in self.open[at]]
        self.open[at].clear()
        if not is_at_once:
            self.stores[at - 1].look([])
        self.stores[at] = LedgerStore(self.path, "USD")

    @rule()
    def die_all(self) -> None:
        """The first to come back counts anew."""
        for store in self.stores:
            store.close()
        for claims in self.open:
            self.charged += [(one.worst.key, one.worst.cost) for one in claims]
            claims.clear()
        self.stores = [LedgerStore(self.path, "USD") for _ in range(3)]

    @invariant()
    def each_sees_what_the_others_have(self) -> None:
        """Each process sees what the others have, and all together exceed no limit."""
        keys = "abc"
        for at, store in enumerate(self.stores):
            places = [place for key in keys for place in places_of("cloud", key, DAY)]
            seen = store.look(places)
            own = sum(one.worst.cost for one in self.open[at])
            others = sum(one.worst.cost for claims in self.open for one in claims) - own
            assert seen[CLOUD].reserved == others
            assert sum(cost for _, cost in self.charged) >= seen[CLOUD].spent
        assert sum(self._all(key) for key in keys) <= WORTH
        assert all(self._all(key) <= WORTH // 2 for key in keys)

    def _held(self, key: str) -> tuple[int, int]:
        """What is charged or may be: of other keys, and of this one."""
        return sum(self._all(one) for one in "abc" if one != key), self._all(key)

    def _all(self, key: str) -> int:
        charged = sum(cost for one, cost in self.charged if one == key)
        held = (one.worst for claims in self.open for one in claims)
        return charged + sum(worst.cost for worst in held if worst.key == key)


TestSharedLedger = SharedMachine.TestCase
TestSharedLedger.settings = settings(stateful_step_count=25)


def test_a_commit_of_another_process_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A commit of another process is waited for, for a bounded time: one that was stopped within it
    costs the others their reservations alone.
    """
    path = tmp_path / "ledger"
    with shared(path, 1) as (store,), closing(sqlite3.connect(path)) as other:
        other.execute("BEGIN IMMEDIATE")
        monkeypatch.setattr("gateway.store.ledger.BUSY_S", 0.0)
        with pytest.raises(LedgerError, match="locked"):
            store.write([claim(1)], [], [])
        monkeypatch.undo()
        waiting = threading.Thread(target=store.write, args=([claim(2)], [], []))
        waiting.start()
        other.rollback()
        waiting.join(PATIENCE_S)
        assert not waiting.is_alive()
    report = read_report(path, (), DAY)
    assert report is not None
    assert report.total is not None
    assert report.total.unsettled == 1
