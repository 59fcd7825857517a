"""Tensors at addresses that stay, in memory that can be given back and taken again.

Owns the places of tensors in one range of addresses, and the pieces of memory behind it. Must not
know what the tensors are, nor where their content goes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from math import prod
from typing import Final, final

import torch
from torch import Tensor

from workers.engine.sleep.pages import NoMemoryError, Pages

ALIGNMENT: Final = 512
"""Bytes; a tensor begins at a multiple, as one of torch does."""

MOST_PIECE: Final = 4 * 2**30
"""The most bytes of one piece of memory, where a tensor is larger."""

_MOVED_AT_ONCE: Final = 2**30


@final
class Arena:
    """Up to `most_bytes` of tensors. Memory is taken in pieces of at least `piece_bytes`: single
    ones of 2 MiB would be ten thousand calls of the driver. `relieve` is called when the device has
    no memory left, before the last try: torch keeps memory that no tensor uses.
    """

    def __init__(
        self,
        pages: Pages,
        most_bytes: int,
        piece_bytes: int = 1,
        relieve: Callable[[], None] = lambda: None,
    ) -> None:
        self._pages = pages
        self._relieve = relieve
        self._piece_bytes = _ceil(piece_bytes, pages.granularity)
        self._size = _ceil(most_bytes, self._piece_bytes)
        self._address = pages.reserve(self._size)
        self._pieces: list[tuple[int, int]] = []
        self._next = 0
        self.is_taken = True

    def __repr__(self) -> str:
        state = "there" if self.is_taken else "given back"
        return f"<Arena of {self.num_bytes} bytes, {state}>"

    @property
    def num_bytes(self) -> int:
        """Bytes of memory behind all tensors, while it is taken."""
        return sum(size for _, size in self._pieces)

    @property
    def used(self) -> Tensor:
        """All bytes that tensors have, uint8. The memory must be taken."""
        return self._pages.bytes_at(self._address, self._next)

    def place(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """A tensor of its own, whose content is undefined. Raises `torch.OutOfMemoryError`."""
        size = max(1, prod(shape) * dtype.itemsize)
        at, self._next = self._next, self._next + _ceil(size, ALIGNMENT)
        try:
            self._grow(self._next)
        except NoMemoryError as error:
            self._next = at
            raise torch.OutOfMemoryError(f"out of memory: {size} bytes, {error}") from error
        part = self._pages.bytes_at(self._address + at, size)
        return part[: prod(shape) * dtype.itemsize].view(dtype).view(shape)

    @torch.inference_mode()
    def adopt(self, tensors: Iterable[Tensor]) -> None:
        """Move the memory of these tensors here, in place: what they share they share afterwards.
        Tensors of the same memory that are not among them keep the old one.
        """
        shared: dict[int, list[Tensor]] = {}
        for tensor in tensors:
            if tensor.numel() and not self._has(tensor.data_ptr()):
                shared.setdefault(tensor.untyped_storage().data_ptr(), []).append(tensor)
        moved = 0
        while shared:
            _, own = shared.popitem()
            storage = own[0].untyped_storage()
            target = self.place((storage.nbytes(),), torch.uint8)
            target.copy_(torch.empty(0, dtype=torch.uint8, device=target.device).set_(storage))
            moved += storage.nbytes()
            for tensor in own:
                offset, shape, stride = tensor.storage_offset(), tensor.shape, tensor.stride()
                tensor.set_(target.untyped_storage(), offset, shape, stride)
            del storage, target, own
            if moved >= _MOVED_AT_ONCE:
                moved = 0
                self._relieve()
        self._relieve()

    def be_tight(self) -> None:
        """Take no more than what tensors need from now on."""
        self._piece_bytes = self._pages.granularity

    def give_back(self) -> None:
        """Free the memory. Nothing on the device may use a tensor until `take`."""
        assert self.is_taken
        for at, size in self._pieces:
            self._pages.give_back(self._address + at, size)
        self.is_taken = False

    def take(self) -> None:
        """Take memory again, whose content is undefined. Raises `NoMemoryError`; then nothing has
        been taken.
        """
        assert not self.is_taken
        for number, (at, size) in enumerate(self._pieces):
            try:
                self._pages.take(self._address + at, size)
            except NoMemoryError:
                for earlier, its_size in self._pieces[:number]:
                    self._pages.give_back(self._address + earlier, its_size)
                raise
        self.is_taken = True

    def _has(self, address: int) -> bool:
        return self._address <= address < self._address + self._size

    def _grow(self, num_bytes: int) -> None:
        end = self.num_bytes
        if num_bytes > self._size:
            raise NoMemoryError(f"an arena of {self._size} bytes is full")
        while end < num_bytes:
            wanted = _ceil(num_bytes - end, self._pages.granularity)
            size = min(max(wanted, self._piece_bytes), self._size - end, MOST_PIECE)
            try:
                self._pages.take(self._address + end, size)
            except NoMemoryError:
                self._relieve()
                size = min(size, wanted)
                self._pages.take(self._address + end, size)
            self._pieces.append((end, size))
            end += size


def _ceil(value: int, step: int) -> int:
    return -(-value // step) * step
