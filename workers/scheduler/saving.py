"""Where prompts and answers save their recurrent states, and with which they begin.

Owns the positions, and the slots of a chunk from its plan to its result. Must not know budgets, nor
which snapshot goes (`snapshots.py`).

A step that computes more of a prompt saves the states on its way: each costs a few launches in each
layer, and a slot that another prefix could have. An answer has one slot, whose state moves on with
it: a decode that begins at such a position keeps the state ahead of it, by a copy that no graph
needs to know. By then all tokens before are known, also to a scheduler that plans a step ahead.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple, final

import msgspec

from protocol.ids import BlockDigest
from workers.scheduler.block_table import BlockTable
from workers.scheduler.integrity import require
from workers.scheduler.plan import NO_SLOT, Chunk
from workers.scheduler.sequence import NEVER, Sequence
from workers.scheduler.snapshots import Place, SnapshotPool

_GRAIN: Final = 64
"""Tokens; a state is saved where a chunk of the delta rule ends, and a block."""

_EVERY: Final = 3584
"""Tokens. A state gives way to others up to `_LEAST` tokens before and behind it, so two lie at
most 4,096 tokens apart: no more is computed again of a prompt that diverges anywhere."""

_LEAST: Final = 256
"""Tokens that a snapshot must spare beside the one before: a 27B in bfloat16 reads its weights, an
H200's 12 ms, in the time in which it computes so many, so fewer are computed again for nothing."""


_ALONG: Final = 256
"""Tokens of an answer. Of a 27B they take an H200 some 3 s, the copy of the state 0.07 ms, and to
compute them again some 20 ms, hardly more than any step takes."""

_ALONG_DRAFTS: Final = 512
"""The same of one that drafts are verified for, where a step must begin a token before: the one
ahead of it has fewer drafts then, of 200 steps."""


class SavePolicy(NamedTuple):
    """Tokens: states are saved at multiples of `grain`; every `every` tokens of what is computed,
    and not within `least` behind another. Of an answer the last `along` tokens, where drafts are
    verified `along_drafts`, are computed again at most; both are multiples of `grain`.
    """

    grain: int = _GRAIN
    every: int = _EVERY
    least: int = _LEAST
    along: int = _ALONG
    along_drafts: int = _ALONG_DRAFTS


