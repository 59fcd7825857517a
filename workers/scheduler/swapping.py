"""Which preempted sequences lie in the host's memory, and in which of its blocks.

Owns these blocks, and what moves before the next step. Must not know when a sequence is preempted
or begins again, nor tensors.

What moves takes effect in the order of the plans: the blocks of the card are read before a step
writes to them for their next owner, and those of the host are free as soon as a plan reads them.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple, final

from workers.scheduler.integrity import require
from workers.scheduler.plan import NO_MOVES, NO_SLOT, Move, Moves
from workers.scheduler.sequence import Sequence, Swapped


class SwapRoom(NamedTuple):
    """What a host has: blocks of keys and values, and slots for recurrent states, if the model has
    some; they lie behind the `first_slot` slots of the prefixes'.
    """

    num_blocks: int
    num_states: int | None = None
    first_slot: int = 0


@final
class SwapSpace:
    """The host's blocks, in blocks of `block_size` tokens."""

    def __init__(self, room: SwapRoom, block_size: int) -> None:
        self._room = room
        self._size = block_size
        self._blocks = list(range(room.num_blocks))
        self._slots = list(range(room.first_slot, room.first_slot + (room.num_states or 0)))
        self._out: list[Move] = []
        self._back: list[Move] = []

    def __repr__(self) -> str:
        return f"<SwapSpace {len(self._blocks)} blocks, {len(self._slots)} states free>"

    def put_out(self, sequence: Sequence) -> None:
        """Keep what is computed of a sequence that is about to lose its blocks, the step in flight
        included; if there is no room, it will be computed again.
        """
        num_tokens, has_states = sequence.num_planned, self._room.num_states is not None
        count = -(-num_tokens // self._size)
        if count == 0 or count > len(self._blocks) or (has_states and not self._slots):
            return
        host_ids = tuple([self._blocks.pop() for _ in range(count)])
        slot = self._slots.pop() if has_states else NO_SLOT
        sequence.swapped = Swapped(host_ids, num_tokens, slot)
        block_ids = sequence.table.leading(count)
        self._out.append(Move(sequence.seq, block_ids, host_ids, slot))

    def num_kept(self, sequence: Sequence, num_cached: int) -> int:
        """How many tokens need not be computed again of a sequence of which `num_cached` are in the
        prefix cache. What is kept is forgotten if it is no more than that, or all: one token must
        be computed.
        """
        swapped = sequence.swapped
        if swapped is None:
            return num_cached
        if not num_cached < swapped.num_tokens < len(sequence.token_ids):
            self.forget(sequence)
            return num_cached
        return swapped.num_tokens

    def bring_back(self, sequence: Sequence, num_found: int) -> None:
        """The sequence begins again, with blocks of its own behind `num_found` cached ones."""
        swapped = sequence.swapped
        if swapped is None:
            return
        block_ids = sequence.table.leading(len(swapped.host_ids))[num_found:]
        self._back.append(Move(sequence.seq, block_ids, swapped.host_ids[num_found:], NO_SLOT))
        sequence.restores = swapped.slot
        self.forget(sequence)

    def forget(self, sequence: Sequence) -> None:
        """What is kept of a sequence is not needed."""
        swapped, sequence.swapped = sequence.swapped, None
        if swapped is None:
            return
        self._blocks += swapped.host_ids
        if swapped.slot != NO_SLOT:
            self._slots.append(swapped.slot)

    def take_moves(self) -> Moves:
        """What moves before the next step."""
        if not self._out and not self._back:
            return NO_MOVES
        moves = Moves(tuple(self._out), tuple(self._back))
        self._out.clear()
        self._back.clear()
        return moves

    def check_integrity(self, waiting: Iterable[Sequence]) -> None:
        """Raise `IntegrityError` unless each block and slot has one owner."""
        kept = [one.swapped for one in waiting if one.swapped is not None]
        blocks = [*self._blocks, *[block for one in kept for block in one.host_ids]]
        slots = [*self._slots, *[one.slot for one in kept if one.slot != NO_SLOT]]
        first, num_states = self._room.first_slot, self._room.num_states or 0
        require(sorted(blocks) == list(range(self._room.num_blocks)), f"blocks of {self!r}")
        require(sorted(slots) == list(range(first, first + num_states)), f"slots of {self!r}")
