"""Processes that join as workers without being one: refused, with one line each, and shown nothing.

They run as another user where this machine allows it.
"""

import functools
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from protocol.transport import read_curve_pair
from tests.fakes.herma_process import HermaProcess, herma_up, wait_until
from tests.fakes.ports import free_ports

NOBODY = 65_534
ROOT = Path(__file__).parents[2]
WORKERS = """
[[models]]
name = "m"

[[models]]
name = "late"

[[workers]]
name = "w"
model = "builtin:herma-tiny"
engine = "synthetic"
serves = "m"

[[workers]]
name = "late"
model = "builtin:herma-tiny"
engine = "synthetic"
serves = "late"
"""


@functools.cache
def _as_nobody() -> tuple[str, ...]:
    """Words before a command that runs as another user; none where that is impossible."""
    words = ("setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups")
    if os.geteuid() != 0 or shutil.which("setpriv") is None:
        return ()
    look = [*words, sys.executable, "-c", "import tests.fakes.rogue_worker"]
    can = subprocess.run(look, cwd=ROOT, check=False, capture_output=True).returncode == 0
    return words if can else ()


class Running:
    """A rogue process and what it has printed."""

    def __init__(self, orders: dict[str, Any]) -> None:
        words = [*_as_nobody(), sys.executable, "-B", "-m", "tests.fakes.rogue_worker"]
        self.process = subprocess.Popen(
            words,
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(orders) + "\n")
        self.process.stdin.flush()
        self.lines: list[str] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        with self.process.stdout as lines:
            self.lines.extend(line.strip() for line in lines)

    def close(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait(60)
        self._reader.join()


@contextmanager
def rogue(**orders: Any) -> Iterator[Running]:
    running = Running(orders)
    try:
        yield running
    finally:
        running.close()


@contextmanager
def _fleet(folder: Path, bind: str) -> Iterator[HermaProcess]:
    file = folder / "herma.toml"
    file.write_text(f'[gateway]\nport = 0\nworker_bind = "{bind}"\n{WORKERS}')
    with herma_up(file, XDG_STATE_HOME=str(folder / "state")) as herma:
        yield herma


@pytest.fixture(scope="module")
def address() -> str:
    return f"tcp://127.0.0.1:{free_ports(1)}"


@pytest.fixture(scope="module")
def fleet(
    address: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[HermaProcess, Path]]:
    folder = tmp_path_factory.mktemp("trust")
    with _fleet(folder, address) as herma:
        yield herma, folder


def _ask(herma: HermaProcess) -> None:
    """Ten answers, all from the true worker."""
    for _ in range(10):
        body = {"model": "m", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 4}
        reply = httpx.post(f"{herma.base_url}/chat/completions", json=body, timeout=60)
        assert reply.status_code == 200
        assert "rogue" not in reply.text


def _pair(folder: Path, name: str) -> list[str]:
    (path,) = (folder / "state").rglob(f"{name}.secret")
    assert path.stat().st_mode & 0o777 == 0o600
    return list(read_curve_pair(path))


@contextmanager
def _stopped(herma: HermaProcess) -> Iterator[None]:
    """The worker `late` is out of the way, and its name free."""
    pid = herma.wait_pid("herma worker late")
    os.kill(pid, signal.SIGSTOP)
    try:
        wait_until(
            lambda: any('"worker lost","worker":"late"' in line for line in herma.output), ""
        )
        yield
    finally:
        os.kill(pid, signal.SIGCONT)
        herma.wait_models_ready({"late": 1})


def _one_line(herma: HermaProcess, text: str) -> None:
    """Exactly one line of the log has the text, now and after the rogue has tried again."""
    wait_until(lambda: any(text in line for line in herma.output), text)
    _ask(herma)
    assert len([line for line in herma.output if text in line]) == 1, text


def _saw_nothing(running: Running) -> None:
    assert "dials" in running.lines, running.lines
    assert not [line for line in running.lines if line.startswith("heard Submit")]


def test_made_keys_are_one_for_each_name(fleet: tuple[HermaProcess, Path]) -> None:
    """Each name has a key of its own, and another user cannot read the keys."""
    _, folder = fleet
    pairs = [tuple(_pair(folder, name)) for name in ("gateway", "worker-w", "worker-late")]
    assert len({*pairs}) == 3
    if _as_nobody():
        (path,) = (folder / "state").rglob("worker-w.secret")
        look = [*_as_nobody(), "cat", str(path)]
        assert subprocess.run(look, check=False, capture_output=True).returncode != 0


def test_without_a_key_nobody_joins(fleet: tuple[HermaProcess, Path], address: str) -> None:
    herma, _ = fleet
    with rogue(address=address, name="w2", model="m") as running:
        _one_line(herma, f"a process was refused at {address}: it has no keys")
    _saw_nothing(running)


def test_nor_with_a_key_of_its_own(fleet: tuple[HermaProcess, Path], address: str) -> None:
    herma, folder = fleet
    server_key = _pair(folder, "gateway")[0]
    with rogue(address=address, name="w2", model="m", server_key=server_key) as running:
        _one_line(herma, "a process at 127.0.0.1 was refused: its key ")
    _saw_nothing(running)


@pytest.mark.parametrize(
    ("name", "of", "why"),
    [
        ("w", "late", "worker w refused: its key is not the one of `w`"),
        ("new", "late", "worker new refused: its key is not the one of `new`"),
        ("w", "w", "worker w refused: another live worker is called `w`"),
    ],
)
def test_a_key_opens_for_one_name_once(
    fleet: tuple[HermaProcess, Path], address: str, name: str, of: str, why: str
) -> None:
    """A key opens for one name once: even a stolen key does not take the place of its worker."""
    herma, folder = fleet
    keys = {"server_key": _pair(folder, "gateway")[0], "pair": _pair(folder, f"worker-{of}")}
    with rogue(address=address, name=name, model="m", **keys) as running:
        _one_line(herma, why)
        wait_until(lambda: any("heard Dismiss" in line for line in running.lines), "a reason")
    _saw_nothing(running)


def test_files_that_do_not_fit_are_refused(fleet: tuple[HermaProcess, Path], address: str) -> None:
    """Text files that do not fit their digest are refused from a worker with a valid key that alone
    serves a model: it never gets prompts.
    """
    herma, folder = fleet
    keys = {"server_key": _pair(folder, "gateway")[0], "pair": _pair(folder, "worker-late")}
    with (
        _stopped(herma),
        rogue(address=address, name="late", model="late", lies=True, **keys) as running,
    ):
        _one_line(herma, "worker late refused: its tokenizer and template files do not fit")
        body = {"model": "late", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 4}
        with pytest.raises(httpx.ReadTimeout):
            httpx.post(f"{herma.base_url}/chat/completions", json=body, timeout=3)
    _saw_nothing(running)


def test_frames_that_lie_change_no_answer(fleet: tuple[HermaProcess, Path], address: str) -> None:
    """Tokens and ends of sequences that it was never given, and frames that are none."""
    herma, folder = fleet
    keys = {"server_key": _pair(folder, "gateway")[0], "pair": _pair(folder, "worker-late")}
    with (
        _stopped(herma),
        rogue(address=address, name="late", model="other", floods=True, **keys) as running,
    ):
        wait_until(lambda: herma.metrics()["herma_frames_garbage_total"] > 20, "garbage")
        _ask(herma)
    assert len([line for line in herma.output if "garbage from late" in line]) <= 8
    _saw_nothing(running)


@pytest.mark.skipif(not _as_nobody(), reason="needs root and setpriv")
def test_other_users_do_not_join_by_sockets(tmp_path: Path) -> None:
    """Other users cannot connect to a socket's file; at an abstract name, which has no mode, they
    are refused.
    """
    tmp_path.chmod(0o755)
    bind = f"ipc://@herma-test-{os.getpid()}"
    with _fleet(tmp_path, bind) as herma:
        with rogue(address=bind, name="w2", model="m") as running:
            _one_line(herma, f"a process of user nobody (pid {running.process.pid}) was refused")
        _saw_nothing(running)
