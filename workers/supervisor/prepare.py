"""Clears caches and leftovers before each start of an engine, as the worker's `prepare` key says.

Owns the steps (`drop-page-cache`, `clear-shm`), which segments count as leftovers, and the line
about each step. Must not know when it runs. All of it blocks: call it in a thread.

A segment is removed only if no process has it open or mapped. /proc shows the processes of this PID
namespace; the kernel refuses a write lease (fcntl(2), F_SETLEASE) while any process of any
namespace has the file open or mapped for writing.
"""

import errno
import fcntl
import os
import re
import signal
import stat
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Final, Literal

from housekeeping.processes import PROC, folders, memory_facts, text_of
from housekeeping.sizes import bytes_text

_LEFT: Final = re.compile(
    r"psm_\w+|sem\.mp-\w+|nccl-\w+|torch_\d+_\d+_\d+|cuda\.shm\.[\w.-]+|vllm[\w.-]+|sglang[\w.-]+"
    r"|__KMP_REGISTERED_LIB_\d+_\d+"
)
"""Names of shared memory and semaphores of Python, NCCL and engines."""

_SHM: Final = Path("/dev/shm")  # noqa: S108 -- what is left there is removed
_MAP: Final = re.compile(r"^\S+ \S+ \S+ ([0-9a-f]+):([0-9a-f]+) (\d+)", re.MULTILINE)
_HARMLESS: Final = signal.SIGURG
"""The kernel sends it when a process opens the file under our lease; ignored by default, unlike
SIGIO.
"""


def prepare(steps: Iterable[str], shm: Path = _SHM) -> list[str]:
    """Carry out the steps; return a line about each."""
    return [drop_page_cache() if step == "drop-page-cache" else clear_shm(shm) for step in steps]


def drop_page_cache(proc: Path = PROC) -> str:
    """Free the page cache: on unified memory an engine takes it for used GPU memory."""
    before = _free_bytes(proc)
    try:
        (proc / "sys/vm/drop_caches").write_text("1\n", encoding="ascii")
    except OSError as error:
        return (
            f"drop-page-cache: {error.strerror}: only root may write /proc/sys/vm/drop_caches; run "
            "the worker as root, or leave the step out"
        )
    after = _free_bytes(proc)
    freed = bytes_text(max(0, after - before))
    return f"drop-page-cache: {freed} freed, {bytes_text(after)} are free now"


def clear_shm(folder: Path = _SHM, proc: Path = PROC) -> str:
    """Remove segments in `folder` that engines have left and no process uses."""
    names = left_names(folder)
    used = _used_inodes(proc) if names else frozenset[tuple[int, int]]()
    freed = num_removed = num_used = num_denied = 0
    for name in names:
        match _remove_unused(folder / name, used):
            case "used":
                num_used += 1
            case "denied":
                num_denied += 1
            case "gone":
                continue  # the owner has removed the segment
            case int(num_bytes):
                num_removed += 1
                freed += num_bytes
    text = f"clear-shm: {_count(num_removed)} removed, {bytes_text(freed)}"
    if num_used:
        text += f"; {_count(num_used)} in use left alone"
    if num_denied:
        text += f"; {_count(num_denied)} of another user left: only that user or root may"
    return text


def left_names(folder: Path = _SHM) -> list[str]:
    """The names in `folder` that match an engine's, in use or not."""
    with suppress(OSError):
        return sorted(name for name in os.listdir(folder) if _LEFT.fullmatch(name))  # noqa: PTH208
    return []


def unused_names(folder: Path = _SHM) -> list[str]:
    """The names of the segments that `clear_shm` would remove."""
    names = left_names(folder)
    used = _used_inodes(PROC) if names else frozenset[tuple[int, int]]()
    return [name for name in names if _is_unused(folder / name, used)]


def mapped_inodes(maps: str) -> set[tuple[int, int]]:
    """(device, inode) of the files in a /proc/PID/maps."""
    return {
        (os.makedev(int(major, 16), int(minor, 16)), int(inode))
        for major, minor, inode in _MAP.findall(maps)
        if inode != "0"
    }


def _used_inodes(proc: Path) -> frozenset[tuple[int, int]]:
    """(device, inode) of all files that the readable processes have mapped or open."""
    used: set[tuple[int, int]] = set()
    for process in folders(proc):
        used |= mapped_inodes(text_of(process / "maps"))
        with suppress(OSError):
            for opened in (process / "fd").iterdir():
                with suppress(OSError):
                    found = opened.stat()
                    used.add((found.st_dev, found.st_ino))
    return frozenset(used)


def _remove_unused(
    path: Path, used: frozenset[tuple[int, int]]
) -> int | Literal["used", "denied", "gone"]:
    """Remove the file if it is unused. Returns the freed bytes, or why the file stays."""
    try:
        file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return "gone"
    except OSError as error:
        return "denied" if error.errno in (errno.EACCES, errno.EPERM) else "used"
    try:
        found = os.fstat(file)
        if not stat.S_ISREG(found.st_mode) or (found.st_dev, found.st_ino) in used:
            return "used"
        if not _lease(file):
            return "used"
        path.unlink()
    except PermissionError:
        return "denied"
    except FileNotFoundError:
        return "gone"
    finally:
        os.close(file)
    return found.st_blocks * 512


def _is_unused(path: Path, used: frozenset[tuple[int, int]]) -> bool:
    with suppress(OSError):
        file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            found = os.fstat(file)
            return (found.st_dev, found.st_ino) not in used and _lease(file)
        finally:
            os.close(file)
    return False


def _lease(file: int) -> bool:
    """Whether no other process uses the file. Until `file` is closed, other openers wait. On a file
    system without leases the file counts as used. Raises `PermissionError`.
    """
    try:
        fcntl.fcntl(file, fcntl.F_SETSIG, _HARMLESS)
        fcntl.fcntl(file, fcntl.F_SETLEASE, fcntl.F_WRLCK)
    except PermissionError:
        raise
    except OSError:
        return False
    return True


def _free_bytes(proc: Path) -> int:
    return memory_facts(proc).get("MemFree", 0)


def _count(number: int) -> str:
    return "1 segment" if number == 1 else f"{number} segments"
