"""The Unix sockets behind `ipc://` addresses.

Owns listening, dialling, and the first bytes of a connection. Must not know frames.
"""

import errno
import socket
import struct
from pathlib import Path
from typing import Final

import trio

from protocol.addresses import ADDRESS_FORM
from protocol.errors import ConfigError, WireError
from protocol.transport.sockets import address_in_use, check_ipc_is_free

MAGIC: Final = b"herma/1\n"
"""Each side sends it first; a peer that does not is a stranger, or ZeroMQ."""

HELLO_S: Final = 5.0
"""How long the peer may take to send it."""

_PREFIX: Final = "ipc://"
_NUM_PENDING: Final = 128
_MAX_NAME_BYTES: Final = 107
_CREDENTIALS: Final = struct.Struct("3i")
"""Process, user and group."""


def is_local(address: str) -> bool:
    """Whether `address` names a Unix socket, which needs no ZeroMQ."""
    return address.startswith(_PREFIX)


def listen(address: str) -> socket.socket:
    """A socket that listens on `address`. Raises `ConfigError` if it is taken or malformed."""
    check_ipc_is_free(address)
    name = _name(address, "bind")
    listener = socket.socket(socket.AF_UNIX)
    try:
        if not name.startswith("\0") and Path(name).is_socket():
            Path(name).unlink()  # left behind by a killed process: no one answers
        listener.bind(name)
        listener.listen(_NUM_PENDING)
    except OSError as error:
        listener.close()
        if error.errno == errno.EADDRINUSE:
            raise ConfigError(address_in_use(address)) from error
        raise ConfigError(_cannot("bind", address, error)) from error
    listener.setblocking(False)
    return listener


def unlink(address: str) -> None:
    """Remove the file of a closed listener."""
    name = _name(address, "bind")
    if not name.startswith("\0"):
        Path(name).unlink(missing_ok=True)


def check_dialled(address: str) -> None:
    """Raise `ConfigError` if `address` cannot be dialled, ever."""
    if len(_name(address, "dial").encode()) > _MAX_NAME_BYTES:
        raise ConfigError(f"cannot dial {address}: the path is too long; {ADDRESS_FORM}")


def dial(address: str) -> socket.socket | None:
    """A connection, or None if no process listens there now."""
    connection = socket.socket(socket.AF_UNIX)
    connection.setblocking(False)
    try:
        connection.connect(_name(address, "dial"))
    except OSError:
        connection.close()
        return None
    return connection


async def receive_hello(connection: socket.socket, num_bytes: int) -> bytes | None:
    """The `num_bytes` after the magic; None if the peer closes, or does not send them within 5 s.
    Raises `WireError` if the peer sends something else.
    """
    hello = b""
    due = len(MAGIC) + num_bytes
    with trio.move_on_after(HELLO_S):
        while len(hello) < due:
            try:
                await trio.lowlevel.wait_readable(connection)
                part = connection.recv(due - len(hello))
            except BlockingIOError:
                continue
            except OSError:
                return None
            if not part:
                return None
            hello += part
            if not MAGIC.startswith(hello[: len(MAGIC)]):
                raise WireError(f"it begins with {hello!r} and not with {MAGIC!r}")
    return hello[len(MAGIC) :] if len(hello) == due else None


def peer_pid(connection: socket.socket) -> int:
    """The process that listens at the other end; 0 if it is in another container."""
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    pid: int = _CREDENTIALS.unpack(credentials)[0]
    return pid


def _name(address: str, verb: str) -> str:
    """The path, or the abstract name for `@NAME`, which has no file."""
    path = address.removeprefix(_PREFIX)
    if not path or not is_local(address):
        raise ConfigError(f"cannot {verb} `{address}`: {ADDRESS_FORM}")
    return "\0" + path[1:] if path.startswith("@") else path


def _cannot(verb: str, address: str, error: OSError) -> str:
    return f"cannot {verb} {address}: {error.strerror or error}; {ADDRESS_FORM}"
