"""A device of a few bytes whose memory an engine maps, and others can take: memory of the host."""

import ctypes
import mmap
from typing import final

import torch
from torch import Tensor

from workers.engine.sleep.pages import NoMemoryError

STACKS = mmap.PAGESIZE
"""Bytes that kernels have for themselves, in no range."""

_DONTNEED = 4
"""`MADV_DONTNEED`: the pages are free at once, and read as zeros when they are touched again."""


@final
class ScarcePages:
    """In the place of a card's `Pages`. Of `total` bytes `others` are taken, and `taken` are the
    engine's.
    """

    granularity = mmap.PAGESIZE

    def __init__(self, total: int = 2**30) -> None:
        self.total = total
        self.others = 0
        self.taken = 0
        self.has_stacks = True
        self._ranges: list[mmap.mmap] = []
        self._libc = ctypes.CDLL(None)

    def reserve(self, num_bytes: int) -> int:
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
        self._ranges.append(mmap.mmap(-1, num_bytes, flags=flags))
        return ctypes.addressof(ctypes.c_uint8.from_buffer(self._ranges[-1]))

    def holds(self, tensor: Tensor) -> bool:
        """Whether the memory of a tensor is of this device."""
        starts = [ctypes.addressof(ctypes.c_uint8.from_buffer(one)) for one in self._ranges]
        sizes = [len(one) for one in self._ranges]
        at = tensor.data_ptr()
        return any(start <= at < start + size for start, size in zip(starts, sizes, strict=True))

    def take(self, address: int, num_bytes: int) -> None:
        assert address
        if self.others + self.taken + num_bytes > self.total:
            raise NoMemoryError("the card has no memory left")
        self.taken += num_bytes

    def give_back(self, address: int, num_bytes: int) -> None:
        place, size = ctypes.c_void_p(address), ctypes.c_size_t(num_bytes)
        assert self._libc.madvise(place, size, _DONTNEED) == 0
        self.taken -= num_bytes

    def let_stacks_go(self) -> None:
        self.has_stacks = False

    def take_stacks(self) -> None:
        if self.others + self.taken + STACKS > self.total:
            raise NoMemoryError("the card has no memory left")
        self.has_stacks = True

    def bytes_at(self, address: int, num_bytes: int) -> Tensor:
        held = (ctypes.c_uint8 * num_bytes).from_address(address)
        return torch.frombuffer(held, dtype=torch.uint8)
