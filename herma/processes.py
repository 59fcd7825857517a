"""Herma's processes on this host, found by their control sockets.

Owns how they are found and asked. Must not know what an answer means.
"""

import socket
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from protocol.control_messages import (
    GATEWAY_SOCKET,
    MAX_LINE_BYTES,
    UP_SOCKET,
    WORKER_SOCKET,
    Answer,
    Ask,
    AskStatus,
    GatewayStatus,
    WorkerStatus,
    decode_answer,
    encode_line,
)
from protocol.errors import ConfigError, HermaError
from protocol.leftovers import owner_of, runtime_dir, sweep

_ANSWER_S: Final = 3.0
_USUAL_URL: Final = "http://127.0.0.1:8080"


@dataclass(frozen=True, slots=True)
class Supervisor:
    """A supervisor of this host. `status` is None if it does not answer."""

    path: Path
    pid: int
    status: WorkerStatus | None


@dataclass(frozen=True, slots=True)
class Gateway:
    """A gateway process of this host. `status` is None if it does not answer."""

    path: Path
    pid: int
    status: GatewayStatus | None


def supervisors() -> Iterator[Supervisor]:
    """Every supervisor of this user on this host. Removes the sockets of dead ones."""
    for path, pid in _sockets(WORKER_SOCKET):
        answer = _status(path)
        yield Supervisor(path, pid, answer if isinstance(answer, WorkerStatus) else None)


def gateways() -> Iterator[Gateway]:
    """Every gateway process of this user on this host."""
    for path, pid in _sockets(GATEWAY_SOCKET):
        answer = _status(path)
        yield Gateway(path, pid, answer if isinstance(answer, GatewayStatus) else None)


def parents() -> Iterator[tuple[Path, int]]:
    """The control socket and the pid of every `herma up` of this user on this host."""
    yield from _sockets(UP_SOCKET)


def gateway_url(given: str | None) -> str:
    """The URL of the gateway on this host, without /v1, unless one is given. Raises `ConfigError`
    for several.
    """
    if given is not None:
        return given
    found = {one.status.url for one in gateways() if one.status is not None}
    if len(found) > 1:
        raise ConfigError(f"several gateways run here, name one with --url: {', '.join(found)}")
    url = found.pop() if found else _USUAL_URL
    for everywhere in ("0.0.0.0", "[::]"):  # noqa: S104 - where it listens, not where we do
        url = url.replace(f"//{everywhere}:", "//127.0.0.1:")
    return url


def supervisor_pids(names: Collection[str]) -> list[int]:
    """The process ids of the supervisors of this host's workers of those names."""
    found = ((each.pid, each.status) for each in supervisors())
    return [pid for pid, status in found if status is not None and status.name in names]


def ask(path: Path, question: Ask) -> Answer:
    """The answer of the process behind `path`. Raises `HermaError` if it is gone, stopped or of
    another version.
    """
    line = b""
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as link:
            link.settimeout(_ANSWER_S)
            link.connect(str(path))
            link.sendall(encode_line(question))
            while not line.endswith(b"\n") and len(line) < MAX_LINE_BYTES:
                if not (data := link.recv(MAX_LINE_BYTES)):
                    break
                line += data
    except OSError as error:
        why = "it is stopped or hangs" if isinstance(error, TimeoutError) else error.strerror
        raise ConfigError(f"the process behind {path} does not answer: {why}") from error
    return decode_answer(line)


def _sockets(kind: str) -> Iterator[tuple[Path, int]]:
    folder = runtime_dir()
    sweep((folder,))
    for path in sorted(folder.glob(f"herma-*-{kind}")):
        if (owner := owner_of(path.name)) is not None:
            yield path, owner.pid


def _status(path: Path) -> Answer | None:
    try:
        return ask(path, AskStatus())
    except HermaError:
        return None
