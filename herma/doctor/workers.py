"""Checks the workers that run on this host.

Owns the findings about a worker that has given up, is not ready yet, or reaches no gateway. Must
not know how they are asked.
"""

from collections.abc import Iterator
from typing import Final

from herma.doctor.finding import Finding
from herma.doctor.host import Host
from protocol.control_messages import WorkerStatus

CHECK: Final = "workers"


def check_workers(host: Host) -> Iterator[Finding]:
    """Check the workers of this user."""
    for worker in host.workers():
        status = worker.status
        if status is None:
            yield Finding(
                "error",
                CHECK,
                f"the worker process {worker.pid} does not answer: it is stopped, hangs or is of "
                "another version",
                "its model may be served by nobody",
                f"kill -CONT {worker.pid} if it was stopped; else look in its log",
            )
        elif status.state == "stopped":
            yield _gave_up(status)
        elif status.state in ("starting", "waiting"):
            yield _not_ready(status)
        elif status.gateways[1] and not status.gateways[0]:
            yield Finding(
                "warning",
                CHECK,
                f"the worker {status.name} reaches none of its {status.gateways[1]} gateways"
                + "".join(f"; {one}" for one in status.troubles),
                "it gets no requests",
                f"start its gateway, or correct `gateways`; herma worker status {status.name}",
            )


def _gave_up(status: WorkerStatus) -> Finding:
    cause = "no cause is known" if status.fault is None else status.fault.cause
    return Finding(
        "error",
        CHECK,
        f"the worker {status.name} has given up: {cause}",
        f"it serves nothing: only other workers or providers, if there are any, "
        f"answer {status.serves}",
        f"correct the cause, then herma worker restart {status.name}",
    )


def _not_ready(status: WorkerStatus) -> Finding:
    where = f", {status.phase} {status.fraction:.0%}" if status.phase else ""
    last = "" if status.fault is None else f"; its last engine died: {status.fault.cause}"
    return Finding(
        "warning",
        CHECK,
        f"the worker {status.name} is not ready: {status.state}{where}{last}",
        f"until then only other workers or providers, if there are any, answer {status.serves}",
        f"herma worker status {status.name} shows how far it is",
    )
