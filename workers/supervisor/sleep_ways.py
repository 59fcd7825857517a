"""Ways in which a living engine sleeps and wakes without a new process.

Owns the interface, for which there is no way yet. Must not know when.
"""

from typing import Protocol

from workers.supervisor.engine_life import EngineLife


class CannotSleepError(Exception):
    """The engine cannot sleep, or did not wake, in this way; one line says why."""


class Way(Protocol):
    """A way to sleep: `name` is for people and for the record."""

    name: str

    async def sleep(self, life: EngineLife) -> None:
        """Free the engine's memory of the device. Raises `CannotSleepError`; then it serves on."""

    async def wake(self, life: EngineLife) -> None:
        """Bring it back. Raises `CannotSleepError`; then the process is of no use."""
