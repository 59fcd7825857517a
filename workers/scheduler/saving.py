"""Where prompts save their recurrent states, and with which they begin.

Owns the positions, and the slots of a chunk from its plan to its result. Must not know budgets, nor
which snapshot goes (`snapshots.py`).

A state exists only behind the last token of a step, so a prompt is cut where it is saved. A cut
costs a step: one that spares less than that is not made.
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

_EVERY: Final = 4096
"""Tokens; a prompt that diverges anywhere computes at most so many again."""

_LEAST: Final = 256
"""Tokens that a snapshot must spare beside the one before: a 27B in bfloat16 reads its weights, an
H200's 12 ms, in the time in which it computes so many."""


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

    At its end, where the next turn begins: two tokens before it at the latest, so that what is left
    is no single row. Where it parts from what is cached (a junction): the third to come this way
    gains. And every so many tokens, wherever neither is near.
    """
    grain, every, least = policy
    end = max(0, num_tokens - 2) // grain * grain
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
        """Where a sequence that is about to begin saves states, but for those that are there; the
        first to come last.
        """
        found = positions_to_save(num_tokens, num_hit, num_matched, self.policy)
        return [place for place in reversed(found) if not self._is_kept(table, place)]

    def _is_kept(self, table: BlockTable, end: int) -> bool:
        return table.digests[end // self._size - 1] in self.pool

    def most(self, table: BlockTable, saves: list[int], start: int, num_left: int) -> int:
        """How many of the next `num_left` tokens one chunk may compute: up to the next state that
        is saved. Those of `saves` before `start` are done, and those that another one has saved.
        """
        while saves and (saves[-1] <= start or self._is_kept(table, saves[-1])):
            saves.pop()
        cuts = [end * self._size for end in table.awaited_states] + saves[-1:]
        return min([num_left, *(end - start for end in cuts if end > start)])

    def with_slots(self, chunk: Chunk, sequence: Sequence) -> Chunk:
        """The chunk with the slot that its sequence begins with, and that in which the state behind
        it is to be saved, if it is and there is room.
        """
        restores, sequence.restores = sequence.restores, NO_SLOT
        saves = self.reserve(sequence.table, sequence.saves, chunk.start + chunk.length)
        if restores == saves == NO_SLOT:
            return chunk
        return msgspec.structs.replace(chunk, restores=restores, saves=saves)

    def reserve(self, table: BlockTable, saves: list[int], end: int) -> int:
        """The slot for the state behind the first `end` tokens, if it is to be saved."""
        num_blocks = end // self._size
        is_awaited = num_blocks in table.awaited_states and end % self._size == 0
        if not is_awaited and end not in saves[-1:]:
            return NO_SLOT
        is_end = is_awaited or end % self.policy.every > 0
        slot = self.pool.reserve(table.digests[:num_blocks], is_end=is_end)
        return NO_SLOT if slot is None else slot

    def settle(self, chunk: Chunk, table: BlockTable | None) -> None:
        """A step with this chunk is over. `table` None: it failed, or its sequence is gone."""
        if chunk.restores != NO_SLOT:
            self.pool.unpin(chunk.restores)
        if chunk.saves != NO_SLOT:
            self.keep(chunk.saves, table, chunk.start + chunk.length)

    def keep(self, slot: int, table: BlockTable | None, end: int) -> None:
        """The state in the slot is kept if its keys and values are."""
        if table is not None and table.num_stored * self._size >= end:
            self.pool.save(slot)
        else:
            self.pool.drop(slot)