def positions_to_save(
    num_tokens: int, num_hit: int, num_matched: int, policy: SavePolicy
) -> list[int]:
    """Where a prompt of `num_tokens` tokens saves its state, rising; it begins behind `num_hit` of
    them, and keys and values behind `num_matched` are cached.

    At its end, where the next turn begins: a token before it at the latest, because the last one is
    computed anyway when the same prompt comes again; and behind all of it where that is a multiple
    of `grain`, so that the next turn computes its own tokens only. Where it parts from what is
    cached (a junction): the third to come this way gains. And every so many tokens, wherever
    neither is near.
    """
    grain, every, least = policy.grain, policy.every, policy.least
    end = (num_tokens - 1) // grain * grain
    places = sorted({min(num_matched // grain * grain, end), end})
    kept = [place for place in places if place - num_hit >= least]
    first = num_hit // every * every + every
    grid = [
        place
        for place in range(first, end, every)
        if place - num_hit >= least and all(abs(place - other) >= least for other in kept)
    ]
    whole = [num_tokens] if num_tokens % grain == 0 and num_tokens - num_hit >= least else []
    return sorted(kept + grid) + whole


@final
class PrefixStates:
    """The states that an engine keeps for prefixes, in blocks of `block_size` tokens. Whether
    sequences have blocks for tokens that are only drafted (`grows_ahead`), the scheduler says.
    """

    def __init__(self, num_slots: int, block_size: int, policy: SavePolicy | None = None) -> None:
        self.policy = policy or SavePolicy(grain=max(_GRAIN, block_size))
        require(self.policy.grain % block_size == 0, f"{self.policy} for blocks of {block_size}")
        self.pool = SnapshotPool(num_slots)
        self._size = block_size
        self.grows_ahead = False

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
        """Where a sequence that is about to begin saves states, but for those that are there. All
        full blocks of the `num_tokens` tokens have their digests.
        """
        found = positions_to_save(num_tokens, num_hit, num_matched, self.policy)
        return [end for end in found if table.digests[end // self._size - 1] not in self.pool]

    def first_in_answer(self, num_tokens: int, num_hit: int) -> int:
        """Behind `num_tokens` tokens, of which `num_hit` had a state: where the next is saved."""
        policy = self.policy
        end = (num_tokens - 1) // policy.grain * policy.grain
        return policy.along + (end if end - num_hit >= policy.least else num_hit)

    def with_answers(self, chunk: Chunk, sequence: Sequence) -> Chunk:
        """The chunk of a decode that has come to where its state is saved, with a slot for the
        state ahead of it, if there is one. The digests of all tokens before are known.
        """
        start, place, grain = chunk.start, sequence.saves_at, self.policy.grain
        if (place, start) != sequence.verified:
            place = max(place, -(-start // grain) * grain)
        digests = sequence.table.digests[: place // self._size]
        if not sequence.table.is_cacheable:
            place = NEVER
        if place > start or len(digests) * self._size != place:
            sequence.saves_at = place
            return chunk
        sequence.saves_at = place + self.policy.along
        slot = self.pool.reserve(digests, Place.ANSWER)
        return chunk if slot is None else msgspec.structs.replace(chunk, saves=((place, slot),))

    def most_drafts(self, sequence: Sequence, end: int) -> int:
        """How many drafts a chunk that ends there may carry. The state behind such a chunk is that
        behind `end`, so one must end where a state is saved: those before are to lead there.
        """
        num_left = sequence.saves_at - 1 - end
        if num_left < 0 or sequence.saves_at % self.policy.along_drafts:
            return end
        return num_left

    def with_slots(self, chunk: Chunk, sequence: Sequence) -> Chunk:
        """The chunk with the slot that its sequence begins with, and those of the states that are
        saved on its way, as far as there is room.
        """
        restores, sequence.restores = sequence.restores, NO_SLOT
        end, num_prompt = chunk.start + chunk.length, sequence.num_prompt
        saves = self.reserve(sequence.table, sequence.saves, chunk.start, end, num_prompt)
        if restores == NO_SLOT and not saves:
            return chunk
        return msgspec.structs.replace(chunk, restores=restores, saves=saves)

    def reserve(
        self, table: BlockTable, positions: Iterable[int], start: int, end: int, num_prompt: int
    ) -> tuple[tuple[int, int], ...]:
        """The states that tokens from `start` to `end` pass and that are saved: of these positions,
        and those that others wait for; each with its slot. Behind `num_prompt` is an answer, which
        was computed before.
        """
        awaited = {num_blocks * self._size for num_blocks in table.awaited_states}
        found = []
        for place in sorted(awaited.union(positions)):
            if start < place <= end:
                digests = table.digests[: place // self._size]
                kind = Place.END if place in awaited else self._kind(place, num_prompt)
                if (slot := self.pool.reserve(digests, kind)) is not None:
                    found.append((place, slot))
        return tuple(found)

    def _kind(self, place: int, num_prompt: int) -> Place:
        if place >= num_prompt:
            return Place.ANSWER if place > num_prompt else Place.WHOLE
        return Place.END if place % self.policy.every else Place.WITHIN

    def settle(self, chunk: Chunk, sequence: Sequence | None) -> None:
        """A step with this chunk is over. `sequence` None: it failed, or is gone."""
        if NO_SLOT < chunk.restores < self.pool.num_slots:  # others are those of swapped sequences
            self.pool.unpin(chunk.restores)
        self.keep(chunk.saves, None if sequence is None else sequence.table)
        if not chunk.drafts or sequence is None:
            return
        # Accepted drafts go into the state in the next step.
        place, num_tokens = chunk.start + chunk.length, sequence.num_planned
        sequence.verified = place, num_tokens
        if sequence.saves_at <= num_tokens and sequence.saves_at != place:
            along = self.policy.along_drafts
            sequence.saves_at = num_tokens // along * along + along

    def keep(self, saves: Iterable[tuple[int, int]], table: BlockTable | None) -> None:
        """States at these positions, in these slots: kept if their keys and values are."""
        num_stored = 0 if table is None else table.num_stored * self._size
        for end, slot in saves:
            if end <= num_stored:
                self.pool.save(slot)
            else:
                self.pool.drop(slot)
