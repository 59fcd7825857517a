"""Waits until the GPU memory of a dead engine is free again.

Owns the verdict, and the GPU's signs of life in a start. Without nvidia-smi there is no GPU to wait
for.
"""

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal, final

import trio

from config import WorkerConfig
from housekeeping.processes import PROC, host_memory
from workers.supervisor.gpu_holders import end_holders, looked_up, parse_holders
from workers.supervisor.nvidia_smi import NvidiaSmi, nvidia_smi_in, selected_cards

Verdict = Literal["drained", "wait", "give up"]

SLACK_BYTES: Final = 512 * 2**20
"""Memory that other programs (a desktop, a context) may have taken since the engine's start."""

SETTLED_S: Final = 2.0
FALLING_BYTES: Final = 64 * 2**20
GIVE_UP_S: Final = 30.0
MIB: Final = 2**20


@dataclass(frozen=True, slots=True)
class MemoryReading:
    """Bytes in use on the engine's GPU, and the processes that hold some of them."""

    used_bytes: int
    pids: frozenset[int] = frozenset()


class DrainCheck:
    """Judges one reading after another until the verdict is no longer `wait`.

    Drained means that usage is back at its level `before` the engine's start, or that it has not
    fallen for two seconds while none of our processes (`own`) is listed: the rest belongs to
    others. The limit is 30 s, because an engine that fails reports more than an engine that never
    starts.
    """

    def __init__(self, before: MemoryReading | None, own: frozenset[int], now: float) -> None:
        self._before = before
        self._own = own
        self._began_at = now
        self._lowest: int | None = None
        self._fell_at = now

    def verdict(self, reading: MemoryReading, now: float) -> Verdict:
        """The next action after `reading`, taken at `now`."""
        if self._lowest is None or reading.used_bytes <= self._lowest - FALLING_BYTES:
            self._lowest, self._fell_at = reading.used_bytes, now
        before = self._before
        if before is not None and reading.used_bytes <= before.used_bytes + SLACK_BYTES:
            return "drained"
        if now - self._fell_at >= SETTLED_S and not self._own & reading.pids:
            return "drained"
        return "give up" if now - self._began_at >= GIVE_UP_S else "wait"


def parse_used(table: str) -> int | None:
    """Bytes in use from `--query-gpu=memory.used` (MiB per line), summed over the GPUs; None where
    a GPU has no memory of its own (`[N/A]`: it shares the host's) or none is listed.
    """
    values = [line.strip() for line in table.splitlines() if line.strip()]
    if not values or not all(value.isdigit() for value in values):
        return None
    return sum(map(int, values)) * MIB


def parse_busy(table: str) -> int:
    """The highest of `--query-gpu=utilization.gpu` in percent; 0 if no GPU reports it."""
    return max((int(word) for word in table.split() if word.isdigit()), default=0)


def parse_pids(table: str) -> frozenset[int]:
    """The process ids of `--query-compute-apps=pid`. Lines without a number are skipped."""
    return frozenset(int(word) for word in table.split() if word.isdigit())


_QUERY_S: Final = 5.0
"""nvidia-smi answers in 0.1 to 3 s (the longest without persistence mode), or never."""

_AGAIN_S: Final = 0.2
_USE_EVERY_S: Final = 10.0
_BUSY_PERCENT: Final = 5
_MAX_NAMED: Final = 8


