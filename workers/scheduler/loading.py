"""Loads from the host for sequences that wait: which prefix is worth one, and where it goes.

Owns the blocks and the slot that a load fills. Must not know the order of the queue, nor how a load
is copied.

A load brings a prefix into the card's prefix cache, while its sequence waits in the queue and
others go on. So its sequence then starts as if the prefix had never left, and so does any other
with that prefix.

A long prefix has a thousand blocks, and the books of all of them at once (proofs, places, digests)
would take as long as some steps, for which the answers that run would wait. So a load goes part by
part: a part begins when the copies of the one before are under way, and is entered when it is over.
"""

from __future__ import annotations

from collections.abc import Sequence as Many
from functools import partial
from typing import Final, NamedTuple, final

from protocol.hashing import split_blocks
from protocol.ids import BlockDigest
from protocol.tokens import pack_tokens
from workers.scheduler.block_manager import BlockManager, PrefixHit
from workers.scheduler.block_table import BlockTable
from workers.scheduler.integrity import require
from workers.scheduler.prefix_load import PrefixLoad
from workers.scheduler.sequence import Sequence
from workers.scheduler.snapshots import SnapshotPlace
from workers.scheduler.tier import EntryKind, HostTier, Name, TierEntry
from workers.scheduler.tier.host_tier import TierLoad

_LEAST_TOKENS: Final = 64
"""A load must spare this many tokens, or two blocks if those have fewer. An 8B on an H200 computes
them in the time of a step that reads its weights anyway, and a load takes at least one step too.
"""

_MOST_LOADS: Final = 2
"""The most loads of one sequence between two starts: what it loaded may be evicted before it
starts.
"""


class _Found(NamedTuple):
    """A prefix of `num_blocks` blocks, of which the card has the first `num_cached`, and the host
    the others. `state` is the state behind the prefix, if the card lacks it.
    """

    num_blocks: int
    num_cached: int
    state: TierEntry | None


@final
class NoHostLoads:
    """`HostLoads` of an engine without a host tier."""

    tables: Final[Many[BlockTable]] = ()

    def is_coming(self, sequence: Sequence) -> bool:  # noqa: ARG002 - the loads'
        """False."""
        return False

    def waits(self, sequence: Sequence, hit: PrefixHit, reserve: int) -> bool:  # noqa: ARG002
        """False: it begins from what the card has."""
        return False

    def check_integrity(self) -> None:
        """Nothing can be wrong."""


