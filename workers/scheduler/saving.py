"""Where prompts and answers save their recurrent states, and from which saved state they begin.

Owns the positions to save, and the slots of a chunk from its plan to its result. Must not know
budgets, nor which snapshot is evicted (`snapshots.py`).

A step that computes a part of a prompt saves the states at positions within that part. Each costs a
few launches in each layer, and a slot that another prefix could have. An answer has one slot, whose
state is renewed as the answer grows: a decode that begins at a position to save first copies the
state, so its graph needs to know nothing of it. By then all tokens before that position are known,
also to a scheduler that plans a step ahead.
"""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Sequence as Many
from typing import Final, NamedTuple, final

import msgspec

from protocol.ids import BlockDigest
from workers.scheduler.block_table import BlockTable
from workers.scheduler.integrity import require
from workers.scheduler.plan import NO_SLOT, Chunk
from workers.scheduler.sequence import NEVER, Sequence
from workers.scheduler.snapshots import SnapshotPlace, SnapshotPool
from workers.scheduler.windows import NoWindowPool, WindowPool

_GRAIN: Final = 64
"""Tokens. A state is saved only where a chunk of the delta rule and a block end."""

_EVERY: Final = 3584
"""Tokens. A state of this grid is left out where another lies within `_LEAST` tokens before or
behind it, so two states lie at most 4,096 tokens apart: a prompt that diverges anywhere computes at
most 4,096 tokens again."""

_LEAST: Final = 256
"""Tokens that a snapshot must spare beside the one before it. A 27B in bfloat16 on an H200 computes
256 tokens in the 12 ms in which it reads its weights, so fewer cost a step hardly anything."""


_ALONG: Final = 256
"""Tokens of an answer between two saved states. A 27B on an H200 takes some 3 s to decode them,
0.07 ms to copy the state, and some 20 ms to compute them again, hardly more than any step."""

_ALONG_DRAFTS: Final = 512
"""Tokens between two saved states of an answer whose drafts are verified. There a step must begin
one token before the position, so the step ahead of it has fewer drafts: one step of some 200."""


class SavePolicy(NamedTuple):
    """Where states are saved, in tokens: at multiples of `grain`; every `every` tokens of what a
    prompt computes; not within `least` tokens behind another state. In an answer every `along`
    tokens, or `along_drafts` where drafts are verified; both are multiples of `grain`.
    """

    grain: int = _GRAIN
    every: int = _EVERY
    least: int = _LEAST
    along: int = _ALONG
    along_drafts: int = _ALONG_DRAFTS


