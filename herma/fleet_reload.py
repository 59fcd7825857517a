"""The workers of a running `herma up`, as the file has them now.

Owns which of them start and end at a reload, and their command lines. Must not know what a gateway
or a worker takes from the file: each reads it itself.
"""

import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final, final

import trio
from msgspec.structs import replace

from config import Config, GatewayConfig, WorkerConfig, load_config
from herma.checks import check_host
from herma.child_processes import GRACE_S, Child, Children, herma_argv
from housekeeping.audit import Act
from housekeeping.service_manager import say
from housekeeping.signals import hangups
from protocol.control_messages import (
    UP_SOCKET,
    Answer,
    Ask,
    AskReload,
    AskStatus,
    Reloaded,
    UpStatus,
)
from protocol.errors import ConfigError
from protocol.transport import ControlSocket

_WORKER: Final = "worker "
"""The names of the children that are workers begin with this."""


def worker_children(
    workers: Iterable[WorkerConfig],
    gateway: GatewayConfig,
    config_path: Path | None,
    address: str | None = None,
) -> Iterator[Child]:
    """The children of `workers`, beside a gateway of that configuration. Without a file `address`
    is that of its gateway.
    """
    common = [] if config_path is None else ["--config", str(config_path)]
    for worker in workers:
        words = ["worker", *common, "--name", worker.name]
        if address is not None:
            words += ["--gateway", address, "--model", worker.model, "--serves", worker.serves]
        if address is not None or worker.gateways == (gateway.worker_bind,):
            words.append("--beside-gateway")
        name = f"{_WORKER}{worker.name}"
        yield Child(name, herma_argv(words), stop_s=worker.drain_s + GRACE_S)


def worker_changes(
    running: Iterable[str], new: Config
) -> tuple[tuple[WorkerConfig, ...], tuple[str, ...]]:
    """The workers of `new` that do not run, and the names of those that run and are gone."""
    names = tuple(running)
    wanted = {worker.name for worker in new.workers}
    started = tuple(worker for worker in new.workers if worker.name not in names)
    return started, tuple(name for name in names if name not in wanted)


@final
class FleetReload:
    """Starts workers that are new in the file `path` and ends those that are gone, at SIGHUP and at
    `herma reload`. `gateway` is what the gateway was started with.
    """

    def __init__(self, gateway: GatewayConfig, path: Path) -> None:
        self._gateway = gateway
        self._path = path

    async def run(self, children: Children) -> None:
        """Reload when asked to, until cancelled."""

        async def answer(ask: Ask) -> Answer:
            if isinstance(ask, AskReload):
                return await self.take(children)
            if isinstance(ask, AskStatus):
                return UpStatus(os.getpid(), str(self._path.absolute()))
            raise ConfigError("this is `herma up`, neither a gateway nor a worker")

        try:
            control = ControlSocket(UP_SOCKET, answer, _note)
        except ConfigError as error:
            say(f"herma: `herma reload` will start no new worker here: {error}")
            await self._reload_at_hangups(children)
            return
        async with trio.open_nursery() as nursery:
            nursery.start_soon(control.run)
            await self._reload_at_hangups(children)

    async def take(self, children: Children) -> Reloaded:
        """Start and end workers as the file says. Raises `ConfigError`, and changes nothing, for a
        file with a mistake and for a new worker that this host cannot run.
        """
        new = await trio.to_thread.run_sync(load_config, self._path)
        running = [
            name.removeprefix(_WORKER) for name in children.names if name.startswith(_WORKER)
        ]
        started, ended = worker_changes(running, new)
        if started:
            # Its gateway has its own port already.
            alone = replace(new, workers=started, gateway=replace(new.gateway, port=0))
            await trio.to_thread.run_sync(check_host, alone, os.environ)
        pids = [children.end(f"{_WORKER}{name}") for name in ended]
        for name in ended:
            say(f"herma: worker {name} is gone from the file: it drains and ends")
        for child in worker_children(started, self._gateway, self._path):
            say(f"herma: {child.name} is new in the file: it starts")
            children.start(child)
        taken = [f"worker `{name}` (gone): it drains" for name in ended]
        taken += [f"worker `{worker.name}` (new): it starts" for worker in started]
        return Reloaded(tuple(taken), ended=tuple(pid for pid in pids if pid is not None))

    async def _reload_at_hangups(self, children: Children) -> None:
        async for _ in hangups():
            try:
                await self.take(children)
            except ConfigError as error:
                say(f"herma: no worker is started or ended: {error}")
            children.reload()


def _note(act: Act) -> None:
    """Write nothing: the gateway and each worker record in the audit file themselves what they
    take.
    """
