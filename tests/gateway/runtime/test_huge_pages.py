"""Memory that stays is moved to huge pages."""

import ctypes
import mmap
import subprocess
import sys
from pathlib import Path

import pytest

from gateway.runtime.huge_pages import MADV_COLLAPSE, dense_ranges

MIB = 2**20

SMAPS = """\
55d0f2a00000-55d0f3000000 rw-p 00000000 00:00 0                          [heap]
Size:               6144 kB
KernelPageSize:        4 kB
MMUPageSize:           4 kB
Rss:                6100 kB
Pss:                6100 kB
VmFlags: rd wr mr mw me ac sd
7f0000100000-7f0000700000 rw-p 00000000 00:00 0
Size:               6144 kB
KernelPageSize:        4 kB
MMUPageSize:           4 kB
Rss:                5800 kB
VmFlags: rd wr mr mw me ac sd
7f1000000000-7f1000800000 rw-p 00000000 00:00 0
Size:               8192 kB
Rss:                  12 kB
VmFlags: rd wr mr mw me gd ac sd
7f2000100000-7f2000300000 rw-p 00000000 00:00 0
Size:               2048 kB
Rss:                2048 kB
VmFlags: rd wr mr mw me ac sd
7f3000000000-7f3000400000 r-xp 00000000 fe:00 26933                      /usr/lib/libpython3.so
Size:               4096 kB
Rss:                4096 kB
VmFlags: rd ex mr mw me sd
7f4000000000-7f4000400000 rw-p 00000000 00:00 0                          [stack]
Size:               4096 kB
Rss:                4096 kB
VmFlags: rd wr mr mw me gd ac
"""


def test_whole_huge_pages_of_dense_mappings_are_found() -> None:
    """Not an almost empty stack of a thread, nor what is smaller than a huge page where it lies,
    nor files.
    """
    assert list(dense_ranges(SMAPS)) == [
        (0x55D0F2A00000, 6 * MIB),
        (0x7F0000200000, 4 * MIB),
    ]


PROGRAM = """
import re
from pathlib import Path
import trio
from trio.testing import MockClock
from gateway.runtime import use_huge_pages

def huge_kb():
    rollup = Path("/proc/self/smaps_rollup").read_text()
    return int(re.search(r"AnonHugePages: +(\\d+) kB", rollup)[1])

async def main():
    kept = [bytes([number % 251]) * 400 for number in range(100_000)]
    before = huge_kb()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(use_huge_pages)
        await trio.sleep(30)
        nursery.cancel_scope.cancel()
    assert kept == [bytes([number % 251]) * 400 for number in range(100_000)]
    print(before, huge_kb())

trio.run(main, clock=MockClock(autojump_threshold=0))
"""


@pytest.fixture
def huge_pages() -> None:
    """Skip a test where the kernel gives no huge pages on demand: an older one, or one whose memory
    is in pieces.
    """
    setting = Path("/sys/kernel/mm/transparent_hugepage/enabled")
    if not setting.exists() or "[never]" in setting.read_text():
        pytest.skip("the operator has turned huge pages off")
    advise = ctypes.CDLL(None).madvise
    advise.argtypes = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int
    with mmap.mmap(-1, 64 * MIB, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as mapped:
        mapped.write(b"x" * len(mapped))
        where = ctypes.c_char.from_buffer(mapped)
        first = -(-ctypes.addressof(where) // (2 * MIB)) * 2 * MIB
        failed = advise(first, 60 * MIB, MADV_COLLAPSE)
        del where
    if failed:
        pytest.skip("the kernel gives no huge pages now")


@pytest.mark.usefixtures("huge_pages")
def test_memory_moves_and_keeps_its_content() -> None:
    """40 MB of small objects."""
    run = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True, timeout=60
    )
    before, after = map(int, run.stdout.split())
    assert after - before >= 10 * 1024
