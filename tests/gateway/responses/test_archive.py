"""The queue before the disk, of which no task writes here: the disk is as slow as can be."""

import time
from pathlib import Path

import pytest
import trio
import trio.testing

from gateway.responses.archive import JUMP_S, MAX_QUEUED_BYTES, Archive, SteadyTime
from gateway.responses.background import Background
from gateway.store import ResponseStore
from gateway.store.response_store import Bounds, Change, Insert, SetObject

PART = bytes(MAX_QUEUED_BYTES // 4)


async def _archive(folder: Path) -> Archive:
    def open_store() -> ResponseStore:
        return ResponseStore(folder / "responses.sqlite", Bounds(10, 10, 10, 10), 0, time.time)

    archive = Archive(open_store, time.time, expire_s=60.0)
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


def test_a_clock_that_jumps_makes_nothing_expire(caplog: pytest.LogCaptureFixture) -> None:
    """Ahead by years, for a moment or for good; one that was ahead at the start is taken back."""
    unix, steady = 1.8e9, 5.0
    time_now = SteadyTime(lambda: unix, lambda: steady)
    unix, steady = unix + 60, steady + 60
    assert time_now.now() == unix
    unix += 10 * 365 * 86_400
    for _ in range(2):
        assert time_now.now() == 1.8e9 + 60 + JUMP_S
    assert caplog.text.count("the clock went ahead") == 1
    unix, steady = 1.8e9 + 7 * 86_400, 5.0 + 7 * 86_400
    assert time_now.now() == unix
    unix = 1.7e9
    assert time_now.now() == 1.7e9
