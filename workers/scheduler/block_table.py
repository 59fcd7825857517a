"""The blocks that one sequence holds, and what is known of their hashes.

Owns the bookkeeping of one sequence; only `BlockManager`, its `PlannedBlocks` and its `WindowPool`
change it. Must
not know other sequences, sampling or time.
"""

from collections.abc import Collection
from typing import final

from protocol.ids import BlockDigest


@final
class WindowTable:
    """The blocks of one sequence's windows: entry i holds tokens [i * block_size, (i + 1) *
    block_size). Entries before `first` are not held any more, or never were, and are not read.
    """

    __slots__ = ("_frozen", "first", "ids")

    def __init__(self) -> None:
        self.first = 0
        self.ids: list[int] = []
        self._frozen: tuple[int, ...] | None = None

    def __repr__(self) -> str:
        return f"<WindowTable {self.ids[self.first :]} behind {self.first}>"

    @property
    def held(self) -> list[int]:
        """The blocks that the sequence holds."""
        return self.ids[self.first :]

    def begin(self, first: int, ids: Collection[int]) -> None:
        """Hold `ids` from entry `first` on, and nothing else."""
        self.first = first
        self.ids = [*[0] * first, *ids]
        self._frozen = None

    def extend(self, ids: Collection[int]) -> None:
        """Hold more blocks at the end."""
        self.ids += ids
        self._frozen = None

    def freeze(self) -> tuple[int, ...]:
        """All entries; the same object until they change."""
        if self._frozen is None:
            self._frozen = tuple(self.ids)
        return self._frozen


@final
class BlockTable:
    """Block i holds the keys and values of tokens [i * block_size, (i + 1) * block_size).

    - `digests` are those of leading full blocks, as many as were needed so far. Tokens are only
      appended, so they stay true after a preemption.
    - `num_stored` leading blocks are in the prefix cache.
    - `num_announced`: the blocks before this index will be stored when they are computed.
    - `num_awaited`: another sequence waits for the blocks before this index.
    - `awaited_states`: in a model with recurrent states, other sequences wait for the states behind
      these numbers of blocks.
    - `is_private`: its blocks never leave the card.
    - `is_cacheable` becomes False at a hash collision: the blocks behind it would have another
      sequence's block as their parent.
    - `ids` are the `block_ids` as a tuple, or None if they changed since `freeze`.
    - `window`: the blocks of layers with a window, where these keep no others.
    """

    __slots__ = (
        "awaited_states",
        "block_ids",
        "digests",
        "ids",
        "is_cacheable",
        "is_private",
        "num_announced",
        "num_awaited",
        "num_stored",
        "root",
        "window",
    )

    def __init__(self, root: BlockDigest, *, is_private: bool = False) -> None:
        self.root = root
        self.is_private = is_private
        self.block_ids: list[int] = []
        self.digests: list[BlockDigest] = []
        self.num_stored = 0
        self.num_announced = 0
        self.num_awaited = 0
        self.awaited_states: set[int] = set()
        self.is_cacheable = True
        self.ids: tuple[int, ...] | None = None
        self.window = WindowTable()

    def __repr__(self) -> str:
        return f"<BlockTable {self.block_ids} stored={self.num_stored}>"

    def leading(self, num_blocks: int) -> tuple[int, ...]:
        """The first `num_blocks` ids."""
        if num_blocks < len(self.block_ids):
            return tuple(self.block_ids[:num_blocks])
        return self.ids or self.freeze()

    def freeze(self) -> tuple[int, ...]:
        """All ids, kept in `ids` until they change."""
        self.ids = tuple(self.block_ids)
        return self.ids

    def extend(self, block_ids: list[int]) -> None:
        """Hold more blocks at the end."""
        self.block_ids += block_ids
        self.ids = None

    def replace(self, index: int, block_id: int) -> int:
        """Hold `block_id` at `index`; returns the block that was held there."""
        replaced = self.block_ids[index]
        self.block_ids[index] = block_id
        self.ids = None
        return replaced

    def clear(self) -> list[int]:
        """Hold nothing; returns what was held, first block first."""
        held, self.block_ids = self.block_ids, []
        self.num_stored = 0
        self.is_cacheable = True
        self.ids = None
        return held
