"""`herma gateway`: one gateway process, or the parent of several on one port.

Owns the translation of the command line into the gateway's options. The parent holds the port,
replaces a process that dies or hangs, and prints `ready` once for all. Imports the gateway only to
run it.
"""

import argparse
import os
import sys
from contextlib import closing
from typing import Final

import trio
from setproctitle import setproctitle

from config import Config, builtin_config, load_config, with_gateway
from herma.checks import check_process_ports, check_providers, claim_port
from herma.child_processes import GRACE_S, Child, herma_argv, keep_running
from herma.process_watch import ProcessWatch, watches
from housekeeping.imports import uncollected
from housekeeping.service_manager import say

_GATEWAY_KEYS: Final = ("port", "worker_bind", "processes", "log")
"""Options of the command line that override a key of `[gateway]`."""


def run(arguments: argparse.Namespace) -> int:
    """Run the gateway, or the parent of several, until SIGINT or SIGTERM. Returns the status."""
    if arguments.process is None:
        config = gateway_config(arguments)
        if config.gateway.processes > 1:
            return _run_processes(config, gateway_options(arguments))
    with uncollected():
        from gateway.__main__ import main

    options = gateway_options(arguments, but=("processes",))
    return main([*options, "--process", arguments.process or "0/1"])


def gateway_config(arguments: argparse.Namespace) -> Config:
    """The configuration with the command line's overrides. Raises `ConfigError`."""
    path = arguments.config
    config = _without_file(arguments) if path is None else load_config(path)
    keys = {key: getattr(arguments, key, None) for key in _GATEWAY_KEYS}
    return with_gateway(config, "the command line" if path is None else str(path), **keys)


def _without_file(arguments: argparse.Namespace) -> Config:
    model, serves = getattr(arguments, "model", None), arguments.serves
    return builtin_config(model) if serves is None else builtin_config(model, serves)


def gateway_options(arguments: argparse.Namespace, but: tuple[str, ...] = ()) -> list[str]:
    """The given options as words for another process, except those in `but`."""
    options = [] if arguments.config is None else ["--config", str(arguments.config)]
    if arguments.serves is not None:
        options += ["--serves", arguments.serves]
    for key in _GATEWAY_KEYS:
        if key not in but and (value := getattr(arguments, key, None)) is not None:
            options += [f"--{key.replace('_', '-')}", str(value)]
    return options


def _run_processes(config: Config, options: list[str]) -> int:
    """Serve with several processes; `options` are the gateway's options of the command line.

    Returns the exit status: 2 if a process explained what is wrong. Raises `ConfigError` for
    problems found before the start.
    """
    setproctitle("herma gateways")
    check_providers(config, os.environ)
    gateway = config.gateway
    check_process_ports(gateway)
    with closing(claim_port(gateway)) as claim:
        port = claim.getsockname()[1]
        names = [f"{index}/{gateway.processes}" for index in range(gateway.processes)]
        with watches(len(names), gateway.hang_s, port) as watching:
            words = [*options, "--port", str(port)]
            return trio.run(keep_running, _children(config, words, names, watching))


class ReadyCount:
    """Prints the line `ready URL` once, when all of `count` processes have printed it."""

    def __init__(self, count: int) -> None:
        self._missing = set(range(count))

    def add_line(self, index: int, line: str) -> None:
        if line.startswith("ready ") and index in self._missing:
            self._missing.remove(index)
            if not self._missing:
                say(line, sys.stdout)
        elif line.startswith("dashboard "):
            say(line, sys.stdout)


def _children(
    config: Config, options: list[str], names: list[str], watching: list[ProcessWatch]
) -> list[Child]:
    ready = ReadyCount(len(names))

    def child(index: int, name: str, watch: ProcessWatch) -> Child:
        return Child(
            f"gateway {name}",
            herma_argv(["gateway", *options, "--process", name]),
            stop_s=config.gateway.drain_s + GRACE_S,
            on_line=lambda line: ready.add_line(index, line),
            watch=watch,
        )

    pairs = zip(names, watching, strict=True)
    return [child(index, name, watch) for index, (name, watch) in enumerate(pairs)]
