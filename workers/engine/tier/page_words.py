"""What a page holds: the words of a block of keys and values, or of a part of a recurrent state.

Owns the order of numbers in a page, the checksum of a page, and the hash of any tensors by such
checksums. All are the same on every device. Must not know copies between devices. A change of the
order needs another `VERSION` of the index.

A block is the target's keys and values [layers, 2, tokens, heads, size], then the drafter's, if it
has any. A state is the matrices of all layers, then the tails, cut into pages.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple, final

import numpy as np
import torch
from torch import Tensor

from kernels.page_rows import copy_rows, num_sums
from workers.engine.models.kv_cache import KvCache
from workers.engine.models.state_slots import StateSlots

WORD: Final = 8
_LARGEST_PAGE: Final = 4 * 2**20
"""The largest page of a network without attention, whose blocks are empty."""

_SUMMED: Final = 8 * 2**20
"""Bytes of a tensor that `hash_of` sums at once. Their products take as much memory again."""

_STEP: Final = np.uint64(0x9E3779B97F4A7C15)
_MIX: Final = (np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB))


class PagePart(NamedTuple):
    """Bytes `at` of a page, and the memory of the device that belongs there: [rows, words] int64 of
    a block, whose rows lie apart, or uint8 [bytes] of a state.
    """

    at: int
    memory: Tensor

    def of(self, page: Tensor) -> Tensor:
        """The same part of `page` (uint8), in the form of the memory."""
        part = page[self.at : self.at + self.memory.nbytes]
        return part.view(self.memory.dtype).view(self.memory.shape)


@final
class PageWords:
    """The pages of one engine: blocks of `caches` (the target's, then the drafter's), and the
    `states` of prefixes and of running sequences if the network has any.
    """

    def __init__(
        self, caches: Sequence[KvCache], states: StateSlots | None, running: StateSlots | None
    ) -> None:
        self._blocks = [
            _words(memory) for cache in caches for memory in cache.memories if memory.nbytes
        ]
        self._states, self._running = states, running
        self.block_bytes = sum(words.shape[0] * words.shape[2] * WORD for words in self._blocks)
        self.state_bytes = 0
        if running is not None:
            self.state_bytes = sum(part.nbytes for part in _flat(running, 0))
        self.page_bytes = self.block_bytes or min(self.state_bytes, _LARGEST_PAGE)
        self.state_pages = -(-self.state_bytes // self.page_bytes)

    def block(self, block_id: int) -> list[PagePart]:
        """The parts of the page of a block."""
        parts, at = [], 0
        for words in self._blocks:
            parts.append(PagePart(at, words[:, block_id]))
            at += parts[-1].memory.nbytes
        return parts

    @property
    def num_sums(self) -> int:
        """How many sums `copy_blocks` gives for each block."""
        return sum(num_sums(words) for words in self._blocks)

    def copy_blocks(
        self, block_ids: Tensor, rows: Tensor, weights: Tensor, sums: Tensor, *, is_load: bool
    ) -> None:
        """Copy whole blocks to `rows`, or from them, by one kernel for each memory: see
        `kernels.page_rows.copy_rows`. The sums of a row are together its checksum.
        """
        at, first = 0, 0
        for words in self._blocks:
            size, count = words.shape[0] * words.shape[2], num_sums(words)
            part = sums[:, first : first + count]
            copy_rows(words, block_ids, rows[:, at:], weights[at:], part, is_load=is_load)
            at, first = at + size, first + count

    def launch_once(self, device: torch.device) -> None:
        """Launch the kernels of `copy_blocks` both ways, so that they are compiled: block 0 gets
        what it has. No step may be in flight.
        """
        size = self.block_bytes // WORD
        row = torch.zeros((1, size), dtype=torch.int64, device=device)
        sums = torch.zeros((1, self.num_sums), dtype=torch.int64, device=device)
        block_ids = torch.zeros(1, dtype=torch.int32, device=device)
        for is_load in (False, True):
            self.copy_blocks(block_ids, row, row[0], sums, is_load=is_load)

    def state(self, slot: int) -> list[list[PagePart]]:
        """The parts of each page of the state in a slot of the prefixes."""
        assert self._states is not None
        return self._pages_of(self._states, slot)

    def running_state(self, slot: int) -> list[list[PagePart]]:
        """The parts of each page of the state in a running sequence's slot."""
        assert self._running is not None
        return self._pages_of(self._running, slot)

    def _pages_of(self, slots: StateSlots, slot: int) -> list[list[PagePart]]:
        pages: list[list[PagePart]] = [[] for _ in range(self.state_pages)]
        begin, size = 0, self.page_bytes
        for flat in _flat(slots, slot):
            at = begin
            end = begin + flat.nbytes
            while at < end:
                page, offset = divmod(at, size)
                until = min(end, (page + 1) * size)
                pages[page].append(PagePart(offset, flat[at - begin : until - begin]))
                at = until
            begin = end
        return pages


