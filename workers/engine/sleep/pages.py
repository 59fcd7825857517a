"""Memory of a device behind addresses that outlive it.

Owns the seam between a sleep and the code that maps memory; `card_pages.py` maps that of a card.
Must not know what is kept there, nor when it is given back.
"""

from typing import Protocol

from torch import Tensor


class NoMemoryError(Exception):
    """The device has too little free memory; the text says what was asked for."""


class Pages(Protocol):
    """Ranges of addresses, and memory behind them in multiples of `granularity` bytes."""

    granularity: int

    def reserve(self, num_bytes: int) -> int:
        """A range of addresses without memory, for as long as the process lives."""
        ...

    def take(self, address: int, num_bytes: int) -> None:
        """Put memory behind a part of a range, whose content is undefined. Raises `NoMemoryError`;
        then nothing has changed.
        """
        ...

    def give_back(self, address: int, num_bytes: int) -> None:
        """Free the memory of a part that was taken. Nothing on the device may use it."""
        ...

    def let_stacks_go(self) -> None:
        """Free what the driver keeps for kernels' own memory. Nothing on the device may run until
        `take_stacks`.
        """
        ...

    def take_stacks(self) -> None:
        """Have it again. Raises `NoMemoryError`; then it is free."""
        ...

    def bytes_at(self, address: int, num_bytes: int) -> Tensor:
        """The memory as uint8; it must be there now, and whenever the tensor is used."""
        ...
