"""What clients and the machine see when Herma is told to stop."""

import os
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.fakes.checked_http import checked_client
from tests.fakes.herma_process import descendants, herma_up, title_of, wait_until
from tests.fakes.moody import Mood
from tests.fakes.ports import free_ports

CONFIG = """
[gateway]
port = 0
worker_bind = "ipc://{folder}/workers"
drain_s = 1.0

[[models]]
name = "m"

[[workers]]
name = "w"
model = "builtin:herma-tiny"
engine = "synthetic"
step_ms = 10
serves = "m"
drain_s = 1.0
"""


def test_a_stream_that_cannot_end_in_time_says_so(tmp_path: Path) -> None:
    """At the drain's end an open stream gets an error that clients retry, never a silent end; and
    no process is left.
    """
    config = tmp_path / "herma.toml"
    config.write_text(CONFIG.format(folder=tmp_path))
    body = {
        "model": "m",
        "messages": [{"role": "user", "content": "Hello?"}],
        "max_tokens": 60_000,
        "ignore_eos": True,
        "stream": True,
    }
    with herma_up(config) as herma:
        with (
            checked_client(herma.base_url) as client,
            client.stream("POST", "/chat/completions", json=body) as reply,
        ):
            lines = reply.iter_lines()
            next(lines)
            family = descendants(herma.process.pid)
            herma.process.send_signal(signal.SIGTERM)
            events = [line for line in lines if line.startswith("data: ")]
        assert "upstream connection lost: the gateway is stopping" in events[-1]
        assert "data: [DONE]" not in events
        assert herma.stop() == 0
        assert len(family) >= 3
        assert not [pid for pid in family if "herma" in title_of(pid)]


def test_what_a_killed_herma_up_leaves_is_removed_by_the_next_one(tmp_path: Path) -> None:
    """The folder of the built-in set-up's socket is named for its owner; a living one's stays."""
    mood = Mood(tmp_path)
    mood.set()
    with TemporaryDirectory(prefix="herma-test-") as folder:

        def sockets() -> set[Path]:
            return set(Path(folder).glob("herma-*/workers"))

        with herma_up(None, TMPDIR=folder, **mood.environ()) as herma:
            (left,) = sockets()
            family = descendants(herma.process.pid)
            for pid in (*herma.pids("herma worker"), herma.process.pid):
                os.kill(pid, signal.SIGKILL)  # a worker that lives on would tidy up
            wait_until(lambda: not any("herma" in title_of(pid) for pid in family), "their end")
        assert left.parent.is_dir()
        with herma_up(None, TMPDIR=folder, **mood.environ()) as herma:
            wait_until(lambda: not left.parent.exists(), "its removal")
            assert len(sockets()) == 1
            assert herma.stop() == 0
        assert sockets() == set()


def _serves(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/v1/models", timeout=5) as reply:
            return b'"m"' in reply.read()
    except OSError:
        return False


def test_a_log_on_a_full_disk_ends_nothing(tmp_path: Path) -> None:
    """A log on a full disk ends nothing: the start, the announced restart of the gateway and the
    end go on.
    """
    config = tmp_path / "herma.toml"
    config.write_text(CONFIG.format(folder=tmp_path))
    port = free_ports(1)
    words = [sys.executable, "-m", "herma", "up", "--config", str(config), "--port", str(port)]
    environ = {**os.environ, "XDG_STATE_HOME": str(tmp_path / "state")}
    with Path("/dev/full").open("w") as full:
        process = subprocess.Popen(words, stdout=full, stderr=full, env=environ)

    def gateway() -> int:
        family = descendants(process.pid)
        return next((pid for pid in family if title_of(pid) == "herma gateway"), 0)

    try:
        wait_until(lambda: process.poll() is not None or _serves(port), "the model")
        first = gateway()
        assert first
        os.kill(first, signal.SIGKILL)
        wait_until(lambda: process.poll() is not None or gateway() not in (0, first), "another")
        wait_until(lambda: process.poll() is not None or _serves(port), "the model again")
        process.terminate()
        assert process.wait(60) in (0, 1)  # /dev/full refuses an empty write too
    finally:
        process.kill()
        process.wait()
