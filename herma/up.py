"""`herma up`: the gateway and this host's workers, as one command.

Owns the child processes: starts them, restarts one that dies, stops them all in order. Must not
import what they run.
"""

import os
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Final

import trio
from setproctitle import setproctitle

from config import Config, builtin_config, load_config
from herma.child import Child
from herma.cli import EXIT_SAID_WHY

MIN_BACKOFF_S: Final = 0.2
MAX_BACKOFF_S: Final = 10.0
HEALTHY_S: Final = 30.0
"""A child that lived so long starts again with the shortest back-off."""


def run_up(config_path: Path | None, port: int | None) -> int:
    """Serve until SIGINT or SIGTERM. Returns the exit status: 2 if a child said what is wrong."""
    config = builtin_config() if config_path is None else load_config(config_path)
    setproctitle("herma up")
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
    dial = [] if address is None else ["--gateway", address]
    workers = [["worker", *common, "--name", worker.name, *dial] for worker in config.workers]
    return [Child(_argv(words)) for words in (gateway, *workers)]


def _argv(words: list[str]) -> list[str]:
    return [sys.executable, "-m", "herma", "--parent", str(os.getpid()), *words]


async def _serve(children: list[Child]) -> int:
    status = 0
    async with trio.open_nursery() as nursery:

        def give_up(child_status: int) -> None:
            nonlocal status
            status = status or child_status
            nursery.cancel_scope.cancel()

        for child in children:
            nursery.start_soon(_keep_running, child, give_up)
        nursery.start_soon(_until_signal, partial(give_up, 0))
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
        role = child.argv[child.argv.index("herma") + 3]
        print(f"herma: {role} ended with {status}; again in {backoff_s:g} s", file=sys.stderr)
        await trio.sleep(backoff_s)
        backoff_s = min(2 * backoff_s, MAX_BACKOFF_S)


async def _until_signal(stop: Callable[[], None]) -> None:
    with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        async for _ in signals:
            stop()
            return
