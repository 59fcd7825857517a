"""A worker on demand that was given up, on a card where another model is resident by now."""

import shlex
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from herma.processes import ask as ask_process
from herma.processes import supervisors
from protocol.control_messages import Ask, AskHold, AskRestart, AskServe, Done
from tests.e2e.test_turns import ask, engines, states, worker
from tests.fakes.foreign_process import stub_argv
from tests.fakes.herma_process import HermaProcess, herma_up, wait_until
from tests.fakes.ports import free_ports
from tests.fakes.turning_card import TurningCard

CONFIG = """
[gateway]
port = 0
worker_bind = "ipc://{folder}/workers"
drain_s = 1.0

[[models]]
name = "alpha"
residency = "on-demand"

[[models]]
name = "beta"
residency = "on-demand"

[[workers]]
name = "a"
model = "builtin:herma-tiny"
engine = "synthetic"
device = "cuda:0"
serves = "alpha"
step_ms = 1.0
drain_s = 1.0

[[workers]]
name = "b"
model = "builtin:herma-tiny"
engine = "vllm"
url = "http://127.0.0.1:{port}"
launch = {{ argv = ["{program}"] }}
device = "cuda:0"
serves = "beta"
probe_context = 0
drain_s = 1.0
"""


class Pair:
    """Two models on one card. The engine of `b` fails at each start until `mend`."""

    def __init__(self, folder: Path, runtime: Path) -> None:
        self.runtime, self._program = runtime, folder / "engine.sh"
        self._port = str(free_ports(1))
        self._write(ignores_ids=True)  # which no other start changes
        self.card = TurningCard(folder / "card", 80_000, {"a": 60_000, "b": 50_000})
        self.config = folder / "herma.toml"
        self.config.write_text(CONFIG.format(folder=folder, port=self._port, program=self._program))

    def mend(self) -> None:
        self._write()

    def edit(self, old: str, new: str) -> None:
        """Change the configuration file."""
        text = self.config.read_text()
        assert old in text
        self.config.write_text(text.replace(old, new))

    def run(self, *words: str) -> str:
        """A command about a worker that ends well."""
        done = worker(self.runtime, *words)
        assert done.returncode == 0, done
        return done.stdout

    def state(self, name: str) -> str:
        return worker(self.runtime, "status", name).stdout.splitlines()[1].split()[1]

    def _write(self, **settings: bool) -> None:
        argv = shlex.join(stub_argv(self._port, **settings))
        script = self._program.with_suffix(".new")
        script.write_text(f"#!/bin/sh\ncd {shlex.quote(str(Path.cwd()))}\nexec {argv}\n")
        script.chmod(0o755)
        script.replace(self._program)


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    with TemporaryDirectory(prefix="turns-") as runtime:
        yield Pair(tmp_path, Path(runtime))


@pytest.fixture
def herma(pair: Pair) -> Iterator[HermaProcess]:
    """`b` is given up, and `a` is resident."""
    environ = {**pair.card.environ, "HERMA_RUNTIME_DIR": str(pair.runtime)}
    with herma_up(pair.config, **environ) as running:
        given_up = worker(pair.runtime, "wake", "b")
        assert (given_up.returncode, "b is stopped" in given_up.stdout) == (1, True), given_up
        ask(running, "alpha")
        yield running


def test_a_restart_of_a_stopped_worker_takes_its_turn(herma: HermaProcess, pair: Pair) -> None:
    """A restart does not start the engine beside the resident one; the next request for it does."""
    pair.mend()
    assert "asleep" in pair.run("restart", "b")
    assert engines(herma) == {"a": 1}
    assert states(herma)["beta"] == "asleep"
    assert ask(herma, "beta")
    assert engines(herma) == {"b": 1}
    assert ask(herma, "alpha")
    assert engines(herma) == {"a": 1}


def test_a_trial_of_a_stopped_worker_takes_its_turn(
    herma: HermaProcess, pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No request can wait for a worker that is held, so its turn is asked for."""
    monkeypatch.setenv("HERMA_RUNTIME_DIR", str(pair.runtime))
    (path,) = (one.path for one in supervisors() if one.status and one.status.name == "b")

    def told(question: Ask) -> None:
        assert isinstance(ask_process(path, question), Done)

    pair.mend()
    told(AskHold(drain_s=1.0, lease_s=600.0))
    told(AskRestart(force=True))
    wait_until(lambda: engines(herma) == {"b": 1}, "its turn")
    wait_until(lambda: pair.state("b") == "ready", "b ready in its hold")
    assert engines(herma) == {"b": 1}
    told(AskServe())
    assert ask(herma, "beta")
    assert ask(herma, "alpha")
    assert engines(herma) == {"a": 1}


def test_a_restart_with_other_keys_is_measured_alone(herma: HermaProcess, pair: Pair) -> None:
    """Two that fit together are both resident until one of them is another engine."""
    pair.card.needs("a", 30_000)
    pair.edit('serves = "alpha"', 'serves = "alpha"\nmax_seqs = 3')
    pair.run("restart", "a")  # it was measured to take more
    pair.mend()
    pair.run("restart", "b")
    for model in ("alpha", "beta", "alpha"):
        assert ask(herma, model)
    assert engines(herma) == {"a": 1, "b": 1}
    pair.edit("max_seqs = 3", "max_seqs = 4")
    pair.card.needs("a", 60_000)
    pair.run("restart", "a")
    wait_until(lambda: states(herma)["alpha"] == "asleep", "a without its place")
    assert engines(herma) == {"b": 1}
    assert ask(herma, "alpha")
    assert engines(herma) == {"a": 1}
