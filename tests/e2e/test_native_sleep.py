"""Engines of our own that sleep in their processes: real ones, over a card of a program."""

import json
import os
import signal
import sys
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from tests.e2e.test_turns import engines, states, told, worker
from tests.fakes import native_on_a_card
from tests.fakes.herma_process import HermaProcess, herma_up, wait_until
from tests.fakes.turning_card import TurningCard

ROOT = Path(__file__).parents[2]
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
device = "cuda:0"
serves = "alpha"
kv_tokens = 8192
drain_s = 1.0

[[workers]]
name = "b"
model = "builtin:herma-tiny"
device = "cuda:0"
serves = "beta"
kv_tokens = 8192
drain_s = 1.0
"""
PROMPT = "Count the words of this text: " + "the sea and the wind and the rain, " * 40


def ask(herma: HermaProcess, model: str) -> tuple[str, int]:
    """The answer, and how many tokens of the prompt were cached."""
    body = {
        "model": model,
        "max_tokens": 8,
        "temperature": 0,
        "messages": [{"role": "user", "content": PROMPT}],
    }
    request = urllib.request.Request(
        f"{herma.base_url}/chat/completions",
        json.dumps(body).encode(),
        {"content-type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=120) as reply:
        answer: dict[str, Any] = json.load(reply)
    cached = answer["usage"]["prompt_tokens_details"]["cached_tokens"]
    return answer["choices"][0]["message"]["content"], cached


@pytest.fixture(scope="module")
def card(tmp_path_factory: pytest.TempPathFactory) -> TurningCard:
    """A card on which both engines fit asleep, and one awake."""
    folder = tmp_path_factory.mktemp("native") / "card"
    return TurningCard(folder, 80_000, {"a": 60_000, "b": 50_000}, {"a": 1000, "b": 1000})


@pytest.fixture(scope="module")
def runtime() -> Iterator[Path]:
    with TemporaryDirectory(prefix="turns-") as folder:
        yield Path(folder)


@pytest.fixture(scope="module")
def herma(runtime: Path, card: TurningCard) -> Iterator[HermaProcess]:
    """One for all tests, because torch is slow to start: each leaves both models as it found them,
    but for the last.
    """
    config = card.folder / "herma.toml"
    config.write_text(CONFIG.format(folder=runtime))
    command = [sys.executable, str(Path(native_on_a_card.__file__)), str(card.folder)]
    environ = {
        **card.environ,
        "HERMA_ENGINE_COMMAND": json.dumps(command),
        "HERMA_RUNTIME_DIR": str(runtime),
        "PYTHONPATH": str(ROOT),
    }
    with herma_up(config, **environ) as running:
        yield running


def awake_pid(herma: HermaProcess, runtime: Path, name: str) -> int:
    """The process of the worker's engine, once its first measurement and trial are over."""
    wait_until(
        lambda: "by native sleep" in worker(runtime, "status", name).stdout, f"a sleep of {name}"
    )
    return herma.wait_pid(f"herma engine {name}")


def test_two_models_change_places_in_their_processes(herma: HermaProcess, runtime: Path) -> None:
    """Answers stay the same and find their prefixes; a process lives through all of it."""
    names = {"alpha": "a", "beta": "b"}
    first = {model: ask(herma, model)[0] for model in names}
    for model in names:
        assert ask(herma, model)[0] == first[model]
    pids = {name: awake_pid(herma, runtime, name) for name in names.values()}
    for _ in range(3):
        for model in names:
            answer, cached = ask(herma, model)
            assert (answer, cached > 200) == (first[model], True)
    assert {name: herma.wait_pid(f"herma engine {name}") for name in pids} == pids
    assert engines(herma) == {"a": 1, "b": 1}
    shown = worker(runtime, "status", "a").stdout
    assert "takes 58.59 GiB of cuda-0 awake; 1000.0 MiB asleep" in shown
    assert "by native sleep (the weights are on the host, with" in shown
    assert not told(herma, '"sleep trouble"')
    assert not told(herma, '"engine fault"')


def test_sleep_and_wake_by_hand(herma: HermaProcess, runtime: Path, card: TurningCard) -> None:
    """A card that others have taken: the request waits, one event says what is missing."""
    first, _ = ask(herma, "alpha")
    troubles = told(herma, '"sleep trouble"')
    slept = worker(runtime, "sleep", "a")
    assert (slept.returncode, "a is asleep" in slept.stdout) == (0, True), slept
    assert states(herma)["alpha"] == "asleep"
    pid = herma.wait_pid("herma engine a")
    card.take(30_000)
    with ThreadPoolExecutor(1) as pool:
        waits = pool.submit(ask, herma, "alpha")
        wait_until(lambda: told(herma, '"sleep trouble"') > troubles, "the trouble")
        assert "58.59 GiB" in worker(runtime, "status", "a").stdout
        assert not waits.done()
        card.take(0)
        answer, cached = waits.result()
    assert (answer, cached > 200) == (first, True)
    assert herma.wait_pid("herma engine a") == pid
    assert told(herma, '"sleep trouble"') == troubles + 1
    assert not told(herma, '"engine fault"')


def test_a_process_that_dies_asleep(herma: HermaProcess, runtime: Path) -> None:
    """One trouble; the next request starts another."""
    first, _ = ask(herma, "alpha")
    assert worker(runtime, "sleep", "a").returncode == 0
    pid = herma.wait_pid("herma engine a")
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: told(herma, "died asleep"), "the trouble")
    assert ask(herma, "alpha")[0] == first
    assert herma.wait_pid("herma engine a") != pid
    assert not told(herma, '"engine fault"')
