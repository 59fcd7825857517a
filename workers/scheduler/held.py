"""The blocks and slots of a device that prefixes hold: their counts, and their numbers.

Owns the two values. Must not know what a block or a slot is made of.
"""

from typing import NamedTuple


class HeldCounts(NamedTuple):
    """How many blocks, blocks of layers with a window, and slots of states hold prefixes."""

    blocks: int = 0
    window_blocks: int = 0
    slots: int = 0


class HeldPlaces(NamedTuple):
    """The blocks, blocks of layers with a window, and slots of states that hold prefixes."""

    blocks: tuple[int, ...] = ()
    window_blocks: tuple[int, ...] = ()
    slots: tuple[int, ...] = ()

    @property
    def counts(self) -> HeldCounts:
        return HeldCounts(*[len(one) for one in self])
