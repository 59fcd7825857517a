"""The ledger's writer: requests share commits, and only reservations wait for the disk."""

import errno
import threading
from collections.abc import Iterable
from pathlib import Path

import pytest
import trio
import trio.testing

from gateway.spending.ledger_writer import MAX_USES, MAX_WAITING, OTHERS, LedgerFull, LedgerWriter
from gateway.spending.open_claims import MAX_OPEN, OpenClaims
from gateway.store import (
    Balances,
    LedgerEntry,
    LedgerError,
    LedgerStore,
    ReservationClaim,
    Settlement,
    read_report,
)
from gateway.store.ledger import LEDGER
from gateway.telemetry import FleetEvent, StoreStuck, StoreTrouble, StoreWell
from protocol.errors import ConfigError
from tests.fakes.running_gateway import wait_until
from tests.fakes.worker import PATIENCE_S

DAY = "2026-11-21"


class SlowDisk(LedgerStore):
    """The real ledger, which writes only while `gate` is open."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, "USD")
        self.gate = threading.Event()
        self.gate.set()
        self.num_failures = 0
        self.batches: list[int] = []

    def write(
        self,
        claims: Iterable[ReservationClaim],
        settlements: Iterable[Settlement],
        entries: Iterable[LedgerEntry],
    ) -> frozenset[int]:
        assert self.gate.wait(PATIENCE_S)
        if self.num_failures:
            self.num_failures -= 1
            raise LedgerError("The disk is full.")
        rows = list(claims)
        self.batches.append(len(rows))
        return super().write(rows, settlements, entries)


def reservation(number: int) -> ReservationClaim:
    return ReservationClaim(
        number, LedgerEntry(DAY, "k", "m", "cloud", False, True, 1, 10, 0, 10, 5)
    )


def record(writer: LedgerWriter, tokens: int = 1) -> None:
    writer.record(LedgerEntry(DAY, "k", "m", "", True, True, 1, tokens, 0, tokens, 0))


def trouble_told(events: list[FleetEvent] | None = None) -> StoreTrouble:
    """The trouble of a ledger, whose events are added to `events`."""
    return StoreTrouble("ledger", lambda event: None if events is None else events.append(event))


async def start(
    nursery: trio.Nursery,
    path: Path,
    settle_delay_s: float = 0.0,
    events: list[FleetEvent] | None = None,
) -> tuple[LedgerWriter, SlowDisk]:
    seen: list[Balances] = []
    writer = LedgerWriter(lambda: (), seen.append, trouble_told(events), settle_delay_s)
    disk = SlowDisk(path)
    await nursery.start(writer.run, lambda: disk)
    assert seen == [{}]
    return writer, disk


async def test_a_ledger_whose_disk_is_full_at_the_start_is_opened_later(tmp_path: Path) -> None:
    """Until then nothing is reserved; usage that came meanwhile is written with what follows."""
    events: list[FleetEvent] = []
    failure = LEDGER.cannot_open(tmp_path, OSError(errno.ENOSPC, "No space left on device"))
    is_full = True

    def open_store() -> LedgerStore:
        if is_full:
            raise failure
        return LedgerStore(tmp_path / "ledger", "USD")

    async with trio.open_nursery() as nursery:
        writer = LedgerWriter(lambda: (), lambda _: None, trouble_told(events))
        await nursery.start(writer.run, open_store)
        record(writer, tokens=7)
        for number in range(2):
            with pytest.raises(LedgerError, match="free space") as caught:
                await writer.reserve(reservation(number))
            assert caught.value.cause == "No space left on device: free space on its disk"
        assert [type(event) for event in events] == [StoreStuck]
        is_full = False
        await wait_until(lambda: len(events) == 2)
        assert isinstance(events[1], StoreWell)
        assert await writer.reserve(reservation(2))
        nursery.cancel_scope.cancel()
    report = read_report(tmp_path / "ledger", ("provider",), DAY)
    assert report is not None
    assert {row.group: row.prompt_tokens for row in report.rows} == {("",): 7, ("cloud",): 10}


async def test_a_ledger_that_cannot_be_opened_otherwise_ends_the_start(tmp_path: Path) -> None:
    """A ledger that cannot be opened for another reason ends the start, because it needs an
    operator, as a wrong path does.
    """
    failure = LEDGER.cannot_open(tmp_path, OSError(errno.EACCES, "Permission denied"))

    def open_store() -> LedgerStore:
        raise failure

    writer = LedgerWriter(lambda: (), lambda _: None, trouble_told())
    with pytest.raises(ConfigError, match="Permission denied"):
        await writer.run(open_store)


async def test_forty_reservations_share_few_commits(tmp_path: Path) -> None:
    """One on its way to the disk, and all that came meanwhile in the next."""
    async with trio.open_nursery() as nursery:
        writer, disk = await start(nursery, tmp_path / "ledger")
        disk.gate.clear()
        async with trio.open_nursery() as clients:
            for number in range(40):
                clients.start_soon(writer.reserve, reservation(number))
            await trio.testing.wait_all_tasks_blocked(0.05)
            # The loop runs on while the thread waits for the disk.
            writer.settle(Settlement(99, None))
            record(writer)
            disk.gate.set()
        assert sum(disk.batches) == 40
        assert len(disk.batches) <= 3
        nursery.cancel_scope.cancel()


async def test_a_settlement_shares_the_sync_of_the_next_reservation(tmp_path: Path) -> None:
    """One request after the other: each waits for one sync, and its end for none."""
    path = tmp_path / "ledger"
    async with trio.open_nursery() as nursery:
        writer, disk = await start(nursery, path, settle_delay_s=1000.0)
        for number in range(5):
            await writer.reserve(reservation(number))
            writer.settle(Settlement(number, None))
            await trio.testing.wait_all_tasks_blocked(0.01)
            record(writer)
            await trio.testing.wait_all_tasks_blocked(0.01)
        assert disk.batches == [1] * 5
        nursery.cancel_scope.cancel()
    report = read_report(path, (), DAY)
    assert report is not None
    assert report.total is not None
    assert report.total.unsettled == 0


async def test_a_settlement_does_not_wait_for_long(tmp_path: Path) -> None:
    """No reservation comes, and usage that came first does not hold it up."""
    async with trio.open_nursery() as nursery:
        writer, disk = await start(nursery, tmp_path / "ledger", settle_delay_s=0.01)
        await writer.reserve(reservation(1))
        record(writer)
        await trio.testing.wait_all_tasks_blocked(0.01)
        writer.settle(Settlement(1, None))
        await wait_until(lambda: len(disk.batches) > 1)
        nursery.cancel_scope.cancel()


async def test_a_reservation_returns_only_once_it_is_written(tmp_path: Path) -> None:
    """A reservation returns only once it is written, and not when it is merely queued."""
    path = tmp_path / "ledger"
    async with trio.open_nursery() as nursery:
        writer, disk = await start(nursery, path)
        disk.gate.clear()
        with trio.move_on_after(0.05) as impatient:
            await writer.reserve(reservation(1))
        assert impatient.cancelled_caught
        disk.gate.set()
        await writer.reserve(reservation(2))
        report = read_report(path, (), DAY)
        assert report is not None
        assert report.total is not None
        assert report.total.unsettled == 2
        nursery.cancel_scope.cancel()


async def test_local_usage_is_added_up_before_it_is_written(tmp_path: Path) -> None:
    """Two hundred requests are a few rows, and none of them waited."""
    path = tmp_path / "ledger"
    async with trio.open_nursery() as nursery:
        writer, disk = await start(nursery, path)
        for _ in range(200):
            record(writer, 3)
        assert not disk.batches

        def written() -> bool:
            report = read_report(path, ("provider",), DAY)
            return report is not None and report.total is not None

        await wait_until(written)
        report = read_report(path, ("provider",), DAY)
        assert report is not None
        assert [(row.requests, row.prompt_tokens) for row in report.rows] == [(200, 600)]
        assert len(disk.batches) == 1
        nursery.cancel_scope.cancel()


async def test_what_could_not_be_written_is_added_to_what_came_since(tmp_path: Path) -> None:
    """A full disk loses no usage."""
    path = tmp_path / "ledger"
    async with trio.open_nursery() as nursery:
        writer, disk = await start(nursery, path)
        disk.num_failures = 1
        disk.gate.clear()
        record(writer, 3)
        async with trio.open_nursery() as clients:
            clients.start_soon(fails, writer)
            await trio.testing.wait_all_tasks_blocked(0.05)
            record(writer, 4)
            disk.gate.set()
        nursery.cancel_scope.cancel()
    report = read_report(path, ("provider",), DAY)
    assert report is not None
    assert [(row.requests, row.prompt_tokens) for row in report.rows] == [(2, 7)]


async def test_a_disk_that_stays_full_is_one_line(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A disk that stays full is logged in one line, and in another once it has room: the log may
    lie on the same disk.
    """
    path = tmp_path / "ledger"
    async with trio.open_nursery() as nursery:
        writer, disk = await start(nursery, path)
        disk.num_failures = 3
        record(writer)
        await wait_until(lambda: writer._trouble.words == "The disk is full.")
        await wait_until(lambda: bool(disk.batches) and not writer._trouble.words)
        nursery.cancel_scope.cancel()
    said = [(one.levelname, one.message.partition(";")[0]) for one in caplog.records]
    assert said == [
        ("ERROR", "The disk is full."),
        ("WARNING", "the ledger is written again, with what has waited"),
    ]


