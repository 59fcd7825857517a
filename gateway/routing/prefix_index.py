"""The prefix index: which worker holds which blocks, and which states behind them, exactly.

Owns the tables of blocks and of states, and one part per engine run: a bit of both and the number
of its last event. A gap in the numbers empties the part and asks for a snapshot, because a missed
`BlocksDropped` would promise blocks that are gone. Must not know loads, costs or what was routed:
the blocks of prompts that are on their way belong to `worker_view.py`.
"""

import struct
import sys
from collections.abc import Mapping, Sequence
from enum import Enum, auto
from typing import Final, assert_never

from protocol.ids import ID_BYTES, BlockDigest, WorkerId
from protocol.messages import (
    BlockEvent,
    BlocksDropped,
    BlocksSnapshot,
    BlocksStored,
    StatesForgotten,
    StatesSaved,
)

SNAPSHOT_PATIENCE_S: Final = 5.0
"""A snapshot that did not come is asked for again."""


NUM_SHARDS: Final = 4096
SWEPT_AT_ONCE: Final = 1024
"""Entries that a call of `sweep` visits, about: 0.5 ms."""

SHARDS_AT_ONCE: Final = 64
_LOOSE_BYTES: Final = 64
"""A dictionary that takes more per entry was left large by churn. Filled from empty it takes 27 to
54."""

_KEY_SHIFT: Final = 4
"""Integers of up to 60 bits take 32 bytes, longer ones 48."""
_KEY_BYTES: Final = 32
_SHARD_SHIFT: Final = 48
"""The high bits: dictionaries tell keys apart by their low ones."""
_SHARD_OF_WORD: Final = _KEY_SHIFT + _SHARD_SHIFT

_MASKS_AT_MOST: Final = 4096

_PACKED: Final = struct.Struct("<8xQ")

_Beyond = tuple[int, int, "_Beyond"] | None


class EventResult(Enum):
    """The result of a block event."""

    APPLIED = auto()
    GAP = auto()
    STALE = auto()


class _Part:
    """The blocks of one engine run. `seq` None: nothing is known until a snapshot comes. If it
    `needs_states` a sequence can begin only behind one, of which `state_bit` stands for ours.
    """

    __slots__ = ("asked_at", "bit", "needs_states", "num_blocks", "seq", "state_bit")

    def __init__(self, bit: int, state_bit: int, now: float, *, needs_states: bool) -> None:
        self.bit = bit
        self.state_bit = state_bit
        self.needs_states = needs_states
        self.num_blocks = 0
        self.seq: int | None = None
        self.asked_at = now


