"""Three models that share a card, behind one provider, through faults that overlap.

Owns the history: which faults come when, by a seed, and what must hold whatever comes. The provider
gives the answers of the workers, so that each answer has one right text whoever gives it. Must not
know how an answer is read: `traffic.py` does.
"""

import json
import os
import random
import re
import shlex
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import h11
import trio

from tests.chaos.fleet import until
from tests.chaos.traffic import CHAT, MESSAGES, RESPONSES, Answers, Prompt, Traffic, make_prompts
from tests.fakes.checked_http import checked_async_client
from tests.fakes.foreign_process import stub_argv
from tests.fakes.herma_process import HermaProcess, herma_up, title_of
from tests.fakes.ports import free_ports
from tests.fakes.provider import FakeProvider, open_provider
from tests.fakes.turning_card import TurningCard

NUM_CLIENTS: Final = 8
PAUSES_S: Final = (0.05, 0.3, 1.0, 2.5)
STOPS_S: Final = (0.3, 1.5, 4.0)
"""Some end before a process counts as lost, some after that."""
MODELS: Final = {"alpha": "a", "beta": "b", "gamma": "c"}
AWAKE: Final = {"a": 60_000, "b": 50_000, "c": 15_000}
"""MiB of a card of 80,000: `c` fits beside each of the others."""
TOKENS: Final = (20, 60)
_NUMBER: Final = re.compile(r"(\d+): ")
AGAIN_S: Final = 120.0
"""Within this time each model answers by its worker again, once the faults are over."""

_GATEWAY: Final = """
[gateway]
port = 0
worker_bind = "ipc://{folder}/workers"

[ledger]
path = "{folder}/ledger.sqlite"

[providers.far]
base_url = "{provider}"
"""
_WORKER: Final = """
[[models]]
name = "{model}"
residency = "on-demand"
fallback = [{{ provider = "far", model = "{model}" }}]

[[workers]]
name = "{name}"
model = "builtin:herma-tiny"
serves = "{model}"
device = "cuda:0"
drain_s = 2.0
stall_s = 20.0
{engine}
"""
_SYNTHETIC: Final = 'engine = "synthetic"\nstep_ms = 10.0\nmax_seqs = 8\n'
_VLLM: Final = (
    'engine = "vllm"\nurl = "http://127.0.0.1:{port}"\nprobe_context = 0\n'
    'launch = {{ argv = ["{program}"] }}\n'
)


@dataclass
class SameProvider(FakeProvider):
    """A provider that answers each prompt as its worker does. `answers` are the texts by prompt."""

    answers: Answers = field(default_factory=dict)

    async def _answer(
        self, stream: trio.abc.Stream, parser: h11.Connection, body: dict[str, Any]
    ) -> None:
        text, _, _ = self.answers[_number_of(body)]
        words = tuple(f" {word}" for word in text.split(" ")[1:])
        usage = {"prompt_tokens": 9, "completion_tokens": len(words), "total_tokens": 9}
        whole = FakeProvider(words=words, usage=usage, finish="length")
        await whole._answer(stream, parser, body)


def _number_of(body: dict[str, Any]) -> int:
    """The number of the prompt, which its text says."""
    found = _NUMBER.search(json.dumps(body["messages"]))
    assert found is not None
    return int(found[1])


class History:
    """One fleet and what is done to it."""

    def __init__(
        self, herma: HermaProcess, card: TurningCard, runtime: Path, rng: random.Random
    ) -> None:
        self.herma = herma
        self._card = card
        self._runtime = runtime
        self._rng = rng
        self._nursery: trio.Nursery

    async def run(self, count: int) -> None:
        """So many faults, which overlap; returns when the last one is over."""
        async with trio.open_nursery() as self._nursery:
            for _ in range(count):
                fault = self._rng.choice(self._faults())
                await fault(self._rng.choice("abc"))
                await trio.sleep(self._rng.choice(PAUSES_S))

    def _faults(self) -> list[Callable[[str], Awaitable[None]]]:
        return [
            self._kill_engine,
            self._kill_supervisor,
            self._kill_launched,
            self._stop_engine,
            self._stop_supervisor,
            self._take_card,
            self._remove_socket,
            self._sleep,
            self._wake,
            self._restart,
        ]

    async def _kill_engine(self, name: str) -> None:
        self._signal(f"herma engine {name}", signal.SIGKILL)

    async def _kill_supervisor(self, name: str) -> None:
        self._signal(f"herma worker {name}", signal.SIGKILL)

    async def _kill_launched(self, _: str) -> None:
        self._signal(sys.executable, signal.SIGKILL, "foreign_engine")

    async def _stop_engine(self, name: str) -> None:
        self._nursery.start_soon(self._stop, f"herma engine {name}")

    async def _stop_supervisor(self, name: str) -> None:
        self._nursery.start_soon(self._stop, f"herma worker {name}")

    async def _stop(self, title: str) -> None:
        pid = self._signal(title, signal.SIGSTOP)
        await trio.sleep(self._rng.choice(STOPS_S))
        if pid and title_of(pid).startswith(title):
            os.kill(pid, signal.SIGCONT)

    def _signal(self, title: str, number: int, word: str = "") -> int:
        """Hit the process of that title, with `word` in it; returns its pid, 0 if there is none."""
        found = (pid for pid in self.herma.pids(title) if word in title_of(pid))
        if pid := next(found, 0):
            try:
                os.kill(pid, number)
            except ProcessLookupError:
                return 0
        return pid

    async def _take_card(self, _: str) -> None:
        self._nursery.start_soon(self._take, self._rng.choice((10_000, 30_000, 70_000)))

    async def _take(self, mib: int) -> None:
        self._card.take(mib)
        await trio.sleep(self._rng.choice((1.0, 4.0, 8.0)))
        self._card.take(0)

    async def _remove_socket(self, _: str) -> None:
        if found := sorted(path for path in self._runtime.rglob("*") if path.is_socket()):
            self._rng.choice(found).unlink(missing_ok=True)

    async def _sleep(self, name: str) -> None:
        self._nursery.start_soon(self._command, "sleep", name)

    async def _wake(self, name: str) -> None:
        self._nursery.start_soon(self._command, "wake", name)

    async def _restart(self, name: str) -> None:
        self._nursery.start_soon(self._command, "restart", name)

    async def _command(self, *words: str) -> None:
        """What an operator does. Its worker may be away, so it may fail."""
        environ = {**os.environ, "HERMA_RUNTIME_DIR": str(self._runtime)}
        argv = [sys.executable, "-m", "herma", "worker", *words]
        await trio.run_process(
            argv, env=environ, check=False, capture_stdout=True, capture_stderr=True
        )


