"""Who holds which blocks, exactly.

Owns one part per engine run: a bit of the table and the number of its last event. Events are
numbered; a gap empties the part and asks for a snapshot, because a missed `BlocksDropped` would
promise blocks that are gone. Must not know loads, costs or what was routed: the blocks of prompts
that are on their way are the worker's (`worker_view.py`).
"""

from collections.abc import Mapping, Sequence
from enum import Enum, auto
from typing import Final

from gateway.routing.block_table import BlockTable
from protocol.ids import ID_BYTES, BlockDigest, WorkerId
from protocol.messages import BlocksDropped, BlocksSnapshot, BlocksStored

SNAPSHOT_PATIENCE_S: Final = 5.0
"""A snapshot that did not come is asked for again."""


class Heard(Enum):
    """What became of a block event."""

    APPLIED = auto()
    GAP = auto()
    STALE = auto()


class _Part:
    """The blocks of one engine run. `seq` None: nothing is known until a snapshot comes."""

    __slots__ = ("asked_at", "bit", "num_blocks", "seq")

    def __init__(self, bit: int, now: float) -> None:
        self.bit = bit
        self.num_blocks = 0
        self.seq: int | None = None
        self.asked_at = now


class PrefixIndex:
    """Block digests by worker."""

    def __init__(self) -> None:
        self._table = BlockTable()
        self._parts: dict[WorkerId, _Part] = {}
        self._num_changes = 0
        self._last: tuple[Sequence[BlockDigest], int, Mapping[WorkerId, int]] = (), -1, {}

    def add(self, worker_id: WorkerId, now: float) -> None:
        """An engine run begins (or is new to us): nothing is known; ask for a snapshot."""
        self.remove(worker_id)
        self._num_changes += 1
        self._parts[worker_id] = _Part(self._table.open(), now)

    def remove(self, worker_id: WorkerId) -> None:
        """The engine run is over, its blocks are gone."""
        part = self._parts.pop(worker_id, None)
        self._num_changes += 1
        if part is not None:
            self._table.close(part.bit)

    def apply(
        self,
        worker_id: WorkerId,
        event: BlocksStored | BlocksDropped | BlocksSnapshot,
        now: float,
    ) -> Heard:
        """Take in one event. After `GAP` the caller asks the worker for a snapshot.

        Events that come before the awaited snapshot are stale: it includes them, since a link
        keeps the order. So are repeated ones and those of a worker without an engine.
        """
        part = self._parts.get(worker_id)
        self._num_changes += 1
        if part is None:
            return Heard.STALE
        if isinstance(event, BlocksSnapshot):
            return self._restart(part, event)
        if part.seq is None or event.seq <= part.seq:
            return Heard.STALE
        if event.seq != part.seq + 1 or len(event.digests) % ID_BYTES:
            self._empty(part)
            part.seq, part.asked_at = None, now
            return Heard.GAP
        part.seq = event.seq
        if isinstance(event, BlocksStored):
            part.num_blocks += self._table.store(part.bit, event.digests)
        else:
            part.num_blocks -= self._table.drop(part.bit, event.digests)
        return Heard.APPLIED

    def match(self, digests: Sequence[BlockDigest]) -> Mapping[WorkerId, int]:
        """How many leading blocks of the chain each worker holds. Of a request that waits it is
        asked twice at once: by the queue and by the choice.
        """
        chain, num_changes, match = self._last
        if chain is digests and num_changes == self._num_changes:
            return match
        depths = self._table.depths(digests)
        match = {}
        if depths:
            for worker_id, part in self._parts.items():
                if part.bit in depths:
                    match[worker_id] = depths[part.bit]
        self._last = digests, self._num_changes, match
        return match

    def holds(self, worker_id: WorkerId, digest: BlockDigest) -> bool:
        """Whether that worker holds the block."""
        part = self._parts.get(worker_id)
        return part is not None and bool(self._table.holders(digest) & part.bit)

    def num_blocks(self, worker_id: WorkerId) -> int:
        """How many blocks that worker holds."""
        parts = self._parts
        return parts[worker_id].num_blocks if worker_id in parts else 0

    def num_distinct(self) -> int:
        """How many different blocks the fleet holds, give or take those that died lately."""
        return len(self._table)

    def num_bytes(self) -> int:
        """What it takes of the process's memory."""
        return self._table.num_bytes()

    def sweep(self) -> None:
        """Clean up a bite after workers that are gone; call it from time to time."""
        self._table.sweep()

    def overdue_snapshots(self, now: float) -> tuple[WorkerId, ...]:
        """Workers whose snapshot did not come, to be asked again."""
        overdue = []
        for worker_id, part in self._parts.items():
            if part.seq is None and now - part.asked_at >= SNAPSHOT_PATIENCE_S:
                part.asked_at = now
                overdue.append(worker_id)
        return tuple(overdue)

    def _restart(self, part: _Part, snapshot: BlocksSnapshot) -> Heard:
        older = part.seq is not None and snapshot.seq < part.seq
        if older or len(snapshot.digests) % ID_BYTES:
            return Heard.STALE
        self._empty(part)
        part.num_blocks = self._table.store(part.bit, snapshot.digests)
        part.seq = snapshot.seq
        return Heard.APPLIED

    def _empty(self, part: _Part) -> None:
        """A new bit, rather than clearing the old one block by block."""
        if part.num_blocks:
            self._table.close(part.bit)
            part.bit, part.num_blocks = self._table.open(), 0
