"""Memory that large requests have left is given back to the kernel.

Owns how the C library keeps freed memory. Must not know requests.

glibc keeps what was freed between two blocks that live, in an arena per thread: after six prompts
of 7 MB the process held 300 MB for ever. Two arenas are enough for two threads that encode, and an
arena takes 128 MB of address space.
"""

import ctypes
import os
from collections.abc import Callable
from pathlib import Path
from typing import Final

import trio

from housekeeping.tick import coalesced_tick

_M_MMAP_THRESHOLD: Final = -3
_M_ARENA_MAX: Final = -8
_NUM_ARENAS: Final = 2
_LARGE_BYTES: Final = 2**20
"""Larger blocks are mapped by themselves, so that they are given back when they are freed."""
_GROWTH_BYTES: Final = 16 * 2**20
_MIN_GAIN_BYTES: Final = 2**20
_PERIOD_S: Final = 12.8
_MAX_PERIOD_S: Final = 51.2
STATM: Final = Path("/proc/self/statm")


def bound_arenas() -> None:
    """Make glibc keep little freed memory. Does nothing with another C library."""
    if (library := _glibc()) is not None:
        library.mallopt(_M_ARENA_MAX, _NUM_ARENAS)
        library.mallopt(_M_MMAP_THRESHOLD, _LARGE_BYTES)


async def return_memory() -> None:
    """Give freed memory back until cancelled, while more is resident than was at rest. The wait
    doubles while that gains nothing.
    """
    library = _glibc()
    if library is None or not STATM.exists():
        return
    # Open all the time: it must be read while clients have taken all descriptors.
    statm = os.open(STATM, os.O_RDONLY)
    try:
        await _return_memory(library, statm)
    finally:
        os.close(statm)


async def _return_memory(library: ctypes.CDLL, statm: int) -> None:
    least, period_s = resident_bytes(statm), _PERIOD_S
    while True:
        await coalesced_tick(period_s)
        before = resident_bytes(statm)
        least = min(least, before)
        if before - least < _GROWTH_BYTES:
            period_s = _PERIOD_S
            continue
        trim: Callable[[int], int] = library.malloc_trim
        await trio.to_thread.run_sync(trim, 0)
        gain = before - resident_bytes(statm)
        period_s = _PERIOD_S if gain >= _MIN_GAIN_BYTES else min(2 * period_s, _MAX_PERIOD_S)


def resident_bytes(statm: int) -> int:
    """The memory of this process that is resident, by the open `STATM`."""
    return int(os.pread(statm, 256, 0).split()[1]) * os.sysconf("SC_PAGE_SIZE")


def _glibc() -> ctypes.CDLL | None:
    library = ctypes.CDLL(None)
    has_all = hasattr(library, "malloc_trim") and hasattr(library, "mallopt")
    return library if has_all else None
