"""How much memory and how many processors this process may use.

Owns the one reading of the machine and its control groups. Must not know what it is for.
A limit of `max` (cgroup v2) or of about 2**63 (v1) means none; 0 means 0.
"""

import os
from pathlib import Path
from typing import Final

_ROOT: Final = Path("/")
_V1_NO_LIMIT: Final = 2**60


def available_bytes(root: Path = _ROOT) -> int:
    """What this process may still take: the kernel's MemAvailable, or less if a control group of
    it leaves less. Page cache of the group counts as available, since it can be reclaimed.
    """
    limits = [_mem_available(root), *(_group_room(group) for group in _groups(root))]
    return max(0, min(limit for limit in limits if limit is not None))


def num_processors() -> int:
    """Processors that the scheduler lets this process run on."""
    return len(os.sched_getaffinity(0))


def _mem_available(root: Path) -> int:
    text = (root / "proc/meminfo").read_text(encoding="ascii")
    for line in text.splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    raise OSError(f"{root / 'proc/meminfo'} has no MemAvailable")


def _groups(root: Path) -> list[Path]:
    """The memory control groups of this process, inner to outer, of both versions."""
    membership = root / "proc/self/cgroup"
    if not membership.exists():
        return []
    found: list[Path] = []
    for line in membership.read_text(encoding="utf-8").splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers in ("", "memory"):
            base = root / "sys/fs/cgroup" / controllers
            group = base / path.lstrip("/")
            found += [group, *(p for p in group.parents if p.is_relative_to(base))]
    return found


def _group_room(group: Path) -> int | None:
    """What the group's limit leaves, or None without a limit."""
    for limit_name, usage_name, cache_name in (
        ("memory.max", "memory.current", "inactive_file"),
        ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
    ):
        limit = _read(group / limit_name)
        usage = _read(group / usage_name)
        if limit is None or usage is None or limit == "max" or int(limit) >= _V1_NO_LIMIT:
            continue
        return int(limit) - int(usage) + _stat(group, cache_name)
    return None


def _stat(group: Path, name: str) -> int:
    for line in (_read(group / "memory.stat") or "").splitlines():
        key, _, value = line.partition(" ")
        if key == name:
            return int(value)
    return 0


def _read(path: Path) -> str | None:
    return path.read_text(encoding="ascii").strip() if path.is_file() else None
