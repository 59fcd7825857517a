"""Herma's processes on this host, found by their control sockets.

Owns how they are found and asked. Must not know what an answer means.
"""

import socket
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Generic, TypeVar

from config import load_config
from housekeeping.process_files import owner_of, runtime_dir, sweep
from housekeeping.service_manager import say
from protocol.control_messages import (
    GATEWAY_SOCKET,
    MAX_LINE_BYTES,
    UP_SOCKET,
    WORKER_SOCKET,
    Answer,
    Ask,
    AskStatus,
    GatewayStatus,
    UpStatus,
    WorkerStatus,
    decode_answer,
    encode_line,
)
from protocol.errors import ConfigError, HermaError

_ANSWER_S: Final = 3.0
_USUAL_URL: Final = "http://127.0.0.1:8080"


_Status = TypeVar("_Status", WorkerStatus, GatewayStatus, UpStatus)


@dataclass(frozen=True)
class FoundProcess(Generic[_Status]):
    """A process of this host, by its control socket. `status` is None if it does not answer."""

    path: Path
    pid: int
    status: _Status | None


Supervisor = FoundProcess[WorkerStatus]
GatewayProcess = FoundProcess[GatewayStatus]
Parent = FoundProcess[UpStatus]
"""A `herma up`."""


def supervisors() -> Iterator[Supervisor]:
    """Every supervisor of this user on this host. Removes the sockets of dead ones."""
    return _found(WORKER_SOCKET, WorkerStatus)


def gateways() -> Iterator[GatewayProcess]:
    """Every gateway process of this user on this host."""
    return _found(GATEWAY_SOCKET, GatewayStatus)


def parents() -> Iterator[Parent]:
    """Every `herma up` of this user on this host that has a file."""
    return _found(UP_SOCKET, UpStatus)


def _found(name: str, kind: type[_Status]) -> Iterator[FoundProcess[_Status]]:
    for path, pid in _sockets(name):
        answer = _status(path)
        yield FoundProcess(path, pid, answer if isinstance(answer, kind) else None)


def runs(file: Path, status: WorkerStatus | GatewayStatus | UpStatus | None) -> bool | None:
    """Whether the process of that status runs the configuration file; None if it does not say."""
    if status is None or status.config is None:
        return None
    return bool(status.config) and Path(status.config).resolve() == file.resolve()


def unsaid(what: str, pid: int) -> str:
    """A line about a process that does not say which file it runs."""
    return f"{what} (pid {pid}) does not say which file it runs: it hangs or is of another version"


def only_worker(name: str, pid: int | None, file: Path | None) -> Supervisor:
    """The worker of that name: of the file if there is one, by its supervisor's `pid` if that is
    given. Raises `ConfigError` for none, for one of another file alone, and for several.
    """
    known = [each for each in supervisors() if each.status is not None]
    named = [each for each in known if each.status is not None and each.status.name == name]
    if not named:
        raise ConfigError(nobody_named(name, known))
    pids = " or ".join(f"--pid {each.pid}" for each in named)
    found = named
    if pid is not None:
        found = [each for each in named if each.pid == pid]
        if not found:
            raise ConfigError(f"no worker `{name}` of this host has pid {pid}; use {pids}")
    elif file is not None:
        found = [each for each in named if runs(file, each.status)]
        found = found or [each for each in named if runs(file, each.status) is None]
    if len(found) != 1:
        many = f"{len(found)} workers of this host are named `{name}`"
        what = many if found else f"no worker `{name}` of {file} runs here"
        others = ", ".join(f"pid {each.pid} {whose(each.status)}" for each in named)
        raise ConfigError(f"{what} ({others}): add {pids}, or --config FILE")
    return found[0]


def nobody_named(name: str, known: Iterable[Supervisor]) -> str:
    """An error: no worker has the name. It lists the names that exist."""
    names = sorted({each.status.name for each in known if each.status is not None})
    has = f"it has {', '.join(names)}" if names else "it has none"
    return f"no worker of this host is named `{name}`; {has}"


def whose(status: WorkerStatus | None) -> str:
    """Words for the configuration file of a worker."""
    if status is None or status.config is None:
        return "of a file that it does not say"
    return f"of {status.config}" if status.config else "of no file"


def gateway_url(given: str | None, file: Path | None = None) -> str:
    """The URL of the gateway of `file`, else of the one on this host, without /v1, unless one is
    given. Says on stderr if other gateways run here, and that of the file does not. Raises
    `ConfigError` for several.
    """
    if given is not None:
        return given
    running = [one.status for one in gateways() if one.status is not None]
    found = {reachable(status.url) for status in running}
    if file is not None:
        if own := {reachable(status.url) for status in running if runs(file, status)}:
            found = own
        elif (url := _url_of(file)) is not None:
            if found and url not in found:
                others = ", ".join(sorted(found))
                say(f"herma: no gateway of {file} runs here; name another with --url: {others}")
            return url
    if len(found) > 1:
        names = ", ".join(sorted(found))
        raise ConfigError(
            f"several gateways run here, name one with --url, or its file with --config: {names}"
        )
    return found.pop() if found else _USUAL_URL


def _url_of(file: Path) -> str | None:
    """Where the gateway of the file listens; None if any free port will do. Raises `ConfigError`
    for a file with a mistake.
    """
    gateway = load_config(file).gateway
    if gateway.port == 0:
        return None
    scheme = "http" if gateway.tls_certificate_file is None else "https"
    host = gateway.host.strip("[]")
    return reachable(f"{scheme}://{f'[{host}]' if ':' in host else host}:{gateway.port}")


def reachable(url: str) -> str:
    """The URL by which this host reaches a gateway that listens there."""
    for everywhere in ("0.0.0.0", "[::]"):  # noqa: S104 - where it listens, not where we do
        url = url.replace(f"//{everywhere}:", "//127.0.0.1:")
    return url


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
