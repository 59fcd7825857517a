"""Blocks and who holds them, small and quick.

Owns one table from block to holders for all workers together: a block costs its entry once,
however many hold it. Must not know workers, events or what a holder is: it hands out bits.

    key       the last 60 bits of the digest. Two blocks share one in one of 100,000 tables of 5
              million: a wrong estimate, no more, because engines compare token ids.
    value     an int with one bit per holder; equal ones are one object.
    shards    4,096 dictionaries: one of 5 million entries would stop the process for 0.2 s whenever
              it grows, and could not be swept in bites.
    the dead  keep their bits until the sweeper has passed; until then a mask of living bits hides
              them, so that a death costs nothing.

An open-addressing table in `array` takes 25 to 50 bytes a block instead of 60 to 95, but half again
the CPU per event in pure Python, and its own code for growing and for holes.
"""

import struct
import sys
from collections.abc import Sequence
from typing import Final

from protocol.ids import BlockDigest

NUM_SHARDS: Final = 4096
SWEPT_AT_ONCE: Final = 1024
"""Entries that a call of `sweep` visits at most, give or take a shard: about 0.5 ms."""

SHARDS_AT_ONCE: Final = 64
_LOOSE_BYTES: Final = 64
"""A dictionary that spends more per entry was left large by churn. Filled from empty it takes 27
to 54."""

_KEY_SHIFT: Final = 4
"""Integers of up to 60 bits take 32 bytes, longer ones 48."""
_KEY_BYTES: Final = 32
_SHARD_SHIFT: Final = 48
"""The high bits: dictionaries tell keys apart by their low ones."""
_SHARD_OF_WORD: Final = _KEY_SHIFT + _SHARD_SHIFT

_MASKS_AT_MOST: Final = 4096

_PACKED: Final = struct.Struct("<8xQ")

_Beyond = tuple[int, int, "_Beyond"] | None


class BlockTable:
    """Bits of holders by block."""

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
        """Distinct blocks, those of the dead that are not swept yet included."""
        return sum(map(len, self._shards))

    def num_bytes(self) -> int:
        """What the table takes: dictionaries and keys."""
        return sum(map(sys.getsizeof, self._shards)) + _KEY_BYTES * len(self)

    def open(self) -> int:
        """A bit for a new holder, who holds nothing."""
        if self._free:
            bit = self._free & -self._free
            self._free ^= bit
        else:
            bit = 1 << self._num_bits
            self._num_bits += 1
        self._alive |= bit
        return bit

    def close(self, bit: int) -> None:
        """The holder is gone and with it all that it held."""
        self._alive &= ~bit
        self._dead |= bit

    def store(self, bit: int, digests: bytes) -> int:
        """The holder has these blocks (16 bytes each); how many are new to it."""
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
        """The holder has these blocks no more; how many it had."""
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
        """How many leading blocks of the chain each holder has, by bit; nobody without any.

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
        """Forget the dead, and tighten what churn has left loose, in a few shards."""
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
