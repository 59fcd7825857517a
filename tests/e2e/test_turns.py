"""Two models on one card that holds one of them: real processes, and a card that a program claims.

Nothing here looks at a clock: how long changes take is for the policy's own tests.
"""

import json
import os
import signal
import subprocess
import sys
import urllib.request
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from tests.fakes.herma_process import (
    HermaProcess,
    herma_up,
    wait_until,
)
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
engine = "synthetic"
device = "cuda:0"
serves = "beta"
step_ms = 1.0
drain_s = 1.0
"""


def ask(herma: HermaProcess, model: str, prompt: str = "Hello") -> str:
    body = {
        "model": model,
        "max_tokens": 4,
        "seed": 7,
        "messages": [{"role": "user", "content": prompt}],
    }
    request = urllib.request.Request(
        f"{herma.base_url}/chat/completions",
        json.dumps(body).encode(),
        {"content-type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=120) as reply:
        content = json.load(reply)["choices"][0]["message"]["content"]
    assert isinstance(content, str)
    return content


def states(herma: HermaProcess) -> dict[str, str]:
    with urllib.request.urlopen(f"{herma.root_url}/health", timeout=30) as reply:
        health = json.load(reply)
    assert health["status"] == "ok"
    models = health["models"]
    assert isinstance(models, dict)
    return models


def engines(herma: HermaProcess) -> Counter[str]:
    return Counter(name for name in ("a", "b") for _ in herma.pids(f"herma engine {name}"))


def told(herma: HermaProcess, text: str) -> int:
    return sum(text in line for line in herma.output)


@pytest.fixture
def card(tmp_path: Path) -> TurningCard:
    return TurningCard(tmp_path / "card", 80_000, {"a": 60_000, "b": 50_000})


@pytest.fixture
def runtime() -> Iterator[Path]:
    """A folder of sockets, whose addresses have 107 bytes at most: pytest's own is too long."""
    with TemporaryDirectory(prefix="turns-") as folder:
        yield Path(folder)


@pytest.fixture
def herma(tmp_path: Path, runtime: Path, card: TurningCard) -> Iterator[HermaProcess]:
    """A fleet whose two models were both measured once."""
    config = tmp_path / "herma.toml"
    config.write_text(CONFIG.format(folder=tmp_path))
    with herma_up(config, **card.environ, HERMA_RUNTIME_DIR=str(runtime)) as running:
        yield running


def worker(runtime: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "herma", "worker", *words],
        env={**os.environ, "HERMA_RUNTIME_DIR": str(runtime)},
        check=False,
        capture_output=True,
        text=True,
        timeout=120,
    )


def test_bursts_take_turns_and_leave_nothing_behind(herma: HermaProcess) -> None:
    """Each answer is there and the same as before, one engine at a time."""
    first = {name: ask(herma, name) for name in ("alpha", "beta")}
    with ThreadPoolExecutor(8) as pool:
        for number in range(4):
            name = ("alpha", "beta")[number % 2]
            answers = list(pool.map(lambda _, name=name: ask(herma, name), range(10)))
            assert answers == [first[name]] * 10
            assert sum(engines(herma).values()) == 1
    assert 4 <= told(herma, '"worker awake"') <= 7  # one a burst, the first looks and first asks
    assert not told(herma, "engine fault")
    assert not told(herma, "worker lost")


def test_sleep_and_wake_by_hand(herma: HermaProcess, runtime: Path) -> None:
    assert ask(herma, "alpha")
    slept = worker(runtime, "sleep", "a")
    assert (slept.returncode, "a is asleep" in slept.stdout) == (0, True), slept
    assert not herma.pids("herma engine a")
    assert states(herma)["alpha"] == "asleep"
    shown = worker(runtime, "status", "a").stdout
    assert "asleep" in shown
    assert "takes 58.59 GiB of cuda-0 awake" in shown
    woken = worker(runtime, "wake", "a")
    assert (woken.returncode, "a is ready" in woken.stdout) == (0, True), woken
    assert states(herma)["alpha"] == "ready"


def test_a_card_taken_by_others(herma: HermaProcess, runtime: Path, card: TurningCard) -> None:
    """The request waits until the memory is there again; one event says what is missing."""
    first = ask(herma, "alpha")
    assert worker(runtime, "sleep", "a").returncode == 0
    card.take(30_000)
    with ThreadPoolExecutor(1) as pool:
        waits = pool.submit(ask, herma, "alpha")
        wait_until(lambda: told(herma, '"sleep trouble"'), "the trouble")
        shown = worker(runtime, "status", "a").stdout
        assert "58.59 GiB" in shown
        assert not herma.pids("herma engine a")
        assert not waits.done()
        card.take(0)
        assert waits.result() == first
    assert told(herma, '"sleep trouble"') == 1
    assert not told(herma, "engine fault")


def test_a_wake_that_fails(herma: HermaProcess, runtime: Path) -> None:
    """The engine dies on its way up, or on a fast machine just behind it: a fault as at any start,
    and the request gets its answer.
    """
    first = {name: ask(herma, name) for name in ("alpha", "beta")}
    assert worker(runtime, "sleep", "a").returncode == 0
    faults = told(herma, '"engine fault"')
    with ThreadPoolExecutor(1) as pool:
        waits = pool.submit(ask, herma, "alpha")
        os.kill(herma.wait_pid("herma engine a"), signal.SIGKILL)
        assert waits.result() == first["alpha"]
    wait_until(lambda: told(herma, '"engine fault"') == faults + 1, "the fault")
    assert ask(herma, "beta") == first["beta"]
    assert engines(herma) == {"b": 1}


@pytest.mark.parametrize("name", ["a", "b"])
def test_a_supervisor_that_dies_while_its_worker_sleeps(
    herma: HermaProcess, runtime: Path, name: str
) -> None:
    """The successor of a dead supervisor begins asleep with the old measurements, whichever
    supervisor decides for the card.
    """
    model = {"a": "alpha", "b": "beta"}
    other = "ba"["ab".index(name)]
    first = {one: ask(herma, model[one]) for one in (name, other)}
    assert engines(herma) == {other: 1}
    old = herma.wait_pid(f"herma worker {name}")
    os.kill(old, signal.SIGKILL)
    herma.wait_pid(f"herma worker {name}", other_than=old)
    wait_until(lambda: states(herma)[model[name]] == "asleep", f"{name} asleep again")
    assert engines(herma) == {other: 1}
    assert "takes" in worker(runtime, "status", name).stdout
    for one in (other, name):
        assert ask(herma, model[one]) == first[one]
        assert engines(herma) == {one: 1}


def test_an_engine_of_others_that_is_away_keeps_nobody_waiting(
    tmp_path: Path, runtime: Path, card: TurningCard
) -> None:
    """An attached engine that is away has no known memory, and its process is not Herma's. While it
    is away, the other models of the card take turns without it.
    """
    attached = (
        '\n[[workers]]\nname = "c"\nmodel = "builtin:herma-tiny"\nengine = "vllm"\n'
        f'url = "http://127.0.0.1:{free_ports(1)}"\ndevice = "cuda:0"\nserves = "gamma"\n'
    )
    config = tmp_path / "herma.toml"
    config.write_text(CONFIG.format(folder=tmp_path) + '\n[[models]]\nname = "gamma"\n' + attached)
    with herma_up(config, **card.environ, HERMA_RUNTIME_DIR=str(runtime)) as running:
        first = {name: ask(running, name) for name in ("alpha", "beta")}
        assert ask(running, "alpha") == first["alpha"]
        assert states(running)["gamma"] != "ready"
