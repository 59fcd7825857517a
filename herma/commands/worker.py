"""`herma worker`, and `status`, `restart`, `sleep` and `wake` of one that runs.

Owns the translation of the command line into the worker's options, the requests to this host's
supervisors, and the table for people. Must not know how a supervisor works.
"""

import argparse
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

from herma.processes import (
    Supervisor,
    ask,
    nobody_named,
    only_worker,
    runs,
    supervisors,
    unsaid,
    whose,
)
from herma.terminal import step_bar, table_lines
from housekeeping.imports import uncollected
from protocol.control_messages import (
    AskRestart,
    AskSleep,
    AskStatus,
    AskWake,
    Done,
    Refused,
    WorkerStatus,
)
from protocol.errors import ConfigError

_POLL_S: Final = 0.2
_COLUMNS: Final = (
    "NAME", "STATE", "PHASE", "EPOCH", "RESTARTS", "PID", "ENGINE", "UPTIME", "GATEWAYS",
    "MODEL",
)  # fmt: skip
_SPARE: Final = ("PHASE", "ENGINE", "EPOCH", "PID", "GATEWAYS", "RESTARTS")
"""What a narrow terminal leaves out; the phase of a start has a line below the table."""
_BAR_CELLS: Final = 20
_MINUTE: Final = 60
_HOUR: Final = 60 * _MINUTE
_DAY: Final = 24 * _HOUR


def run(arguments: argparse.Namespace) -> int:
    """Run one worker, or the named action. Returns the status; raises `HermaError`."""
    match arguments.action:
        case "restart":
            return _restart(arguments.worker, _meant(arguments), force=arguments.force)
        case "sleep" | "wake":
            return _turn(arguments.worker, _meant(arguments), arguments.action)
        case "status":
            return show_workers(arguments.worker, None if arguments.all else arguments.config)
        case _:
            return _run_worker(arguments)


def _meant(arguments: argparse.Namespace) -> Supervisor:
    return only_worker(arguments.worker, arguments.pid, arguments.config)


def _run_worker(arguments: argparse.Namespace) -> int:
    with uncollected():
        from workers.__main__ import main

    argv = [] if arguments.config is None else ["--config", str(arguments.config)]
    if arguments.name is not None:
        argv += ["--name", arguments.name]
    for address in arguments.gateway or ():
        argv += ["--gateway", address]
    for option in ("engine", "script", "model", "serves", "step_ms", "batch"):
        if (value := getattr(arguments, option)) is not None:
            argv += [f"--{option.replace('_', '-')}", str(value)]
    if arguments.beside_gateway:
        argv.append("--beside-gateway")
    return main(argv)


def show_workers(name: str | None, file: Path | None) -> int:
    """Print the table, of the workers of `file` if there is one. Returns 1 if a worker is stopped
    or does not answer, else 0.
    """
    everywhere = list(supervisors())
    found = [each for each in everywhere if file is None or runs(file, each.status) is not False]
    if everywhere and not found:
        raise ConfigError(f"no worker of {file} runs here; --all shows those of other files")
    if file is not None:
        for each in found:
            if runs(file, each.status) is None:
                print(f"herma: {unsaid('worker', each.pid)}", file=sys.stderr)
    if name is not None:
        found = [each for each in found if each.status is not None and each.status.name == name]
        if not found:
            raise ConfigError(nobody_named(name, everywhere))
    if not found:
        raise ConfigError(
            "no worker runs on this host (as this user); `herma up` starts those of a file"
        )
    print(render(((each.pid, each.status) for each in found), with_log=name is not None))
    is_well = all(each.status is not None and each.status.state != "stopped" for each in found)
    return 0 if is_well else 1


def _restart(name: str, meant: Supervisor, *, force: bool) -> int:
    """Restart an engine. Returns once it is ready (0) or the worker has given up (1)."""
    match ask(meant.path, AskRestart(force)):
        case Done(epoch=epoch, changed=changed):
            _say_whose(name, meant)
            if changed:
                print(f"{name}: the file has changed: {', '.join(changed)}")
            return _wait_ready(meant.path, name, epoch)
        case Refused(reason=reason):
            raise ConfigError(f"worker `{name}`: {reason}")
        case _:
            raise ConfigError(f"worker `{name}` sent an unexpected answer; is it another version?")


def _say_whose(name: str, meant: Supervisor) -> None:
    print(f"{name} {whose(meant.status)} (pid {meant.pid})", flush=True)


def _turn(name: str, meant: Supervisor, action: str) -> int:
    """Put an engine to sleep, or wake it. Returns once that is done (0) or cannot be (1)."""
    match ask(meant.path, AskSleep() if action == "sleep" else AskWake()):
        case Refused(reason=reason):
            raise ConfigError(f"worker `{name}`: {reason}")
        case Done():
            _say_whose(name, meant)
            wanted = "asleep" if action == "sleep" else "ready"
        case _:
            raise ConfigError(f"worker `{name}` sent an unexpected answer; is it another version?")
    said = ""
    for status in _watched(meant.path, name):
        if status.state in (wanted, "stopped"):
            print(f"{name} is {status.state}" + (f": {status.turn}" if status.turn else ""))
            return int(status.state == "stopped")
        now = f"{status.state} ({status.phase})" if status.phase else status.state
        if status.turn and status.state == "asleep":
            now = f"{status.state}: {_without_time(status.turn)}"
        if now != said:
            said = now
            print(f"{name}: {said}", flush=True)
    raise AssertionError("only an error ends the watch")


