"""What /proc says: of this process and its children, and of planted folders."""

import os
import subprocess
import sys
from pathlib import Path

from housekeeping.processes import (
    folders,
    host_memory,
    is_alive,
    is_exiting,
    links_of,
    memory_facts,
    parent_of,
    start_ticks,
    stat_of,
    text_of,
    tree_of,
)


def test_proc_stat_is_read_behind_any_name() -> None:
    """Parentheses and spaces in a process's name do not mislead; zombies own nothing."""
    fields = "S 1 2 3 0 -1 4194560 " + " ".join(["0"] * 12) + " 8888 0 0"
    assert start_ticks(f"42 (a) S (b c) {fields}") == 8888
    assert start_ticks(f"42 (x) Z{fields[1:]}") is None
    assert start_ticks("") is None
    assert not is_exiting(f"42 (x) {fields}")
    assert is_exiting(f"42 (x) {fields.replace('4194560', '4194564')}")
    own = Path(f"/proc/{os.getpid()}/stat").read_text()
    assert (start_ticks(own) or 0) > 0
    assert not is_exiting(own)
    assert is_alive(own)
    assert not is_alive("")


def test_a_child_is_below_its_parent_until_it_has_ended() -> None:
    """A zombie still stands there, and is not alive."""
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        assert parent_of(child.pid) == os.getpid()
        assert tree_of(os.getpid())[0] == os.getpid()
        assert child.pid in tree_of(os.getpid())
        assert is_alive(stat_of(child.pid))
        child.communicate(b"\n")
    assert not is_alive(stat_of(child.pid))
    assert parent_of(child.pid) == 0
    assert tree_of(child.pid) == [child.pid]


def test_a_tree_has_parents_first(tmp_path: Path) -> None:
    """Whatever their numbers are; folders of no process are left out."""
    for pid, parent in ((5, 1), (3, 5), (9, 5), (2, 9), (7, 1)):
        (tmp_path / str(pid)).mkdir()
        (tmp_path / str(pid) / "stat").write_text(f"{pid} (a b) S {parent} 0 0\n")
    (tmp_path / "net").mkdir()
    assert {folder.name for folder in folders(tmp_path)} == {"5", "3", "9", "2", "7"}
    found = tree_of(5, tmp_path)
    assert sorted(found) == [2, 3, 5, 9]
    assert found[0] == 5
    assert found.index(9) < found.index(2)


def test_links_and_texts_of_what_is_gone_are_empty(tmp_path: Path) -> None:
    """No error: processes end while they are looked at."""
    assert text_of(tmp_path / "1/comm") == ""
    assert list(links_of(tmp_path / "1")) == []
    (tmp_path / "1/fd").mkdir(parents=True)
    (tmp_path / "1/fd/3").symlink_to("socket:[4711]")
    assert list(links_of(tmp_path / "1")) == ["socket:[4711]"]


def test_the_host_counts_without_its_page_cache(tmp_path: Path) -> None:
    """The host counts without its page cache, in bytes; None where the kernel does not say."""
    (tmp_path / "meminfo").write_text("MemTotal: 100 kB\nMemFree: 1 kB\nMemAvailable: 60 kB\n")
    assert host_memory(tmp_path) == (100 * 1024, 60 * 1024)
    (tmp_path / "meminfo").write_text("MemTotal: 100 kB\nHugePages_Total:       0\n")
    assert memory_facts(tmp_path) == {"MemTotal": 100 * 1024, "HugePages_Total": 0}
    assert host_memory(tmp_path) is None
