"""Loads from the host for sequences that wait: which prefix is worth one, and where it goes.

Owns the blocks and the slot that a load fills. Must not know the order of the queue, nor how a load
is copied.

A load brings a prefix into the card's prefix cache, while its sequence waits in the queue and
others go on. So its sequence then starts as if the prefix had never left, and so does any other
with that prefix.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence as Many
from functools import partial
from typing import Final, NamedTuple, final

from protocol.hashing import split_blocks
from protocol.ids import BlockDigest
from protocol.tokens import pack_tokens
from workers.scheduler.block_manager import BlockManager, PrefixHit
from workers.scheduler.block_table import BlockTable
from workers.scheduler.sequence import Sequence
from workers.scheduler.snapshots import SnapshotPlace
from workers.scheduler.tier import EntryKind, HostTier, Name, TierEntry
from workers.scheduler.tier.host_tier import TierLoad

_LEAST_TOKENS: Final = 64
"""A load must spare so many, or two blocks if these are fewer. An 8B on an H200 computes them in
the time of a step that reads its weights anyway, and a load takes at least one step too."""

_MOST_LOADS: Final = 2
"""The most loads of one sequence between two starts: what it loaded may be evicted before it
starts.
"""


class _Found(NamedTuple):
    """A prefix of `num_blocks` blocks, of which the card has the first `num_cached`. The host has
    the `entries` behind them, and the `state` behind the prefix if the card lacks it.
    """

    num_blocks: int
    num_cached: int
    entries: list[TierEntry]
    state: TierEntry | None


@final
class HostLoads:
    """The loads under way over one block manager with a host tier. `tables` hold their blocks."""

    def __init__(self, blocks: BlockManager, tier: HostTier) -> None:
        self.tables: list[BlockTable] = []
        self._blocks = blocks
        self._tier = tier

    def is_coming(self, sequence: Sequence) -> bool:
        """Whether a sequence waits for something that is still on its way."""
        name = sequence.awaits_host
        return name is not None and self._tier.is_coming(name)

    def waits(self, sequence: Sequence, hit: PrefixHit, reserve: int) -> bool:
        """Whether a sequence that would begin from `hit` should wait for a load. Begins that load
        if there is room for all of the sequence's tokens that leaves `reserve` blocks free.
        """
        sequence.awaits_host = None
        if sequence.table.is_private or sequence.swapped is not None:
            return False
        size = self._blocks.block_size
        digests = sequence.table.digests[: (len(sequence.token_ids) - 1) // size]
        num_hit, num_cached = len(hit.block_ids), hit.num_matched
        if num_cached < len(digests):
            following = Name(EntryKind.BLOCK, digests[num_cached])
            if self._tier.is_coming(following):
                sequence.awaits_host = following
                return True
        num_tokens = len(sequence.token_ids)
        if sequence.num_loads >= _MOST_LOADS or not self._blocks.can_admit(
            hit, num_tokens, reserve
        ):
            return False
        found = self._find(sequence, digests, num_hit, num_cached)
        if found is None or (found.num_blocks - num_hit) * size < min(_LEAST_TOKENS, 2 * size):
            return False
        block_ids, num_free = self._blocks.free_among(digests[: found.num_cached])
        held = PrefixHit(block_ids, num_free, found.num_cached)
        if not self._blocks.can_admit(held, num_tokens, reserve):
            return False
        return self._begin(sequence, digests[: found.num_blocks], found)

    def _find(
        self, sequence: Sequence, digests: Many[BlockDigest], num_hit: int, num_cached: int
    ) -> _Found | None:
        """The longest prefix that the card can have after a load; None if it has that already."""
        tier, states, entries = self._tier, self._blocks.states, []
        if num_cached < len(digests) and tier.has(digests[num_cached]):
            size = self._blocks.block_size
            packed = pack_tokens(sequence.token_ids[: len(digests) * size])
            blocks = split_blocks(packed, size)
            entries = tier.find(digests, num_cached, blocks, sequence.table.root)
        end = num_cached + len(entries)
        if states is None:
            return _Found(end, num_cached, entries, None) if entries else None
        on_card = states.depth(digests[:end])
        for num_blocks in range(end, on_card, -1):
            state = tier.state(digests[num_blocks - 1])
            if state is not None:
                kept = min(num_cached, num_blocks)
                return _Found(num_blocks, kept, entries[: num_blocks - kept], state)
        if on_card <= num_hit:
            return None
        return _Found(on_card, num_cached, entries[: on_card - num_cached], None)

    def _begin(self, sequence: Sequence, digests: list[BlockDigest], found: _Found) -> bool:
        """Take the places on the card and begin; False if no slot is free for the state."""
        blocks, table = self._blocks, BlockTable(sequence.table.root)
        slot: int | None = None
        if found.state is not None:
            assert blocks.states is not None
            slot = blocks.states.pool.reserve(digests, SnapshotPlace.END)
            if slot is None:
                return False
        table.digests = list(digests)
        new = blocks.take_for_load(table, found.num_cached, found.num_blocks)
        self.tables.append(table)
        token_ids = sequence.token_ids[: found.num_blocks * blocks.block_size]
        pairs = list(zip(found.entries, new, strict=True))
        state = None if found.state is None or slot is None else (found.state, slot)
        self._tier.load(TierLoad(pairs, state, partial(self._done, table, token_ids, slot)))
        first = found.entries[0] if found.entries else found.state
        assert first is not None
        sequence.awaits_host = first.name
        sequence.num_loads += 1
        return True

    def _done(
        self,
        table: BlockTable,
        token_ids: array[int],
        slot: int | None,
        num_good: int,
        has_state: bool,
    ) -> None:
        """Put what has come into the prefix cache."""
        blocks, size = self._blocks, self._blocks.block_size
        num_blocks = table.num_stored + num_good
        blocks.store(table, token_ids, num_blocks * size)
        if slot is not None:
            assert blocks.states is not None
            pool = blocks.states.pool
            is_whole = table.num_stored * size == len(token_ids)
            (pool.save if has_state and is_whole else pool.drop)(slot)
        self.tables.remove(table)
        blocks.release(table)
