"""How much memory of the host this process may use.

Owns the one notion of the host's room: the kernel's reading and control groups. Files lie under a
root path. Must not know what the memory is for, nor devices.

A group's limit of `max` (cgroup v2) or of about 2**63 (v1) means no limit; a limit of 0 allows
nothing.
"""

from pathlib import Path
from typing import Final, NamedTuple

from housekeeping.processes import memory_facts

_ROOT: Final = Path("/")
_V1_NO_LIMIT: Final = 2**60


class MemoryRoom(NamedTuple):
    """Bytes that may still be taken, and the source of that limit."""

    num_bytes: int
    source: str


def host_size(root: Path = _ROOT) -> MemoryRoom:
    """What this process could take of the host if nothing else ran there."""
    whole, limit = MemoryRoom(_meminfo(root, "MemTotal"), "the host"), group_limit(root)
    return whole if limit is None else min(whole, limit)


def group_limit(root: Path = _ROOT) -> MemoryRoom | None:
    """The lowest limit of this process's control groups; None without one."""
    groups = [
        MemoryRoom(limit, f"the control group {group.name}")
        for group in _groups(root)
        if (limit := _group_limit(group)) is not None
    ]
    return min(groups, default=None)


def host_room(root: Path = _ROOT) -> MemoryRoom:
    """What this process may still take of the host: the kernel's MemAvailable, or less if a
    control group of it leaves less. Page cache of a group counts as available: it can be
    reclaimed.
    """
    groups = [
        MemoryRoom(max(0, left), f"the control group {group.name}")
        for group in _groups(root)
        if (left := _group_room(group)) is not None
    ]
    return min([MemoryRoom(_meminfo(root, "MemAvailable"), "the kernel"), *groups])


def _meminfo(root: Path, name: str) -> int:
    facts = memory_facts(root / "proc")
    if name not in facts:
        raise OSError(f"{root / 'proc/meminfo'} has no {name}")
    return facts[name]


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
    limit = _group_limit(group)
    for usage_name, cache_name in (
        ("memory.current", "inactive_file"),
        ("memory.usage_in_bytes", "total_inactive_file"),
    ):
        usage = _read(group / usage_name)
        if limit is not None and usage is not None:
            return limit - int(usage) + _stat(group, cache_name)
    return None


def _group_limit(group: Path) -> int | None:
    """The group's limit in either version; None without one."""
    for name in ("memory.max", "memory.limit_in_bytes"):
        limit = _read(group / name)
        if limit is not None and limit != "max" and int(limit) < _V1_NO_LIMIT:
            return int(limit)
    return None


def _stat(group: Path, name: str) -> int:
    for line in (_read(group / "memory.stat") or "").splitlines():
        key, _, value = line.partition(" ")
        if key == name:
            return int(value)
    return 0


def _read(path: Path) -> str | None:
    return path.read_text(encoding="ascii").strip() if path.is_file() else None
