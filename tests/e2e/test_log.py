"""What a person sees in the terminal of `herma up`: each event once, in one form, no tracebacks."""

import os
import re
import signal
import time
from pathlib import Path

import pytest

from tests.fakes.herma_process import HermaProcess, herma_up
from tests.fakes.text_models import write_text_model

CONFIG = """
[gateway]
port = 0
worker_bind = "ipc://{folder}/workers"

[[models]]
name = "small"

[[workers]]
name = "w"
model = "{folder}/model"
serves = "small"
"""
LINE = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3} (INFO|WARNING|ERROR) \S")
OURS = re.compile(r"((ready|dashboard) http://|herma: )")
EVENT = re.compile(r'\{"event":"[a-z ]+",.*"time":"[^"]+"\}\n')


@pytest.fixture
def config(tmp_path: Path) -> Path:
    """A worker with a small model, which starts in half the time of the built-in one."""
    write_text_model(tmp_path / "model")
    path = tmp_path / "herma.toml"
    path.write_text(CONFIG.format(folder=tmp_path))
    return path


def _count(herma: HermaProcess, text: str) -> int:
    return sum(text in line for line in herma.output)


def test_each_event_is_told_once(config: Path) -> None:
    """A start, the death of an engine and the restart: one line each, and no second witness."""
    with herma_up(config) as herma:
        first = herma.wait_pid("herma engine")
        os.kill(first, signal.SIGKILL)
        herma.wait_pid("herma engine", other_than=first)
        herma.wait_models_ready({"small": 1})
        assert herma.stop() == 0
    assert _count(herma, "SIGKILL") == 1, herma.output
    assert _count(herma, "joined") == 1, herma.output
    for event in ("worker ready", "engine fault", "worker back"):
        assert _count(herma, f'{{"event":"{event}"') == 1, herma.output
    known = LINE, OURS, EVENT
    odd = [line for line in herma.output if not any(form.match(line) for form in known)]
    assert not odd


def test_an_impatient_person_gets_no_traceback(config: Path) -> None:
    """Ctrl-C again and again until all are gone, as a terminal sends it to all: they leave at
    once, in silence, and it is no failure.
    """
    with herma_up(config) as herma:
        family = [herma.process.pid, *herma.pids("herma gateway"), *herma.pids("herma worker")]
        while herma.process.poll() is None:
            for pid in family:
                try:
                    os.kill(pid, signal.SIGINT)
                except ProcessLookupError:
                    continue
            time.sleep(0.01)
        assert herma.stop() == 0
    told = ("Traceback", "Error", "Exception", "Interrupt")
    assert not [line for line in herma.output if any(word in line for word in told)]
