"""What is done on the host between two engines of a worker.

Owns the leftovers of dead processes, the steps of `prepare`, and the memory of the card, which a
dead engine has to give back. Must not know when an engine starts, or why one died.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import final

import trio

from config import WorkerConfig
from housekeeping.process_files import engine_folders, remove, sweep
from workers.supervisor.gpu_memory import memory_of
from workers.supervisor.log import WorkerLog
from workers.supervisor.prepare import prepare


@final
class BetweenEngines:
    """The host of one worker. `config` is that of its first engine."""

    def __init__(self, config: WorkerConfig, log: WorkerLog) -> None:
        self._memory = memory_of(config)
        self._log = log

    async def free_card(self) -> None:
        """Before the first start: end processes that hold memory of a card of the worker's own."""
        if self._memory is not None:
            await self._memory.free_own(self._log.info)

    async def prepare(self, steps: Sequence[str]) -> None:
        """Carry out the steps of the `prepare` key before a start."""
        if steps:
            for line in await trio.to_thread.run_sync(prepare, steps):
                self._log.info(line)

    async def sweep_and_measure(self) -> None:
        """Remove leftovers of earlier supervisors; read the card's memory in use before our engine
        starts.
        """
        removed = await trio.to_thread.run_sync(sweep, engine_folders())
        if removed:
            what = "1 leftover" if len(removed) == 1 else f"{len(removed)} leftovers"
            names = ", ".join(map(str, removed[:5]))
            self._log.info(f"removed {what} of dead processes: {names}")
        await self.measure()

    async def measure(self) -> None:
        """Read the card's memory in use, to which it must return after the engine's death."""
        if self._memory is not None:
            await self._memory.remember()

    async def move_to(self, config: WorkerConfig) -> None:
        """The next engine is on the device of `config`."""
        self._memory = memory_of(config)
        await self.measure()

    async def watch_use(self, on_use: Callable[[str], None]) -> None:
        """Report that the card works, until cancelled."""
        if self._memory is not None:
            await self._memory.watch_use(on_use)

    async def wait_drained(self, own: frozenset[int]) -> None:
        """Return once the card's memory is free of the processes `own`, or after 30 s."""
        if self._memory is not None and own:
            await self._memory.wait_drained(own, self._log.info)

    async def clean_up(self, scratch: Path | None) -> None:
        """Remove the files that a dead engine left, those in its folder `scratch` too."""

        def remove_all() -> None:
            if scratch is not None:
                remove(scratch)
            sweep(engine_folders())

        await trio.to_thread.run_sync(remove_all)
