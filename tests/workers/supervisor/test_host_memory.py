"""The kernel's count of out-of-memory kills, from recorded files of both control group versions."""

from pathlib import Path

from workers.supervisor.diagnosis import count_oom_kills

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
    """As on a kernel without them."""
    assert count_oom_kills(tmp_path) == 0
    put(tmp_path, "proc/self/cgroup", "0::/\n")
    assert count_oom_kills(tmp_path) == 0