class PrefixIndex:
    """Block digests by worker."""

    def __init__(self) -> None:
        self._table = BlockTable()
        self._states = BlockTable()
        self._parts: dict[WorkerId, _Part] = {}
        self._num_changes = 0
        self._last: tuple[Sequence[BlockDigest], int, Mapping[WorkerId, int]] = (), -1, {}

    def add(self, worker_id: WorkerId, now: float, *, needs_states: bool = False) -> None:
        """An engine run begins, or is new here: nothing is known until a snapshot comes."""
        self.remove(worker_id)
        self._num_changes += 1
        bits = self._table.open(), self._states.open()
        self._parts[worker_id] = _Part(*bits, now, needs_states=needs_states)

    def remove(self, worker_id: WorkerId) -> None:
        """The engine run is over, its blocks are gone."""
        part = self._parts.pop(worker_id, None)
        self._num_changes += 1
        if part is not None:
            self._table.close(part.bit)
            self._states.close(part.state_bit)

    def apply(
        self, worker_id: WorkerId, event: BlockEvent | BlocksSnapshot, now: float
    ) -> EventResult:
        """Take in one event. After `GAP` the caller asks the worker for a snapshot.

        Events that come before the awaited snapshot are stale: it includes them, since a link
        keeps the order. So are repeated ones and those of a worker without an engine.
        """
        part = self._parts.get(worker_id)
        self._num_changes += 1
        if part is None:
            return EventResult.STALE
        if isinstance(event, BlocksSnapshot):
            return self._restart(part, event)
        if part.seq is None or event.seq <= part.seq:
            return EventResult.STALE
        if event.seq != part.seq + 1 or len(event.digests) % ID_BYTES:
            self._empty(part)
            part.seq, part.asked_at = None, now
            return EventResult.GAP
        part.seq = event.seq
        match event:
            case BlocksStored():
                part.num_blocks += self._table.store(part.bit, event.digests)
            case BlocksDropped():
                part.num_blocks -= self._table.drop(part.bit, event.digests)
            case StatesSaved():
                self._states.store(part.state_bit, event.digests)
            case StatesForgotten():
                self._states.drop(part.state_bit, event.digests)
            case _:
                assert_never(event)
        return EventResult.APPLIED

    def match(self, digests: Sequence[BlockDigest]) -> Mapping[WorkerId, int]:
        """Behind how many leading blocks of the chain a sequence would begin on each worker. The
        last answer is kept: for a request that waits, the queue and the decision ask one after the
        other.
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
            self._cut_to_states(digests, match)
        self._last = digests, self._num_changes, match
        return match

    def _cut_to_states(self, digests: Sequence[BlockDigest], match: dict[WorkerId, int]) -> None:
        """Of workers whose sequences begin behind states, to the deepest one that is kept. States
        are few, so there is nothing to bisect: a look from the end finds most at once, and none in
        a prompt of 100k tokens in half a millisecond.
        """
        open_: dict[int, WorkerId] = {
            part.state_bit: worker_id
            for worker_id in match
            if (part := self._parts[worker_id]).needs_states
        }
        if not open_:
            return
        wanted, depth = sum(open_), max([match[worker_id] for worker_id in open_.values()])
        while wanted and depth:
            found = self._states.holders(digests[depth - 1]) & wanted
            while found:
                bit = found & -found
                found ^= bit
                if match[open_[bit]] >= depth:
                    match[open_.pop(bit)] = depth
                    wanted ^= bit
            depth -= 1
        for worker_id in open_.values():
            del match[worker_id]

    def holds(self, worker_id: WorkerId, digest: BlockDigest) -> bool:
        part = self._parts.get(worker_id)
        return part is not None and bool(self._table.holders(digest) & part.bit)

    def num_blocks(self, worker_id: WorkerId) -> int:
        parts = self._parts
        return parts[worker_id].num_blocks if worker_id in parts else 0

    def num_distinct(self) -> int:
        """How many different blocks the fleet holds, about: lost workers are swept later."""
        return len(self._table)

    def num_bytes(self) -> int:
        return self._table.num_bytes() + self._states.num_bytes()

    def sweep(self) -> None:
        """Clean up a little after workers that are gone; call it from time to time."""
        self._table.sweep()
        self._states.sweep()

    def overdue_snapshots(self, now: float) -> tuple[WorkerId, ...]:
        """Workers whose snapshot did not come, to be asked again."""
        overdue = []
        for worker_id, part in self._parts.items():
            if part.seq is None and now - part.asked_at >= SNAPSHOT_PATIENCE_S:
                part.asked_at = now
                overdue.append(worker_id)
        return tuple(overdue)

    def _restart(self, part: _Part, snapshot: BlocksSnapshot) -> EventResult:
        older = part.seq is not None and snapshot.seq < part.seq
        if older or len(snapshot.digests) % ID_BYTES or len(snapshot.states) % ID_BYTES:
            return EventResult.STALE
        self._empty(part)
        part.num_blocks = self._table.store(part.bit, snapshot.digests)
        self._states.store(part.state_bit, snapshot.states)
        part.seq = snapshot.seq
        return EventResult.APPLIED

    def _empty(self, part: _Part) -> None:
        """New bits, rather than clearing the old ones block by block."""
        if part.num_blocks or part.needs_states:
            self._table.close(part.bit)
            self._states.close(part.state_bit)
            part.bit, part.num_blocks = self._table.open(), 0
            part.state_bit = self._states.open()


class BlockTable:
    """From block to holders, one table for all workers together: a block costs its entry once,
    however many hold it. A holder is a bit, which the table hands out.

        key       the last 60 bits of the digest. Two blocks share one in one of 100,000 tables of
                  5 million: a wrong estimate, no more, because engines compare token ids.
        value     an int with one bit per holder; equal ones are one object.
        shards    4,096 dictionaries: one of 5 million entries would stop the process for 0.2 s
                  whenever it grows, and could not be swept in small steps.
        closed    bits are hidden by a mask until the sweep has passed, so that the loss of a worker
                  costs nothing.

    An open-addressing table in `array` takes 25 to 50 bytes a block instead of 60 to 95, but half
    again the CPU per event in pure Python, and its own code for growing and for holes.
    """

    def __init__(self) -> None:
        self._shards: list[dict[int, int]] = [{} for _ in range(NUM_SHARDS)]
        self._masks: dict[int, int] = {}
        self._alive = 0
        self._free = 0
        self._num_bits = 0
        self._dead = 0
        self._sweeping = 0
        self._next_shard = 0
        self._num_left = 0
        self._is_churned = False

    def __len__(self) -> int:
        """Distinct blocks, those of closed holders that are not swept yet included."""
        return sum(map(len, self._shards))

    def num_bytes(self) -> int:
        """What the table takes: dictionaries and keys."""
        return sum(map(sys.getsizeof, self._shards)) + _KEY_BYTES * len(self)

    def open(self) -> int:
        """A bit for a new holder, which holds nothing."""
        if self._free:
            bit = self._free & -self._free
            self._free ^= bit
        else:
            bit = 1 << self._num_bits
            self._num_bits += 1
        self._alive |= bit
        return bit

    def close(self, bit: int) -> None:
        """The holder is gone, and all that it held."""
        self._alive &= ~bit
        self._dead |= bit

    def store(self, bit: int, digests: bytes) -> int:
        """The holder has these blocks (16 bytes each). Returns how many are new to it."""
        shards, same, num_new = self._shards, self._masks, 0
        alone = same.setdefault(bit, bit)
        for (word,) in _PACKED.iter_unpack(digests):
            shard, key = shards[word >> _SHARD_OF_WORD], word >> _KEY_SHIFT
            mask = shard.get(key, 0)
            if not mask:
                shard[key] = alone
                num_new += 1
            elif not mask & bit:
                mask |= bit
                shard[key] = same.setdefault(mask, mask)
                num_new += 1
        if len(same) > _MASKS_AT_MOST:
            same.clear()
        return num_new

    def drop(self, bit: int, digests: bytes) -> int:
        """The holder has dropped these blocks. Returns how many it had."""
        shards, same, num_gone = self._shards, self._masks, 0
        for (word,) in _PACKED.iter_unpack(digests):
            shard, key = shards[word >> _SHARD_OF_WORD], word >> _KEY_SHIFT
            mask = shard.get(key, 0)
            if mask & bit:
                mask ^= bit
                num_gone += 1
                if mask & self._alive:
                    shard[key] = same.setdefault(mask, mask)
                else:
                    del shard[key]
                    self._is_churned = True
        return num_gone

    def holders(self, digest: BlockDigest) -> int:
        """The bits of those that hold the block."""
        word: int = _PACKED.unpack(digest)[0]
        key = word >> _KEY_SHIFT
        return self._shards[key >> _SHARD_SHIFT].get(key, 0) & self._alive

    def depths(self, chain: Sequence[BlockDigest]) -> dict[int, int]:
        """How many leading blocks of the chain each holder has, by bit; holders of none are left
        out.

        Prefixes have no holes, so the holders only grow fewer along the chain: bisecting wherever
        some are lost finds every end. 12 look-ups for 100k tokens, 12 more at most for each holder
        that ends elsewhere.
        """
        found: dict[int, int] = {}
        if not chain:
            return found
        shards, unpack = self._shards, _PACKED.unpack
        # `holders` at a third of its price: a call.
        word = unpack(chain[0])[0]
        low, at_low = 0, shards[word >> _SHARD_OF_WORD].get(word >> _KEY_SHIFT, 0) & self._alive
        high, at_high = len(chain), 0
        # Where we looked beyond `high` already, the nearest first: pairs in pairs grow and shrink
        # without a call.
        beyond: _Beyond = None
        while at_low:
            while at_low != at_high and high - low > 1:
                middle = (low + high) // 2
                word = unpack(chain[middle])[0]
                holders = shards[word >> _SHARD_OF_WORD].get(word >> _KEY_SHIFT, 0)
                at_middle = holders & at_low
                if at_middle == at_low:
                    low = middle
                else:
                    beyond = high, at_high, beyond
                    high, at_high = middle, at_middle
            lost = at_low ^ at_high
            while lost:
                bit = lost & -lost
                found[bit] = high
                lost ^= bit
            low, at_low = high, at_high
            if beyond is not None:
                high, at_high, beyond = beyond
                at_high &= at_low
        return found

    def sweep(self) -> None:
        """Clear closed bits, and shrink dictionaries that churn has left large, in a few shards."""
        if not self._num_left:
            if not self._dead and not self._is_churned:
                return
            self._sweeping, self._dead, self._is_churned = self._dead, 0, False
            self._num_left = NUM_SHARDS
        num_entries = 0
        for _ in range(min(SHARDS_AT_ONCE, self._num_left)):
            num_entries += self._sweep_next()
            if num_entries >= SWEPT_AT_ONCE:
                break
        if not self._num_left:
            self._free |= self._sweeping
            self._sweeping = 0

    def _sweep_next(self) -> int:
        shard = self._shards[self._next_shard]
        num_entries = len(shard)
        if self._sweeping or sys.getsizeof(shard) > _LOOSE_BYTES * (num_entries + 8):
            same, alive = self._masks, self._alive
            living = {mask: mask & alive for mask in set(shard.values())}
            living = {mask: same.setdefault(left, left) for mask, left in living.items() if left}
            self._shards[self._next_shard] = {
                key: living[mask] for key, mask in shard.items() if mask in living
            }
        else:
            num_entries = 0
        self._next_shard = (self._next_shard + 1) % NUM_SHARDS
        self._num_left -= 1
        return num_entries
