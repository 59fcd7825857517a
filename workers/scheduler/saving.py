"""Where prompts save their recurrent states, and with which they begin.

Owns the positions, and the slots of a chunk from its plan to its result. Must not know budgets, nor
which snapshot goes (`snapshots.py`).

A step that computes more of a prompt saves the states on its way: each costs a few launches in each
layer, and a slot that another prefix could have.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple, final

import msgspec

from protocol.ids import BlockDigest
from workers.scheduler.block_table import BlockTable
from workers.scheduler.integrity import require
from workers.scheduler.plan import NO_SLOT, Chunk
from workers.scheduler.sequence import Sequence
from workers.scheduler.snapshots import SnapshotPool

_GRAIN: Final = 64
"""Tokens; a state is saved where a chunk of the delta rule ends, and a block."""

_EVERY: Final = 3584
"""Tokens. A state gives way to others up to `_LEAST` tokens before and behind it, so two lie at
most 4,096 tokens apart: no more is computed again of a prompt that diverges anywhere."""

_LEAST: Final = 256
"""Tokens that a snapshot must spare beside the one before: a 27B in bfloat16 reads its weights, an
H200's 12 ms, in the time in which it computes so many, so fewer are computed again for nothing."""


class SavePolicy(NamedTuple):
    """Tokens: states are saved at multiples of `grain`; every `every` tokens of what is computed,
    and not within `least` behind another.
    """

    grain: int = _GRAIN
    every: int = _EVERY
    least: int = _LEAST


def positions_to_save(
    num_tokens: int, num_hit: int, num_matched: int, policy: SavePolicy
) -> list[int]:
    """Where a prompt of `num_tokens` tokens saves its state, rising; it begins behind `num_hit` of
    them, and keys and values behind `num_matched` are cached.

    At its end, where the next turn begins: a token before it at the latest, because the last one is
    computed anyway. Where it parts from what is cached (a junction): the third to come this way
    gains. And every so many tokens, wherever neither is near.
    """
    grain, every, least = policy
    end = (num_tokens - 1) // grain * grain
    places = sorted({min(num_matched // grain * grain, end), end})
    kept = [place for place in places if place - num_hit >= least]
    first = num_hit // every * every + every
    grid = [
        place
        for place in range(first, end, every)
        if place - num_hit >= least and all(abs(place - other) >= least for other in kept)
    ]
    return sorted(kept + grid)


@final
class PrefixStates:
    """The states that an engine keeps for prefixes, in blocks of `block_size` tokens."""

    def __init__(self, num_slots: int, block_size: int, policy: SavePolicy | None = None) -> None:
        self.policy = policy or SavePolicy(grain=max(_GRAIN, block_size))
        require(self.policy.grain % block_size == 0, f"{self.policy} for blocks of {block_size}")
        self.pool = SnapshotPool(num_slots)
        self._size = block_size

    @classmethod
    def of(
        cls, num_slots: int | None, block_size: int, policy: SavePolicy | None = None
    ) -> PrefixStates | None:
        """Those of an engine whose facts say `snapshots`; None for a model without states."""
        return None if num_slots is None else cls(num_slots, block_size, policy)

    def depth(self, digests: Iterable[BlockDigest]) -> int:
        """How many blocks of a prefix its deepest state covers."""
        return self.pool.depth([*digests])

    def num_usable(self, num_blocks: int) -> int:
        """How many of the first blocks of a prefix end where a state may be saved."""
        return num_blocks - num_blocks % (self.policy.grain // self._size)

    def positions(
        self, table: BlockTable, num_tokens: int, num_hit: int, num_matched: int
    ) -> list[int]:
        """Where a sequence that is about to begin saves states, but for those that are there."""
        found = positions_to_save(num_tokens, num_hit, num_matched, self.policy)
        return [end for end in found if table.digests[end // self._size - 1] not in self.pool]

    def with_slots(self, chunk: Chunk, sequence: Sequence) -> Chunk:
        """The chunk with the slot that its sequence begins with, and those of the states that are
        saved on its way, as far as there is room.
        """
        restores, sequence.restores = sequence.restores, NO_SLOT
        end = chunk.start + chunk.length
        saves = self.reserve(sequence.table, sequence.saves, chunk.start, end)
        if restores == NO_SLOT and not saves:
            return chunk
        return msgspec.structs.replace(chunk, restores=restores, saves=saves)

    def reserve(
        self, table: BlockTable, positions: Iterable[int], start: int, end: int
    ) -> tuple[tuple[int, int], ...]:
        """The states that tokens from `start` to `end` pass and that are saved: of these positions,
        and those that others wait for; each with its slot.
        """
        awaited = {num_blocks * self._size for num_blocks in table.awaited_states}
        found = []
        for place in sorted(awaited.union(positions)):
            if start < place <= end:
                is_end = place in awaited or place % self.policy.every > 0
                digests = table.digests[: place // self._size]
                if (slot := self.pool.reserve(digests, is_end=is_end)) is not None:
                    found.append((place, slot))
        return tuple(found)

    def settle(self, chunk: Chunk, table: BlockTable | None) -> None:
        """A step with this chunk is over. `table` None: it failed, or its sequence is gone."""
        if NO_SLOT < chunk.restores < self.pool.num_slots:  # others are those of swapped sequences
            self.pool.unpin(chunk.restores)
        self.keep(chunk.saves, table)

    def keep(self, saves: Iterable[tuple[int, int]], table: BlockTable | None) -> None:
        """States at these positions, in these slots: kept if their keys and values are."""
        num_stored = 0 if table is None else table.num_stored * self._size
        for end, slot in saves:
            if end <= num_stored:
                self.pool.save(slot)
            else:
                self.pool.drop(slot)
