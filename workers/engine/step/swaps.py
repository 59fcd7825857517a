"""What an engine keeps in the host's memory, and how preempted sequences move there and back.

Owns the copies. Must not know which sequences are preempted, nor when. Copies go behind the steps
that were launched before, in the order of the plans, and the host reads nothing of them.
"""

from collections.abc import Callable
from typing import NamedTuple, final

from workers.engine.memory.host_pool import HostPool
from workers.engine.models.kv_cache import KvCache
from workers.engine.models.state_slots import PrefixSlots, StateSlots
from workers.scheduler import NO_SLOT, Moves, SwapRoom


class HostRoom(NamedTuple):
    """What a pool is for: states of prefixes; states, and blocks of keys and values, of preempted
    sequences. A drafter's keys and values do not move.
    """

    pool: HostPool
    num_prefixes: int = 0
    num_states: int = 0
    num_blocks: int = 0


@final
class Swapper:
    """`running` states, and `prefixes`, behind which those of preempted sequences lie, of a network
    that has some.
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
        """Before a step; `slot_of` a sequence that goes out its state is read."""
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
    """Where the host has room for preempted sequences."""
    if room is None or room.num_blocks == 0:
        return None
    return Swapper(cache, states, num_snapshots or 0, room)
