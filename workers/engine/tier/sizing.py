"""Whether an engine has a host tier, and how large it is.

Owns the default size, the check against the memory of the host, and the hash that stands for the
model. Must not know pages.
"""

from __future__ import annotations

import hashlib
import os
from typing import TYPE_CHECKING, Final

import msgspec
import torch

from config import WorkerConfig
from housekeeping.sizes import bytes_text
from protocol.errors import ConfigError
from workers.engine.load.report import Report
from workers.engine.sleep.weight_tensors import tensors_of
from workers.engine.tier.card_copies import staging_bytes
from workers.engine.tier.engine_tier import EngineTier, Memories
from workers.engine.tier.page_words import hash_of
from workers.memory_room import MemoryRoom, host_room
from workers.model_dir import CONFIG_NAME
from workers.scheduler.tier import TierLayout
from workers.tier_size import default_bytes

if TYPE_CHECKING:
    from workers.engine.runner import ModelRunner

_BY_DEFAULT: Final = False
"""Whether an engine on a card with memory of its own has a tier without being told so."""

_SMALLEST_PAGES: Final = 8
"""A tier of fewer pages is of no use."""


def open_tier(config: WorkerConfig, runner: ModelRunner, fd: int | None, report: Report) -> None:
    """Give `runner` its host tier, if the configuration or the default want one. A rank has its
    share of it in memory of its own, which ends with the engine, and as many pages as all others.
    Raises `ConfigError` if what the configuration asks for does not fit.
    """
    ranks = runner.model.ranks
    fd = fd if ranks is None else None
    cache, drafter = runner.cache, runner.drafter
    device = cache.memories[0].device
    caches = (cache,) if drafter is None or drafter.cache is None else (cache, drafter.cache)
    memories = Memories(caches, runner.kept)
    wanted = _wanted_bytes(config, sum(each.num_bytes() for each in caches), fd, device)
    if wanted == 0:
        return
    # No later engine can find pages in memory that ends with this engine.
    identity = memories.identity(b"" if fd is None else _model_hash(config, runner))
    on_host = 1 if ranks is None or config.group is not None else ranks.share.count
    layout = _layout(identity, memories.words.page_bytes, wanted // on_host, fd, config)
    if ranks is not None:
        layout = layout._replace(num_pages=ranks.least(layout.num_pages))
    if layout.num_pages < _SMALLEST_PAGES:
        if config.host_cache_bytes is None:
            give_back(fd)
            return
        raise ConfigError(
            f"cache.host has {bytes_text(wanted)}, and a page of {config.model} takes "
            f"{bytes_text(layout.page_bytes)}: raise it to {_SMALLEST_PAGES} pages or more, or "
            "leave it out"
        )
    report("memory", 1.0, f"{bytes_text(layout.num_bytes)} of the host for prefixes")
    try:
        runner.attach(EngineTier(memories, layout, fd, device))
    except OSError as error:
        raise ConfigError(
            f"cache.host needs {bytes_text(layout.num_bytes)}, but the host gives no such memory "
            f"({error.strerror}): lower it or leave it out, or raise the limits of address space "
            "and of file sizes (ulimit -v, ulimit -f)"
        ) from error


def _wanted_bytes(
    config: WorkerConfig, cache_bytes: int, fd: int | None, device: torch.device
) -> int:
    """The bytes of the host tier, by the configuration or the default; 0: no tier. `cache_bytes`
    are those of keys and values on the device. Raises `ConfigError` if the host has less.
    """
    wanted, room = config.host_cache_bytes, _room(fd)
    if device.type == "cpu":  # keys and values take the host's memory when they are written
        room = room._replace(num_bytes=max(0, room.num_bytes - cache_bytes))
    if wanted is None:
        is_apart = device.type == "cuda" and not _is_integrated(device)
        has_tier = _BY_DEFAULT and fd is not None and is_apart
        return default_bytes(room.num_bytes, cache_bytes) if has_tier else 0
    if wanted > room.num_bytes:
        raise ConfigError(
            f"cache.host needs {bytes_text(wanted)}, but {room.source} leaves "
            f"{bytes_text(room.num_bytes)} of the host's memory: lower it or leave it out"
        )
    return wanted


def give_back(fd: int | None) -> None:
    """Free what an engine with another configuration has left in the region."""
    if fd is not None:
        os.ftruncate(fd, 0)


def copy_bytes(config: WorkerConfig, page_bytes: int, device: torch.device) -> int:
    """The memory of a card that copies from and to the host take."""
    wanted = config.host_cache_bytes
    has_tier = _BY_DEFAULT if wanted is None else wanted > 0
    return staging_bytes(page_bytes) if has_tier and device.type == "cuda" and page_bytes else 0


def _layout(
    identity: bytes, page_bytes: int, wanted: int, fd: int | None, config: WorkerConfig
) -> TierLayout:
    """The layout of the region. Without a size of the configuration, a region that an earlier
    engine of the same layout has left keeps its size.
    """
    layout = TierLayout.within(identity, page_bytes, wanted)
    if fd is None or config.host_cache_bytes is not None:
        return layout
    size = os.fstat(fd).st_size
    found = TierLayout.within(identity, page_bytes, size + 2 * layout.page_bytes)
    for count in (found.num_pages, found.num_pages - 1, found.num_pages - 2):
        if count > 0 and layout._replace(num_pages=count).num_bytes == size:
            return layout._replace(num_pages=count)
    return layout


def _room(fd: int | None) -> MemoryRoom:
    """The host's free memory, plus what the region has taken of it already."""
    room = host_room()
    taken = 0 if fd is None else os.fstat(fd).st_blocks * 512
    return room._replace(num_bytes=room.num_bytes + taken)


def _is_integrated(device: torch.device) -> bool:
    return bool(torch.cuda.get_device_properties(device).is_integrated)


def _model_hash(config: WorkerConfig, runner: ModelRunner) -> bytes:
    """A hash of what the numbers of a prefix depend on, shapes aside: the network, and how it is
    computed. It covers the weights as the device holds them, not their files: files can change
    behind a path, and an index file chooses among them.
    """
    model = runner.model
    numerics = [config.prefill, str(config.invariant), model.device.type, config.dtype]
    digest = hashlib.sha256(msgspec.json.encode(numerics))
    digest.update((runner.model_dir / CONFIG_NAME).read_bytes())
    # Some rotations depend on the longest sequence, which the configuration may change.
    parts = [*model.rotations, *tensors_of(model)]
    if runner.drafter is not None:
        parts += tensors_of(runner.drafter)
    # A drafter shares some tensors with its target.
    digest.update(hash_of({id(part): part for part in parts}.values()))
    return digest.digest()
