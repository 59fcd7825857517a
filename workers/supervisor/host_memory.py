"""How often the kernel has killed for lack of memory in our control group.

Owns the files of both versions of control groups. Must not know what is concluded from them.
"""

from contextlib import suppress
from pathlib import Path
from typing import Final

_ROOT: Final = Path("/")


def count_oom_kills(root: Path = _ROOT) -> int:
    """Out-of-memory kills in the innermost memory control group of this process; 0 if unknown."""
    with suppress(OSError):
        membership = (root / "proc/self/cgroup").read_text(encoding="utf-8")
        return max(map(_kills, _event_files(root, membership)), default=0)
    return 0


def _event_files(root: Path, membership: str) -> list[Path]:
    found: list[Path] = []
    for line in membership.splitlines():
        _, controllers, path = line.split(":", 2)
        group = root / "sys/fs/cgroup" / controllers / path.lstrip("/")
        if controllers == "":
            found.append(group / "memory.events")
        elif controllers == "memory":
            found.append(group / "memory.oom_control")
            # Inside a container the group of the host's path is mounted at the top.
            found.append(root / "sys/fs/cgroup/memory/memory.oom_control")
    return found


def _kills(path: Path) -> int:
    with suppress(OSError):
        for line in path.read_text(encoding="ascii").splitlines():
            key, _, value = line.partition(" ")
            if key == "oom_kill":
                return int(value)
    return 0
