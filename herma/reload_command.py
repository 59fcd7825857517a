"""`herma reload`: make the processes of this host apply the changes in their file.

Owns the report and the exit status. Must not know what a process can apply.
"""

import argparse
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from herma.processes import ask, gateways, parents, supervisors
from protocol.control_messages import AskReload, Refused, Reloaded
from protocol.errors import ConfigError, HermaError

EXIT_REFUSED: Final = 1


def run(arguments: argparse.Namespace) -> int:
    """Ask each gateway and worker of this user. Returns 1 if one refused an invalid file, else 0.
    Raises `ConfigError` if none runs. With `pid` only that process is asked, by SIGHUP.
    """
    if arguments.pid is not None:
        _hang_up(arguments.pid)
        return 0
    found = list(_processes())
    if not found:
        raise ConfigError("no gateway and no worker runs on this host (as this user)")
    # The parents first: a worker that is gone from their file leaves, and a new one reads it now.
    first = [_reload(f"up (pid {pid})", path) for path, pid in parents()]
    ended = {pid for one in first if one is not None for pid in one.ended}
    then = [_reload(name, path) for name, path, pid in found if pid not in ended]
    return EXIT_REFUSED if None in first + then else 0


def _hang_up(pid: int) -> None:
    """Send SIGHUP to one of Herma's processes. Raises `ConfigError` if it is none."""
    try:
        title = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ")
        if b"herma" not in title:
            raise ConfigError(f"process {pid} is none of Herma's")
        os.kill(pid, signal.SIGHUP)
    except OSError as error:
        raise ConfigError(f"process {pid} cannot be told: {error.strerror}") from error


def _processes() -> Iterator[tuple[str, Path, int]]:
    for gateway in gateways():
        process = gateway.status.process if gateway.status is not None else ""
        name = f"gateway{' ' * bool(process)}{process} (pid {gateway.pid})"
        yield name, gateway.path, gateway.pid
    for worker in supervisors():
        name = worker.status.name if worker.status is not None else "?"
        yield f"worker {name} (pid {worker.pid})", worker.path, worker.pid


def _reload(name: str, path: Path) -> Reloaded | None:
    """What the process says that it has taken; None if it took nothing because of an error."""
    try:
        answer = ask(path, AskReload())
    except HermaError as error:
        print(f"{name}: {error}", file=sys.stderr)
        return None
    match answer:
        case Reloaded(taken=taken, kept=kept):
            print(f"{name}: {'taken: ' if taken else 'nothing to take'}{', '.join(taken)}")
            for what in kept:
                print(f"{name}: not taken without a restart: {what}")
            return answer
        case Refused(reason=reason):
            print(f"{name}: nothing is reloaded: {reason}", file=sys.stderr)
        case _:
            print(f"{name}: an unexpected answer; is it another version?", file=sys.stderr)
    return None
