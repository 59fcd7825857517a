"""A fleet of real processes with handles to hurt it.

Owns `herma up` with N workers behind proxies, the harness's engine in each, and the marks that
the processes leave: the gateway's events and the moment at which an engine had loaded. Must not
know clients.
"""

import json
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any

import trio

from tests.chaos.engine import LOADED, Orders
from tests.chaos.proxy import Proxy, open_proxies
from tests.fakes.herma_process import HermaProcess, herma_up, wait_until
from tests.fakes.text_models import write_text_model

ROOT = Path(__file__).parents[2]
ENGINE = Path(__file__).with_name("engine.py")

GATEWAY = """
[gateway]
port = 0
worker_bind = "tcp://127.0.0.1:{port}"
insecure_local = true
disconnect_grace_s = {disconnect_grace_s}

[[models]]
name = "m"
{fallback}
"""
WORKER = """
[[workers]]
name = "{name}"
model = "{model}"
serves = "m"
gateways = ["tcp://127.0.0.1:{port}"]
device = "cpu"
dtype = "float32"
threads = 1
max_seqs = 16
token_budget = 512
kv_tokens = 24576
context_length = 1024
"""


@dataclass(frozen=True, slots=True)
class Event:
    """A structured line of the gateway's log; `at` in seconds since 1970."""

    kind: str
    at: float
    worker: str = ""
    line: str = ""


class Fleet:
    """The running processes. `names` are the workers'; `proxies` stand in the same order."""

    def __init__(
        self, herma: HermaProcess, folder: Path, names: list[str], proxies: list[Proxy]
    ) -> None:
        self.herma = herma
        self.names = names
        self.proxies = dict(zip(names, proxies, strict=True))
        self._folder = folder
        self._orders = {name: Orders() for name in names}

    def engine_pid(self, name: str) -> int:
        """The process id of the worker's present engine, loaded or not; 0 if it has none."""
        return next(iter(self.herma.pids(f"herma engine {name}")), 0)

    def supervisor_pid(self, name: str) -> int:
        """0 while it has none."""
        return next(iter(self.herma.pids(f"herma worker {name}")), 0)

    def signal_engine(self, name: str, number: int) -> None:
        """Hit the engine. Raises `ProcessLookupError` if it has none."""
        _hit(self.engine_pid(name), number)

    def signal_supervisor(self, name: str, number: int) -> None:
        """Hit the supervisor. Raises `ProcessLookupError` if it has none."""
        _hit(self.supervisor_pid(name), number)

    def order(self, name: str, **changes: Any) -> None:
        """Change the orders of that worker's engine."""
        self._orders[name] = replace(self._orders[name], **changes)
        self._orders[name].write(self._folder, name)

    def orders(self, name: str) -> Orders:
        """What the engine has been told last."""
        return self._orders[name]

    def end_next_start(self, name: str, code: int) -> None:
        """Have the next start of that worker's engine exit with `code`, once."""
        (self._folder / f"{name}.exit").write_text(str(code))

    def hold_starts(self, name: str) -> None:
        """Keep starts of that worker's engine waiting until they are released."""
        (self._folder / f"{name}.hold").touch()

    def release_starts(self, name: str) -> None:
        """Let them go on."""
        (self._folder / f"{name}.hold").unlink()

    def events(self) -> list[Event]:
        """All of the gateway so far, in order."""
        parsed = (parse_event(line) for line in list(self.herma.output))
        return [event for event in parsed if event is not None]

    def loaded_at(self, name: str, after: float) -> float | None:
        """When an engine of that worker had its weights, first after that time."""
        said = f"engine {name}: {LOADED}"
        lines = (line.rpartition(said) for line in list(self.herma.output))
        times = (float(value) for _, found, value in lines if found)
        return next((at for at in times if at > after), None)

    async def wait_ready(self) -> None:
        """Return once every worker is ready."""
        count = {"m": len(self.names)}
        await trio.to_thread.run_sync(self.herma.wait_models_ready, count)

    def wake_everybody(self) -> None:
        """Stopped processes hear no SIGTERM, and would outlive the harness."""
        for name in self.names:
            for pid in (self.engine_pid(name), self.supervisor_pid(name)):
                if pid:
                    os.kill(pid, signal.SIGCONT)


def _hit(pid: int, number: int) -> None:
    """Signal the process. The number 0 would be all processes of the harness."""
    if not pid:
        raise ProcessLookupError("there is no such process now")
    os.kill(pid, number)


def parse_event(line: str) -> Event | None:
    """The event that a line of the log tells, if it is one."""
    if not line.startswith('{"event":'):
        return None
    told = json.loads(line)
    at = datetime.fromisoformat(told["time"]).timestamp()
    return Event(told["event"], at, told.get("worker", ""), line)


def free_port() -> int:
    """A port that nobody listens on at the moment."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port: int = free.getsockname()[1]
        return port


@asynccontextmanager
async def open_fleet(
    folder: Path,
    num_workers: int,
    *,
    fallback: str = "",
    providers: str = "",
    disconnect_grace_s: float = 10.0,
    **environ: str,
) -> AsyncIterator[Fleet]:
    """`herma up` with that many ready workers, w1 first, for the length of the block. `fallback`
    is text of the model's table, `providers` tables of their own.
    """
    model = await trio.to_thread.run_sync(write_text_model, folder / "model")
    names = [f"w{number + 1}" for number in range(num_workers)]
    port = free_port()
    async with open_proxies(num_workers, port) as proxies:
        tables = [
            WORKER.format(name=name, model=model, port=proxy.port)
            for name, proxy in zip(names, proxies, strict=True)
        ]
        config = folder / "herma.toml"
        gateway = GATEWAY.format(
            port=port, fallback=fallback, disconnect_grace_s=disconnect_grace_s
        )
        config.write_text(gateway + providers + "".join(tables))
        for name in names:
            Orders().write(folder, name)
        (folder / "run").mkdir(mode=0o700)
        variables = {
            "HERMA_ENGINE_COMMAND": json.dumps([sys.executable, str(ENGINE), str(folder)]),
            "HERMA_RUNTIME_DIR": str(folder / "run"),
            "PYTHONPATH": str(ROOT),
            **environ,
        }
        manager = herma_up(config, **variables)
        herma = await trio.to_thread.run_sync(manager.__enter__)
        fleet = Fleet(herma, folder, names, proxies)
        try:
            await fleet.wait_ready()
            yield fleet
        finally:
            fleet.wake_everybody()
            with trio.CancelScope(shield=True):
                await trio.to_thread.run_sync(manager.__exit__, None, None, None)


async def until(holds: Any, what: str, *, timeout_s: float = 120.0) -> None:
    """Return once `holds()` does; fails naming `what`."""
    await trio.to_thread.run_sync(lambda: wait_until(holds, what, timeout_s=timeout_s))
