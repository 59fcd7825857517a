"""The prefix index: which worker holds which blocks, and which states behind them, exactly.

Owns a table of blocks, a table of blocks that only a host holds, a table of states, and for each
engine run its bit in each table and the number of its last event. A gap in the numbers empties the
part and leads to a request for a snapshot, because after a missed `BlocksDropped` the index would
promise blocks that are gone. Must not know loads, costs or placed requests: `worker.py` has
the blocks of prompts that run.
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
"""A snapshot that has not arrived is asked for again after this time."""

NUM_SHARDS: Final = 4096
SWEPT_AT_ONCE: Final = 1024
"""About how many entries a call of `sweep` visits: 0.5 ms."""

SHARDS_AT_ONCE: Final = 64
_LOOSE_BYTES: Final = 64
"""A dictionary with more bytes per entry than this was left large by churn and is rebuilt. One that
was filled from empty has 27 to 54.
"""

_KEY_SHIFT: Final = 4
"""Integers of up to 60 bits take 32 bytes, longer ones 48."""
_KEY_BYTES: Final = 32
_SHARD_SHIFT: Final = 48
"""A key's high bits choose its shard, because dictionaries hash integers by their low bits."""
_SHARD_OF_WORD: Final = _KEY_SHIFT + _SHARD_SHIFT

_MASKS_AT_MOST: Final = 4096

_PACKED: Final = struct.Struct("<8xQ")

_Beyond = tuple[int, int, "_Beyond"] | None


class BlockEventResult(Enum):
    """The result of a block event."""

    APPLIED = auto()
    GAP = auto()
    STALE = auto()


class _Part:
    """The blocks of one engine run. `bit` marks them in the table of blocks, `host_bit` the
    `num_on_host` of them that lie on the host alone, `state_bit` its states in the table of states.
    With `seq` None nothing is known until a snapshot arrives. If it `needs_states`, a sequence can
    begin only behind a saved state.
    """

    __slots__ = (
        "asked_at",
        "bit",
        "host_bit",
        "needs_states",
        "num_blocks",
        "num_on_host",
        "seq",
        "state_bit",
    )

    def __init__(
        self, bit: int, host_bit: int, state_bit: int, now: float, *, needs_states: bool
    ) -> None:
        self.bit = bit
        self.host_bit = host_bit
        self.state_bit = state_bit
        self.needs_states = needs_states
        self.num_blocks = 0
        self.num_on_host = 0
        self.seq: int | None = None
        self.asked_at = now


