"""What a process may use: the smallest of machine, control groups, card and limit."""

from pathlib import Path

import pytest

from protocol.errors import ConfigError
from workers.engine.memory.budget import CardReading, card_room, num_processors, vgpu_limit
from workers.memory_room import MemoryRoom, host_room, host_size

GIB = 2**30
HOST = MemoryRoom(30 * GIB, "the kernel")


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
    assert host_room(_machine(tmp_path)) == (8 * GIB, "the kernel")


def test_an_outer_group_counts_and_its_page_cache_is_free(tmp_path: Path) -> None:
    """cgroup v2: `max` is no limit; the parent's limit holds, less what is used and not cache."""
    root = _machine(tmp_path, "0::/outer/inner\n")
    base = root / "sys/fs/cgroup"
    _group(base / "outer/inner", max="max", current=str(GIB))
    _group(base / "outer", f"anon 1\ninactive_file {GIB}\n", max=str(4 * GIB), current=str(3 * GIB))
    assert host_room(root) == (2 * GIB, "the control group outer")


def test_the_whole_host_is_what_groups_allow_of_it(tmp_path: Path) -> None:
    """The whole host is what control groups allow of it, whatever is in use now, in both
    versions.
    """
    (bare := tmp_path / "bare").mkdir()
    assert host_size(_machine(bare)) == (9 * 1024, "the host")
    for version, membership, limit in (("two", "0::/a\n", "max"), ("one", "4:memory:/a\n", "x")):
        root = _machine(tmp_path / version, membership)
        base = root / "sys/fs/cgroup"
        if limit == "max":
            _group(base / "a", max="4096", current="4000")
        else:
            _group(base / "memory/a", limit_in_bytes="4096", usage_in_bytes="4000")
        assert host_size(root) == (4096, "the control group a")


@pytest.mark.parametrize("current", [0, GIB])
def test_a_limit_of_zero_is_zero(tmp_path: Path, current: int) -> None:
    """Never taken for `none`, and never below nothing."""
    root = _machine(tmp_path, "0::/job\n")
    _group(root / "sys/fs/cgroup/job", max="0", current=str(current))
    assert host_room(root).num_bytes == 0


@pytest.mark.parametrize(("limit", "expected"), [(2**63 - 4096, 8 * GIB), (3 * GIB, 2 * GIB)])
def test_version_one_is_read(tmp_path: Path, limit: int, expected: int) -> None:
    """Version one of control groups is read, whose `no limit` is a number near 2**63."""
    root = _machine(tmp_path, "5:memory:/job\n4:cpu:/job\n")
    group = root / "sys/fs/cgroup/memory/job"
    _group(group, limit_in_bytes=str(limit), usage_in_bytes=str(GIB))
    assert host_room(root).num_bytes == expected


def test_this_machine_has_something() -> None:
    """The real files are readable."""
    assert host_room().num_bytes > 0
    assert num_processors() >= 1


@pytest.mark.parametrize(
    ("environ", "limit"),
    [
        ({}, None),
        ({"": "8g"}, 8 * GIB),
        ({"": "1024m"}, GIB),
        ({"": "2048MiB"}, 2 * GIB),
        ({"": f"{GIB}"}, GIB),
        ({"": "0"}, None),
        ({"": "0m"}, None),
        ({"": ""}, None),
        ({"_0": "4g", "": "8g"}, 4 * GIB),
        ({"_0": "0m", "": "8g"}, 8 * GIB),
        ({"_1": "4g"}, None),
    ],
)
def test_the_limit_of_a_shared_card_is_read(environ: dict[str, str], limit: int | None) -> None:
    """The limit of a shared card is read, first the one with the card's number; 0, with any unit,
    is no limit.
    """
    named = {f"CUDA_DEVICE_MEMORY_LIMIT{suffix}": text for suffix, text in environ.items()}
    assert vgpu_limit(named, 0) == limit


@pytest.mark.parametrize("text", ["8 gigs", "-1g", "1.5g", "g", "0x10", "\N{SUPERSCRIPT TWO}g"])
def test_a_limit_that_is_no_size_is_refused(text: str) -> None:
    """One line names the variable, what it holds and how to write it."""
    with pytest.raises(ConfigError, match=r"^CUDA_DEVICE_MEMORY_LIMIT_1 = .* 1024m.*$"):
        vgpu_limit({"CUDA_DEVICE_MEMORY_LIMIT_1": text}, 1)


@pytest.mark.parametrize(
    ("card", "limit", "expected"),
    [
        # A card of its own: the driver's word; the host's memory does not matter.
        (CardReading(100 * GIB, 140 * GIB, GIB, False), None, 100 * GIB),
        # A limit over what is free, one under it, one that is used up.
        (CardReading(5 * GIB, 140 * GIB, GIB, False), 8 * GIB, 5 * GIB),
        (CardReading(100 * GIB, 140 * GIB, 3 * GIB, False), 8 * GIB, 5 * GIB),
        (CardReading(100 * GIB, 140 * GIB, 9 * GIB, False), 8 * GIB, 0),
        # Unified memory: page cache makes the driver say 2 GiB of a host with 30 available.
        (CardReading(2 * GIB, 120 * GIB, GIB, True), None, 30 * GIB),
        (CardReading(60 * GIB, 120 * GIB, GIB, True), None, 30 * GIB),
        (CardReading(2 * GIB, 120 * GIB, GIB, True), 9 * GIB, 8 * GIB),
    ],
)
def test_the_room_on_a_card(card: CardReading, limit: int | None, expected: int) -> None:
    """The smallest of what counts there."""
    assert card_room(card, limit, HOST).num_bytes == expected
