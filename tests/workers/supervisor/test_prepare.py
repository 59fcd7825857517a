"""What is cleared before a start: real segments in /dev/shm, planted /proc otherwise."""

import os
import subprocess
import sys
from collections.abc import Iterator
from multiprocessing.shared_memory import SharedMemory
from pathlib import Path

import pytest

from workers.supervisor.prepare import (
    clear_shm,
    drop_page_cache,
    left_names,
    mapped_inodes,
    prepare,
)

MAPS = """\
7f00-7f01 rw-s 00000000 00:1a 4242                       /dev/shm/psm_1234 (deleted)
7f02-7f03 r--p 00000000 fd:10 77                         /usr/lib/libc.so.6
7f04-7f05 rw-p 00000000 00:00 0                          [heap]
"""


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder on the file system of shared memory."""
    path = Path("/dev/shm") / f"herma-test-{os.getpid()}"
    path.mkdir()
    yield path
    for each in path.iterdir():
        each.unlink()
    path.rmdir()


def _write(path: Path, num_bytes: int) -> None:
    path.write_bytes(bytes(num_bytes))


def test_files_in_memory_maps_are_known_by_device_and_inode() -> None:
    """Names may be deleted or those of another mount; inode 0 is no file."""
    assert mapped_inodes(MAPS) == {(os.makedev(0, 0x1A), 4242), (os.makedev(0xFD, 0x10), 77)}


def test_only_known_names_that_nobody_uses_are_removed(folder: Path, tmp_path: Path) -> None:
    """A segment that another process has open or mapped stays, and what engines do not leave."""
    for name in ("psm_dead", "sem.mp-dead", "nccl-dead", "pulse-shm-1", "psm_mapped", "psm_open"):
        _write(folder / name, 8192)
    mapping = (
        "import mmap, sys, os\n"
        f"file = os.open({str(folder / 'psm_mapped')!r}, os.O_RDWR)\n"
        "kept = mmap.mmap(file, 8192); os.close(file)\n"
        f"other = open({str(folder / 'psm_open')!r}, 'rb')\n"
        "print('ready', flush=True); sys.stdin.read()\n"
    )
    argv = [sys.executable, "-c", mapping]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        other.stdout.readline()
        said = clear_shm(folder)
        assert said == "clear-shm: 3 segments removed, 24 KiB; 2 segments in use left alone"
        # Where /proc does not show the process, the kernel still refuses the lease.
        (folder / "psm_open").unlink()
        assert clear_shm(folder, tmp_path).endswith("; 1 segment in use left alone")
        other.communicate()
    assert sorted(path.name for path in folder.iterdir()) == [
        "psm_mapped",
        "pulse-shm-1",
    ]
    assert "1 segment removed" in clear_shm(folder)


def test_python_names_its_segments_so(folder: Path) -> None:
    """One that a killed process leaves is found by its name."""
    segment = SharedMemory(create=True, size=4096)
    try:
        assert segment.name in left_names()
    finally:
        segment.close()
        segment.unlink()


def test_the_page_cache_says_what_was_freed_or_which_right_is_missing(tmp_path: Path) -> None:
    """A container's /proc/sys is often read-only."""
    (tmp_path / "meminfo").write_text("MemTotal: 120 kB\nMemFree: 20971520 kB\n")
    (tmp_path / "sys/vm").mkdir(parents=True)
    assert drop_page_cache(tmp_path) == "drop-page-cache: 0 KiB freed, 20.00 GiB are free now"
    assert (tmp_path / "sys/vm/drop_caches").read_text() == "1\n"
    (tmp_path / "sys/vm/drop_caches").unlink()
    (tmp_path / "sys/vm").rmdir()
    assert "only root may write" in drop_page_cache(tmp_path)


def test_each_step_has_its_line(tmp_path: Path) -> None:
    """Each step has its line, in the order of the configuration."""
    (line,) = prepare(["clear-shm"], tmp_path)
    assert line == "clear-shm: 0 segments removed, 0 KiB"
