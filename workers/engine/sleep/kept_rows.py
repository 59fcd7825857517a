"""What prefixes have on the device: rows of tables, by the scheduler's numbers of blocks and slots.

Owns how rows are gathered for a copy and scattered behind one, and the sums that prove a copy. Must
not know where the bytes go, nor which prefixes there are.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod
from typing import Final, NamedTuple, final

import torch
from torch import Tensor

from workers.engine.models.kv_cache import KvCache
from workers.engine.models.state_slots import StateSlots
from workers.scheduler import HeldCounts, HeldPlaces

GATHERED_BYTES: Final = 64 * 2**20
"""Bytes of rows that are gathered for one copy, because rows lie in as many pieces as there are
layers. Larger copies gain nothing: one of 64 MiB takes 1.2 ms by the bus."""

_WORDS: Final = (torch.int64, torch.int32, torch.int16, torch.uint8)


class _Table(NamedTuple):
    """[outer, rows, words] of integers. `kind` names the numbers of `HeldPlaces`."""

    words: Tensor
    kind: str

    @property
    def row_bytes(self) -> int:
        return self.words.shape[0] * self.words.shape[2] * self.words.itemsize


class RowGroup(NamedTuple):
    """The rows `numbers` (int64, on the device) of `words` [outer, rows, words]."""

    words: Tensor
    numbers: Tensor

    def gathered(self) -> Tensor:
        """The bytes of these rows, side by side."""
        return self.words.index_select(1, self.numbers).view(-1).view(torch.uint8)

    def empty(self) -> Tensor:
        """Memory for as many bytes as `gathered` returns."""
        outer, _, width = self.words.shape
        rows = self.words.new_empty((outer, len(self.numbers), width))
        return rows.view(-1).view(torch.uint8)

    def scatter(self, gathered: Tensor) -> None:
        """Put what `gathered` gave back into the rows."""
        outer, _, width = self.words.shape
        rows = gathered.view(self.words.dtype).view(outer, len(self.numbers), width)
        self.words.index_copy_(1, self.numbers, rows)


@final
class KeptRows:
    """The rows of blocks of `caches`, and of the states of prefixes if the network has any."""

    def __init__(self, caches: Sequence[KvCache], states: StateSlots | None) -> None:
        self._tables = [
            _Table(_words(memory, 2), "window_blocks" if in_window else "blocks")
            for cache in caches
            for memory, in_window in zip(cache.memories, cache.in_windows, strict=True)
            if memory.numel() and not (in_window and not cache.num_window_blocks)
        ]
        if states is not None:
            parts = (states.matrices, states.tails)
            self._tables += [_Table(_words(part, 0), "slots") for part in parts if part.numel()]

    def num_bytes(self, held: HeldCounts) -> int:
        """Bytes of all rows of the `held` places."""
        return sum([getattr(held, one.kind) * one.row_bytes for one in self._tables])

    def groups(self, held: HeldPlaces) -> list[RowGroup]:
        """The rows of these places, in groups for one copy each."""
        return list(self._groups(held))

    def _groups(self, held: HeldPlaces) -> Iterator[RowGroup]:
        for table in self._tables:
            numbers = torch.tensor(getattr(held, table.kind), dtype=torch.int64)
            numbers = numbers.to(table.words.device)
            each = max(1, GATHERED_BYTES // table.row_bytes)
            for begin in range(0, len(numbers), each):
                yield RowGroup(table.words, numbers[begin : begin + each])


def sum_of(part: Tensor) -> Tensor:
    """The sum of the words of uint8 memory, int64 []: other bytes have another one, but for one
    case in 2^64."""
    size = next(word for word in _WORDS if part.nbytes % word.itemsize == 0)
    return part.view(size).sum(dtype=torch.int64)


def _words(memory: Tensor, row_dim: int) -> Tensor:
    """The memory as [all dimensions before `row_dim`, rows, all dimensions behind it], in the
    widest words.
    """
    outer = prod(memory.shape[:row_dim])
    flat = memory.view(outer, memory.shape[row_dim], -1).view(torch.uint8)
    return flat.view(next(word for word in _WORDS if flat.shape[2] % word.itemsize == 0))