async def fails(writer: LedgerWriter, number: int = 1) -> None:
    with pytest.raises(LedgerError):
        await writer.reserve(reservation(number))


async def test_what_is_queued_at_the_end_is_written(tmp_path: Path) -> None:
    """A stop loses nothing."""
    path = tmp_path / "ledger"
    async with trio.open_nursery() as nursery:
        writer, _ = await start(nursery, path)
        await writer.reserve(reservation(1))
        entry = LedgerEntry(DAY, "k", "m", "cloud", True, True, 1, 5, 0, 5, 4)
        writer.settle(Settlement(1, entry))
        record(writer)
        nursery.cancel_scope.cancel()
    report = read_report(path, ("provider",), DAY)
    assert report is not None
    assert [(row.group[0], row.cost, row.unsettled) for row in report.rows] == [
        ("", 0, 0),
        ("cloud", 4, 0),
    ]


async def test_the_queue_has_an_end(tmp_path: Path) -> None:
    """Beyond it a request is refused at once."""
    async with trio.open_nursery() as nursery:
        writer, disk = await start(nursery, tmp_path / "ledger")
        disk.gate.clear()
        async with trio.open_nursery() as clients:
            for number in range(MAX_WAITING + 1):
                clients.start_soon(writer.reserve, reservation(number))
                if number == 0:
                    await trio.testing.wait_all_tasks_blocked(0.05)
            await trio.testing.wait_all_tasks_blocked(0.05)
            with pytest.raises(LedgerFull):
                await writer.reserve(reservation(MAX_WAITING + 1))
            disk.gate.set()
        nursery.cancel_scope.cancel()


