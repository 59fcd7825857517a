"""The memory that stays is moved to huge pages.

Owns which parts of the address space lie on pages of 2 MiB. Must not know what is in them.

A request reads some megabytes of code and tables of Python in an order that no cache foresees. In
pages of 4 KiB the processor looks up the place of most of them in tables in memory, behind a
hypervisor in two of them, which is 5 % of a request's time. The kernel's own search for such memory
takes minutes, and most systems have it only for programs that ask.

The heaps of the C library stay on small pages: `gateway.runtime.memory` gives their freed pages
back, and a huge page would make these resident again.
"""

import ctypes
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import trio

from gateway.runtime.memory import STATM, resident_bytes
from housekeeping.tick import coalesced_tick

_PERIOD_S: Final = 12.8
_GROWTH_BYTES: Final = 4 * 2**20
"""Mappings are read again after the resident memory has grown by this much; a reading takes 5 ms of
a thread.
"""
_HUGE_BYTES: Final = 2 * 2**20
MADV_COLLAPSE: Final = 25
"""Since Linux 6.1; an older one refuses it."""
_READ_BYTES: Final = 2**16
_DENSE: Final = 0.8
"""The least resident share of a mapping, because a huge page is resident as a whole."""
_SMAPS: Final = Path("/proc/self/smaps")
_SETTING: Final = Path("/sys/kernel/mm/transparent_hugepage/enabled")
_OVERCOMMIT: Final = Path("/proc/sys/vm/overcommit_memory")
_STRICT: Final = "2"
"""The kernel then has no flag `nr`, by which a heap of the C library is told from other memory."""
_MAPPING: Final = re.compile(
    r"""(?mx)
    ^([0-9a-f]+)-([0-9a-f]+) \ rw-p \ \S+ \ 00:00 \ 0 \ *\n
    (?:(?!Rss:)\w+:\ .*\n)*
    Rss: \ +(\d+) \ kB\n
    (?:(?!VmFlags:)\w+:\ .*\n)*
    VmFlags: (?!.*\ nr\b)""",
)
"""Where a private mapping without a file or name begins and ends, and how much of it is resident.
The first heap of the C library has a name; the others are mapped without a reservation (`nr`).
"""


async def use_huge_pages() -> None:
    """Move dense memory to huge pages until cancelled, as it grows. Does nothing where the operator
    or the kernel has no huge pages, or heaps of the C library cannot be told from other memory.
    """
    if not (_SMAPS.exists() and STATM.exists() and _is_allowed()):
        return
    # Open all the time: they must be read while clients have taken all descriptors.
    smaps, statm = os.open(_SMAPS, os.O_RDONLY), os.open(STATM, os.O_RDONLY)
    try:
        await _use_huge_pages(smaps, statm)
    finally:
        os.close(smaps)
        os.close(statm)


async def _use_huge_pages(smaps: int, statm: int) -> None:
    gathered = 0
    while True:
        await coalesced_tick(_PERIOD_S)
        resident = resident_bytes(statm)
        gathered = min(gathered, resident)
        if resident - gathered >= _GROWTH_BYTES:
            await trio.to_thread.run_sync(_gather, smaps)
            gathered = resident_bytes(statm)


def _is_allowed() -> bool:
    if not _SETTING.exists() or "[never]" in _SETTING.read_text():
        return False
    return _OVERCOMMIT.exists() and _OVERCOMMIT.read_text().strip() != _STRICT


def _gather(smaps: int) -> None:
    advise = ctypes.CDLL(None).madvise
    advise.argtypes = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int
    for begin, size in dense_ranges(_text_of(smaps)):
        # The kernel refuses what it has no huge page for; that memory stays as it is.
        advise(begin, size, MADV_COLLAPSE)


def _text_of(file: int) -> str:
    os.lseek(file, 0, os.SEEK_SET)
    return b"".join(iter(lambda: os.read(file, _READ_BYTES), b"")).decode("utf-8", "replace")


def dense_ranges(smaps: str) -> Iterator[tuple[int, int]]:
    """Where the huge pages of each dense mapping of `smaps` begin, and their bytes. None is in a
    heap of the C library.
    """
    for found in _MAPPING.finditer(smaps):
        begin, end, resident = int(found[1], 16), int(found[2], 16), int(found[3]) * 1024
        first, last = -(-begin // _HUGE_BYTES) * _HUGE_BYTES, end // _HUGE_BYTES * _HUGE_BYTES
        if first < last and resident >= _DENSE * (end - begin):
            yield first, last - first