@final
class HostLoads:
    """The loads under way over one block manager with a host tier, in order of their begin."""

    def __init__(self, blocks: BlockManager, tier: HostTier) -> None:
        self._blocks = blocks
        self._tier = tier
        self._loads: list[PrefixLoad] = []
        self._coming: dict[BlockDigest, PrefixLoad] = {}
        tier.source = self

    @property
    def tables(self) -> list[BlockTable]:
        """The tables that hold blocks for loads."""
        return [load.table for load in self._loads]

    @property
    def has_more(self) -> bool:
        """Whether a part can begin."""
        return any(load.has_more for load in self._loads)

    def begin_next(self) -> bool:
        """Begin the next part of the oldest load that has one. False if there is none."""
        return any(load.has_more and self._begin_part(load) for load in list(self._loads))

    def is_coming(self, sequence: Sequence) -> bool:
        """Whether a sequence waits for something that is still on its way."""
        awaited = sequence.awaits_host
        if isinstance(awaited, PrefixLoad):
            return not awaited.is_over
        return awaited is not None and self._tier.is_coming(awaited)

    def waits(self, sequence: Sequence, hit: PrefixHit, reserve: int) -> bool:
        """Whether a sequence that would begin from `hit` should wait for a load. Begins that load
        if there is room for all of the sequence's tokens that leaves `reserve` blocks free.
        """
        waits = self._waits(sequence, hit, reserve)
        if waits and sequence.num_on_card is None:
            sequence.num_on_card = len(hit.block_ids) * self._blocks.block_size
        return waits

    def _waits(self, sequence: Sequence, hit: PrefixHit, reserve: int) -> bool:
        sequence.awaits_host = None
        if sequence.table.is_private or sequence.swapped is not None:
            return False
        size = self._blocks.block_size
        digests = sequence.table.digests[: (len(sequence.token_ids) - 1) // size]
        num_hit, num_cached = len(hit.block_ids), hit.num_matched
        if num_cached < len(digests):
            following = Name(EntryKind.BLOCK, digests[num_cached])
            sequence.awaits_host = self._coming.get(digests[num_cached])
            if sequence.awaits_host is None and self._tier.is_coming(following):
                sequence.awaits_host = following
            if sequence.awaits_host is None:
                sequence.awaits_host = self._tier.opening(digests, num_cached)
            if sequence.awaits_host is not None:
                return True
        num_tokens = len(sequence.token_ids)
        if sequence.num_loads >= _MOST_LOADS or not self._blocks.can_admit(
            hit, num_tokens, reserve
        ):
            return False
        found = self._find(digests, num_hit, num_cached)
        if found is None or (found.num_blocks - num_hit) * size < min(_LEAST_TOKENS, 2 * size):
            return False
        block_ids, num_free = self._blocks.free_among(digests[: found.num_cached])
        held = PrefixHit(block_ids, num_free, found.num_cached)
        if not self._blocks.can_admit(held, num_tokens, reserve):
            return False
        return self._begin(sequence, digests[: found.num_blocks], found)

    def check_integrity(self) -> None:
        """Raise `IntegrityError` if the books of the loads contradict the block manager's."""
        promised = sum([load.num_to_take for load in self._loads])
        require(promised == self._blocks.promised, f"{self._blocks.promised} promised: {promised}")
        for load in self._loads:
            held = len(load.table.block_ids)
            require(load.num_entered <= held == load.num_asked, f"{load!r} holds {held} blocks")

    def _find(self, digests: Many[BlockDigest], num_hit: int, num_cached: int) -> _Found | None:
        """The longest prefix that the card can have after a load; None if it has that already."""
        tier, states = self._tier, self._blocks.states
        end = num_cached + tier.num_held(digests, num_cached)
        on_card = states.depth(digests[:end])
        for num_blocks in range(end, on_card, -1):
            state = tier.state(digests[num_blocks - 1])
            if state is not None:
                return _Found(num_blocks, min(num_cached, num_blocks), state)
        return None if on_card <= num_hit else _Found(on_card, num_cached, None)

    def _begin(self, sequence: Sequence, digests: list[BlockDigest], found: _Found) -> bool:
        """Let the load be the last one; False if no slot is free for its state, or the host has
        another prefix of these digests.
        """
        blocks, table = self._blocks, BlockTable(sequence.table.root)
        num_cached, num_blocks, state = found.num_cached, found.num_blocks, found.state
        proof = self._tier.proof_on_card(digests[:num_cached], table.root)
        if proof is None:
            return False
        slot: int | None = None
        if state is not None:
            slot = blocks.states.pool.reserve(digests, SnapshotPlace.END)
            if slot is None:
                return False
        table.digests = digests
        blocks.hold_cached(table, num_cached)
        token_ids = sequence.token_ids[: num_blocks * blocks.block_size]
        load = PrefixLoad(table, token_ids, num_blocks, proof, state, slot)
        load.num_asked = load.num_entered = num_cached
        blocks.promised += load.num_to_take
        self._loads.append(load)
        self._coming.update(dict.fromkeys(digests[num_cached:], load))
        sequence.awaits_host = load
        sequence.num_loads += 1
        return True

    def _begin_part(self, load: PrefixLoad) -> bool:
        """Begin the next part; False if the host has not what follows any more."""
        blocks, first = self._blocks, load.num_asked
        size, end = blocks.block_size, min(load.num_blocks, first + self._tier.part_pages)
        packed = split_blocks(pack_tokens(load.token_ids[first * size : end * size]), size)
        entries = self._tier.find(load.table.digests[first:end], packed, load.proof)
        if entries:
            load.proof = entries[-1].proof
        new = blocks.take_promised(load.table, len(entries))
        load.num_asked += len(entries)
        if load.num_asked < end:
            self._cut(load)
        state: tuple[TierEntry, int] | None = None
        if load.state is not None and load.slot is not None and load.num_asked == load.num_blocks:
            load.has_asked_state = True
            if self._tier.gives(load.state):
                state = load.state, load.slot
        if not entries and state is None:
            self._cut(load)
            self._end_if_over(load)
            return False
        load.num_open += 1
        done = partial(self._done, load, first, len(entries))
        self._tier.load(TierLoad(list(zip(entries, new, strict=True)), state, done))
        return True

    def _done(
        self, load: PrefixLoad, first: int, count: int, num_good: int, has_state: bool
    ) -> None:
        """Put what has come into the prefix cache, part after part."""
        blocks = self._blocks
        load.num_open -= 1
        load.has_state |= has_state
        load.parts[first] = count, num_good
        while (part := load.parts.pop(load.num_entered, None)) is not None:
            count, num_good = part
            if load.table.num_stored == load.num_entered:
                end = load.num_entered + num_good
                blocks.store(load.table, load.token_ids, end * blocks.block_size)
            load.num_entered += count
            if num_good < count or load.table.num_stored < load.num_entered:
                self._cut(load)
        self._end_if_over(load)

    def _cut(self, load: PrefixLoad) -> None:
        """Let no part follow."""
        self._blocks.promised -= load.num_to_take
        load.is_cut = True

    def _end_if_over(self, load: PrefixLoad) -> None:
        if load.num_open or load.has_more:
            return
        blocks, table = self._blocks, load.table
        if load.slot is not None:
            pool = blocks.states.pool
            is_whole = table.num_stored == load.num_blocks
            (pool.save if load.has_state and is_whole else pool.drop)(load.slot)
        load.is_over = True
        self._loads.remove(load)
        for digest in table.digests:
            if self._coming.get(digest) is load:
                del self._coming[digest]
        blocks.release(table, is_use=False)  # blocks that came were used then
