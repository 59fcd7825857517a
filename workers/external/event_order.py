"""Numbered batches in order, whatever the wire did to them.

Owns the decision about each batch: apply it, hold it back until those before it are here, ask the
publisher for a replay, or forget everything because what was missed cannot be had any more. A
batch that is applied follows the one applied before it, or a `Forget`. Must not know what is in a
batch.

Numbers count from 0 at each start of the engine. An old number with other bytes is therefore a new
engine behind the same address, and one with the same bytes came twice.
"""

from collections import deque
from dataclasses import dataclass
from typing import Final

import xxhash

HELD_BACK: Final = 10_000
"""Batches that may wait for a replay: as many as vLLM keeps for one by default."""
HELD_BACK_BYTES: Final = 64 * 2**20
REMEMBERED: Final = 256
"""Batches by which a repeated one is known."""


@dataclass(frozen=True, slots=True)
class Apply:
    """The next batch."""

    payload: bytes


@dataclass(frozen=True, slots=True)
class Forget:
    """What was missed is lost: all that was published before is void."""


@dataclass(frozen=True, slots=True)
class AskReplay:
    """Ask the publisher for its batches from `start` on."""

    start: int


Step = Apply | Forget | AskReplay


class EventOrder:
    """One publisher's batches. The caller takes the steps in the order of the tuples."""

    def __init__(self, *, can_replay: bool) -> None:
        self._can_replay = can_replay
        self._next = 0
        self._prints: deque[int] = deque(maxlen=REMEMBERED)
        self._waiting: dict[int, bytes] = {}
        self._waiting_bytes = 0

    @property
    def is_waiting(self) -> bool:
        """Whether batches are held back because earlier ones are missing."""
        return bool(self._waiting)

    def live(self, seq: int, payload: bytes) -> tuple[Step, ...]:
        """A batch was published."""
        if seq < self._next:
            return () if self._print_of(seq) == _print(payload) else self._restart(seq, payload)
        held = self._waiting.get(seq)
        if held is not None:
            return () if held == payload else self._restart(seq, payload)
        return self._place(seq, payload)

    def replayed(self, seq: int, payload: bytes) -> tuple[Step, ...]:
        """A batch came in answer to `AskReplay`; one that is not missing is ignored."""
        if not self._waiting or seq < self._next or seq in self._waiting:
            return ()
        return self._place(seq, payload)

    def replay_ended(self) -> tuple[Step, ...]:
        """The replay is over, failed or took too long: what is missing now stays missing."""
        return self._give_up() if self._waiting else ()

    def restarted(self) -> tuple[Step, ...]:
        """The engine was started again."""
        self._next = 0
        self._prints.clear()
        self._waiting.clear()
        self._waiting_bytes = 0
        return (Forget(),)

    def _restart(self, seq: int, payload: bytes) -> tuple[Step, ...]:
        return self.restarted() + self._place(seq, payload)

    def _place(self, seq: int, payload: bytes) -> tuple[Step, ...]:
        """Take a batch that was not seen before."""
        if seq == self._next:
            return (self._apply(payload), *self._apply_waiting())
        is_new_gap = not self._waiting
        self._waiting[seq] = payload
        self._waiting_bytes += len(payload)
        if not self._can_replay or self._is_full():
            return self._give_up()
        return (AskReplay(self._next),) if is_new_gap else ()

    def _is_full(self) -> bool:
        return len(self._waiting) > HELD_BACK or self._waiting_bytes > HELD_BACK_BYTES

    def _apply(self, payload: bytes) -> Apply:
        self._next += 1
        self._prints.append(_print(payload))
        return Apply(payload)

    def _apply_waiting(self) -> tuple[Step, ...]:
        steps = []
        while (payload := self._waiting.pop(self._next, None)) is not None:
            self._waiting_bytes -= len(payload)
            steps.append(self._apply(payload))
        return tuple(steps)

    def _give_up(self) -> tuple[Step, ...]:
        """Go on behind the last hole: what came before it would be forgotten at the hole."""
        start = max(self._waiting)
        while start - 1 in self._waiting:
            start -= 1
        self._next = start
        self._prints.clear()
        steps = (Forget(), *self._apply_waiting())
        self._waiting.clear()
        self._waiting_bytes = 0
        return steps

    def _print_of(self, seq: int) -> int | None:
        """The fingerprint of a batch that was applied; None if that is too long ago."""
        age = self._next - seq
        return self._prints[-age] if age <= len(self._prints) else None


def _print(payload: bytes) -> int:
    return xxhash.xxh3_64_intdigest(payload)