def positions_to_save(
    num_tokens: int, num_hit: int, num_matched: int, policy: SavePolicy
) -> list[int]:
    """The positions, rising, at which a prompt of `num_tokens` tokens saves its state. The prompt
    begins from a state behind `num_hit` tokens; keys and values of `num_matched` tokens are cached.

    - At its end, where the next turn begins, at least one token before the last: the same prompt
      computes its last token anyway when it comes again. Also behind all of it if that is a
      multiple of `grain`, so that the next turn computes only its own tokens.
    - At the junction, where it parts from what is cached: a third prompt with that prefix gains.
    - Every `policy.every` tokens, unless one of these positions is near.
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
class NoPrefixStates:
    """`PrefixStates` of a model without recurrent layers, whose sequences can begin behind any
    block.
    """

    has_any: Final = False

    def __init__(self) -> None:
        self.pool = SnapshotPool(0)
        self.grows_ahead = False

    def depth(self, digests: Many[BlockDigest]) -> int:
        """All of them."""
        return len(digests)

    def num_usable(self, num_blocks: int) -> int:
        """All of them."""
        return num_blocks

    def most_drafts(self, sequence: Sequence, end: int) -> int:  # noqa: ARG002 - the states'
        """Any number."""
        return NEVER

    def with_slots(self, chunk: Chunk, sequence: Sequence) -> Chunk:  # noqa: ARG002 - the states'
        """The chunk as it is."""
        return chunk

    def settle(self, chunk: Chunk, sequence: Sequence | None) -> None:
        """Keep nothing."""


@final
class PrefixStates:
    """The states that an engine keeps for prefixes, at ends of blocks of `block_size` tokens. The
    scheduler sets `grows_ahead`: sequences hold blocks for tokens that are only drafted. With
    `windows` a snapshot is not a copied state but what their pool keeps for it.
    """

    has_any: Final = True

    def __init__(self, num_slots: int, block_size: int, policy: SavePolicy | None = None) -> None:
        self.policy = policy or SavePolicy(grain=max(_GRAIN, block_size))
        require(self.policy.grain % block_size == 0, f"{self.policy} for blocks of {block_size}")
        self.pool = SnapshotPool(num_slots)
        self._size = block_size
        self.grows_ahead = False
        self.windows: WindowPool | NoWindowPool = NoWindowPool()

    @classmethod
    def of(
        cls, num_slots: int | None, block_size: int, policy: SavePolicy | None = None
    ) -> PrefixStates | None:
        """`num_slots` is `EngineFacts.snapshots`: None for a model without states, which has none
        to keep.
        """
        return None if num_slots is None else cls(num_slots, block_size, policy)

    def depth(self, digests: Many[BlockDigest]) -> int:
        """How many blocks of a prefix its deepest state covers."""
        return self.pool.depth(digests)

    def num_usable(self, num_blocks: int) -> int:
        """The most leading blocks, up to `num_blocks`, behind which a state may be saved."""
        return num_blocks - num_blocks % (self.policy.grain // self._size)

    def positions(
        self, table: BlockTable, num_tokens: int, num_hit: int, num_matched: int
    ) -> list[int]:
        """The `positions_to_save` of a sequence that is about to begin, without those whose state
        is saved already. `table` knows the digests of all full blocks of the `num_tokens` tokens.
        """
        found = positions_to_save(num_tokens, num_hit, num_matched, self.policy)
        return [end for end in found if table.digests[end // self._size - 1] not in self.pool]

    def first_in_answer(self, num_tokens: int, num_hit: int) -> int:
        """The first position to save in the answer to `num_tokens` tokens, which began from a state
        behind `num_hit` of them.
        """
        policy = self.policy
        end = (num_tokens - 1) // policy.grain * policy.grain
        return policy.along + (end if end - num_hit >= policy.least else num_hit)

    def with_answers(self, chunk: Chunk, sequence: Sequence) -> Chunk:
        """The chunk of a decode. If its sequence has reached its position to save (`saves_at`) and
        there is a slot, the chunk saves the state that it begins with. The digests of all tokens
        before the chunk are known.
        """
        state, start, grain = sequence.state, chunk.start, self.policy.grain
        place = state.saves_at
        if (place, start) != state.verified:
            place = max(place, -(-start // grain) * grain)
        digests = sequence.table.digests[: place // self._size]
        if not sequence.table.is_cacheable:
            place = NEVER
        if place > start or len(digests) * self._size != place:
            state.saves_at = place
            return chunk
        state.saves_at = place + self.policy.along
        slot = self._reserve(sequence.table, place, SnapshotPlace.ANSWER)
        return chunk if slot is None else msgspec.structs.replace(chunk, saves=((place, slot),))

    def most_drafts(self, sequence: Sequence, end: int) -> int:
        """How many drafts a chunk that ends at `end` may carry. The state behind a chunk with
        drafts is the one behind `end`, so a chunk must end exactly at `saves_at`: the drafts of the
        chunks before reach at most the token before it.
        """
        saves_at = sequence.state.saves_at
        num_left = saves_at - 1 - end
        return NEVER if num_left < 0 or saves_at % self.policy.along_drafts else num_left

    def with_slots(self, chunk: Chunk, sequence: Sequence) -> Chunk:
        """The chunk of a prompt with the slot that it restores, if it is the first of its sequence,
        and the slots of the states that it saves, as far as there are free ones.
        """
        state = sequence.state
        restores, state.restores = state.restores, NO_SLOT
        end, num_prompt = chunk.start + chunk.length, sequence.num_prompt
        saves = self.reserve(sequence.table, state.saves, chunk.start, end, num_prompt)
        if restores == NO_SLOT and not saves:
            return chunk
        return msgspec.structs.replace(chunk, restores=restores, saves=saves)

    def reserve(
        self, table: BlockTable, positions: Iterable[int], start: int, end: int, num_prompt: int
    ) -> tuple[tuple[int, int], ...]:
        """Reserve slots for the states at those of `positions`, and of the positions that other
        sequences wait for, that lie in (start, end]. Returns pairs (position, slot). Positions
        behind `num_prompt` are in an answer that is computed again.
        """
        awaited = {num_blocks * self._size for num_blocks in table.awaited_states}
        found = []
        for place in sorted(awaited.union(positions)):
            if start < place <= end:
                kind = SnapshotPlace.END if place in awaited else self._kind(place, num_prompt)
                if (slot := self._reserve(table, place, kind)) is not None:
                    found.append((place, slot))
        return tuple(found)

    def _reserve(self, table: BlockTable, place: int, kind: SnapshotPlace) -> int | None:
        num_blocks = place // self._size
        slot = self.pool.reserve(table.digests[:num_blocks], kind)
        if slot is None or self.windows.keep(slot, table.window, num_blocks):
            return slot
        self.pool.drop(slot)
        return None

    def _kind(self, place: int, num_prompt: int) -> SnapshotPlace:
        if place >= num_prompt:
            return SnapshotPlace.ANSWER if place > num_prompt else SnapshotPlace.WHOLE
        return SnapshotPlace.END if place % self.policy.every else SnapshotPlace.WITHIN

    def settle(self, chunk: Chunk, sequence: Sequence | None) -> None:
        """Release or keep the slots of a chunk whose step is over. `sequence` is None if it failed
        or has ended.
        """
        # Higher slots belong to swapped sequences.
        if NO_SLOT < chunk.restores < self.pool.num_slots:
            self.pool.unpin(chunk.restores)
        self.keep(chunk.saves, None if sequence is None else sequence.table)
        if not chunk.drafts or sequence is None:
            return
        # The next step folds the accepted drafts into the state.
        state, place, num_tokens = sequence.state, chunk.start + chunk.length, sequence.num_planned
        state.verified = place, num_tokens
        if state.saves_at <= num_tokens and state.saves_at != place:
            along = self.policy.along_drafts
            state.saves_at = num_tokens // along * along + along

    def keep(self, saves: Iterable[tuple[int, int]], table: BlockTable | None) -> None:
        """Keep the states of `saves` (position, slot) whose keys and values are in the prefix
        cache, and drop the others.
        """
        num_stored = 0 if table is None else table.num_stored * self._size
        for end, slot in saves:
            if end <= num_stored:
                self.pool.save(slot)
            else:
                self.pool.drop(slot)