def _watched(path: Path, name: str) -> Iterator[WorkerStatus]:
    """The worker's status until it leaves, again and again; a terminal shows a start as a bar."""
    with step_bar(sys.stdout) as show:
        while True:
            status = ask(path, AskStatus())
            if not isinstance(status, WorkerStatus) or status.state == "leaving":
                raise ConfigError(f"worker `{name}` is shutting down")
            if status.phase:
                show(f"{name}: {status.phase}", status.fraction, status.detail)
            yield status
            time.sleep(_POLL_S)


def _without_time(turn: str) -> str:
    """The line about a sleep without what changes each second."""
    parts = turn.split("; ")
    return "; ".join(part for part in parts if not part.startswith(("asleep for", "awake in")))


def _wait_ready(path: Path, name: str, epoch: int) -> int:
    said = ""
    for status in _watched(path, name):
        if status.epoch >= epoch and status.state == "ready":
            print(f"{name} is ready (epoch {status.epoch}, engine pid {status.engine_pid})")
            return 0
        if status.state == "asleep":
            print(f"{name} is asleep; its next wake starts it as the file says now")
            return 0
        if status.epoch >= epoch and status.state == "stopped":
            cause = status.fault.cause if status.fault is not None else "no cause is known"
            print(f"{name} is stopped: {cause}", file=sys.stderr)
            return 1
        now = f"{status.state} ({status.phase})" if status.phase else status.state
        if now != said:
            said = now
            print(f"{name}: {said}")
    raise AssertionError("only an error ends the watch")


def render(workers: Iterable[tuple[int, WorkerStatus | None]], *, with_log: bool) -> str:
    """A table of workers by supervisor pid, with starts under way, gains of drafts, link troubles
    and last faults.
    """
    ordered = sorted(workers, key=lambda each: (each[1].name if each[1] else "", each[0]))
    rows = [_COLUMNS, *(_row(pid, status) for pid, status in ordered)]
    table = table_lines(rows, spare=_SPARE)
    statuses = [status for _, status in ordered if status is not None]
    files = {each.config for each in statuses if each.config is not None}
    owners = (f"\n{each.name} (pid {each.pid}): {whose(each)}" for each in statuses)
    troubles = (f"\n{each.name}: {trouble}" for each in statuses for trouble in each.troubles)
    faults = (line for each in statuses for line in _fault(each, with_log))
    starts = (f"\n{each.name}: {start_line(each)}" for each in statuses if each.phase)
    turns = (f"\n{each.name}: {each.turn}" for each in statuses if each.turn)
    drafts = (f"\n{each.name}: drafts by {each.drafting}" for each in statuses if each.drafting)
    caches = (f"\n{each.name}: host cache: {each.cache}" for each in statuses if each.cache)
    told = owners if len(files) > 1 else ()
    return "\n".join((*table, *told, *starts, *turns, *drafts, *caches, *troubles, *faults))


def _row(pid: int, status: WorkerStatus | None) -> tuple[str, ...]:
    if status is None:
        unknown = "-"
        return (
            "?", "silent", unknown, unknown, unknown, str(pid), unknown, unknown, unknown,
            "it does not answer: it is stopped (kill -CONT) or hangs",
        )  # fmt: skip
    welcomed, dialled = status.gateways
    phase = f"{status.phase} {status.fraction:.0%}" if status.phase else "-"
    has_device = status.device not in ("", "none")
    mode = ", invariant" if status.is_invariant else ""
    return (
        status.name,
        status.state,
        phase,
        str(status.epoch),
        str(status.restarts),
        str(status.pid),
        str(status.engine_pid or "-"),
        duration(status.uptime_s) if status.uptime_s else "-",
        f"{welcomed}/{dialled}",
        f"{status.model} on {status.device}{mode}" if has_device else status.model,
    )


def _fault(status: WorkerStatus, with_log: bool) -> Iterator[str]:
    fault = status.fault
    if fault is None:
        return
    when = f"epoch {fault.epoch}, {duration(fault.ago_s)} ago"
    yield f"\n{status.name}: last fault ({when}) [{fault.kind}]"
    yield from (f"  {part}" for part in fault.cause.split("; "))
    if with_log:
        yield from (f"  | {line}" for line in fault.last_log)


def start_line(status: WorkerStatus) -> str:
    """The progress of a start: weights [########............] 42%  DETAIL."""
    done = min(max(status.fraction, 0.0), 1.0)
    marks = ("#" * int(done * _BAR_CELLS)).ljust(_BAR_CELLS, ".")
    return f"{status.phase} [{marks}] {done:.0%}  {status.detail}".rstrip()


def duration(seconds: float) -> str:
    """At most two units: 42 s, 3 min 05 s, 2 h 10 min, 3 d 4 h."""
    whole = int(seconds)
    if whole < _MINUTE:
        return f"{whole} s"
    if whole < _HOUR:
        return f"{whole // _MINUTE} min {whole % _MINUTE:02d} s"
    if whole < _DAY:
        return f"{whole // _HOUR} h {whole % _HOUR // _MINUTE:02d} min"
    return f"{whole // _DAY} d {whole % _DAY // _HOUR} h"
