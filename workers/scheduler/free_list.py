"""The blocks that no sequence holds, in the order in which they will be reused.

Owns that order: blocks without content first, then those with content, least recently released
first. Must not know what a block holds. Every operation is O(1) per block; those that a thousand
blocks of a long prompt go through take all of them, without a call for each.
"""

from collections import OrderedDict
from collections.abc import Iterable, Iterator
from typing import final


@final
class FreeList:
    """An ordered set of block ids; all `num_blocks` ids are free at first, lowest id first."""

    __slots__ = ("_order",)

    def __init__(self, num_blocks: int) -> None:
        self._order: OrderedDict[int, None] = OrderedDict.fromkeys(range(num_blocks))

    def __len__(self) -> int:
        return len(self._order)

    def __iter__(self) -> Iterator[int]:
        """The ids in the order of their reuse."""
        return iter(self._order)

    def __contains__(self, block_id: int) -> bool:
        return block_id in self._order

    def pop(self) -> int:
        """Take the block that is reused next. Raises `KeyError` if none is free."""
        return self._order.popitem(last=False)[0]

    def remove(self, block_ids: Iterable[int]) -> None:
        """Take particular blocks. Raises `KeyError` for one that is not free."""
        order = self._order
        for block_id in block_ids:
            del order[block_id]

    def append(self, block_ids: Iterable[int]) -> None:
        """Release blocks whose content is worth keeping: they are reused last, in this order."""
        order = self._order
        for block_id in block_ids:
            order[block_id] = None

    def prepend(self, block_ids: Iterable[int]) -> None:
        """Release blocks without content: they are reused first, the last of them before all."""
        order = self._order
        for block_id in block_ids:
            order[block_id] = None
            order.move_to_end(block_id, last=False)
