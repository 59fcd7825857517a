"""The output of `herma worker status`."""

import subprocess
import sys
from argparse import Namespace
from pathlib import Path

import msgspec
import pytest

from herma import processes
from herma.commands import cache as cache_command
from herma.commands.worker import duration, render
from herma.processes import Supervisor, only_worker
from protocol.control_messages import Done, LastFault, WorkerStatus
from protocol.errors import ConfigError

READY = WorkerStatus(
    name="gpu1",
    pid=200,
    serves="qwen",
    model="Qwen/Qwen3-0.6B",
    state="ready",
    epoch=3,
    restarts=2,
    engine_pid=210,
    uptime_s=7510.0,
    device="cuda:0",
    gateways=(1, 2),
    troubles=("gateway tcp://b:8090: it does not take this worker: its name is taken",),
)
STOPPED = WorkerStatus(
    name="gpu0",
    pid=100,
    serves="qwen",
    model="/models/qwen",
    state="stopped",
    epoch=5,
    restarts=4,
    gateways=(1, 1),
    fault=LastFault(
        epoch=5,
        kind="file_not_found",
        cause="exit code 127: file not found; correct the path",
        exit_code=127,
        ago_s=62.0,
        last_log=("one", "two"),
    ),
)
STARTING = WorkerStatus(
    name="gpu2",
    pid=300,
    serves="qwen",
    model="m",
    state="starting",
    epoch=1,
    restarts=0,
    phase="weights",
    fraction=0.426,
    detail="Loading shards 3/7",
    engine_pid=310,
)

TABLE = """\
NAME  STATE     PHASE        EPOCH  RESTARTS  PID  ENGINE  UPTIME      GATEWAYS  MODEL
?     silent    -            -      -         400  -       -           -         it does not answer: it is stopped (kill -CONT) or hangs
gpu0  stopped   -            5      4         100  -       -           1/1       /models/qwen
gpu1  ready     -            3      2         200  210     2 h 05 min  1/2       Qwen/Qwen3-0.6B on cuda:0
gpu2  starting  weights 43%  1      0         300  310     -           0/0       m

gpu2: weights [########............] 43%  Loading shards 3/7

gpu1: gateway tcp://b:8090: it does not take this worker: its name is taken

gpu0: last fault (epoch 5, 1 min 02 s ago) [file_not_found]
  exit code 127: file not found
  correct the path"""  # noqa: E501 -- as a terminal shows it


def test_what_drafts_bring_stands_below_the_table() -> None:
    """The gain of drafts stands below the table, for workers whose engine drafts."""
    drafting = msgspec.structs.replace(READY, drafting="suffix: 2.50 tokens a pass")
    shown = render([(200, drafting), (100, STOPPED)], with_log=False)
    assert "\n\ngpu1: drafts by suffix: 2.50 tokens a pass" in shown


def test_the_table_is_easy_to_read() -> None:
    """Sorted by name, columns aligned, faults below, the log only for a named worker."""
    workers = [(200, READY), (400, None), (100, STOPPED), (300, STARTING)]
    assert render(workers, with_log=False) == TABLE
    assert render([(100, STOPPED)], with_log=True).endswith("  | one\n  | two")


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.4, "0 s"), (59.9, "59 s"), (185, "3 min 05 s"), (7800, "2 h 10 min"), (273_600, "3 d 4 h")],
)
def test_durations_have_two_units(seconds: float, text: str) -> None:
    """At most two units."""
    assert duration(seconds) == text


