"""The processes that hold a GPU's memory: their numbers, names and containers.

Owns the parsing of nvidia-smi's table of processes and of /proc (status, cgroup, open devices), and
the end of holders if the configuration reserves the GPU for the worker. Must not know when memory
is waited for.

nvidia-smi lists numbers of the host's PID namespace. Within a container they mean nothing or,
worse, another process: a number counts as visible only if that process has a GPU open.
"""

import os
import re
import signal
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from housekeeping.processes import PROC, links_of, parent_of, text_of

_CONTAINER: Final = re.compile(r"(?<![0-9a-f])([0-9a-f]{64})(?![0-9a-f])")
"""Docker, containerd, CRI-O and Podman name a container's control group by its id."""
_SHOWN_ID: Final = 12
_ROW: Final = re.compile(r"^\s*(\d+)\s*,\s*(.*?)\s*(?:,\s*(\S+)\s*)?$")


@dataclass(frozen=True, slots=True)
class Holder:
    """A process that holds memory of a GPU. `used_mib` is None if the driver does not report it.
    `inner_pid` is the process id within its own PID namespace, if that is another one. Without
    `is_visible`, the process is in a PID namespace that cannot be seen from here.
    """

    pid: int
    name: str
    used_mib: int | None = None
    inner_pid: int | None = None
    container: str | None = None
    is_visible: bool = False

    def __str__(self) -> str:
        parts = [self.name] if self.name else []
        if self.used_mib is not None:
            parts.append(f"{self.used_mib} MiB")
        if self.container is not None:
            parts.append(f"container {self.container[:_SHOWN_ID]}")
        if self.inner_pid is not None:
            parts.append(f"pid {self.inner_pid} there")
        if not self.is_visible:
            parts.append("on the host, in another PID namespace than this one")
        return f"pid {self.pid} ({', '.join(parts)})"


def parse_holders(table: str) -> tuple[Holder, ...]:
    """The rows of `--query-compute-apps=pid,process_name,used_memory`, without header and units.
    Lines of another form are left out. A process with several contexts has one row for each.
    """
    found: dict[int, Holder] = {}
    for line in table.splitlines():
        if (row := _ROW.match(line)) is None:
            continue
        pid, used = int(row[1]), int(row[3]) if (row[3] or "").isdecimal() else None
        before = found.get(pid)
        if before is not None and before.used_mib is not None and used is not None:
            used += before.used_mib
        found[pid] = Holder(pid, row[2], used)
    return tuple(found.values())


def parse_nspids(status: str) -> tuple[int, ...]:
    """The process ids of a process in /proc/PID/status, from this namespace inwards; () if the
    kernel does not list them.
    """
    for line in status.splitlines():
        name, _, values = line.partition(":")
        if name == "NSpid":
            return tuple(int(word) for word in values.split() if word.isdecimal())
    return ()


def parse_container(cgroup: str) -> str | None:
    """The id of the container in /proc/PID/cgroup: the innermost one."""
    found = _CONTAINER.findall(cgroup)
    return str(found[-1]) if found else None


def looked_up(holders: Iterable[Holder], proc: Path = PROC) -> list[Holder]:
    """The holders with the facts from /proc about each. Blocks."""
    return [_looked_up(one, proc) for one in holders]


def end_holders(holders: Iterable[Holder], proc: Path = PROC) -> list[Holder]:
    """Kill the visible holders, but never this process or its parents. Returns the processes that
    were sent the signal.
    """
    spared = _ancestors(os.getpid(), proc)
    ended: list[Holder] = []
    for one in holders:
        # Check again: the number may belong to another process by now.
        if not _looked_up(one, proc).is_visible or one.pid in spared:
            continue
        with suppress(OSError):
            os.kill(one.pid, signal.SIGKILL)
            ended.append(one)
    return ended


def _looked_up(holder: Holder, proc: Path) -> Holder:
    folder = proc / str(holder.pid)
    if not _has_gpu_open(folder):
        return replace(holder, is_visible=False)
    nspids = parse_nspids(text_of(folder / "status"))
    return replace(
        holder,
        name=holder.name if holder.name not in ("", "[Not Found]") else text_of(folder / "comm"),
        inner_pid=nspids[-1] if len(nspids) > 1 else None,
        container=parse_container(text_of(folder / "cgroup")),
        is_visible=True,
    )


def _has_gpu_open(folder: Path) -> bool:
    return any(link.startswith("/dev/nvidia") for link in links_of(folder))


def _ancestors(pid: int, proc: Path) -> set[int]:
    found: set[int] = set()
    while pid > 0 and pid not in found:
        found.add(pid)
        pid = parent_of(pid, proc)
    return found
