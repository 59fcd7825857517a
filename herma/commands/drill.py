"""`herma drill`: prove that a boot would bring every model back.

Owns the order: read the units, stop the running services, run the units' commands, restart the
services.
"""

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

import trio

from config import Config
from herma.boot import (
    BootUnit,
    Drill,
    local_url,
    only_this,
    read_units,
    run_drill,
    stop_running,
    systemctl,
)
from herma.child_processes import GRACE_S
from herma.commands.systemd import read_config, units_folder, user
from herma.doctor import this_host
from herma.processes import Supervisor, gateways, runs, supervisors
from herma.terminal import answer_to
from protocol.errors import ConfigError

EXIT_FAILED = 1


def run(arguments: argparse.Namespace) -> int:
    """Run the drill. Returns 0 if every model has answered, else 1. Raises `ConfigError`."""
    folder = arguments.units or units_folder(is_user=arguments.user)
    units = read_units(folder, user(), os.environ.get("XDG_RUNTIME_DIR"))
    configs = {path: read_config(path)[0] for path in {_config_path(unit) for unit in units}}
    config = configs[_config_path(units[0])]
    drill = _drill(arguments, units, configs)
    by_hand = _supervisors_of(units)
    _ask_first(drill, by_hand, is_sure=arguments.yes)
    stopped = stop_running(
        this_host(),
        [unit.name for unit in units],
        config.gateway.port if arguments.url is None else 0,
        [each.pid for each in by_hand],
        is_user=arguments.user,
        patience_s=drill.stop_s,
        say=_say,
    )
    has_passed = trio.run(run_drill, drill, _say)
    if stopped:
        _say(f"starting {', '.join(stopped)} again")
        if systemctl("start", *stopped, is_user=arguments.user):
            raise ConfigError(f"systemctl could not start {', '.join(stopped)}: journalctl -xe")
    return 0 if has_passed else EXIT_FAILED


def _supervisors_of(units: Sequence[BootUnit]) -> list[Supervisor]:
    """The supervisors that run a worker of the units, however they were started. A worker of the
    same name in another file belongs to another fleet.
    """
    workers = {(unit.option("--name"), _config_path(unit)) for unit in units}
    return [
        each
        for each in supervisors()
        if (one := each.status) is not None
        and any(
            name == one.name
            and (one.config == "" if file is None else runs(file, one) is not False)
            for name, file in workers
        )
    ]


def _ask_first(drill: Drill, by_hand: Sequence[Supervisor], *, is_sure: bool) -> None:
    """Ask before a fleet that serves is stopped. Raises `ConfigError` if the answer is no, and
    without a terminal to ask at.
    """
    urls = {gateway.status.url for gateway in gateways() if gateway.status is not None}
    names = {one.status.name for one in by_hand if one.status is not None} & drill.workers
    serving = [*sorted(urls & {drill.url}), *(f"worker {name}" for name in sorted(names))]
    if is_sure or not serving:
        return
    what = ", ".join(serving)
    if not sys.stdin.isatty():
        raise ConfigError(f"a drill stops what serves here ({what}): add --yes")
    if answer_to(f"A drill stops what serves here ({what}). Go on? [y/N] ").lower() != "y":
        raise ConfigError("nothing was stopped")


def _drill(
    arguments: argparse.Namespace,
    units: list[BootUnit],
    configs: dict[Path | None, Config],
) -> Drill:
    found = [
        configs[_config_path(unit)].worker(name)
        for unit in units
        if (name := unit.option("--name")) is not None
    ]
    workers = [worker for worker in found if worker is not None]
    heads = [worker for worker in workers if worker.rank == 0]
    gateway = configs[_config_path(units[0])].gateway
    if arguments.url is None and "gateway" not in units[0].argv:
        raise ConfigError("these units have no gateway: name the one that they dial with --url")
    key = None
    if arguments.key_env is not None and not (key := os.environ.get(arguments.key_env)):
        raise ConfigError(f"the environment variable {arguments.key_env}, of --key-env, is not set")
    certificate = gateway.tls_certificate_file
    is_tls = certificate is not None and arguments.url is None
    drains = [gateway.drain_s, *(worker.drain_s for worker in workers)]
    return Drill(
        units=units,
        url=arguments.url or local_url(gateway.host, gateway.port, is_tls=is_tls),
        models=sorted({worker.serves for worker in heads}),
        workers=frozenset(worker.name for worker in heads),
        api_key=key,
        timeout_s=arguments.timeout,
        stop_s=max(drains) + 3 * GRACE_S,
        tls=only_this(Path(units[0].folder or ".") / Path(certificate).expanduser())
        if is_tls and certificate is not None
        else None,
    )


def _config_path(unit: BootUnit) -> Path | None:
    value = unit.option("--config")
    return None if value is None else Path(value)


def _say(line: str) -> None:
    print(line, flush=True)
