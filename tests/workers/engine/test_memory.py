"""What a process may use: the smallest of the machine and every control group above it."""

from pathlib import Path

import pytest

from workers.engine.memory import available_bytes, num_processors

GIB = 2**30


def _machine(root: Path, membership: str | None = None) -> Path:
    (root / "proc/self").mkdir(parents=True)
    (root / "proc/meminfo").write_text(f"MemTotal: 9 kB\nMemAvailable: {8 * 2**20} kB\n")
    if membership is not None:
        (root / "proc/self/cgroup").write_text(membership)
    return root


def _group(path: Path, stat: str = "", **values: str) -> None:
    path.mkdir(parents=True, exist_ok=True)
    (path / "memory.stat").write_text(stat)
    for name, value in values.items():
        (path / f"memory.{name}").write_text(f"{value}\n")


def test_without_groups_the_machine_counts(tmp_path: Path) -> None:
    """MemAvailable, in bytes."""
    assert available_bytes(_machine(tmp_path)) == 8 * GIB


def test_an_outer_group_counts_and_its_page_cache_is_free(tmp_path: Path) -> None:
    """cgroup v2: `max` is no limit; the parent's limit holds, less what is used and not cache."""
    root = _machine(tmp_path, "0::/outer/inner\n")
    base = root / "sys/fs/cgroup"
    _group(base / "outer/inner", max="max", current=str(GIB))
    _group(base / "outer", f"anon 1\ninactive_file {GIB}\n", max=str(4 * GIB), current=str(3 * GIB))
    assert available_bytes(root) == 2 * GIB


def test_a_limit_of_zero_is_zero(tmp_path: Path) -> None:
    """Never taken for `none`."""
    root = _machine(tmp_path, "0::/job\n")
    _group(root / "sys/fs/cgroup/job", max="0", current="0")
    assert available_bytes(root) == 0


@pytest.mark.parametrize(("limit", "expected"), [(2**63 - 4096, 8 * GIB), (3 * GIB, 2 * GIB)])
def test_version_one_is_read(tmp_path: Path, limit: int, expected: int) -> None:
    """Its `no limit` is a number near 2**63."""
    root = _machine(tmp_path, "5:memory:/job\n4:cpu:/job\n")
    group = root / "sys/fs/cgroup/memory/job"
    _group(group, limit_in_bytes=str(limit), usage_in_bytes=str(GIB))
    assert available_bytes(root) == expected


def test_this_machine_has_something() -> None:
    """The real files are readable."""
    assert available_bytes() > 0
    assert num_processors() >= 1
