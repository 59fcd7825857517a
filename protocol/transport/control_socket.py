"""The control socket of a process on its host, for the commands of its user.

Owns the socket file, its bounds and the check of the peer. One request and one answer per
connection, one line of JSON each; at most eight connections, five seconds each. Must not know what
requests mean.
"""

import os
import socket
import struct
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final, final

import trio

from protocol.control_messages import (
    MAX_LINE_BYTES,
    Answer,
    Ask,
    Refused,
    decode_ask,
    encode_line,
)
from protocol.errors import ConfigError, WireError
from protocol.leftovers import runtime_dir, this_process

_MAX_CONNECTIONS: Final = 8
_CONNECTION_S: Final = 5.0
_PEER: Final = struct.Struct("3i")
"""struct ucred of unix(7): pid, uid, gid."""


@final
class ControlSocket:
    """`kind` is the last word of its name. `answer` may raise `ConfigError`, which refuses what was
    asked.
    """

    def __init__(self, kind: str, answer: Callable[[Ask], Awaitable[Answer]]) -> None:
        """Bind. Raises `ConfigError` if there is no place for the socket."""
        self._answer = answer
        self._limit = trio.CapacityLimiter(_MAX_CONNECTIONS)
        self.path = runtime_dir() / this_process().name(kind)
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        try:
            self._listener.bind(str(self.path))
            self.path.chmod(0o600)
            self._listener.listen(_MAX_CONNECTIONS)
        except OSError as error:
            self._listener.close()
            raise ConfigError(f"{self.path}: no control socket: {error}") from error

    async def run(self) -> None:
        """Answer until cancelled; then the file is gone."""
        try:
            with trio.socket.from_stdlib_socket(self._listener) as listener:
                async with trio.open_nursery() as nursery:
                    while True:
                        async with self._limit:  # a place is free
                            connection, _ = await listener.accept()
                        nursery.start_soon(self._serve, trio.SocketStream(connection))
        finally:
            remove_socket(self.path)

    async def _serve(self, stream: trio.SocketStream) -> None:
        async with self._limit, stream:
            with trio.move_on_after(_CONNECTION_S):
                try:
                    if _is_ours(stream.socket):
                        reply = await self._reply(await _read_line(stream))
                        await stream.send_all(encode_line(reply))
                except trio.BrokenResourceError:
                    return  # it did not wait for the answer

    async def _reply(self, line: bytes) -> Answer:
        try:
            return await self._answer(decode_ask(line))
        except (WireError, ConfigError) as error:
            return Refused(str(error))


async def _read_line(stream: trio.SocketStream) -> bytes:
    line = b""
    while b"\n" not in line and len(line) <= MAX_LINE_BYTES:
        data = await stream.receive_some()
        if not data:
            break
        line += data
    return line[:MAX_LINE_BYTES]


def _is_ours(sock: trio.socket.SocketType) -> bool:
    """Whether the peer is the same user or root. The folder's mode ensures it too."""
    if sys.platform != "linux":
        return True
    peer = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size)
    return _PEER.unpack(peer)[1] in (0, os.geteuid())


def remove_socket(path: Path) -> None:
    """No process listens there any more."""
    path.unlink(missing_ok=True)
