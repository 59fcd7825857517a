"""Checks the gateway processes that run on this host.

Owns the findings about a process that does not answer its control socket, that took the place of
others, or that cannot write a file of its own. Must not know how they are asked.
"""

from collections.abc import Iterator
from typing import Final

from herma.doctor.finding import Finding, Level
from herma.doctor.host import Host
from protocol.control_messages import GatewayStatus

CHECK: Final = "gateways"


def check_gateways(host: Host) -> Iterator[Finding]:
    """Check the gateway processes of this user."""
    for gateway in host.gateways():
        if gateway.status is None:
            yield Finding(
                "error",
                CHECK,
                f"the gateway process {gateway.pid} does not answer: it is stopped, hangs or is of "
                "another version",
                "clients that it has wait for their own timeouts",
                "of several on one port the parent replaces it ([gateway] hang_s); else "
                f"kill -USR2 {gateway.pid} logs where it is, kill -9 {gateway.pid} ends it",
            )
            continue
        if gateway.status.replaced:
            yield _replaced(gateway.status)
        for trouble in gateway.status.troubles:
            level, why, remedy = _meaning(trouble)
            yield Finding(
                level, CHECK, f"the gateway process {gateway.pid}: {trouble}", why, remedy
            )


def _meaning(trouble: str) -> tuple[Level, str, str]:
    """How bad a trouble is, why, and what to do."""
    if trouble.startswith("usage is not recorded"):
        why = "what own workers serve is in no sum, and with a provider the gateway will not start"
        return "warning", why, "mend what it says, and restart the gateway"
    if "shared limits" in trouble:
        why = "requests under a limit are refused while other hosts' amounts are unknown"
        return "error", why, "start the Redis server of `[ledger] shared`, or the way to it"
    remedy = "end the program that holds the file, free its disk, or put the file back"
    if "ledger" in trouble:
        why = "requests to providers are refused while their cost cannot be written down"
        return "error", why, remedy
    return "warning", "a response that a client names later by its id is not found", remedy


def _replaced(status: GatewayStatus) -> Finding:
    times = "once" if status.replaced == 1 else f"{status.replaced} times"
    return Finding(
        "warning",
        CHECK,
        f"gateway process {status.process} of {status.url} was replaced {times}; the last one "
        f"ended so: {status.why}",
        "each time the streams of its clients were cut",
        "look in the log before `ended:`, where one that hung says at which line",
    )
