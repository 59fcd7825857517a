"""How the pages of the host are opened for a card, one piece after the other."""

import os
import threading

import pytest
import torch

from workers.engine.memory import locked_pages
from workers.engine.sleep import choice
from workers.engine.tier import region as region_file
from workers.engine.tier.region import HostRegion
from workers.memory_room import MemoryRoom
from workers.scheduler.tier import TierLayout

PAGE = 4096
PIECES = 6


class Driver:
    """Locks `most` pieces, each when it is `told` to; then it says that there is no memory."""

    def __init__(self, most: int, monkeypatch: pytest.MonkeyPatch) -> None:
        self.most = most
        self.told = threading.Semaphore(0)
        self.locked: list[int] = []
        monkeypatch.setattr(region_file, "_PIECE_BYTES", 4 * PAGE)
        monkeypatch.setattr(torch.cuda, "set_device", lambda _: None)
        monkeypatch.setattr(torch.cuda, "synchronize", lambda *_: None)
        monkeypatch.setattr(locked_pages, "populate", lambda *_: None)
        monkeypatch.setattr(locked_pages, "lock", self.lock)
        monkeypatch.setattr(locked_pages, "unlock", self.locked.remove)

    def lock(self, at: int, size: int) -> int:
        assert self.told.acquire(timeout=60)
        if len(self.locked) == self.most:
            return 2
        assert size == 4 * PAGE
        self.locked.append(at)
        return 0


def _region(request: pytest.FixtureRequest) -> HostRegion:
    fd = os.memfd_create("herma-cache")
    layout = TierLayout(bytes(32), PAGE, 4 * PIECES)
    region = HostRegion(fd, layout, torch.device("cpu"))
    os.close(fd)
    request.addfinalizer(region.close)
    return region


def test_a_driver_that_locks_no_more_is_named_with_what_it_has(
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """A driver that locks no more is named with what it has locked, also behind a restart, when the
    pieces that hold something come first.
    """
    driver = Driver(2, monkeypatch)
    region = _region(request)
    driver.told.release(PIECES)
    region.open([17, 18])
    region.wait_opened()
    assert region.take_opened() == [range(16, 20), range(4), range(0)]
    assert "has 32 KiB of the 96 KiB that it was given: raise" in capfd.readouterr().err
    assert region.num_coming == 0
    region.close()
    assert driver.locked == []


def test_memory_that_the_cache_takes_yet_is_not_left_to_others(
    monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    """An engine that sleeps prepares memory of the host while the cache's pages are locked."""
    monkeypatch.setattr(choice, "host_room", lambda: MemoryRoom(40 * PAGE, "the kernel"))
    driver = Driver(PIECES, monkeypatch)
    region = _region(request)
    assert choice.room_beside(None).num_bytes == 40 * PAGE
    assert choice.room_beside(region) == (16 * PAGE, "the kernel")
    region.open()
    driver.told.release(2)
    found: list[range] = []
    while len(found) < 2:
        found += region.take_opened()
    assert choice.room_beside(region).num_bytes == 24 * PAGE
    driver.told.release(PIECES)
    region.wait_opened()
    assert choice.room_beside(region).num_bytes == 40 * PAGE
