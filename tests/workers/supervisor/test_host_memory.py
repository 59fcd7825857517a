"""The host's memory and its out-of-memory kills, from files of both control group versions."""

from pathlib import Path

import pytest

from workers.supervisor.card_memory import CardUse, host_reading
from workers.supervisor.diagnosis import count_oom_kills

GIB = 2**30
MIB = 2**20
V2 = "low 0\nhigh 0\nmax 12\noom 3\noom_kill 2\noom_group_kill 0\n"
V1 = "oom_kill_disable 0\nunder_oom 0\noom_kill 7\n"


def put(root: Path, path: str, text: str) -> None:
    (root / path).parent.mkdir(parents=True, exist_ok=True)
    (root / path).write_text(text)


def test_version_two(tmp_path: Path) -> None:
    """memory.events of the group that the process is in."""
    put(tmp_path, "proc/self/cgroup", "0::/herma.service\n")
    put(tmp_path, "sys/fs/cgroup/herma.service/memory.events", V2)
    assert count_oom_kills(tmp_path) == 2


def test_version_one(tmp_path: Path) -> None:
    """memory.oom_control, also where a container's own group is mounted at the top."""
    put(tmp_path, "proc/self/cgroup", "4:memory:/docker/0123\n3:cpuset:/\n0::/\n")
    put(tmp_path, "sys/fs/cgroup/memory/memory.oom_control", V1)
    assert count_oom_kills(tmp_path) == 7


def test_no_control_groups_count_nothing(tmp_path: Path) -> None:
    """A host without control groups, as on a kernel without them, counts nothing."""
    assert count_oom_kills(tmp_path) == 0
    put(tmp_path, "proc/self/cgroup", "0::/\n")
    assert count_oom_kills(tmp_path) == 0


@pytest.mark.parametrize("version", [1, 2])
def test_the_page_cache_of_a_control_group_is_no_use_of_memory(
    tmp_path: Path, version: int
) -> None:
    """The page cache of a control group is no use of memory, because it is given back on demand.
    Weights that were read once took the place of other models.
    """
    put(tmp_path, "proc/meminfo", f"MemTotal: {64 * MIB} kB\nMemAvailable: {60 * MIB} kB\n")
    assert host_reading(tmp_path) == CardUse(64 * GIB, 4 * GIB)
    group, limit, usage, cache = {
        1: ("memory/a", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
        2: ("a", "memory.max", "memory.current", "inactive_file"),
    }[version]
    put(tmp_path, "proc/self/cgroup", "4:memory:/a\n" if version == 1 else "0::/a\n")
    put(tmp_path, f"sys/fs/cgroup/{group}/{limit}", f"{32 * GIB}\n")
    put(tmp_path, f"sys/fs/cgroup/{group}/{usage}", f"{30 * GIB}\n")
    put(tmp_path, f"sys/fs/cgroup/{group}/memory.stat", f"{cache} {25 * GIB}\n")
    assert host_reading(tmp_path) == CardUse(32 * GIB, 5 * GIB)


def test_a_host_that_says_nothing_of_its_memory(tmp_path: Path) -> None:
    assert host_reading(tmp_path) is None
