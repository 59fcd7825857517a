"""Who listens on a port: a real listener, and a planted /proc."""

import os
import socket
from pathlib import Path

from workers.supervisor.diagnosis import DeathEvidence, diagnose
from workers.supervisor.port_holder import listening_inodes, port_holder

ID = "3f2a1b" + "0" * 58
TABLE = """\
  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 0100007F:1F40 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 4711 1 0
   1: 0100007F:1F40 0100007F:9C40 01 00000000:00000000 00:00000000 00000000     0        0 4712 1 0
   2: 00000000:1F41 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 4713 1 0
garbage
"""


def test_only_listeners_count() -> None:
    """Only listeners count, and not the connections of that port."""
    assert listening_inodes(TABLE, 8000) == {4711}
    assert listening_inodes(TABLE, 8002) == set()


def test_a_real_listener_is_found() -> None:
    """A real listener is found: this process, by its process id."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        assert port_holder(port).startswith(f"pid {os.getpid()} (")
    assert port_holder(port) == ""


def test_a_holder_in_a_container_is_named(tmp_path: Path) -> None:
    """A holder in a container is named, with its number there; one that cannot be seen is said to
    be so.
    """
    (tmp_path / "net").mkdir()
    (tmp_path / "net/tcp").write_text(TABLE)
    assert "cannot be seen from here" in port_holder(8000, tmp_path)
    (tmp_path / "77/fd").mkdir(parents=True)
    (tmp_path / "77/fd/3").symlink_to("socket:[4711]")
    (tmp_path / "77/comm").write_text("VLLM::Worker\n")
    (tmp_path / "77/cgroup").write_text(f"0::/docker/{ID}\n")
    (tmp_path / "77/status").write_text("NSpid:\t77\t5\n")
    text = "pid 77 (VLLM::Worker, container 3f2a1b000000, pid 5 there)"
    assert port_holder(8000, tmp_path) == text
    lines = ("OSError: [Errno 98] Address already in use",)
    found = diagnose(DeathEvidence(exit_code=1, last_lines=lines, port_holder=text))
    assert found.cause.endswith(f"; {text} listens there")
