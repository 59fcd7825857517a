"""`herma reload`: make the processes of this host apply the changes in their file.

Owns the report and the exit status. Must not know what a process can apply.
"""

import argparse
import os
import signal
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from herma.processes import ask, gateways, parents, runs, supervisors, unsaid
from protocol.control_messages import (
    AskReload,
    GatewayStatus,
    Refused,
    Reloaded,
    UpStatus,
    WorkerStatus,
)
from protocol.errors import ConfigError, HermaError

EXIT_REFUSED: Final = 1
EXIT_NEEDS_RESTART: Final = 3
"""The exit status if a process needs a restart. 1 is for a file that is refused, and 2 for a
command that is wrong.
"""


def run(arguments: argparse.Namespace) -> int:
    """Ask each gateway and worker that runs the file, or each of this user. Returns 1 if one
    refused an invalid file, 3 if one needs a restart for a part of it, else 0. Raises
    `ConfigError` if none runs. With `pid` only that process is asked, by SIGHUP.
    """
    if arguments.pid is not None:
        _hang_up(arguments.pid)
        return 0
    asked = _chosen(list(_processes()), None if arguments.all else arguments.config)
    results: list[tuple[str, Reloaded | None]] = []
    # The parents come first: a worker that is gone from their file leaves, a new one reads it now.
    ended: set[int] = set()
    for one in asked:
        if one.pid not in ended:
            taken = _reload(one.name, one.path)
            ended |= set(taken.ended if taken is not None else ())
            results.append((one.name, taken))
    for line in summary([(name, taken) for name, taken in results if taken is not None]):
        print(line)
    if any(taken is None for _, taken in results):
        return EXIT_REFUSED
    needs_restart = any(taken is not None and taken.kept for _, taken in results)
    return EXIT_NEEDS_RESTART if needs_restart else 0


def summary(results: Sequence[tuple[str, Reloaded]]) -> Iterator[str]:
    """Lines about what needs a restart, then about what was taken, then one for the rest."""
    for name, one in results:
        for what in one.kept:
            yield f"{name}: not taken without a restart: {what}"
    for name, one in results:
        if one.taken:
            yield f"{name}: taken: {', '.join(one.taken)}"
    if idle := [name for name, one in results if not one.taken and not one.kept]:
        yield f"nothing to take: {', '.join(idle)}"


@dataclass(frozen=True, slots=True)
class _Process:
    name: str
    path: Path
    pid: int
    status: WorkerStatus | GatewayStatus | UpStatus | None


def _chosen(found: Sequence[_Process], file: Path | None) -> Sequence[_Process]:
    """The processes that run `file`, or all. Raises `ConfigError` if there is none."""
    if not found:
        raise ConfigError("no gateway and no worker runs on this host (as this user)")
    if file is None:
        return found
    for one in found:
        if runs(file, one.status) is None:
            print(
                f"herma: left alone: {unsaid(one.name.partition(' (')[0], one.pid)}",
                file=sys.stderr,
            )
    chosen = [one for one in found if runs(file, one.status)]
    if not chosen:
        names = ", ".join(one.name for one in found)
        raise ConfigError(f"nothing that runs {file} is here; --all asks what runs: {names}")
    return chosen


def _hang_up(pid: int) -> None:
    """Send SIGHUP to one of Herma's processes. Raises `ConfigError` if `pid` is not one of them."""
    try:
        title = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ")
        if b"herma" not in title:
            raise ConfigError(f"process {pid} is none of Herma's")
        os.kill(pid, signal.SIGHUP)
    except OSError as error:
        raise ConfigError(f"process {pid} cannot be told: {error.strerror}") from error


def _processes() -> Iterator[_Process]:
    """The parents, then the gateways and the workers."""
    for parent in parents():
        yield _Process(f"up (pid {parent.pid})", parent.path, parent.pid, parent.status)
    for gateway in gateways():
        process = gateway.status.process if gateway.status is not None else ""
        name = f"gateway{' ' * bool(process)}{process} (pid {gateway.pid})"
        yield _Process(name, gateway.path, gateway.pid, gateway.status)
    for worker in supervisors():
        name = worker.status.name if worker.status is not None else "?"
        shown = f"worker {name} (pid {worker.pid})"
        yield _Process(shown, worker.path, worker.pid, worker.status)


def _reload(name: str, path: Path) -> Reloaded | None:
    """What the process says that it has taken; None if it took nothing because of an error."""
    try:
        answer = ask(path, AskReload())
    except HermaError as error:
        print(f"{name}: {error}", file=sys.stderr)
        return None
    match answer:
        case Reloaded():
            return answer
        case Refused(reason=reason):
            print(f"{name}: nothing is reloaded: {reason}", file=sys.stderr)
        case _:
            print(f"{name}: an unexpected answer; is it another version?", file=sys.stderr)
    return None