class PrefixIndex:
    """Block digests by worker. `has_tiers`: some worker has said that blocks are on its host."""

    def __init__(self) -> None:
        self.has_tiers = False
        self._table = HolderTable()
        self._on_host = HolderTable()
        self._states = HolderTable()
        self._parts: dict[WorkerId, _Part] = {}
        self._num_changes = 0
        self._last: tuple[Sequence[BlockDigest], int, Mapping[WorkerId, int]] = (), -1, {}

    def add(self, worker_id: WorkerId, now: float, *, needs_states: bool = False) -> None:
        """An engine run begins, or registers here: nothing is known until its snapshot arrives."""
        self.remove(worker_id)
        self._num_changes += 1
        bits = self._table.open(), self._on_host.open(), self._states.open()
        self._parts[worker_id] = _Part(*bits, now, needs_states=needs_states)

    def remove(self, worker_id: WorkerId) -> None:
        """The engine run is over, and its blocks are gone."""
        part = self._parts.pop(worker_id, None)
        self._num_changes += 1
        if part is not None:
            self._table.close(part.bit)
            self._on_host.close(part.host_bit)
            self._states.close(part.state_bit)

    def apply(
        self, worker_id: WorkerId, event: BlockEvent | BlocksSnapshot, now: float
    ) -> BlockEventResult:
        """Apply one event. After `GAP` the caller asks the worker for a snapshot.

        Events that arrive before an expected snapshot are stale: the snapshot includes them,
        because a link keeps the order. Repeated events, and events of a worker without an engine,
        are stale too.
        """
        part = self._parts.get(worker_id)
        self._num_changes += 1
        if part is None:
            return BlockEventResult.STALE
        if isinstance(event, BlocksSnapshot):
            return self._restart(part, event)
        if part.seq is None or event.seq <= part.seq:
            return BlockEventResult.STALE
        if event.seq != part.seq + 1 or len(event.digests) % ID_BYTES:
            self._empty(part)
            part.seq, part.asked_at = None, now
            return BlockEventResult.GAP
        part.seq = event.seq
        self._change(part, event)
        return BlockEventResult.APPLIED

    def _change(self, part: _Part, event: BlockEvent) -> None:
        match event:
            case BlocksStored():
                part.num_blocks += self._table.store(part.bit, event.digests)
                if event.tier == "host":
                    self.has_tiers = True
                    part.num_on_host += self._on_host.store(part.host_bit, event.digests)
                elif part.num_on_host:
                    part.num_on_host -= self._on_host.drop(part.host_bit, event.digests)
            case BlocksDropped():
                part.num_blocks -= self._table.drop(part.bit, event.digests)
                if part.num_on_host:
                    part.num_on_host -= self._on_host.drop(part.host_bit, event.digests)
            case StatesSaved():
                self._states.store(part.state_bit, event.digests)
            case StatesForgotten():
                self._states.drop(part.state_bit, event.digests)
            case _:
                assert_never(event)

    def match(self, digests: Sequence[BlockDigest]) -> Mapping[WorkerId, int]:
        """For each worker, how many leading blocks of the chain a sequence need not compute there.
        The last result is cached, because for a waiting request the queue and the decision ask in
        succession.
        """
        chain, num_changes, match = self._last
        if chain is digests and num_changes == self._num_changes:
            return match
        depths = self._table.depths(digests)
        match, needs_states = {}, False
        if depths:
            for worker_id, part in self._parts.items():
                if part.bit in depths:
                    match[worker_id] = depths[part.bit]
                    needs_states |= part.needs_states
            if needs_states:
                self._cut_to_states(digests, match)
        self._last = digests, self._num_changes, match
        return match

    def num_on_card(
        self, worker_id: WorkerId, digests: Sequence[BlockDigest], num_matched: int
    ) -> int:
        """How many of the `num_matched` leading blocks, which `match` found for the worker, are on
        its card. The others, behind these, are on its host alone: a card forgets a prefix from its
        end, so bisection finds where that begins.
        """
        part = self._parts.get(worker_id)
        if part is None or not part.num_on_host or not num_matched:
            return num_matched
        holders, bit = self._on_host.holders, part.host_bit
        if not holders(digests[num_matched - 1]) & bit:
            return num_matched
        low, high = 0, num_matched - 1
        while low < high:
            middle = (low + high) // 2
            if holders(digests[middle]) & bit:
                high = middle
            else:
                low = middle + 1
        return low

    def _cut_to_states(self, digests: Sequence[BlockDigest], match: dict[WorkerId, int]) -> None:
        """Reduce the match of workers that need states to their deepest saved state. Not every
        block has a state, so bisection is impossible. A search from the end mostly finds a state at
        once; a search without result takes half a millisecond for 100k tokens.
        """
        open_: dict[int, WorkerId] = {
            part.state_bit: worker_id
            for worker_id in match
            if (part := self._parts[worker_id]).needs_states
        }
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

    def num_blocks(self, worker_id: WorkerId) -> int:
        parts = self._parts
        return parts[worker_id].num_blocks if worker_id in parts else 0

    def num_on_host(self, worker_id: WorkerId) -> int:
        """How many of the worker's blocks are on its host alone."""
        parts = self._parts
        return parts[worker_id].num_on_host if worker_id in parts else 0

    def num_distinct(self) -> int:
        """How many blocks the fleet holds, including blocks of lost workers that are not
        swept yet.
        """
        return len(self._table)

    def num_bytes(self) -> int:
        tables = self._table, self._on_host, self._states
        return sum([table.num_bytes() for table in tables])

    def sweep(self) -> None:
        """Clean up a part of what lost workers have left; call it from time to time."""
        self._table.sweep()
        self._on_host.sweep()
        self._states.sweep()

    def overdue_snapshots(self, now: float) -> tuple[WorkerId, ...]:
        """Workers that are to be asked again, because their snapshot has not arrived."""
        overdue = []
        for worker_id, part in self._parts.items():
            if part.seq is None and now - part.asked_at >= SNAPSHOT_PATIENCE_S:
                part.asked_at = now
                overdue.append(worker_id)
        return tuple(overdue)

    def _restart(self, part: _Part, snapshot: BlocksSnapshot) -> BlockEventResult:
        older = part.seq is not None and snapshot.seq < part.seq
        packed = snapshot.digests, snapshot.states, snapshot.on_host
        if older or any(len(each) % ID_BYTES for each in packed):
            return BlockEventResult.STALE
        self._empty(part)
        part.num_blocks = self._table.store(part.bit, snapshot.digests)
        part.num_on_host = self._on_host.store(part.host_bit, snapshot.on_host)
        self.has_tiers = self.has_tiers or part.num_on_host > 0
        self._states.store(part.state_bit, snapshot.states)
        part.seq = snapshot.seq
        return BlockEventResult.APPLIED

    def _empty(self, part: _Part) -> None:
        """Give the part new bits, instead of clearing the old ones block by block."""
        if part.num_blocks or part.needs_states:
            self._table.close(part.bit)
            self._on_host.close(part.host_bit)
            self._states.close(part.state_bit)
            part.bit, part.num_blocks = self._table.open(), 0
            part.host_bit, part.num_on_host = self._on_host.open(), 0
            part.state_bit = self._states.open()


