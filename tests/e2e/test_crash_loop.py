"""A whole `herma up` whose engine cannot be started again, and the way out of it."""

import os
import signal
import subprocess
import sys
from pathlib import Path

from tests.fakes.herma_process import descendants, herma_up, title_of, wait_until
from tests.fakes.moody import ROOT, Mood

CONFIG = """
[gateway]
port = 0
worker_bind = "ipc://{folder}/workers"
drain_s = 1.0

[[models]]
name = "echo"

[[workers]]
name = "w"
model = "builtin:herma-tiny"
serves = "echo"
drain_s = 1.0
"""


def test_a_crash_loop_is_shown_everywhere_and_healed(tmp_path: Path) -> None:
    """The kind of the fault is in /metrics, the cause in the log; `herma worker restart` heals."""
    mood = Mood(tmp_path)
    mood.set()
    config = tmp_path / "herma.toml"
    config.write_text(CONFIG.format(folder=tmp_path))
    script, away = tmp_path / "engine", tmp_path / "away"
    stub = ROOT / "tests" / "fakes" / "stub_engine.py"
    script.write_text(f'#!/bin/sh\nexec {sys.executable} {stub} {mood.path} "$@"\n')
    script.chmod(0o755)
    environ = mood.environ([str(script)])
    with herma_up(config, **environ) as herma:
        fault = 'herma_worker_fault{kind="file_not_found",worker="w"}'
        down = 'herma_worker_state{state="down",worker="w"}'
        script.rename(away)
        (supervisor,) = herma.pids("herma worker w")
        engine = next(pid for pid in descendants(supervisor) if "stub_engine" in title_of(pid))
        os.kill(engine, signal.SIGKILL)
        wait_until(lambda: herma.metrics().get(down) == 1, "the worker's end")
        assert herma.metrics()[fault] == 1

        def told() -> list[str]:
            return [line for line in herma.output if "stopped after 5 starts" in line]

        wait_until(told, "its line")
        assert len(told()) == 1  # by the gateway; the worker beside it leaves it to that
        assert "exit code 127: file not found" in told()[0]
        away.rename(script)
        subprocess.run(
            [sys.executable, "-m", "herma", "worker", "restart", "w"],
            env={**os.environ, **environ},
            check=True,
            timeout=300,
        )
        herma.wait_models_ready({"echo": 1})
        assert fault not in herma.metrics()
