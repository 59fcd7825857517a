"""The forms of addresses and CURVE keys in the configuration.

Owns which addresses are public and therefore need keys, and how several gateway processes share
one address. Must not open sockets or resolve names: a host name other than `localhost` is public.
"""

import ipaddress
import re
from typing import Final

from protocol.errors import ConfigError

MAX_PORT: Final = 65_535
ADDRESS_FORM: Final = "write tcp://HOST:PORT or ipc://PATH"
IPC_PREFIX: Final = "ipc://"
_MAX_PATH_BYTES: Final = 107
"""The longest path of a Unix socket: the kernel's 108 bytes include the final NUL."""
CURVE_KEY_FORM: Final = "the 40 characters that `herma keys curve` printed"

_HOST_NAME: Final = re.compile(r"\w([\w.-]*[\w.])?")
_PORT: Final = re.compile(r"[0-9]{1,5}")
_Z85: Final = re.compile(r"[0-9A-Za-z.\-:+=^!/*?&<>()\[\]{}@%$#]{40}")


def is_curve_key(text: str) -> bool:
    """Whether `text` has the form of a CURVE key, public or secret: 40 characters of Z85."""
    return _Z85.fullmatch(text) is not None


def is_host(host: str) -> bool:
    """Whether `host` has the form of an IP address, bare or in brackets, or of a name."""
    return is_numeric_host(host) or _HOST_NAME.fullmatch(host) is not None


def is_numeric_host(host: str) -> bool:
    """Whether `host` is an IP address, bare or in brackets."""
    try:
        ipaddress.ip_address(host.strip("[]"))
    except ValueError:
        return False
    return True


def is_well_formed(address: str, *, allows_wildcard: bool) -> bool:
    """Whether `address` can be bound, which allows wildcards (host or port `*`, port 0), or
    dialled, which does not.
    """
    scheme, _, rest = address.partition("://")
    if scheme == "ipc":
        return bool(rest)
    host, _, port = rest.rpartition(":")
    if scheme != "tcp" or not host:
        return False
    if not allows_wildcard and (host == "*" or port in {"*", "0"}):
        return False
    return port == "*" or (_PORT.fullmatch(port) is not None and int(port) <= MAX_PORT)


def too_long(address: str) -> str | None:
    """The error for a path that no Unix socket can have, else None."""
    path = address.removeprefix(IPC_PREFIX)
    num_bytes = len(path.encode())
    if path == address or num_bytes <= _MAX_PATH_BYTES:
        return None
    return f"the path of {address} has {num_bytes} bytes; {_MAX_PATH_BYTES} are the limit"


def is_loopback_host(host: str) -> bool:
    """Whether only this machine can reach `host`."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def is_local_address(address: str) -> bool:
    """Whether only this machine can reach `address` (`tcp://HOST:PORT` or `ipc://PATH`)."""
    scheme, _, rest = address.partition("://")
    return scheme == "ipc" or (scheme == "tcp" and is_loopback_host(rest.rpartition(":")[0]))


def nth_address(address: str, index: int) -> str:
    """The address of gateway process `index`, where `address` is that of process 0: the port plus
    `index`, or the path with `-index` appended.

    Raises `ConfigError` if `address` has no port to count from, or the port is too high.
    """
    scheme, _, rest = address.partition("://")
    if scheme == "ipc" and rest:
        return address if index == 0 else f"{address}-{index}"
    host, _, port = rest.rpartition(":")
    if scheme != "tcp" or not (port.isascii() and port.isdigit() and int(port)):
        raise ConfigError(
            f"several gateway processes cannot divide {address}; name a port, "
            "tcp://HOST:PORT, or a path, ipc://PATH ([gateway] worker_bind, --worker-bind)"
        )
    if int(port) + index > MAX_PORT:
        raise ConfigError(
            f"process {index} would listen on port {int(port) + index}, but the last one is "
            f"{MAX_PORT}; choose a lower [gateway] worker_bind"
        )
    return f"tcp://{host}:{int(port) + index}"


def sibling_address(address: str, dialled: str) -> str:
    """The address at which a worker that dialled one gateway process as `dialled` reaches another
    that listens on `address`: both run on one host, whose name here is the dialled one.
    """
    scheme, _, rest = address.partition("://")
    dialled_scheme, _, dialled_rest = dialled.partition("://")
    if scheme != "tcp" or dialled_scheme != "tcp":
        return address
    return f"tcp://{dialled_rest.rpartition(':')[0]}:{rest.rpartition(':')[2]}"