@final
class GpuMemory:
    """The memory of one worker's GPU, or the memory of its ranks' GPUs together. Each of `devices`
    is auto, cuda or cuda:N. `is_own`: the GPU is reserved for the worker.
    """

    def __init__(self, *devices: str, is_own: bool = False, proc: Path = PROC) -> None:
        self._is_own = is_own
        gpu = selected_cards(devices, os.environ)
        self._driver = NvidiaSmi(nvidia_smi_in(os.environ), gpu, _QUERY_S)
        self._proc = proc
        self.before: MemoryReading | None = None
        self._was_busy = 0

    async def remember(self) -> None:
        """Take the reading to which usage must return after the engine's death."""
        self.before = await self._read()
        self._was_busy = await self._busy()

    async def wait_drained(self, own: frozenset[int], say: Callable[[str], None]) -> None:
        """Return once the memory is free, or after 30 s with a log line. Processes that still hold
        memory are logged, and ended if the GPU is the worker's own.
        """
        check = DrainCheck(self.before, own, trio.current_time())
        is_named = False
        while (reading := await self._read()) is not None:
            verdict = check.verdict(reading, trio.current_time())
            if verdict == "wait":
                await trio.sleep(_AGAIN_S)
                continue
            before = self.before.used_bytes if self.before is not None else 0
            if verdict == "drained" and reading.used_bytes <= before + SLACK_BYTES:
                return
            if not is_named and await self._name_holders(reading, say):
                is_named, check = True, DrainCheck(self.before, own, trio.current_time())
                continue
            if verdict == "give up":
                say(
                    f"GPU memory has not drained: {reading.used_bytes >> 20} MiB are used, "
                    f"{before >> 20} before the start; trying all the same"
                )
            return

    async def free_own(self, say: Callable[[str], None]) -> None:
        """Before the first start: end processes that hold memory of a GPU of the worker's own."""
        if self._is_own and (reading := await self._read()) is not None:
            await self._name_holders(reading, say)

    async def watch_use(self, on_use: Callable[[str], None]) -> None:
        """Report that the GPU works, until cancelled: an engine may log nothing for minutes. GPUs
        that were busy before the start are not reported.
        """
        used = 0 if self.before is None else self.before.used_bytes
        while self._driver.program is not None:
            await trio.sleep(_USE_EVERY_S)
            if (reading := await self._read()) is None:
                return
            busy = await self._busy()
            if (
                abs(reading.used_bytes - used) >= FALLING_BYTES
                or busy >= _BUSY_PERCENT > self._was_busy
            ):
                on_use(f"GPU: {reading.used_bytes >> 20} MiB in use, {busy} % busy")
            used = reading.used_bytes

    async def _name_holders(self, reading: MemoryReading, say: Callable[[str], None]) -> bool:
        """Log the holders, and end them if the GPU is the worker's own. Returns whether some were
        ended, so that waiting makes sense again.
        """
        table = await self._query("compute-apps=pid,process_name,used_memory") or ""
        holders = await trio.to_thread.run_sync(looked_up, parse_holders(table))
        if not holders:
            return False
        ended = await trio.to_thread.run_sync(end_holders, holders) if self._is_own else []
        what = "ended (owns_gpu)" if ended else "left alone"
        names = "; ".join(map(str, holders[:_MAX_NAMED]))
        say(f"{reading.used_bytes >> 20} MiB of GPU memory are held: {names}: {what}")
        return bool(ended)

    async def _busy(self) -> int:
        return parse_busy(await self._query("gpu=utilization.gpu") or "")

    async def _read(self) -> MemoryReading | None:
        if self._driver.program is None:
            return None
        tables: dict[str, str | None] = {}

        async def query(what: str) -> None:
            tables[what] = await self._query(what)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(query, "gpu=memory.used")
            nursery.start_soon(query, "compute-apps=pid")
        if (used_table := tables["gpu=memory.used"]) is None:
            return None  # no GPU answers: an engine that needs one reports that
        used = parse_used(used_table)
        if used is None:
            if (memory := host_memory(self._proc)) is None:
                return None
            used = memory[0] - memory[1]
        return MemoryReading(used, parse_pids(tables["compute-apps=pid"] or ""))

    async def _query(self, what: str) -> str | None:
        # In a thread that may be abandoned: a process that hangs in the driver cannot be killed.
        with trio.move_on_after(_QUERY_S + 1):
            return await trio.to_thread.run_sync(self._driver.query, what, abandon_on_cancel=True)
        return None


def memory_of(config: WorkerConfig) -> GpuMemory | None:
    """The memory of the engine's GPU; None if the engine may use no GPU."""
    may_hold_gpu = config.engine == "native" and config.device != "cpu"
    if config.launch is not None:
        # A launched engine, only if the file names a card.
        may_hold_gpu = config.device.startswith("cuda")
    return GpuMemory(*config.host_devices, is_own=config.owns_gpu) if may_hold_gpu else None
