"""Waiting until the memory of a dead engine is free again.

Owns the calls of nvidia-smi and the reading of /proc/meminfo;
`workers/supervisor/memory_drain.py` judges. The
driver is asked by a process of its own, never in ours: one that hangs would take the supervisor
along. Without nvidia-smi there is no GPU to wait for.
"""

import os
import shutil
import subprocess
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Final, final

import trio

from workers.supervisor.memory_drain import (
    DrainCheck,
    MemoryReading,
    parse_host_used,
    parse_pids,
    parse_used,
    selected_gpus,
)

_QUERY_S: Final = 5.0
"""nvidia-smi answers in 0.1 to 3 s (the longest without persistence mode), or never."""

_AGAIN_S: Final = 0.2
_MEMINFO: Final = Path("/proc/meminfo")


@final
class GpuMemory:
    """The memory of one worker's GPU. `device` is auto, cuda or cuda:N."""

    def __init__(self, device: str, meminfo: Path = _MEMINFO) -> None:
        self._program = shutil.which("nvidia-smi")
        self._gpu = selected_gpus(device, os.environ)
        self._meminfo = meminfo
        self.before: MemoryReading | None = None

    async def remember(self) -> None:
        """Take the reading to which a dead engine's memory must return."""
        self.before = await self._read()

    async def wait_drained(self, own: frozenset[int], say: Callable[[str], None]) -> None:
        """Return once the memory is free, or after 30 s with a word about it."""
        check = DrainCheck(self.before, own, trio.current_time())
        while (reading := await self._read()) is not None:
            match check.verdict(reading, trio.current_time()):
                case "drained":
                    return
                case "give up":
                    before = self.before.used_bytes if self.before is not None else 0
                    say(
                        f"GPU memory has not drained: {reading.used_bytes >> 20} MiB are used, "
                        f"{before >> 20} before the start; trying all the same"
                    )
                    return
                case "wait":
                    await trio.sleep(_AGAIN_S)

    async def _read(self) -> MemoryReading | None:
        if self._program is None:
            return None
        tables: dict[str, str | None] = {}

        async def query(what: str) -> None:
            tables[what] = await self._query(what)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(query, "gpu=memory.used")
            nursery.start_soon(query, "compute-apps=pid")
        if (used_table := tables["gpu=memory.used"]) is None:
            return None  # no GPU that answers: whoever needs it will say so
        used = parse_used(used_table)
        if used is None:
            with suppress(OSError):
                used = parse_host_used(self._meminfo.read_text(encoding="ascii"))
        if used is None:
            return None
        return MemoryReading(used, parse_pids(tables["compute-apps=pid"] or ""))

    async def _query(self, what: str) -> str | None:
        assert self._program is not None
        argv = [self._program, f"--query-{what}", "--format=csv,noheader,nounits"]
        if self._gpu is not None:
            argv.append(f"--id={self._gpu}")
        # In a thread that is let go: a process that the driver holds cannot be killed.
        with trio.move_on_after(_QUERY_S + 1):
            return await trio.to_thread.run_sync(partial(_output, argv), abandon_on_cancel=True)
        return None


def _output(argv: list[str]) -> str | None:
    """What the program prints; None if it fails or takes too long."""
    with suppress(OSError, subprocess.TimeoutExpired):
        done = subprocess.run(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=_QUERY_S,
            check=False,
        )
        if done.returncode == 0:
            return done.stdout.decode(errors="replace")
    return None
