"""Memory that stays is moved to huge pages, and what is given back stays given back."""

import ctypes
import mmap
import subprocess
import sys
from pathlib import Path

import pytest

from gateway.runtime import huge_pages as module
from gateway.runtime.huge_pages import MADV_COLLAPSE, dense_ranges

MIB = 2**20
OVERCOMMIT = Path("/proc/sys/vm/overcommit_memory")

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
7f5000000000-7f5000800000 rw-p 00000000 00:00 0
Size:               8192 kB
Rss:                8192 kB
VmFlags: rd wr mr mw me nr sd
7f6000000000-7f6000400000 rw-p 00000000 00:00 0
Size:               4096 kB
Rss:                4096 kB
VmFlags: rd wr mr mw me ac sd
"""


def test_whole_huge_pages_of_dense_mappings_are_found() -> None:
    """Not an almost empty stack of a thread, nor what is smaller than a huge page where it lies,
    nor files, nor the heaps of the C library, however dense.
    """
    assert list(dense_ranges(SMAPS)) == [
        (0x7F0000200000, 4 * MIB),
        (0x7F6000000000, 4 * MIB),
    ]


HEAPS = """
import ctypes
from pathlib import Path
from threading import Thread
from gateway.runtime import bound_arenas
from gateway.runtime.huge_pages import dense_ranges

bound_arenas()
library = ctypes.CDLL(None)
library.malloc.restype, library.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
blocks = []

def take():
    blocks.extend(ctypes.memset(library.malloc(65_536), 1, 65_536) for _ in range(100))

take()
thread = Thread(target=take)
thread.start()
thread.join()
kept = [bytes([number % 251]) * 400 for number in range(100_000)]
ranges = list(dense_ranges(Path("/proc/self/smaps").read_text()))

def is_in(address):
    return any(begin <= address < begin + size for begin, size in ranges)

print(sum(map(is_in, blocks)), sum(is_in(id(one)) for one in kept) > len(kept) // 2)
"""


@pytest.fixture
def known_heaps() -> None:
    """Skip a test where heaps are not those of glibc, or cannot be told from other memory."""
    if not hasattr(ctypes.CDLL(None), "malloc_trim"):
        pytest.skip("not glibc")
    if not OVERCOMMIT.exists() or OVERCOMMIT.read_text().strip() == "2":
        pytest.skip("the kernel does not say what a heap is")


@pytest.mark.usefixtures("known_heaps")
def test_no_block_of_the_c_library_is_moved() -> None:
    """Of both arenas; objects of Python are."""
    run = subprocess.run(
        [sys.executable, "-c", HEAPS], capture_output=True, text=True, check=True, timeout=60
    )
    assert run.stdout.split() == ["0", "True"]


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


@pytest.mark.parametrize(
    ("setting", "overcommit", "is_allowed"),
    [
        ("always [madvise] never", "0", True),
        ("[always] madvise never", "1", True),
        ("always madvise [never]", "0", False),
        ("always [madvise] never", "2", False),
    ],
)
def test_nothing_is_moved_where_heaps_are_unknown(
    setting: str,
    overcommit: str,
    is_allowed: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nor where the operator has turned huge pages off."""
    for name, text in (("_SETTING", setting), ("_OVERCOMMIT", overcommit)):
        (tmp_path / name).write_text(text + "\n")
        monkeypatch.setattr(module, name, tmp_path / name)
    assert module._is_allowed() is is_allowed


@pytest.mark.usefixtures("huge_pages", "known_heaps")
def test_memory_moves_and_keeps_its_content() -> None:
    """40 MB of small objects."""
    run = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True, timeout=60
    )
    before, after = map(int, run.stdout.split())
    assert after - before >= 10 * 1024
