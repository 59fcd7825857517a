"""`herma reload`: whom it asks, and what it says."""

from argparse import Namespace
from pathlib import Path

import pytest

from herma.commands import reload as reload_command
from herma.commands.reload import run, summary
from herma.processes import GatewayProcess, Parent, Supervisor
from protocol.control_messages import (
    Answer,
    Ask,
    GatewayStatus,
    Refused,
    Reloaded,
    UpStatus,
    WorkerStatus,
)
from protocol.errors import ConfigError


def worker(name: str, pid: int, config: str | None) -> Supervisor:
    status = WorkerStatus(name, pid, "m", "m", "ready", 1, 0, config=config)
    return Supervisor(Path(name), pid, status)


def asked(monkeypatch: pytest.MonkeyPatch, mine: str) -> list[str]:
    """Two of everything run, of which one each runs `mine`; the names that are asked."""
    names: list[str] = []

    def ask(path: Path, _question: Ask) -> Answer:
        names.append(str(path))
        return Reloaded()

    gateways = [
        GatewayProcess(Path("g1"), 1, GatewayStatus(1, "http://h:1", "1", config=mine)),
        GatewayProcess(Path("g2"), 2, GatewayStatus(2, "http://h:2", "1", config="/other.toml")),
    ]
    workers = [worker("w1", 3, mine), worker("w2", 4, ""), worker("w3", 5, None)]
    parents = [Parent(Path("u1"), 6, UpStatus(6, mine))]
    monkeypatch.setattr(reload_command, "ask", ask)
    monkeypatch.setattr(reload_command, "gateways", lambda: gateways)
    monkeypatch.setattr(reload_command, "supervisors", lambda: workers)
    monkeypatch.setattr(reload_command, "parents", lambda: parents)
    return names


def test_the_processes_of_the_file_are_asked_and_no_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """`--all` asks them too; one that does not say its file is named and left alone."""
    file = tmp_path / "herma.toml"
    file.touch()
    names = asked(monkeypatch, str(file))
    assert run(Namespace(pid=None, all=False, config=file)) == 0
    assert names == ["u1", "g1", "w1"]
    out, err = capsys.readouterr()
    assert out == "nothing to take: up (pid 6), gateway (pid 1), worker w1 (pid 3)\n"
    assert "left alone: worker w3 (pid 5)" in err
    names.clear()
    assert run(Namespace(pid=None, all=True, config=None)) == 0
    assert names == ["u1", "g1", "g2", "w1", "w2", "w3"]
    with pytest.raises(ConfigError, match="--all"):
        run(Namespace(pid=None, all=False, config=tmp_path / "none.toml"))


@pytest.mark.parametrize(
    ("answers", "status"),
    [
        ({}, 0),
        ({"w1": Reloaded(("stall_s",))}, 0),
        ({"w1": Reloaded(kept=("serves: a restart of the process",))}, 3),
        ({"g1": Reloaded(("[gateway] max_queue",), ("[gateway] port",))}, 3),
        ({"g1": Refused("no such key"), "w1": Reloaded(kept=("serves",))}, 1),
    ],
)
def test_the_exit_status_says_whether_the_whole_file_runs(
    answers: dict[str, Answer], status: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A script that goes on after 0 relies on the file."""
    file = tmp_path / "herma.toml"
    file.touch()
    asked(monkeypatch, str(file))
    monkeypatch.setattr(reload_command, "ask", lambda path, _: answers.get(str(path), Reloaded()))
    assert run(Namespace(pid=None, all=False, config=file)) == status


def test_what_needs_a_restart_comes_first() -> None:
    results = [
        ("up", Reloaded()),
        ("gateway", Reloaded(("[gateway] max_queue",))),
        ("worker w", Reloaded(kept=("context_length: herma worker restart w",))),
    ]
    assert list(summary(results)) == [
        "worker w: not taken without a restart: context_length: herma worker restart w",
        "gateway: taken: [gateway] max_queue",
        "nothing to take: up",
    ]
