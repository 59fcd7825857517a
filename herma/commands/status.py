"""`herma status`: the gateways of this host, a line each, and the table of its workers.

Owns the lines of gateways. Must not know how processes are asked.
"""

import argparse
from pathlib import Path

from herma.commands.worker import show_workers
from herma.processes import gateways, runs, supervisors
from protocol.control_messages import GatewayStatus, ModelCover


def run(arguments: argparse.Namespace) -> int:
    """Print both. Returns 1 if a process does not answer or is in trouble, or a worker is stopped,
    else 0. Raises `ConfigError` if nothing runs.
    """
    file: Path | None = None if arguments.all else arguments.config
    found = [one for one in gateways() if file is None or runs(file, one.status) is not False]
    for one in found:
        print(gateway_lines(one.pid, one.status))
    is_well = all(one.status is not None and not one.status.troubles for one in found)
    workers = (one for one in supervisors() if file is None or runs(file, one.status) is not False)
    if found and not any(workers):
        print("no worker runs here")
        return 0 if is_well else 1
    return max(0 if is_well else 1, show_workers(None, file))


def gateway_lines(pid: int, status: GatewayStatus | None) -> str:
    """The gateway and who serves its models; below it what does not work now."""
    if status is None:
        return f"gateway (pid {pid}) does not answer: it is stopped (kill -CONT) or hangs"
    models = ", ".join(map(_cover, status.models)) or "no model"
    process = f" {status.process}" * bool(status.process)
    troubles = "".join(f"\n  {trouble}" for trouble in status.troubles)
    return f"gateway{process} {status.url}/v1 (pid {pid}): {models}{troubles}"


def _cover(model: ModelCover) -> str:
    if not model.ready_workers:
        return f"{model.name} by {'providers alone' if model.has_providers else 'no ready worker'}"
    ready = f"{model.ready_workers} ready worker{'s' * (model.ready_workers != 1)}"
    return f"{model.name} by {ready}{' and providers' * model.has_providers}"