async def test_what_waits_for_a_full_disk_is_bounded() -> None:
    """Conversations come and go for hours meanwhile; what they use is counted all the same."""
    writer = LedgerWriter(lambda: (), lambda _: None, trouble_told())
    for number in range(2 * MAX_USES):
        writer.record_use((DAY, "k", "m", "", f"talk {number}"), (1, 10, 0, 5, 0))
    assert len(writer._uses) == MAX_USES + 1
    assert sum(requests for requests, *_ in writer._uses.values()) == 2 * MAX_USES
    assert writer._uses[DAY, "k", "m", "", OTHERS][0] == MAX_USES


async def test_a_stuck_ledger_is_one_event_at_its_start_and_one_at_its_end(tmp_path: Path) -> None:
    """However often it is tried, and although nothing waits for it that must be written."""
    events: list[FleetEvent] = []
    async with trio.open_nursery() as nursery:
        writer, disk = await start(nursery, tmp_path / "ledger", events=events)
        disk.num_failures = 3
        await fails(writer)
        await wait_until(lambda: len(events) == 2)
        assert await writer.reserve(reservation(2))
        nursery.cancel_scope.cancel()
    assert events == [StoreStuck("ledger", "The disk is full."), StoreWell("ledger")]
    assert disk.num_failures == 0


async def test_a_stuck_ledger_collects_nothing(tmp_path: Path) -> None:
    """Clients come, lose patience and leave while another program holds the file. Only the end of
    what the file has waits for it.
    """
    async with trio.open_nursery() as nursery:
        writer, disk = await start(nursery, tmp_path / "ledger")
        assert await writer.reserve(reservation(0))
        disk.num_failures = 1
        disk.gate.clear()
        async with trio.open_nursery() as clients:
            for number in range(1, 101):
                clients.start_soon(leaves, writer, number)
            clients.start_soon(fails, writer, 101)  # it goes with those that are written
            await trio.testing.wait_all_tasks_blocked(0.05)
            clients.start_soon(fails, writer, 102)  # it came later
            await trio.testing.wait_all_tasks_blocked(0.05)
            disk.gate.set()
            await wait_until(lambda: bool(writer._trouble.words))
            disk.gate.clear()
            writer.settle(Settlement(0, None))
            assert list(writer._reservations.ends) == [0]
        disk.gate.set()
        await wait_until(lambda: not writer._trouble.words)
        assert len(writer._reservations) == 0
        nursery.cancel_scope.cancel()


async def leaves(writer: LedgerWriter, number: int) -> None:
    """A client that goes while its reservation waits."""
    with trio.move_on_after(0.02) as impatient:
        await writer.reserve(reservation(number))
    assert impatient.cancelled_caught
    writer.settle(Settlement(number, None))


def test_ends_wait_only_for_claims_that_are_open() -> None:
    claims: OpenClaims[str] = OpenClaims()
    claims.end(1, "of none")
    assert claims.begin_write([1, 2, 3]) == {}
    claims.end(1, "while it is written")
    claims.end(2, "of a refused one")
    claims.written({}, [2])
    assert claims.ends == {1: "while it is written"}
    ends = claims.begin_write([4])
    claims.end(4, "of one that fails")
    claims.not_written(ends, [4])
    assert claims.ends == {1: "while it is written"}
    claims.written(claims.begin_write([]), [])
    assert (len(claims), claims.ends) == (1, {})


async def test_claims_under_way_have_a_bound(tmp_path: Path) -> None:
    """Claims under way have a bound, so their ends have one too."""
    async with trio.open_nursery() as nursery:
        writer, _ = await start(nursery, tmp_path / "ledger")
        writer._reservations.begin_write(range(1, MAX_OPEN))
        assert await writer.reserve(reservation(MAX_OPEN))
        with pytest.raises(LedgerFull):
            await writer.reserve(reservation(MAX_OPEN + 1))
        writer.settle(Settlement(5, None))
        await wait_until(lambda: len(writer._reservations) < MAX_OPEN)
        assert await writer.reserve(reservation(MAX_OPEN + 1))
        nursery.cancel_scope.cancel()
