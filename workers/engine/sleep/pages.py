"""Memory of a device behind addresses that outlive it.

Owns the seam between a sleep and whoever maps memory, and its form on a host. `card_pages.py` is
that of a card. Must not know what is kept there, nor when it is given back.
"""

import ctypes
import mmap
from typing import Final, Protocol, final

import torch
from torch import Tensor

_DONTNEED: Final = 4
"""`MADV_DONTNEED`: the pages are free at once, and read as zeros when they are touched again."""


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

    def bytes_at(self, address: int, num_bytes: int) -> Tensor:
        """The memory as uint8; it must be there now, and whenever the tensor is used."""
        ...


@final
class HostPages:
    """Anonymous memory of the host, of which the kernel frees what is given back."""

    granularity = mmap.PAGESIZE

    def __init__(self) -> None:
        self._ranges: list[mmap.mmap] = []
        self._libc = ctypes.CDLL(None, use_errno=True)

    def reserve(self, num_bytes: int) -> int:
        """See `Pages`."""
        held = mmap.mmap(-1, num_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        self._ranges.append(held)
        return ctypes.addressof(ctypes.c_uint8.from_buffer(held))

    def take(self, address: int, num_bytes: int) -> None:
        """See `Pages`. The kernel takes each page when it is first written."""

    def give_back(self, address: int, num_bytes: int) -> None:
        """See `Pages`."""
        place, size = ctypes.c_void_p(address), ctypes.c_size_t(num_bytes)
        if self._libc.madvise(place, size, _DONTNEED) != 0:
            raise OSError(ctypes.get_errno(), "the kernel does not free the memory")

    def bytes_at(self, address: int, num_bytes: int) -> Tensor:
        """See `Pages`."""
        held = (ctypes.c_uint8 * num_bytes).from_address(address)
        return torch.frombuffer(held, dtype=torch.uint8)
