"""The control socket, by which commands of the same user talk to a process on its host.

Owns the socket file, its bounds, the check of the peer, and the audit line of a request. Each
connection has one request and one answer, one line of JSON each; at most eight connections at a
time, five seconds each. Must not know what requests mean.
"""

import socket
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final, final

import msgspec
import trio

from housekeeping.audit import Act, Note
from housekeeping.process_files import runtime_dir, this_process
from protocol.control_messages import (
    MAX_LINE_BYTES,
    MAX_SHOWN_BYTES,
    READS,
    Answer,
    Ask,
    Done,
    Refused,
    Reloaded,
    decode_answer,
    decode_ask,
    encode_line,
)
from protocol.errors import ConfigError, WireError
from protocol.transport.local_socket import peer_of

_MAX_CONNECTIONS: Final = 8
_CONNECTION_S: Final = 5.0
_ACCEPT_AGAIN_S: Final = 0.1
"""The pause after `accept` failed, as when the process is out of descriptors."""
_LOOK_S: Final = 5.0
"""How often the socket's file is looked for: the folder of a user is removed when the last session
ends, and a cleaner of temporary files may take the file.
"""
_PLAIN: Final = (str, int, float)


@final
class ControlSocket:
    """`kind` is the last word of the socket's name. `answer` may raise `ConfigError` to refuse a
    request. `note` gets an act for each request that changes something, with its result. A socket
    file that is gone is made again.
    """

    def __init__(self, kind: str, answer: Callable[[Ask], Awaitable[Answer]], note: Note) -> None:
        """Bind. Raises `ConfigError` if there is no place for the socket."""
        self._answer = answer
        self._note = note
        self._limit = trio.CapacityLimiter(_MAX_CONNECTIONS)
        self._kind = kind
        self.path, self._listener = _listening(kind)

    async def run(self) -> None:
        """Answer until cancelled; removes the socket file at the end."""
        try:
            async with trio.open_nursery() as nursery:
                while True:
                    with trio.socket.from_stdlib_socket(self._listener) as listener:
                        while _is_there(self.path):
                            with trio.move_on_after(_LOOK_S):
                                await self._accept(listener, nursery)
                    await self._listen_again()
        finally:
            remove_socket(self.path)

    async def _listen_again(self) -> None:
        """Make the socket again, as soon as there is a place for it."""
        while True:
            try:
                self.path, self._listener = _listening(self._kind)
            except ConfigError:
                await trio.sleep(_LOOK_S)
            else:
                return

    async def _accept(self, listener: trio.socket.SocketType, nursery: trio.Nursery) -> None:
        """Accept one connection, or try again later if the process has no descriptor for it."""
        try:
            async with self._limit:  # waits until a connection may be accepted
                connection, _ = await listener.accept()
        except OSError:
            await trio.sleep(_ACCEPT_AGAIN_S)
        else:
            nursery.start_soon(self._serve, trio.SocketStream(connection))

    async def _serve(self, stream: trio.SocketStream) -> None:
        async with self._limit, stream:
            with trio.move_on_after(_CONNECTION_S):
                try:
                    peer = peer_of(stream.socket)
                    # The mode of the folder already keeps other users out.
                    if peer.is_trusted:
                        who = f"{peer.user} (pid {peer.pid})"
                        reply = await self._reply(await _read_line(stream), who)
                        await stream.send_all(encode_line(reply))
                except trio.BrokenResourceError:
                    return  # the peer left before the answer

    async def _reply(self, line: bytes, who: str) -> Answer:
        try:
            ask = decode_ask(line)
        except WireError as error:
            return Refused(str(error))
        reply: Answer | None = None
        try:
            reply = await self._answer(ask)
        except ConfigError as error:
            reply = Refused(str(error))
        finally:
            if not isinstance(ask, READS):
                self._note(_act_of(ask, who, reply))
        return reply


def _listening(kind: str) -> tuple[Path, socket.socket]:
    """The file and the socket. Raises `ConfigError` if there is no place for it."""
    path = runtime_dir() / this_process().name(kind)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
    try:
        listener.bind(str(path))
        path.chmod(0o600)
        listener.listen(_MAX_CONNECTIONS)
    except OSError as error:
        listener.close()
        raise ConfigError(f"{path}: no control socket: {error}") from error
    return path, listener


def _is_there(path: Path) -> bool:
    return path.is_socket()


def _act_of(ask: Ask, who: str, reply: Answer | None) -> Act:
    """The act of a request, with its plain values. Prompts of probe questions are left out."""
    fields = msgspec.structs.asdict(ask).items()
    said = [f"{name} {value}" for name, value in fields if value and isinstance(value, _PLAIN)]
    return Act(str(ask.__struct_config__.tag), who, _result_of(reply), ", ".join(said))


def _result_of(reply: Answer | None) -> str:
    match reply:
        case None:
            return "cut off"
        case Refused(reason=reason):
            return f"refused: {reason}"
        case Reloaded():
            return reply.summary
        case Done(changed=changed) if changed:
            return f"done; changed: {', '.join(changed)}"
        case _:
            return "done"


async def _read_line(stream: trio.SocketStream) -> bytes:
    line = b""
    while b"\n" not in line and len(line) <= MAX_LINE_BYTES:
        data = await stream.receive_some()
        if not data:
            break
        line += data
    return line[:MAX_LINE_BYTES]


async def ask_control(path: Path, question: Ask) -> Answer:
    """The answer of the process behind `path`; the caller sets a deadline. Raises `HermaError` if
    the process is gone or its answer cannot be read.
    """
    line = bytearray()
    try:
        async with await trio.open_unix_socket(path) as stream:
            await stream.send_all(encode_line(question))
            while not line.endswith(b"\n") and len(line) < MAX_SHOWN_BYTES:
                if not (data := await stream.receive_some(MAX_LINE_BYTES)):
                    break
                line += data
    except (OSError, trio.BrokenResourceError) as error:
        raise ConfigError(f"the process behind {path} does not answer: {error}") from error
    return decode_answer(bytes(line))


def remove_socket(path: Path) -> None:
    """Remove the socket file of a process that no longer listens."""
    path.unlink(missing_ok=True)
