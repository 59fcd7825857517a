"""The process of an engine that the worker launches.

Owns its start in our own process group (so that a kill of the group includes it), its output and
its end. Must not know HTTP.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Final, NoReturn, final

import trio

from config import LaunchConfig
from housekeeping.processes import fields_of, folders, text_of
from protocol.errors import ConfigError

NOT_FOUND: Final = 127
NOT_EXECUTABLE: Final = 126

_LINE_END: Final = re.compile(rb"[\r\n]+")
_MAX_LINE_BYTES: Final = 4096
_LOG_AFTER_EXIT_S: Final = 0.2
"""How long the log is read after the exit. The last lines are in the pipe already; a surviving
child could keep the pipe open.
"""
_TICKS_PER_S: Final = os.sysconf("SC_CLK_TCK")


@final
class LaunchedEngine:
    """A launched engine. `on_line` receives each line of its output, and each state of a progress
    bar.
    """

    def __init__(self, process: trio.Process, on_line: Callable[[str], None]) -> None:
        self._process = process
        self._on_line = on_line
        self._log_ended = trio.Event()

    @property
    def pid(self) -> int:
        """The process id."""
        return self._process.pid

    async def run(self) -> int:
        """Carry log lines until the process ends. Returns its exit code as in a shell."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._read_log)
            code = await self._process.wait()
            with trio.move_on_after(_LOG_AFTER_EXIT_S):
                await self._log_ended.wait()
            nursery.cancel_scope.cancel()
        return code if code >= 0 else 128 - code

    async def end(self, wait_s: float) -> None:
        """Ask the process to end, and wait for at most `wait_s`."""
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

    async def end_process(self, what: str) -> NoReturn:
        """End this process when the launched engine, `what`, has ended, with its exit code."""
        code = await self.run()
        print(f"the launched {what} has ended with exit code {code}")
        end_with(code)

    def _take_line(self, line: bytes) -> None:
        if text := line[:_MAX_LINE_BYTES].decode(errors="replace").strip():
            self._on_line(text)


async def launch(
    config: LaunchConfig, environ: Mapping[str, str], on_line: Callable[[str], None]
) -> LaunchedEngine:
    """Start the process. Raises `ConfigError` for a missing directory; for a missing program this
    process ends as a shell would, with 127 or 126.
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
    """Pass a line of the engine to the supervisor's log and to the reports of the start."""
    print(line, flush=True)
    report(line)


def end_with(code: int) -> NoReturn:
    """End this process now with the engine's exit code, which the supervisor explains."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def group_cpu_s() -> float:
    """Seconds of CPU that the other processes of our group have used: an engine that compiles may
    log nothing for minutes. Blocks for some milliseconds.
    """
    group, own, ticks = os.getpgrp(), os.getpid(), 0
    for folder in folders():
        fields = fields_of(text_of(folder / "stat"))
        if fields and int(folder.name) != own and int(fields[2]) == group:
            ticks += int(fields[11]) + int(fields[12])
    return ticks / _TICKS_PER_S
