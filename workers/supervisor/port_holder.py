"""Finds the process that listens on an engine's port: often a rank of an earlier run, in a
container.

Owns the parsing of the kernel's table of sockets and of /proc. Must not know engines. Blocks: call
it in a thread.
"""

import re
from pathlib import Path
from typing import Final

from housekeeping.processes import PROC, folders, links_of, text_of
from workers.supervisor.gpu_holders import parse_container, parse_nspids

_LISTEN: Final = "0A"
_SOCKET: Final = re.compile(r"socket:\[(\d+)\]")
_SHOWN_ID: Final = 12


def listening_inodes(table: str, port: int) -> set[int]:
    """The inodes of the sockets that listen on `port`, from a /proc/net/tcp or tcp6."""
    found: set[int] = set()
    for line in table.splitlines():
        fields = line.split()
        if len(fields) > 9 and fields[3] == _LISTEN and fields[9].isdecimal():
            local = fields[1].rpartition(":")[2]
            if re.fullmatch("[0-9A-F]{4}", local) and int(local, 16) == port:
                found.add(int(fields[9]))
    return found


def port_holder(port: int, proc: Path = PROC) -> str:
    """A description of the process that listens on the port; "" if nothing listens."""
    tables = (text_of(proc / "net" / name) for name in ("tcp", "tcp6"))
    inodes = set[int]().union(*(listening_inodes(table, port) for table in tables))
    if not inodes:
        return ""
    for folder in sorted(folders(proc)):
        if inodes & _sockets_of(folder):
            return _described(folder)
    return "a process that cannot be seen from here: of another user, or of another PID namespace"


def _described(folder: Path) -> str:
    parts = [text_of(folder / "comm")]
    if (container := parse_container(text_of(folder / "cgroup"))) is not None:
        parts.append(f"container {container[:_SHOWN_ID]}")
    nspids = parse_nspids(text_of(folder / "status"))
    if len(nspids) > 1:
        parts.append(f"pid {nspids[-1]} there")
    return f"pid {folder.name} ({', '.join(parts)})"


def _sockets_of(folder: Path) -> set[int]:
    return {int(found[1]) for link in links_of(folder) if (found := _SOCKET.fullmatch(link))}
