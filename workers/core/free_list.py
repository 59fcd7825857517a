"""The blocks that no sequence holds, in the order in which they will be reused.

Owns that order: blocks without content first, then those with content, least recently released
first. Must not know what a block holds. Every operation is O(1).
"""

from collections import OrderedDict
from collections.abc import Iterator
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

    def remove(self, block_id: int) -> None:
        """Take one particular block. Raises `KeyError` if it is not free."""
        del self._order[block_id]

    def append(self, block_id: int) -> None:
        """Release a block whose content is worth keeping: it is reused last."""
        self._order[block_id] = None

    def prepend(self, block_id: int) -> None:
        """Release a block without content: it is reused first."""
        self._order[block_id] = None
        self._order.move_to_end(block_id, last=False)
