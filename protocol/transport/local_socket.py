"""The Unix sockets behind `ipc://` addresses.

Owns listening, dialling, and the first bytes of a connection. Must not know frames.
"""

import errno
import os
import pwd
import socket
import struct
import sys
from pathlib import Path
from typing import Final, NamedTuple

import trio

from protocol.addresses import ADDRESS_FORM, IPC_PREFIX, too_long
from protocol.errors import ConfigError, WireError
from protocol.transport.sockets import address_in_use, check_ipc_is_free

MAGIC: Final = b"herma/1\n"
"""The first bytes of each side; a peer that sends others is a stranger, or ZeroMQ."""

HELLO_S: Final = 5.0
"""How long the peer may take to send its first bytes."""

_NUM_PENDING: Final = 128
_CREDENTIALS: Final = struct.Struct("3i")
"""struct ucred of unix(7): process, user and group id."""

_NOT_OURS: Final = "name a path in a directory that this user may write"
_REMEDIES: Final = {
    errno.EADDRINUSE: "there is a file that is no socket: remove it, or name another path",
    errno.ENOENT: "make its directory, or name another path",
    errno.EACCES: _NOT_OURS,
    errno.EROFS: _NOT_OURS,
}


def is_local(address: str) -> bool:
    """Whether `address` names a Unix socket, which needs no ZeroMQ."""
    return address.startswith(IPC_PREFIX)


def listen(address: str, *, admits_others: bool = False) -> socket.socket:
    """A socket that listens on `address`; its file is this user's alone, unless it
    `admits_others`. Raises `ConfigError` if the address is taken or malformed.
    """
    check_ipc_is_free(address)
    name = _name(address, "bind")
    listener = socket.socket(socket.AF_UNIX)
    try:
        if not name.startswith("\0") and Path(name).is_socket():
            Path(name).unlink()  # left behind by a killed process: no one answers
        listener.bind(name)
        if not admits_others and not name.startswith("\0"):
            Path(name).chmod(0o600)  # before `listen`: until then nobody can connect
        listener.listen(_NUM_PENDING)
    except OSError as error:
        listener.close()
        raise ConfigError(_cannot_bind(address, error)) from error
    listener.setblocking(False)
    return listener


def is_there(address: str) -> bool:
    """Whether the listener's file is where it was made; an abstract name has none."""
    name = _name(address, "bind")
    return name.startswith("\0") or Path(name).is_socket()


def unlink(address: str) -> None:
    """Remove the file of a closed listener."""
    name = _name(address, "bind")
    if not name.startswith("\0"):
        Path(name).unlink(missing_ok=True)


def check_dialled(address: str) -> None:
    """Raise `ConfigError` if `address` can never be dialled."""
    _name(address, "dial")


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


class PeerProcess(NamedTuple):
    """The process at the other end; `pid` is 0 if it is in another container."""

    pid: int
    uid: int

    @property
    def is_trusted(self) -> bool:
        """Whether it is of this user, or of root, who can read our memory anyway."""
        return self.uid in (0, os.geteuid())

    @property
    def user(self) -> str:
        """The user of the peer's process, in words."""
        try:
            return f"user {pwd.getpwuid(self.uid).pw_name}"
        except KeyError:
            return f"user {self.uid}"


def peer_of(connection: socket.socket | trio.socket.SocketType) -> PeerProcess:
    """The process that dialled, or that listens. On systems other than Linux nothing is known, and
    it counts as ours.
    """
    if sys.platform != "linux":
        return PeerProcess(0, os.geteuid())
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    pid, uid, _ = _CREDENTIALS.unpack(credentials)
    return PeerProcess(pid, uid)


def _name(address: str, verb: str) -> str:
    """The path, or the abstract name for `@NAME`, which has no file."""
    path = address.removeprefix(IPC_PREFIX)
    if not path or not is_local(address):
        raise ConfigError(f"cannot {verb} `{address}`: {ADDRESS_FORM}")
    if (why := too_long(address)) is not None:
        raise ConfigError(f"cannot {verb}: {why}")
    return "\0" + path[1:] if path.startswith("@") else path


def _cannot_bind(address: str, error: OSError) -> str:
    """The error of a failed bind. A path that another process holds was refused before."""
    if error.errno == errno.EADDRINUSE and address.startswith(f"{IPC_PREFIX}@"):
        return address_in_use(address)
    remedy = _REMEDIES.get(error.errno or 0, ADDRESS_FORM)
    return f"cannot bind {address}: {error.strerror or error}; {remedy}"
