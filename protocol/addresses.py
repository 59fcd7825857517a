"""Which addresses stay on this machine.

Owns the one rule behind "a public bind needs keys". Must not open sockets or resolve names: a
host name other than `localhost` counts as public.
"""

import ipaddress


def is_loopback_host(host: str) -> bool:
    """Whether `host` can be reached from this machine only."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def is_local_address(address: str) -> bool:
    """Whether a ZeroMQ address (`tcp://HOST:PORT`, `ipc://PATH`) stays on this machine."""
    scheme, _, rest = address.partition("://")
    return scheme == "ipc" or (scheme == "tcp" and is_loopback_host(rest.rpartition(":")[0]))
