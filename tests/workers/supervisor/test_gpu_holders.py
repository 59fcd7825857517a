"""Who holds a GPU's memory, from planted tables and a planted /proc."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workers.supervisor.gpu_holders import (
    Holder,
    end_holders,
    looked_up,
    parse_container,
    parse_holders,
    parse_nspids,
)

ID = "3f2a1b" + "0" * 58


def test_the_table_of_processes() -> None:
    """Names may have commas and spaces; a process with two contexts is one holder."""
    table = "4242, VLLM::EngineCore, 70000\n4242, VLLM::EngineCore, 512\n77, python, a, [N/A]\nx\n"
    assert parse_holders(table) == (
        Holder(4242, "VLLM::EngineCore", 70_512),
        Holder(77, "python, a", None),
    )
    assert parse_holders("[N/A]\nNo devices were found\n") == ()


@given(st.text(max_size=80))
def test_any_table_is_read(text: str) -> None:
    """What is no row is left out."""
    for one in parse_holders(text):
        assert str(one).startswith(f"pid {one.pid} ")


@pytest.mark.parametrize(
    ("status", "pids"),
    [
        ("Name:\tx\nNSpid:\t4242\t17\nVmRSS: 1\n", (4242, 17)),
        ("NSpid:\t4242\n", (4242,)),
        ("Name:\tx\n", ()),
        ("NSpid:\n", ()),
    ],
)
def test_numbers_in_inner_namespaces(status: str, pids: tuple[int, ...]) -> None:
    """Process ids are those of inner namespaces, from this one inwards."""
    assert parse_nspids(status) == pids


@pytest.mark.parametrize(
    "cgroup",
    [
        f"0::/system.slice/docker-{ID}.scope\n",
        f"12:memory:/docker/{ID}\n0::/docker/{ID}\n",
        f"0::/kubepods.slice/kubepods-pod1.slice/cri-containerd-{ID}.scope\n",
        f"0::/machine.slice/libpod-{ID}.scope/container\n",
    ],
)
def test_the_container_is_in_the_control_group(cgroup: str) -> None:
    """Docker, containerd, Podman; a plain service has none."""
    assert parse_container(cgroup) == ID
    assert parse_container("0::/user.slice/user-1000.slice/session-1.scope\n") is None


def _plant(proc: Path, pid: int, opened: str) -> None:
    folder = proc / str(pid)
    (folder / "fd").mkdir(parents=True)
    (folder / "fd" / "3").symlink_to(opened)
    (folder / "status").write_text(f"NSpid:\t{pid}\t17\n")
    (folder / "cgroup").write_text(f"0::/docker/{ID}\n")
    (folder / "comm").write_text("VLLM::Worker\n")


def test_a_holder_is_named_by_process_and_container(tmp_path: Path) -> None:
    """A number that belongs to a process without the GPU is one of another namespace."""
    _plant(tmp_path, 4242, "/dev/nvidia0")
    _plant(tmp_path, 77, "/dev/null")
    here, there = looked_up(parse_holders("4242, [Not Found], 70000\n77, x, 5\n"), tmp_path)
    assert str(here) == "pid 4242 (VLLM::Worker, 70000 MiB, container 3f2a1b000000, pid 17 there)"
    assert "in another PID namespace" in str(there)


def test_only_what_has_the_gpu_open_is_ended(tmp_path: Path) -> None:
    """Only a process that has the GPU open is ended: no process of the same number here, and none
    of ours.
    """
    argv = [sys.executable, "-c", "import sys; sys.stdin.read()"]
    with subprocess.Popen(argv, stdin=subprocess.PIPE) as held:
        for pid in (held.pid, os.getpid()):
            _plant(tmp_path, pid, "/dev/nvidiactl")
        (tmp_path / "fd").mkdir()
        holders = [Holder(held.pid, "x"), Holder(os.getpid(), "herma"), Holder(2**22 + 1, "y")]
        assert [one.pid for one in end_holders(holders, tmp_path)] == [held.pid]
        assert held.wait() == -9
