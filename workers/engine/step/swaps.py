"""The copies of preempted sequences to the host's memory and back.

Owns the copies and the host's blocks. Must not know which sequences are preempted, nor when. Copies
are launched behind earlier steps, in the order of the plans, and the host itself reads nothing.
"""

from collections.abc import Callable
from typing import NamedTuple, final

from workers.engine.memory.host_pool import HostPool
from workers.engine.models.kv_cache import KvCache
from workers.engine.models.state_slots import PrefixSlots, StateSlots
from workers.scheduler import NO_SLOT, Moves, SwapRoom


class HostRoom(NamedTuple):
    """How an engine uses its host pool: `num_prefixes` states of prefixes, and `num_states` states
    and `num_blocks` blocks of keys and values of preempted sequences. A drafter's keys and values
    are not swapped.
    """

    pool: HostPool
    num_prefixes: int = 0
    num_states: int = 0
    num_blocks: int = 0


@final
class Swapper:
    """Swaps sequences of one cache. `states` are the running and the prefix slots of a network with
    recurrent layers; slots for preempted sequences lie behind the `num_snapshots` of prefixes.
    """

    def __init__(
        self,
        cache: KvCache,
        states: tuple[StateSlots, PrefixSlots] | None,
        num_snapshots: int,
        room: HostRoom,
    ) -> None:
        self._memory = cache.memory
        layers, pair, _, *block = cache.memory.shape
        # A block is contiguous: one copy over the bus.
        shape = (room.num_blocks, layers, pair, *block)
        self._host = room.pool.tensor(shape, cache.memory.dtype)
        self._states = states
        num_states = None if states is None else room.num_states
        self.room = SwapRoom(room.num_blocks, num_states, num_snapshots)

    def move(self, moves: Moves, slot_of: Callable[[int], int]) -> None:
        """Launch the copies before a step. `slot_of` gives the running slot of a sequence."""
        card, host = self._memory, self._host
        for move in moves.out:
            for block, place in zip(move.block_ids, move.host_ids, strict=True):
                host[place].copy_(card[:, :, block], non_blocking=True)
            if self._states is not None and move.slot != NO_SLOT:
                running, prefixes = self._states
                slots, slot = prefixes.at(move.slot)
                slots.copy(slot, running, slot_of(move.seq))
        for move in moves.back:
            for block, place in zip(move.block_ids, move.host_ids, strict=True):
                card[:, :, block].copy_(host[place], non_blocking=True)


def swapper(
    cache: KvCache,
    states: tuple[StateSlots, PrefixSlots] | None,
    num_snapshots: int | None,
    room: HostRoom | None,
) -> Swapper | None:
    """The swapper of an engine, None if the host has no room for preempted sequences."""
    if room is None or room.num_blocks == 0:
        return None
    return Swapper(cache, states, num_snapshots or 0, room)
