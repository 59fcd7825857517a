"""The queue before the disk, of which no task writes here: the disk is as slow as can be."""

from pathlib import Path

import pytest
import trio
import trio.testing

from gateway.responses.archive import MAX_QUEUED_BYTES, Archive
from gateway.responses.background import Background
from gateway.store import DiskFull, ResponseStore
from gateway.store.response_store import Change, Insert, SetObject, StoreBounds
from gateway.telemetry import FleetEvent, StoreWell

BOUNDS = StoreBounds(10, 2**20, 10, 2**20)
LEFT = b'{"id": "resp_1", "status": "in_progress", "output": []}'
PART = bytes(MAX_QUEUED_BYTES // 4)


async def _archive(folder: Path) -> Archive:
    def open_store() -> ResponseStore:
        return ResponseStore(folder / "responses.sqlite", StoreBounds(10, 10, 10, 10))

    archive = Archive(open_store, expire_s=60.0, publish=lambda _: None)
    await archive.open()
    return archive


async def test_events_that_a_slow_disk_does_not_take_are_bounded(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """What fits waits; the next change is lost, with a line in the log."""
    archive = await _archive(tmp_path)
    change: Change = SetObject("resp_1", PART, is_open=True)
    for _ in range(4):
        archive.put(change)
    assert not caplog.records
    archive.put(change)
    assert [record.levelname for record in caplog.records] == ["ERROR"]
    await archive.close()


@pytest.mark.parametrize("is_needed", [False, True], ids=["by default", "named"])
async def test_a_disk_that_was_full_at_the_start_is_used_later(
    is_needed: bool, tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    """What an earlier run left open fails then, and no response of this one."""
    path, told = tmp_path / "responses.sqlite", list[FleetEvent]()
    before = ResponseStore(path, BOUNDS)
    before.write([Insert("resp_1", "alice", 0, None, False, True, LEFT, b"[]")])
    before.close()
    num_tries, is_well = 0, trio.Event()

    def open_store() -> ResponseStore:
        nonlocal num_tries
        num_tries += 1
        if num_tries < 4:
            raise DiskFull(f"cannot open {path}", "no space")
        return ResponseStore(path, BOUNDS)

    def publish(event: FleetEvent) -> None:
        told.append(event)
        if isinstance(event, StoreWell):
            is_well.set()

    archive = Archive(open_store, expire_s=1e12, publish=publish, is_needed=is_needed)
    await archive.open()
    assert not archive.is_kept
    assert archive.is_awaited
    assert "responses are not stored" in archive.trouble
    async with trio.open_nursery() as nursery:
        nursery.start_soon(archive.write_on)
        nursery.start_soon(archive.sweep_at_times)
        await is_well.wait()
        archive.put(Insert("resp_2", "alice", 0, None, False, True, LEFT, b"[]"))
        found = [await archive.ask(archive.store.response, "alice", f"resp_{n}") for n in (1, 2)]
        nursery.cancel_scope.cancel()
    await archive.close()
    assert [one is not None and one.is_open for one in found] == [False, True]
    assert not archive.trouble
    assert [type(event).__name__ for event in told] == ["StoreStuck", "StoreWell"]


async def test_items_of_conversations_count_against_the_bound(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A client may send 32 MiB of items in a request, as often as it likes."""
    archive = await _archive(tmp_path)
    for _ in range(5):
        archive.add_items("alice", "conv_1", [("item", PART)])
    assert "a stored response is lost" in caplog.text
    await archive.close()


async def test_a_response_of_another_process_shows_signs_of_life(
    tmp_path: Path, mock_clock: trio.testing.MockClock
) -> None:
    """A client follows it here while the process that runs it has no events for a long time."""
    mock_clock.rate = 100
    archive = await _archive(tmp_path)
    archive.put(Insert("resp_1", "alice", 0, None, True, True, b"{}", b"[]"))
    sent: list[bytes] = []

    async def send(data: bytes) -> None:
        sent.append(data)
        if len(sent) == 3:
            following.cancel()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(archive.write_on)
        with trio.move_on_after(1000.0) as following:
            await Background(archive, most=1).follow("alice", "resp_1", -1, 10.0, send)
        nursery.cancel_scope.cancel()
    await archive.close()
    assert sent == [b": still running\n\n"] * 3
