"""What the kernel says of processes and of the host's memory, in /proc.

Owns the reading of its files and the places of their fields. What is gone, or may not be read, has
no text. Must not know what a process is for. Blocks for as long as a file takes.
"""

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

PROC: Final = Path("/proc")
_PARENT_FIELD: Final = 1
_FLAGS_FIELD: Final = 6
_START_FIELD: Final = 19
"""Fields 4, 9 and 22 of /proc/PID/stat, counted from the state behind the name in parentheses."""
_PF_EXITING: Final = 0x4


def text_of(path: Path) -> str:
    """The text of a file without white space around it; "" if it cannot be read."""
    with suppress(OSError):
        return path.read_text(encoding="utf-8", errors="replace").strip()
    return ""


def stat_of(pid: int, proc: Path = PROC) -> str:
    """The text of /proc/PID/stat; "" if the process is gone."""
    return text_of(proc / str(pid) / "stat")


def fields_of(stat: str) -> list[str]:
    """The fields of a /proc/PID/stat from the state on; none of a process that is gone."""
    return stat.rpartition(")")[2].split()


def folders(proc: Path = PROC) -> Iterator[Path]:
    """The folder of each process."""
    return (folder for folder in proc.iterdir() if folder.name.isdecimal())


def links_of(folder: Path) -> Iterator[str]:
    """The targets of the open descriptors of a process, by its folder in /proc."""
    with suppress(OSError):
        for link in (folder / "fd").iterdir():
            with suppress(OSError):
                yield str(link.readlink())


def start_ticks(stat: str) -> int | None:
    """The start time in /proc/PID/stat; None for a zombie, which owns nothing."""
    fields = fields_of(stat)
    return int(fields[_START_FIELD]) if len(fields) > _START_FIELD and is_alive(stat) else None


def is_alive(stat: str) -> bool:
    """Whether the process of this /proc/PID/stat runs; a zombie does not."""
    return fields_of(stat)[:1] not in ([], ["Z"], ["X"])


def is_exiting(stat: str) -> bool:
    """Whether the process of this /proc/PID/stat is being taken apart by the kernel."""
    fields = fields_of(stat)
    return len(fields) > _FLAGS_FIELD and bool(int(fields[_FLAGS_FIELD]) & _PF_EXITING)


def is_stopped(pid: int) -> bool:
    """Whether the process is stopped by SIGSTOP, which its connections do not show. False for pid
    0, which stands for a process in another pid namespace.
    """
    return fields_of(stat_of(pid))[:1] == ["T"]


def parent_of(pid: int, proc: Path = PROC) -> int:
    """The process that started it, or took it over; 0 if it has none, or is gone."""
    fields = fields_of(stat_of(pid, proc))
    return int(fields[_PARENT_FIELD]) if len(fields) > _PARENT_FIELD else 0


def tree_of(pid: int, proc: Path = PROC) -> list[int]:
    """The process and all below it, parents first."""
    children: dict[int, list[int]] = {}
    for folder in folders(proc):
        children.setdefault(parent_of(int(folder.name), proc), []).append(int(folder.name))
    found = [pid]
    for one in found:
        found += children.get(one, ())
    return found


def memory_facts(proc: Path = PROC) -> dict[str, int]:
    """Bytes by the kernel's names of them (MemTotal, MemFree, MemAvailable); empty without them."""
    return facts_in(text_of(proc / "meminfo"))


def facts_in(meminfo: str) -> dict[str, int]:
    """`memory_facts` in the text of /proc/meminfo."""
    lines = (line.partition(":") for line in meminfo.splitlines())
    return {name: int(value.split()[0]) * 1024 for name, _, value in lines if value.strip()}


def host_memory(proc: Path = PROC) -> tuple[int, int] | None:
    """Bytes of the host, and those that can be had, reclaimable page cache included; None if the
    kernel does not say.
    """
    facts = memory_facts(proc)
    if "MemTotal" not in facts or "MemAvailable" not in facts:
        return None
    return facts["MemTotal"], facts["MemAvailable"]
