"""Which preempted sequences lie in the host's memory, and in which of its blocks.

Owns the host's blocks, and the copies to make before the next step. Must not know when a sequence
is preempted or begins again, nor tensors.

Copies take effect in the order of the plans: the card's blocks are read before a step writes to
them for their next owner, and the host's blocks are free as soon as a plan copies them back.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple, final

from workers.scheduler.integrity import require
from workers.scheduler.plan import NO_MOVES, NO_SLOT, Move, Moves
from workers.scheduler.sequence import Sequence, Swapped


class SwapRoom(NamedTuple):
    """What a host has for preempted sequences: `num_blocks` blocks of keys and values, and
    `num_states` slots for recurrent states, None for a model without. The first of these slots has
    the number `first_slot`; smaller numbers are those of prefix states.
    """

    num_blocks: int
    num_states: int | None = None
    first_slot: int = 0


@final
class SwapSpace:
    """The host's blocks of `block_size` tokens, and its slots for states."""

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
        """Swap out a sequence that is about to lose its blocks, with what the step in flight
        computes. Without room nothing is kept, and the sequence is computed again later.
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
        """How many leading tokens of a sequence need not be computed again, `num_cached` of which
        are in the prefix cache. Forgets what is swapped out if it is no more than is cached, or if
        it is the whole sequence: one token must be computed.
        """
        swapped = sequence.swapped
        if swapped is None:
            return num_cached
        if not num_cached < swapped.num_tokens < len(sequence.token_ids):
            self.forget(sequence)
            return num_cached
        return swapped.num_tokens

    def bring_back(self, sequence: Sequence, num_found: int) -> None:
        """Swap a sequence back in that begins again with `num_found` cached blocks and its own
        behind them.
        """
        swapped = sequence.swapped
        if swapped is None:
            return
        block_ids = sequence.table.leading(len(swapped.host_ids))[num_found:]
        self._back.append(Move(sequence.seq, block_ids, swapped.host_ids[num_found:], NO_SLOT))
        sequence.state.restores = swapped.slot
        self.forget(sequence)

    def forget(self, sequence: Sequence) -> None:
        """Free what the host keeps of a sequence."""
        swapped, sequence.swapped = sequence.swapped, None
        if swapped is None:
            return
        self._blocks += swapped.host_ids
        if swapped.slot != NO_SLOT:
            self._slots.append(swapped.slot)

    def take_moves(self) -> Moves:
        """The copies to make before the next step; each is returned once."""
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
