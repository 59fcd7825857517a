"""Checks the server on which several hosts keep their common spending limits.

Owns the findings about the server that this host's configuration names. Must not know how it is
asked.
"""

from collections.abc import Iterator
from typing import Final

from config import Config, clear_password
from herma.doctor.finding import Finding
from herma.doctor.host import Host

CHECK: Final = "shared limits"


def check_shared_limits(host: Host, config: Config) -> Iterator[Finding]:
    """Check whether its password is safe, and whether it answers."""
    ledger = config.ledger
    if ledger.shared is None:
        return
    if (problem := clear_password(ledger)) is not None:
        yield Finding(
            "warning",
            CHECK,
            problem,
            "a program that reads it on the way can change what counts as spent",
            'shared = "rediss://..." in [ledger], or a private network between the hosts',
        )
    if (failure := host.ask_shared_limits(ledger)) is not None:
        yield Finding(
            "error",
            CHECK,
            failure,
            "requests under a spending limit get 503, and nothing is sent to a provider",
            "start the server, or correct `shared` and `shared_password_env` in [ledger]",
        )
