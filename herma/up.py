"""`herma up`: the gateway and this host's workers, as one command.

Owns the child processes: starts them, restarts one that dies, stops them all in order. Must not
import what they run.
"""

import os
import signal
import sys
import tempfile
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import trio
from setproctitle import setproctitle

from config import Config, builtin_config, load_config
from herma.child import Child
from herma.cli import EXIT_SAID_WHY
from herma.preflight import check_host, unserved_models

MIN_BACKOFF_S: Final = 0.2
MAX_BACKOFF_S: Final = 10.0
HEALTHY_S: Final = 30.0
"""A child that lived so long starts again with the shortest back-off."""


def run_up(config_path: Path | None, port: int | None) -> int:
    """Serve until SIGINT or SIGTERM. Returns the exit status: 2 if a child said what is wrong.

    Raises `ConfigError` for what can be seen before the start.
    """
    config = builtin_config() if config_path is None else load_config(config_path)
    setproctitle("herma up")
    check_host(config, config.gateway.port if port is None else port, os.environ)
    for problem in unserved_models(config):
        print(f"herma: {problem}; requests wait for a worker that dials in", file=sys.stderr)
    with _worker_address(config_path) as address:
        children = _children(config, config_path, port, address)
        return trio.run(_serve, children)


@contextmanager
def _worker_address(config_path: Path | None) -> Iterator[str | None]:
    """Where workers dial in: the file's address, or a private socket for the built-in set-up, so
    that two of them on one host never meet.
    """
    if config_path is not None:
        yield None
        return
    with tempfile.TemporaryDirectory(prefix="herma-") as folder:
        yield f"ipc://{folder}/workers"


def _children(
    config: Config, config_path: Path | None, port: int | None, address: str | None
) -> list[Child]:
    common = [] if config_path is None else ["--config", str(config_path)]
    gateway = ["gateway", *common]
    if port is not None:
        gateway += ["--port", str(port)]
    if address is not None:
        gateway += ["--worker-bind", address]
    children = [Child("gateway", _argv(gateway))]
    for worker in config.workers:
        words = ["worker", *common, "--name", worker.name]
        if address is not None:
            words += ["--gateway", address]
        if address is not None or worker.gateways == (config.gateway.worker_bind,):
            words.append("--beside-gateway")
        children.append(Child(f"worker {worker.name}", _argv(words)))
    return children


def _argv(words: list[str]) -> list[str]:
    return [sys.executable, "-m", "herma", "--parent", str(os.getpid()), *words]


async def _serve(children: list[Child]) -> int:
    with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        async with trio.open_nursery() as listening:
            stop = trio.Event()
            listening.start_soon(_listen, signals, stop, children)
            status = await _run_all(children, stop)
            listening.cancel_scope.cancel()
    return status


async def _run_all(children: list[Child], stop: trio.Event) -> int:
    status = 0
    async with trio.open_nursery() as nursery:

        def give_up(child_status: int) -> None:
            nonlocal status
            status = status or child_status
            nursery.cancel_scope.cancel()

        for child in children:
            nursery.start_soon(_keep_running, child, give_up)
        await stop.wait()
        give_up(0)
    return status


async def _keep_running(child: Child, give_up: Callable[[int], None]) -> None:
    """Start the child again when it dies, unless it said what is wrong."""
    backoff_s = MIN_BACKOFF_S
    while True:
        started_at = trio.current_time()
        status = await child.run()
        if status == EXIT_SAID_WHY:
            give_up(status)
            return
        if trio.current_time() - started_at > HEALTHY_S:
            backoff_s = MIN_BACKOFF_S
        how = _signal_name(-status) if status < 0 else f"exit code {status}"
        print(f"herma: {child.name} ended: {how}; again in {backoff_s:g} s", file=sys.stderr)
        await trio.sleep(backoff_s)
        backoff_s = min(2 * backoff_s, MAX_BACKOFF_S)


def _signal_name(number: int) -> str:
    """SIGKILL for 9; the number alone if it has no name here."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


async def _listen(signals: AsyncIterator[int], stop: trio.Event, children: Iterable[Child]) -> None:
    """The first signal stops the children in order; each further one hurries them."""
    async for number in signals:
        if stop.is_set():
            for child in children:
                child.hurry(number)
        stop.set()
