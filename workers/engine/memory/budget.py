"""How much memory of a card, and how many processors, this process may use.

Owns the room of a card: the driver's reading, and the limit that GPU sharing sets in the
environment. Readings are arguments: this file knows no torch. Must not know what the memory is for,
nor the host's (`workers/memory_room.py`).

In `CUDA_DEVICE_MEMORY_LIMIT` 0 means none, as HAMi defines it.
"""

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from protocol.errors import ConfigError
from workers.memory_room import MemoryRoom

LIMIT_VARIABLE: Final = "CUDA_DEVICE_MEMORY_LIMIT"

_SIZE: Final = re.compile(r"(\d+)([kmgt]?)i?b?", re.IGNORECASE | re.ASCII)
_UNITS: Final = {"": 1, "k": 2**10, "m": 2**20, "g": 2**30, "t": 2**40}


@dataclass(frozen=True, slots=True)
class CardReading:
    """The driver's reading of one card, and what this process holds of it already; bytes.

    `is_integrated`: the card has no memory of its own but shares the host's.
    """

    free: int
    total: int
    held: int
    is_integrated: bool


def card_room(card: CardReading, limit: int | None, host: MemoryRoom) -> MemoryRoom:
    """What this process may still take of a card under the vGPU `limit`.

    Where the card shares the host's memory, its driver counts page cache as used, although the
    kernel gives it back on demand; so there the host's reading counts, not the driver's `free`.
    """
    rooms = [host if card.is_integrated else MemoryRoom(card.free, "the driver")]
    if limit is not None:
        rooms.append(MemoryRoom(max(0, limit - card.held), LIMIT_VARIABLE))
    return min(rooms)


def vgpu_limit(environ: Mapping[str, str], index: int) -> int | None:
    """Bytes that the environment allows this process on card `index`, or None without a limit.

    `CUDA_DEVICE_MEMORY_LIMIT_<index>` goes before `CUDA_DEVICE_MEMORY_LIMIT`; one that is empty or
    0 sets nothing (so HAMi reads them). Raises `ConfigError` for what is no size.
    """
    for name in (f"{LIMIT_VARIABLE}_{index}", LIMIT_VARIABLE):
        if (size := _size(name, environ.get(name, ""))) > 0:
            return size
    return None


def limit_bytes(text: str) -> int | None:
    """The bytes that the value of such a variable means; None for what is no size."""
    match = _SIZE.fullmatch(text.strip())
    return None if match is None else int(match[1]) * _UNITS[match[2].lower()]


def num_processors() -> int:
    """Processors that the scheduler lets this process run on."""
    return len(os.sched_getaffinity(0))


def _size(name: str, text: str) -> int:
    if not text.strip():
        return 0
    size = limit_bytes(text)
    if size is None:
        text = text.strip()
        raise ConfigError(f"{name} = {text!r} is no size: write 8g, 1024m, bytes, or 0 for none")
    return size