class HolderTable:
    """A map from block to its holders, for all workers together: a block takes one entry, however
    many workers hold it. A holder is a bit, which `open` gives out.

        key       The last 60 bits of the digest. One of 100,000 tables with 5 million blocks has
                  two blocks with the same key. That only makes an estimate wrong, because engines
                  compare token ids.
        value     An int with one bit per holder; equal values are one object.
        shards    4,096 dictionaries: a single one with 5 million entries would stop the process for
                  0.2 s whenever it grows, and could not be swept in small steps.
        closed    The bits of lost workers are hidden by a mask until `sweep` has cleared them, so
                  that the loss of a worker costs nothing.

    An open-addressing table in `array` would take 25 to 50 bytes per block instead of 60 to 95, but
    1.5 times the CPU per event in pure Python, and code for growing and for holes.
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
        """The number of distinct blocks, including blocks of closed holders that are not
        swept yet.
        """
        return sum(map(len, self._shards))

    def num_bytes(self) -> int:
        """The memory of the dictionaries and keys."""
        return sum(map(sys.getsizeof, self._shards)) + _KEY_BYTES * len(self)

    def open(self) -> int:
        """A bit for a new holder, which holds no blocks."""
        if self._free:
            bit = self._free & -self._free
            self._free ^= bit
        else:
            bit = 1 << self._num_bits
            self._num_bits += 1
        self._alive |= bit
        return bit

    def close(self, bit: int) -> None:
        """The holder is gone, and no longer holds any block."""
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
        """The bits of the block's holders."""
        word: int = _PACKED.unpack(digest)[0]
        key = word >> _KEY_SHIFT
        return self._shards[key >> _SHARD_SHIFT].get(key, 0) & self._alive

    def depths(self, chain: Sequence[BlockDigest]) -> dict[int, int]:
        """How many leading blocks of the chain each holder has, by bit; without holders of none.

        A holder has a prefix of the chain without holes, so the set of holders only shrinks along
        the chain, and bisection finds each place where it does. That takes 12 look-ups for 100k
        tokens, and at most 12 more for each further end.
        """
        found: dict[int, int] = {}
        if not chain:
            return found
        shards, unpack = self._shards, _PACKED.unpack
        # `holders`, inlined: a call would cost three times as much.
        word = unpack(chain[0])[0]
        low, at_low = 0, shards[word >> _SHARD_OF_WORD].get(word >> _KEY_SHIFT, 0) & self._alive
        high, at_high = len(chain), 0
        # A stack of positions beyond `high` that were looked up already, the nearest on top. It is
        # made of nested tuples, which need no call to push and pop.
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
