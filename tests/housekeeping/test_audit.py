"""The audit file: whole lines, one owner, no silent loss."""

import json
import os
import subprocess
import sys
from pathlib import Path

from housekeeping.audit import MAX_FIELD_CHARS, Act, AuditFile

ACT = Act("reload", "user ops (pid 7)", "done", "herma.toml")
WRITER = """
import sys
from pathlib import Path
from housekeeping.audit import Act, AuditFile
file = AuditFile(Path(sys.argv[1]), sys.argv[2], print, lambda: 0.0)
for number in range(200):
    file.note(Act("reload", "x" * 300, str(number)))
"""


def _file(path: Path | None, complaints: list[str]) -> AuditFile:
    return AuditFile(path, "gateway 1", complaints.append, lambda: 1_800_000_000.25)


def test_an_act_is_a_line_that_only_the_owner_reads(tmp_path: Path) -> None:
    """The folder is made; an existing file that others can read no longer is."""
    path, complaints = tmp_path / "state/herma/audit.jsonl", list[str]()
    file = _file(path, complaints)
    file.note(ACT)
    path.chmod(0o644)
    file.note(ACT._replace(what="x" * 9_000))
    first, second = map(json.loads, path.read_text().splitlines())
    assert first == {
        "time": "2027-01-15T08:00:00.250+00:00",
        "process": "gateway 1",
        "pid": os.getpid(),
        **ACT._asdict(),
    }
    assert len(second["what"]) == MAX_FIELD_CHARS
    assert path.stat().st_mode & 0o777 == 0o600
    assert not complaints


def test_the_file_may_be_moved_away(tmp_path: Path) -> None:
    """The file may be moved away, as logrotate does: the next line begins a new one."""
    path, complaints = tmp_path / "audit.jsonl", list[str]()
    file = _file(path, complaints)
    file.note(ACT)
    path.rename(tmp_path / "audit.1.jsonl")
    file.note(ACT)
    assert len(path.read_text().splitlines()) == 1


def test_an_act_that_is_not_written_down_is_reported(tmp_path: Path) -> None:
    """No place, a folder in the place, a link that leads elsewhere, a pipe that nobody reads: one
    line each, no exception, and no waiting.
    """
    complaints: list[str] = []
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    os.mkfifo(tmp_path / "pipe")
    for path in (None, tmp_path, tmp_path / "link", tmp_path / "pipe"):
        _file(path, complaints).note(ACT)
    assert len(complaints) == 4
    assert all(one.startswith("reload by user ops (pid 7) is not in") for one in complaints)
    assert not (tmp_path / "elsewhere").exists()


def test_processes_share_a_file(tmp_path: Path) -> None:
    """No line is torn by another."""
    path = tmp_path / "audit.jsonl"
    writers = [
        subprocess.Popen([sys.executable, "-c", WRITER, str(path), f"p{number}"])
        for number in range(2)
    ]
    assert [writer.wait(60) for writer in writers] == [0, 0]
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    for name in ("p0", "p1"):
        own = [int(line["result"]) for line in lines if line["process"] == name]
        assert own == list(range(200))
