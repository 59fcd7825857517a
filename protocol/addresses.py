"""What ZeroMQ addresses say: who can reach them, and where the neighbours are.

Owns the rule behind "a public bind needs keys", and how several processes share out one address.
Must not open sockets or resolve names: a host name other than `localhost` counts as public.
"""

import ipaddress
import re
from typing import Final

from protocol.errors import ConfigError

MAX_PORT: Final = 65_535
ADDRESS_FORM: Final = "write tcp://HOST:PORT or ipc://PATH"

_HOST_NAME: Final = re.compile(r"\w([\w.-]*[\w.])?")
_PORT: Final = re.compile(r"[0-9]{1,5}")


def is_host(host: str) -> bool:
    """Whether `host` is the form of an IP address, bare or in brackets, or of a name."""
    try:
        ipaddress.ip_address(host.strip("[]"))
    except ValueError:
        return _HOST_NAME.fullmatch(host) is not None
    return True


def is_well_formed(address: str, *, may_pick: bool) -> bool:
    """Whether an address has the form of one to bind, which may leave the port or the host to be
    picked (`*`, port 0), or of one to dial, which may not.
    """
    scheme, _, rest = address.partition("://")
    if scheme == "ipc":
        return bool(rest)
    host, _, port = rest.rpartition(":")
    if scheme != "tcp" or not host:
        return False
    if not may_pick and (host == "*" or port in {"*", "0"}):
        return False
    return port == "*" or (_PORT.fullmatch(port) is not None and int(port) <= MAX_PORT)


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


def nth_address(address: str, index: int) -> str:
    """The address of process `index` of those that share out `address`: the port counts up, a
    path gets the number at its end, and process 0 has the address itself.

    Raises `ConfigError` if one cannot count from it.
    """
    scheme, _, rest = address.partition("://")
    if scheme == "ipc" and rest:
        return address if index == 0 else f"{address}-{index}"
    host, _, port = rest.rpartition(":")
    if scheme != "tcp" or not (port.isascii() and port.isdigit() and int(port)):
        raise ConfigError(
            f"several gateway processes cannot share out {address}; name a port, "
            "tcp://HOST:PORT, or a path, ipc://PATH ([gateway] worker_bind, --worker-bind)"
        )
    if int(port) + index > MAX_PORT:
        raise ConfigError(
            f"process {index} would listen on port {int(port) + index}, but the last one is "
            f"{MAX_PORT}; choose a lower [gateway] worker_bind"
        )
    return f"tcp://{host}:{int(port) + index}"


def neighbour_address(address: str, dialled: str) -> str:
    """How whoever has dialled one process of a gateway reaches the one that listens on `address`:
    they share a host, and what it is called from here only the dialled address tells.
    """
    scheme, _, rest = address.partition("://")
    dialled_scheme, _, dialled_rest = dialled.partition("://")
    if scheme != "tcp" or dialled_scheme != "tcp":
        return address
    return f"tcp://{dialled_rest.rpartition(':')[0]}:{rest.rpartition(':')[2]}"