@final
class Checksums:
    """Sums of 64-bit words, each times an odd number of its own: a flipped bit always shows, and so
    do words that changed places. Integers, so that every device finds the same. `weights` are these
    numbers, int64 [words of a page].
    """

    def __init__(self, page_bytes: int, device: torch.device) -> None:
        self.weights = _weights(-(-page_bytes // WORD)).to(device)

    def of(self, page: Tensor, num_bytes: int, spare: Tensor | None = None) -> Tensor:
        """The checksum of the first `num_bytes` of a page (uint8), int64 []. `spare` (int64, as
        long as a page) holds what is between.
        """
        num_words = -(-num_bytes // WORD)
        if num_bytes % WORD:
            padded = torch.zeros(num_words * WORD, dtype=torch.uint8, device=page.device)
            padded[:num_bytes].copy_(page[:num_bytes])
            page = padded
        words = page[: num_words * WORD].view(torch.int64)
        out = None if spare is None else spare[:num_words]
        return torch.mul(words, self.weights[:num_words], out=out).sum()


def hash_of(tensors: Iterable[Tensor]) -> bytes:
    """A hash of shapes, dtypes and all bytes of tensors, which may be on several devices. It hashes
    the checksum of each piece, which a card computes at the speed of its memory.
    """
    digest = hashlib.sha256()
    known: dict[torch.device, tuple[Checksums, Tensor]] = {}
    sums: list[Tensor] = []
    for tensor in tensors:
        digest.update(f"{tensor.dtype} {[*tensor.shape]} {[*tensor.stride()]}".encode())
        if tensor.device not in known:
            spare = torch.empty(_SUMMED // WORD, dtype=torch.int64, device=tensor.device)
            known[tensor.device] = Checksums(_SUMMED, tensor.device), spare
        checksums, spare = known[tensor.device]
        for piece in torch.split(_in_order(tensor), _SUMMED):
            words = piece if piece.storage_offset() % WORD == 0 else piece.clone()
            sums.append(checksums.of(words, words.nbytes, spare))
    for device in known:
        found = [one for one in sums if one.device == device]
        digest.update(np.array(torch.stack(found).tolist(), np.int64).tobytes())
    return digest.digest()


def _in_order(tensor: Tensor) -> Tensor:
    """The bytes of a tensor, uint8, in the order of its memory."""
    order = sorted(range(tensor.dim()), key=tensor.stride, reverse=True)
    return tensor.detach().permute(order).contiguous().view(-1).view(torch.uint8)


def used_bytes(parts: Sequence[PagePart]) -> int:
    """The bytes of a page that its parts fill."""
    return max([part.at + part.memory.nbytes for part in parts], default=0)


def _words(memory: Tensor) -> Tensor:
    """Keys and values as int64 [layers x sides, blocks, words of a block]."""
    layers, sides, blocks, *_ = memory.shape
    return memory.view(layers * sides, blocks, -1).view(torch.int64)


def _flat(slots: StateSlots, slot: int) -> list[Tensor]:
    """The bytes of a slot."""
    return [
        part[slot].reshape(-1).view(torch.uint8)
        for part in (slots.matrices, slots.tails)
        if part[slot].numel()
    ]


def _weights(count: int) -> Tensor:
    """Odd numbers, by SplitMix64 of their places."""
    with np.errstate(over="ignore"):
        mixed = np.arange(1, count + 1, dtype=np.uint64) * _STEP
        for shift, factor in zip((30, 27), _MIX, strict=True):
            mixed = (mixed ^ (mixed >> np.uint64(shift))) * factor
        mixed = (mixed ^ (mixed >> np.uint64(31))) | np.uint64(1)
    return torch.from_numpy(mixed.view(np.int64).copy())
