"""Restores the order of numbered batches.

Owns the decision about each batch: apply it, hold it back until the batches before it have arrived,
ask the publisher for a replay, or forget everything because the missing batches are lost. An
applied batch follows its predecessor, or a `Forget`. Must not know the content of a batch.

Numbers start from 0 at each start of the engine. So an old number with other bytes means a new
engine at the same address, and an old number with the same bytes is a duplicate.
"""

from collections import deque
from dataclasses import dataclass
from typing import Final

import xxhash

HELD_BACK: Final = 10_000
"""Batches that may wait for a replay: as many as vLLM keeps for one by default."""
HELD_BACK_BYTES: Final = 64 * 2**20
REMEMBERED: Final = 256
"""Fingerprints that are kept to recognise a duplicate."""


@dataclass(frozen=True, slots=True)
class Apply:
    """Apply the next batch."""

    payload: bytes


@dataclass(frozen=True, slots=True)
class Forget:
    """Drop all that was published before: batches are lost."""


@dataclass(frozen=True, slots=True)
class AskReplay:
    """Ask the publisher for its batches from `start` on."""

    start: int


Step = Apply | Forget | AskReplay


class EventOrder:
    """The batches of one publisher. The caller carries out the steps in the order of the tuples."""

    def __init__(self, *, can_replay: bool) -> None:
        self._can_replay = can_replay
        self._next = 0
        self._fingerprints: deque[int] = deque(maxlen=REMEMBERED)
        self._waiting: dict[int, bytes] = {}
        self._waiting_bytes = 0

    def live(self, seq: int, payload: bytes) -> tuple[Step, ...]:
        """A batch was published."""
        if seq < self._next:
            return (
                ()
                if self._fingerprint_of(seq) == _fingerprint(payload)
                else self._restart(seq, payload)
            )
        held = self._waiting.get(seq)
        if held is not None:
            return () if held == payload else self._restart(seq, payload)
        return self._place(seq, payload)

    def replayed(self, seq: int, payload: bytes) -> tuple[Step, ...]:
        """A batch arrived in answer to `AskReplay`; a batch that is not missing is ignored."""
        if not self._waiting or seq < self._next or seq in self._waiting:
            return ()
        return self._place(seq, payload)

    def replay_ended(self) -> tuple[Step, ...]:
        """The replay is complete, failed or took too long: batches that are missing now are
        lost.
        """
        return self._give_up() if self._waiting else ()

    def restarted(self) -> tuple[Step, ...]:
        """The engine has restarted."""
        self._next = 0
        self._fingerprints.clear()
        self._waiting.clear()
        self._waiting_bytes = 0
        return (Forget(),)

    def _restart(self, seq: int, payload: bytes) -> tuple[Step, ...]:
        return self.restarted() + self._place(seq, payload)

    def _place(self, seq: int, payload: bytes) -> tuple[Step, ...]:
        """Take a batch that is not a duplicate."""
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
        self._fingerprints.append(_fingerprint(payload))
        return Apply(payload)

    def _apply_waiting(self) -> tuple[Step, ...]:
        steps = []
        while (payload := self._waiting.pop(self._next, None)) is not None:
            self._waiting_bytes -= len(payload)
            steps.append(self._apply(payload))
        return tuple(steps)

    def _give_up(self) -> tuple[Step, ...]:
        """Continue after the last gap: batches before it would be forgotten at the gap."""
        start = max(self._waiting)
        while start - 1 in self._waiting:
            start -= 1
        self._next = start
        self._fingerprints.clear()
        steps = (Forget(), *self._apply_waiting())
        self._waiting.clear()
        self._waiting_bytes = 0
        return steps

    def _fingerprint_of(self, seq: int) -> int | None:
        """The fingerprint of an applied batch; None if the batch is more than `REMEMBERED` batches
        old.
        """
        age = self._next - seq
        return self._fingerprints[-age] if age <= len(self._fingerprints) else None


def _fingerprint(payload: bytes) -> int:
    return xxhash.xxh3_64_intdigest(payload)
