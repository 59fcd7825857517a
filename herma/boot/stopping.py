"""Stops what a boot would start: units by systemctl, and processes that were started by hand.

Owns which processes these are: the holder of the gateway's port and the supervisors of the units'
workers, with the `herma up` that would restart them. Never touches other programs.
"""

import os
import re
import signal
import subprocess
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from herma.doctor import Host, holder_of, is_ours
from housekeeping.processes import is_alive, stat_of
from protocol.errors import ConfigError

_POLL_S: Final = 0.1
_PARENTS: Final = ("herma up", "herma gateways")


def systemctl(*words: str, is_user: bool) -> int:
    """The exit status of a systemctl command; 1 where systemd does not run."""
    if not Path("/run/systemd/system").is_dir():
        return 1
    argv = ["systemctl", *(["--user"] if is_user else []), *words]
    return subprocess.run(argv, check=False, stdin=subprocess.DEVNULL).returncode


def stop_running(
    host: Host,
    units: Sequence[str],
    port: int,
    supervisors: Iterable[int],
    *,
    is_user: bool,
    patience_s: float,
    say: Callable[[str], None],
) -> list[str]:
    """Stop the `units` that run, and Herma's processes that hold `port` or are `supervisors`.

    Returns the units that were stopped. Raises `ConfigError` for a port of another program, and for
    a process that does not end in `patience_s`.
    """
    active = [name for name in units if not systemctl("is-active", "-q", name, is_user=is_user)]
    if active:
        say(f"stopping {', '.join(active)}")
        if systemctl("stop", *active, is_user=is_user):
            raise ConfigError(f"systemctl could not stop {', '.join(active)}; stop them by hand")
    pids = {str(pid) for pid in supervisors if is_alive(stat_of(pid))}
    if port and (holder := holder_of(host, port)) is not None:
        if not is_ours(host, holder):
            raise ConfigError(f"port {port} is taken by process {holder}, which is not Herma's")
        pids.add(holder)
    tops = sorted({_top(host, pid) for pid in pids}, key=int)
    for pid in tops:
        say(f"stopping process {pid} ({host.text(f'/proc/{pid}/cmdline').strip(chr(0))})")
        with suppress(ProcessLookupError):
            os.kill(int(pid), signal.SIGTERM)
    _wait_dead(tops, patience_s)
    return active


def _top(host: Host, pid: str) -> str:
    """The process itself, or the parent that would restart it."""
    while True:
        status = host.text(f"/proc/{pid}/status")
        parent = re.search(r"^PPid:\s*(\d+)", status, re.MULTILINE)
        title = host.text(f"/proc/{parent[1]}/cmdline") if parent is not None else ""
        if parent is None or not title.startswith(_PARENTS):
            return pid
        pid = parent[1]


def _wait_dead(pids: Sequence[str], patience_s: float) -> None:
    deadline = time.monotonic() + patience_s
    while alive := [pid for pid in pids if is_alive(stat_of(int(pid)))]:
        if time.monotonic() > deadline:
            raise ConfigError(f"process {', '.join(alive)} has not ended in {patience_s:g} s")
        time.sleep(_POLL_S)
