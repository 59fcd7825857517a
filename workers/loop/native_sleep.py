"""The sleep of the engine's device, as the engine's loop controls it.

Owns the seam to whatever moves the memory, what is kept of the prefix cache, and the answers to the
supervisor. Must not know tensors, nor when the engine sleeps.
"""

from __future__ import annotations

import sys
from typing import NamedTuple, Protocol, final

from workers.ipc import NATIVE_SLEEP, SleepEngine, Slept, Woken
from workers.loop.heartbeat import EngineStatus
from workers.scheduler import HeldCounts, HeldPlaces, Scheduler


class MemoryMove(NamedTuple):
    """The outcome of a sleep or a wake: `why` it failed, "" if it succeeded. `host_bytes` are held
    on the host for it. `note` says for people what was kept. `has_rows`: the blocks and states of
    prefixes are there. `is_asleep` after a wake: the memory was not free, and a later wake may find
    it.
    """

    why: str = ""
    host_bytes: int = 0
    note: str = ""
    has_rows: bool = True
    is_asleep: bool = False


class NativeSleep(Protocol):
    """Moves the memory of an engine's device. Only the loop's thread calls it, and only while
    nothing runs there.
    """

    def expect(self, held: HeldCounts) -> None:
        """Make memory of the host ready for what these prefixes hold. Returns at once."""

    def fits(self, held: HeldCounts) -> bool:
        """Whether what these prefixes hold fits into the host's memory now."""

    def fall_asleep(self, held: HeldPlaces) -> MemoryMove:
        """Give the memory back, and keep what these places hold, which `fits`."""

    def wake(self) -> MemoryMove:
        """Take the memory again, with what it held."""


@final
class SleepControl:
    """One engine's sleep; `sleep` None: it has none."""

    def __init__(
        self, sleep: NativeSleep | None, scheduler: Scheduler, status: EngineStatus
    ) -> None:
        self.is_asleep = False
        self._sleep = sleep
        self._scheduler = scheduler
        self._status = status

    def expect(self) -> None:
        """Prepare for a sleep that may come."""
        if self._sleep is not None and not self.is_asleep:
            self._sleep.expect(self._scheduler.blocks.held_counts())

    def fall_asleep(self, message: SleepEngine) -> Slept:
        """Put the device to sleep; nothing runs there."""
        sleep, scheduler = self._sleep, self._scheduler
        if sleep is None or message.way not in ("", NATIVE_SLEEP):
            return Slept(f"it has no way to sleep that is called {message.way!r}")
        if self.is_asleep or scheduler.has_work:
            return Slept("it is asleep" if self.is_asleep else "it has work")
        self._status.busy, self._status.phase = True, "falling asleep"
        num_dropped = scheduler.blocks.shrink(sleep.fits)
        moved = sleep.fall_asleep(scheduler.blocks.held_places())
        if not moved.has_rows:
            num_dropped += scheduler.blocks.clear_card()
        self.is_asleep = not moved.why
        self._status.busy, self._status.phase = False, ""
        note = moved.note
        if num_dropped and not moved.why:
            note += f"; {num_dropped} cached blocks had no room on the host and are forgotten"
        if note:
            print(f"asleep: {note}", file=sys.stderr, flush=True)
        return Slept(moved.why, moved.host_bytes, note)

    def wake(self) -> Woken:
        """Take the device's memory again."""
        if self._sleep is None or not self.is_asleep:
            return Woken("it does not sleep")
        self._status.busy, self._status.phase = True, "waking"
        moved = self._sleep.wake()
        if not moved.has_rows:
            self._scheduler.blocks.clear_card()
        self.is_asleep = moved.is_asleep
        self._status.busy, self._status.phase = False, ""
        if moved.note:
            print(f"awake: {moved.note}", file=sys.stderr, flush=True)
        return Woken(moved.why, moved.is_asleep)
