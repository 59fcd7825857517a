"""`herma up`: the gateway and this host's workers, as one command.

Owns the child processes and their command lines. Must not import what they run.
"""

import os
from argparse import Namespace
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import trio
from setproctitle import setproctitle

from config import FILE_NAME, Config
from herma.attach.choices import text_of
from herma.checks import (
    check_host,
    check_only_model,
    check_process_ports,
    known_model,
    unserved_models,
)
from herma.child_processes import GRACE_S, Child, herma_argv, keep_running
from herma.commands.gateway import gateway_config, gateway_options
from herma.doctor import examine, this_host
from herma.fleet_reload import FleetReload, worker_children
from housekeeping.process_files import make_scratch, remove
from housekeeping.service_manager import say
from protocol.errors import ConfigError


def run(arguments: Namespace) -> int:
    """Serve until SIGINT or SIGTERM. Returns the status: 2 if a child explained what is wrong.

    Raises `ConfigError` for problems found before the start.
    """
    if arguments.attach:
        return _attach(arguments)
    if arguments.cloud is not None:
        raise ConfigError("--cloud URL belongs to --attach URL; a file has [providers.NAME]")
    if arguments.context_length is not None:
        raise ConfigError("--context-length N belongs to --attach URL; a file has context_length")
    return _serve(arguments)


def _attach(arguments: Namespace) -> int:
    """Serve what runs already, by a file that lasts as long as this process."""
    if arguments.config is not None or arguments.model is not None:
        raise ConfigError("--attach is a start without --config and --model")
    folder = make_scratch("up")
    try:
        text = text_of(arguments, lambda line: say(f"herma: {line}"), f"ipc://{folder}/workers")
        arguments.config = Path(folder) / FILE_NAME
        arguments.config.write_text(text, encoding="utf-8")
        say("herma: `herma init` with the same options writes this set-up as a file")
        return _serve(arguments)
    finally:
        remove(folder)


def _serve(arguments: Namespace) -> int:
    _take_model(arguments)
    config = gateway_config(arguments)
    check_host(config, os.environ)
    if arguments.config is not None:
        check_process_ports(config.gateway)
    else:
        check_only_model(config)
    setproctitle("herma up")
    for finding in examine(this_host(arguments.config), config):
        # The start itself reports a taken port.
        if finding.level == "error" and finding.check != "ports":
            say(f"herma: {finding.what}; {finding.remedy}")
    for problem in unserved_models(config):
        say(f"herma: {problem}; requests wait until a worker connects")
    with _worker_address(arguments.config) as address:
        children = _children(config, arguments, address)
        if arguments.config is None:
            return trio.run(keep_running, children)
        return trio.run(keep_running, children, FleetReload(config.gateway, arguments.config).run)


def _take_model(arguments: Namespace) -> None:
    """Complete `--model` and `--name`. Raises `ConfigError` if a file is given too, which sets
    both.
    """
    if arguments.model is None and arguments.serves is None:
        return
    if arguments.config is not None:
        raise ConfigError("--model and --name are for a start without --config FILE")
    if arguments.model is None:
        raise ConfigError("--name NAME needs --model DIR, the model that it names")
    arguments.model, own_name = known_model(arguments.model)
    arguments.serves = arguments.serves or own_name


@contextmanager
def _worker_address(config_path: Path | None) -> Iterator[str | None]:
    """None to use the file's addresses. The built-in set-up gets a private socket, so that two of
    them on one host never connect to each other; the next start removes the socket of a killed one.
    """
    if config_path is not None:
        yield None
        return
    folder = make_scratch("up")
    try:
        yield f"ipc://{folder}/workers"
    finally:
        remove(folder)


def _children(config: Config, arguments: Namespace, address: str | None) -> list[Child]:
    words = ["gateway", *gateway_options(arguments)]
    if address is not None:
        words += ["--worker-bind", address]
    # With several processes the child is their parent, which itself waits one GRACE_S for them.
    gateway = Child("gateway", herma_argv(words), stop_s=config.gateway.drain_s + 2 * GRACE_S)
    return [gateway, *worker_children(config.workers, config.gateway, arguments.config, address)]