def _prompts(seed: int) -> list[Prompt]:
    """Prompts for each model. A seed makes the answers of the synthetic engines the same."""
    models, found = list(MODELS), []
    for one in make_prompts(12, seed, TOKENS, (CHAT, RESPONSES, MESSAGES)):
        model = models[one.number % len(models)]
        found.append(replace(one, body={**one.body, "model": model, "seed": one.number}))
    return found


def _write(folder: Path, provider: str, *, can_sleep: bool) -> TurningCard:
    """The file of the fleet and its card. The engine of `b` sleeps in its process if it can."""
    folder.mkdir()
    port, program = free_ports(1), folder / "engine.sh"
    argv = shlex.join(stub_argv(str(port), can_sleep=can_sleep, token_ms=10.0))
    program.write_text(f"#!/bin/sh\ncd {shlex.quote(str(Path.cwd()))}\nexec {argv}\n")
    program.chmod(0o755)
    engines = {"b": _VLLM.format(port=port, program=program)}
    tables = [
        _WORKER.format(model=model, name=name, engine=engines.get(name, _SYNTHETIC))
        for model, name in MODELS.items()
    ]
    text = _GATEWAY.format(folder=folder, provider=provider) + "".join(tables)
    (folder / "herma.toml").write_text(text)
    return TurningCard(folder / "card", 80_000, AWAKE, {"b": 1_000})


@asynccontextmanager
async def _open(folder: Path, provider: str, rng: random.Random) -> AsyncIterator[History]:
    card = _write(folder, provider, can_sleep=rng.random() < 0.7)
    with TemporaryDirectory(prefix="turns-") as runtime:
        environ = {**card.environ, "HERMA_RUNTIME_DIR": runtime}
        manager = herma_up(folder / "herma.toml", **environ)
        herma = await trio.to_thread.run_sync(manager.__enter__)
        try:
            yield History(herma, card, Path(runtime), rng)
        finally:
            with trio.CancelScope(shield=True):
                await trio.to_thread.run_sync(manager.__exit__, None, None, None)


async def run_history(folder: Path, num_faults: int, seed: int) -> dict[str, Any]:
    """One history. No client sees an error or a wrong byte, because the provider is well; in the
    end each model is answered by its worker, and nothing is left behind.
    """
    rng, prompts, provider = random.Random(seed), _prompts(seed), SameProvider()
    async with (
        open_provider(provider),
        _open(folder, provider.base_url, rng) as history,
    ):
        herma = history.herma
        traffic = Traffic(herma.base_url, prompts, provider.answers)
        await _ask_workers(traffic, prompts, provider.answers)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(traffic.run, NUM_CLIENTS, seed)
            await history.run(num_faults)
            traffic.stop()
        num_answers = len(traffic.over)
        num_provider = sum(one.served_by.startswith("cloud") for one in traffic.over)
        await _ask_workers(traffic, prompts, provider.answers)
        await until(lambda: not _left(herma), "an idle fleet")
        odd = [line for line in herma.output if "Traceback" in line]
    figures = {"answers": num_answers, "by the provider": num_provider, "missed": []}
    return {**figures, "problems": traffic.problems + odd}


async def _ask_workers(traffic: Traffic, prompts: list[Prompt], answers: Answers) -> None:
    """Each prompt is answered by a worker, in the end; the first answers are the right ones."""
    async with checked_async_client(traffic.base_url, timeout_s=AGAIN_S) as client:
        for prompt in prompts:
            with trio.fail_after(AGAIN_S):
                stream = await traffic.receive(client, prompt)
                while stream.served_by != "worker":
                    await trio.sleep(1.0)
                    stream = await traffic.receive(client, prompt)
            traffic.judge(stream)
            answers.setdefault(prompt.number, stream.answer)


def _left(herma: HermaProcess) -> dict[str, float]:
    """What requests have left in the gateway."""
    names = ("herma_requests_in_flight", "herma_sequences_running", "herma_queue_length")
    samples = herma.metrics().items()
    return {name: value for name, value in samples if name.startswith(names) and value}
