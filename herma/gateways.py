"""`herma gateway --processes N`: several gateway processes on one port.

Owns the port and the processes: holds it while they come and go, starts one that dies again, says
`ready` once for all. Must not import what they run.
"""

import os
from contextlib import closing

import trio
from setproctitle import setproctitle

from config import Config
from herma.child_processes import GRACE_S, Child, herma_argv, keep_running
from herma.preflight import check_process_ports, check_providers, claim_port


def run_gateways(config: Config, options: list[str]) -> int:
    """Serve until SIGINT or SIGTERM; `options` is what the command line says of the gateway.

    Returns the exit status: 2 if a process said what is wrong. Raises `ConfigError` for what can
    be seen before the start.
    """
    setproctitle("herma gateways")
    check_providers(config, os.environ)
    check_process_ports(config.gateway)
    with closing(claim_port(config.gateway)) as claim:
        port = claim.getsockname()[1]
        return trio.run(keep_running, _children(config, [*options, "--port", str(port)]))


class Roll:
    """Who is ready; the last one is the first to be told of, once."""

    def __init__(self, count: int) -> None:
        self._missing = set(range(count))

    def heard(self, index: int, line: str) -> None:
        """Process `index` has said that."""
        if line.startswith("ready ") and index in self._missing:
            self._missing.remove(index)
            if not self._missing:
                print(line, flush=True)


def _children(config: Config, options: list[str]) -> list[Child]:
    count = config.gateway.processes
    roll = Roll(count)
    return [_child(f"{index}/{count}", options, config, index, roll) for index in range(count)]


def _child(gateway_index: str, options: list[str], config: Config, index: int, roll: Roll) -> Child:
    return Child(
        f"gateway {gateway_index}",
        herma_argv(["gateway", *options, "--process", gateway_index]),
        stop_s=config.gateway.drain_s + GRACE_S,
        on_line=lambda line: roll.heard(index, line),
    )