def test_of_several_workers_of_a_name_that_of_the_file_is_meant(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file that is found or named decides; without one the error names the ways."""
    files = [tmp_path / "a.toml", tmp_path / "b.toml"]
    found = [
        Supervisor(Path(f"s{n}"), n, msgspec.structs.replace(READY, config=str(file)))
        for n, file in enumerate(files)
    ]
    monkeypatch.setattr(processes, "supervisors", lambda: iter(found))
    assert only_worker("gpu1", None, files[1]).path == Path("s1")
    assert only_worker("gpu1", 0, files[1]).path == Path("s0")
    for file in (None, tmp_path / "c.toml"):
        with pytest.raises(ConfigError, match=r"add --pid 0 or --pid 1, or --config FILE"):
            only_worker("gpu1", None, file)


def test_the_only_worker_of_a_name_is_not_meant_if_it_is_of_another_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another fleet's worker was restarted from a folder with a herma.toml of its own."""
    mine, other = tmp_path / "a.toml", tmp_path / "b.toml"
    running = msgspec.structs.replace(READY, config=str(other))
    monkeypatch.setattr(processes, "supervisors", lambda: iter([Supervisor(Path("s"), 7, running)]))
    with pytest.raises(ConfigError) as refused:
        only_worker("gpu1", None, mine)
    assert f"no worker `gpu1` of {mine} runs here (pid 7 of {other})" in str(refused.value)
    assert "--pid 7" in str(refused.value)
    for pid, file in ((None, other), (None, None), (7, mine)):
        assert only_worker("gpu1", pid, file).pid == 7
    older = msgspec.structs.replace(READY, config=None)  # it does not say, so it may be meant
    monkeypatch.setattr(processes, "supervisors", lambda: iter([Supervisor(Path("s"), 7, older)]))
    assert only_worker("gpu1", None, mine).pid == 7


def test_the_files_of_workers_are_told_where_they_differ() -> None:
    """Below the table, with the pids that choose between them."""
    both = [
        (READY.pid, msgspec.structs.replace(READY, config="/a.toml")),
        (STOPPED.pid, msgspec.structs.replace(STOPPED, config="")),
    ]
    shown = render(both, with_log=False)
    assert "\n\ngpu1 (pid 200): of /a.toml" in shown
    assert "\ngpu0 (pid 100): of no file" in shown
    assert "/a.toml" not in render(both[:1], with_log=False)


@pytest.mark.parametrize("name", [None, "gpu1"])
def test_the_cache_of_another_fleet_s_worker_is_not_cleared(
    name: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The cache of another fleet's worker is not cleared; a name that two fleets have is refused;
    `--all` means all.
    """
    files = [tmp_path / "a.toml", tmp_path / "b.toml"]
    found = [
        Supervisor(Path(f"s{n}"), n, msgspec.structs.replace(READY, config=str(file)))
        for n, file in enumerate(files)
    ]
    asked: list[str] = []
    monkeypatch.setattr(processes, "supervisors", lambda: iter(found))
    monkeypatch.setattr(cache_command, "supervisors", lambda: iter(found))
    monkeypatch.setattr(cache_command, "ask", lambda path, _: asked.append(str(path)) or Done(0))
    words = Namespace(action="clear", worker=name, all=False, config=files[1])
    assert cache_command.run(words) == 0
    assert asked == ["s1"]
    words.config = tmp_path / "c.toml"
    with pytest.raises(ConfigError, match=r"c\.toml runs here"):
        cache_command.run(words)
    words.all = True
    if name is None:
        assert cache_command.run(words) == 0
        assert asked == ["s1", "s0", "s1"]
    else:
        with pytest.raises(ConfigError, match="2 workers of this host are named `gpu1`"):
            cache_command.run(words)


def test_a_folder_of_sockets_that_cannot_be_made_names_the_remedy(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "herma", "status"],
        capture_output=True,
        text=True,
        check=False,
        env={"XDG_RUNTIME_DIR": str(tmp_path / "gone")},
    )
    assert done.returncode == 2
    assert "No such file or directory; make the folder above it" in done.stderr
    assert "HERMA_RUNTIME_DIR" in done.stderr


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["status"], "no worker runs on this host"),
        (["status", "w"], "no worker of this host is named `w`"),
        (["restart", "w"], "no worker of this host is named `w`"),
    ],
)
def test_without_a_worker_there_is_one_line(tmp_path: Path, words: list[str], says: str) -> None:
    """Exit status 2 and what to do."""
    folder = tmp_path / "run"
    done = subprocess.run(
        [sys.executable, "-m", "herma", "worker", *words],
        capture_output=True,
        text=True,
        check=False,
        env={"HERMA_RUNTIME_DIR": str(folder)},
    )
    assert done.returncode == 2
    assert says in done.stderr
    assert len(done.stderr.splitlines()) == 1
