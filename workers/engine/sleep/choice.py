"""Whether an engine sleeps by itself, and what it needs for that from its start.

Owns that choice. Must not know how memory is moved.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import torch

from config import WorkerConfig
from workers.engine.sleep.card_pages import CardPages, DriverRefusalError
from workers.engine.sleep.device_sleep import DeviceSleep, NoSleep
from workers.engine.sleep.kept_rows import KeptRows
from workers.engine.sleep.pages import Pages
from workers.memory_room import MemoryRoom, host_room

if TYPE_CHECKING:
    from workers.engine.runner import ModelRunner
    from workers.engine.tier.region import HostRegion


def sleep_of(
    config: WorkerConfig, device: torch.device, *, has_ranks: bool
) -> DeviceSleep | NoSleep:
    """The sleep of the engine of a worker. One that is always resident takes its memory as torch
    does.
    """
    if config.residency != "on-demand":
        return NoSleep()
    if has_ranks:
        return NoSleep("it has several ranks")
    try:
        pages = pages_of(device)
        if pages is None:
            return NoSleep()
        return DeviceSleep(pages, device, most_bytes_of(device))
    except DriverRefusalError as error:
        return NoSleep(str(error))


def pages_of(device: torch.device) -> Pages | None:
    """What maps the memory of a device; None where nothing would become free. Raises
    `DriverRefusalError`.
    """
    if device.type != "cuda":
        return None
    if torch.cuda.get_device_properties(device).is_integrated:
        raise DriverRefusalError("the card shares the host's memory")
    torch.cuda.synchronize(device)  # its context is the current one from now on
    return CardPages(device)


def most_bytes_of(device: torch.device) -> int:
    """All memory of a card: addresses cost nothing."""
    return torch.cuda.get_device_properties(device).total_memory


def begun_sleep(runner: ModelRunner) -> DeviceSleep | NoSleep:
    """The sleep of an engine that is ready, which begins to prepare."""
    sleep, drafter = runner.sleep, runner.drafter
    if isinstance(sleep, NoSleep):
        return sleep
    caches = [runner.cache]
    if drafter is not None and drafter.cache is not None:
        caches.append(drafter.cache)
    region = None if runner.tier is None else runner.tier.region
    sleep.begin(KeptRows(caches, runner.kept.prefixes), partial(room_beside, region))
    return sleep


def room_beside(region: HostRegion | None) -> MemoryRoom:
    """The free memory of the host, less what the host cache has yet to take."""
    room = host_room()
    coming = 0 if region is None else region.num_coming
    return room._replace(num_bytes=max(0, room.num_bytes - coming))
