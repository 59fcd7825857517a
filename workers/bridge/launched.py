"""The process of an engine that the worker starts.

Owns its start in our own process group (so that a kill of the group takes it along), its
output and its end. Must not know HTTP.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final, NoReturn, final

import trio

from config import LaunchConfig
from protocol.errors import ConfigError

NOT_FOUND: Final = 127
NOT_EXECUTABLE: Final = 126

_LINE_END: Final = re.compile(rb"[\r\n]+")
_MAX_LINE_BYTES: Final = 4096
_LOG_AFTER_EXIT_S: Final = 0.2
"""Its last lines are in the pipe already; a surviving child could keep the pipe open."""
_TICKS_PER_S: Final = os.sysconf("SC_CLK_TCK")


@final
class LaunchedEngine:
    """A started engine. `on_line` gets each line of its output, of a progress bar each state."""

    def __init__(self, process: trio.Process, on_line: Callable[[str], None]) -> None:
        self._process = process
        self._on_line = on_line
        self._log_ended = trio.Event()

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    async def run(self) -> int:
        """Carry its lines until it ends; its exit code as of a shell, after its last lines."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._read_log)
            code = await self._process.wait()
            with trio.move_on_after(_LOG_AFTER_EXIT_S):
                await self._log_ended.wait()
            nursery.cancel_scope.cancel()
        return code if code >= 0 else 128 - code

    async def end(self, wait_s: float) -> None:
        """Ask it to end, and wait that long."""
        with suppress(ProcessLookupError):
            self._process.send_signal(signal.SIGTERM)
        with trio.move_on_after(wait_s):
            await self._process.wait()

    async def _read_log(self) -> None:
        assert self._process.stdout is not None
        pending = b""
        async for data in self._process.stdout:
            *lines, pending = _LINE_END.split(pending + data)
            for line in lines:
                self._take_line(line)
            if len(pending) > _MAX_LINE_BYTES:
                self._take_line(pending)
                pending = b""
        self._take_line(pending)
        self._log_ended.set()

    def _take_line(self, line: bytes) -> None:
        if text := line[:_MAX_LINE_BYTES].decode(errors="replace").strip():
            self._on_line(text)


async def launch(
    config: LaunchConfig, environ: Mapping[str, str], on_line: Callable[[str], None]
) -> LaunchedEngine:
    """Start it. Raises `ConfigError` for a directory that does not exist; a program that does not
    exist ends this process as a shell would end, with 127 or 126.
    """
    try:
        process = await trio.lowlevel.open_process(
            list(config.argv),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env={**environ, **config.env},
            cwd=config.cwd,
        )
    except OSError as error:
        if config.cwd is not None and error.filename == config.cwd:
            raise ConfigError(f"launch.cwd {config.cwd}: {error.strerror}; correct it") from error
        code = NOT_FOUND if isinstance(error, FileNotFoundError) else NOT_EXECUTABLE
        print(f"launch.argv[0] {config.argv[0]}: {error.strerror}", file=sys.stderr)
        end_with(code)
    return LaunchedEngine(process, on_line)


def pass_on(report: Callable[[str], None], line: str) -> None:
    """A line of the engine: to the supervisor's log, and to the reports of its start."""
    print(line, flush=True)
    report(line)


def end_with(code: int) -> NoReturn:
    """End this process now; its exit code is the engine's, which the supervisor explains."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def group_cpu_s() -> float:
    """Seconds of CPU that the processes of our group have used, without this one: an engine that
    compiles may say nothing for minutes. Blocks for some milliseconds.
    """
    group, own, ticks = os.getpgrp(), os.getpid(), 0
    for path in Path("/proc").iterdir():
        if not path.name.isdecimal() or int(path.name) == own:
            continue
        with suppress(OSError):
            stat = (path / "stat").read_text(encoding="ascii", errors="replace")
            fields = stat.rpartition(")")[2].split()
            if int(fields[2]) == group:
                ticks += int(fields[11]) + int(fields[12])
    return ticks / _TICKS_PER_S
