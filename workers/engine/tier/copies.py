"""Copies between the device and the region, as transfers ask for them.

Owns the order of a page's copy: payload, then checksum. Must not know what is copied when, nor what
a checksum means. On a CPU a transfer is over when it has begun; on a card see `card_copies.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol, final

import torch
from torch import Tensor

from workers.engine.tier.page_words import Checksums, PagePart, PageWords, used_bytes
from workers.engine.tier.region import HostRegion
from workers.scheduler import SequenceMove, SequenceMoves
from workers.scheduler.tier import Copy, Transfer, Transferred


class PageCopies(Protocol):
    """Copies pages in one region."""

    def begin(self, transfer: Transfer) -> None:
        """Begin a transfer behind the steps that are launched."""

    def take_done(self) -> list[Transferred]:
        """The transfers that have ended since the last call."""

    def take_opened(self) -> list[range]:
        """The pages that can be used from now on."""

    def close(self) -> None:
        """Drop all references to the region."""


def parts_of(words: PageWords, copy: Copy) -> list[list[PagePart]]:
    """The parts of each page of a copy."""
    return words.state(copy.place) if copy.is_state else [words.block(copy.place)]


@final
class HostCopies:
    """Copies within the host's memory."""

    def __init__(self, region: HostRegion, words: PageWords) -> None:
        self._region = region
        self._words = words
        self._checksums = Checksums(words.page_bytes, torch.device("cpu"))
        self._done: list[Transferred] = []

    def begin(self, transfer: Transfer) -> None:
        """See `PageCopies`."""
        sums = [self._copy(copy, is_load=transfer.is_load) for copy in transfer.copies]
        self._done.append(Transferred(transfer.number, tuple(sums)))

    def take_done(self) -> list[Transferred]:
        """See `PageCopies`."""
        done, self._done = self._done, []
        return done

    def take_opened(self) -> list[range]:
        """See `PageCopies`."""
        return self._region.take_opened()

    def close(self) -> None:
        """See `PageCopies`."""
        self._region.close()

    def _copy(self, copy: Copy, *, is_load: bool) -> tuple[int, ...]:
        sums = []
        for number, parts in zip(copy.pages, parts_of(self._words, copy), strict=True):
            page = self._region.pages[number]
            for part in parts:
                move(part, page, is_load=is_load)
            sums.append(int(self._checksums.of(page, used_bytes(parts))))
        return tuple(sums)


def move(part: PagePart, page: Tensor, *, is_load: bool) -> None:
    """Copy a part to or from its place in a page, behind the stream's earlier work."""
    if is_load:
        part.memory.copy_(part.of(page), non_blocking=True)
    else:
        part.of(page).copy_(part.memory, non_blocking=True)


@final
class NoSwapper:
    """`Swapper` of an engine without a host tier, whose plans move no sequences."""

    def move(self, moves: SequenceMoves, slot_of: Callable[[int], int]) -> None:
        """Raises `RuntimeError`."""
        del slot_of
        raise RuntimeError(f"a plan moves sequences, but there is no host tier: {moves}")


@final
class Swapper:
    """The copies of preempted sequences to the region and back, before a step and in the order of
    the plans. The host itself reads nothing, so the device's order of copies is enough.
    """

    def __init__(self, region: HostRegion, words: PageWords) -> None:
        self._region = region
        self._words = words

    def move(self, moves: SequenceMoves, slot_of: Callable[[int], int]) -> None:
        """Launch the copies before a step. `slot_of` gives the running slot of a sequence."""
        for each in moves.out:
            self._move(each, slot_of, is_load=False)
        for each in moves.back:
            self._move(each, slot_of, is_load=True)

    def _move(self, each: SequenceMove, slot_of: Callable[[int], int], *, is_load: bool) -> None:
        for block_id, page in zip(each.block_ids, each.pages, strict=True):
            self._copy(self._words.block(block_id), page, is_load=is_load)
        if each.state_pages:
            parts = self._words.running_state(slot_of(each.seq))
            for own, page in zip(parts, each.state_pages, strict=True):
                self._copy(own, page, is_load=is_load)

    def _copy(self, parts: Sequence[PagePart], page: int, *, is_load: bool) -> None:
        for part in parts:
            move(part, self._region.pages[page], is_load=is_load)
