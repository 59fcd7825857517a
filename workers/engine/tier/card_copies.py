"""Copies between a card and the page-locked region, beside the steps.

Owns two streams, each with rows of staging memory on the card. Must not know what is copied when.

A block's keys and values lie in as many pieces as there are layers, so they are gathered into a row
first, and one copy takes the row over the bus. Its checksum is computed on the card, from what the
bus carries. The host waits for none of it.

- A store gathers on the stream of the steps: what the next step writes to these blocks comes later.
  The rows must be free then, so a store takes a stream on which no transfer is under way.
- A load fills rows, sums them and scatters them on a stream of its own, behind the steps that were
  launched before: some of them may still write to the blocks for an earlier owner. No step reads
  the blocks before the host has compared the sums.
- A state is gathered on the stream of its copy, because its slot is kept until the copy is over.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Final, final

import torch
from torch import Tensor

from workers.engine.tier.copies import move, parts_of
from workers.engine.tier.page_words import WORD, Checksums, PagePart, PageWords, used_bytes
from workers.engine.tier.region import HostRegion
from workers.scheduler.tier import Transfer, Transferred

STAGING_BYTES: Final = 64 * 2**20
"""Bytes of staging memory of each of two streams. Larger copies gain nothing: one of 64 MiB takes
1.2 ms by the bus.
"""

NUM_STREAMS: Final = 2


def staging_rows(page_bytes: int) -> int:
    """Pages that the staging memory of one stream holds."""
    return max(1, min(256, STAGING_BYTES // page_bytes))


def staging_bytes(page_bytes: int) -> int:
    """All memory of the card that copies take."""
    return NUM_STREAMS * (staging_rows(page_bytes) + 1) * page_bytes + page_bytes


@dataclass(slots=True, eq=False)
class _Lane:
    """A stream, its `rows` (uint8 [rows, bytes]), and room for products of one row."""

    stream: torch.cuda.Stream
    rows: Tensor
    spare: Tensor
    num_open: int = 0


@dataclass(slots=True)
class _UnderWay:
    transfer: Transfer
    lane: _Lane
    sums: Tensor
    done: torch.cuda.Event
    sizes: list[int]


@final
class CardCopies:
    """See `PageCopies`."""

    def __init__(self, region: HostRegion, words: PageWords, device: torch.device) -> None:
        self._region = region
        self._words = words
        self._device = device
        self._checksums = Checksums(words.page_bytes, device)
        num_rows, num_bytes = staging_rows(words.page_bytes), -(-words.page_bytes // WORD) * WORD
        self._lanes = [
            _Lane(
                torch.cuda.Stream(device),  # type: ignore[no-untyped-call]
                torch.zeros((num_rows, num_bytes), dtype=torch.uint8, device=device),
                torch.zeros(num_bytes // WORD, dtype=torch.int64, device=device),
            )
            for _ in range(NUM_STREAMS)
        ]
        self._under_way: deque[_UnderWay] = deque()

    @torch.inference_mode()
    def begin(self, transfer: Transfer) -> None:
        """See `PageCopies`."""
        lane = min(self._lanes, key=lambda one: one.num_open)
        pages = [
            (page, parts)
            for copy in transfer.copies
            for page, parts in zip(copy.pages, parts_of(self._words, copy), strict=True)
        ]
        gathers = not transfer.is_load and not any(copy.is_state for copy in transfer.copies)
        if gathers:
            assert lane.num_open == 0
            assert len(pages) <= len(lane.rows)
            for row, (_, parts) in zip(lane.rows, pages, strict=False):
                _fill(row, parts)
        launched = torch.cuda.Event()  # type: ignore[no-untyped-call]
        launched.record()
        with torch.cuda.stream(lane.stream):
            sums = self._load(lane, pages, launched) if transfer.is_load else None
            if sums is None:
                lane.stream.wait_event(launched)
                sums = self._store(lane, pages, is_gathered=gathers)
            on_host = torch.empty(sums.shape, dtype=sums.dtype, pin_memory=True)
            on_host.copy_(sums, non_blocking=True)
            done = torch.cuda.Event()  # type: ignore[no-untyped-call]
            done.record()
        lane.num_open += 1
        sizes = [len(copy.pages) for copy in transfer.copies]
        self._under_way.append(_UnderWay(transfer, lane, on_host, done, sizes))

    def take_done(self) -> list[Transferred]:
        """See `PageCopies`."""
        found = []
        for one in list(self._under_way):
            if not one.done.query():  # type: ignore[no-untyped-call]
                continue
            self._under_way.remove(one)
            one.lane.num_open -= 1
            sums = iter(one.sums.tolist())
            checksums = tuple([tuple([next(sums) for _ in range(size)]) for size in one.sizes])
            found.append(Transferred(one.transfer.number, checksums))
        return found

    def take_opened(self) -> list[range]:
        """See `PageCopies`."""
        return self._region.take_opened()

    def close(self) -> None:
        """See `PageCopies`."""
        torch.cuda.synchronize(self._device)
        self._region.close()

    def _store(
        self, lane: _Lane, pages: list[tuple[int, list[PagePart]]], *, is_gathered: bool
    ) -> Tensor:
        sums = []
        for at, (page, parts) in enumerate(pages):
            row = lane.rows[at % len(lane.rows)]
            if not is_gathered:
                _fill(row, parts)
            size = used_bytes(parts)
            self._region.pages[page][:size].copy_(row[:size], non_blocking=True)
            sums.append(self._checksums.of(row, size, lane.spare))
        return torch.stack(sums)

    def _load(
        self, lane: _Lane, pages: list[tuple[int, list[PagePart]]], launched: torch.cuda.Event
    ) -> Tensor:
        sums, has_waited = [], False
        for begin in range(0, len(pages), len(lane.rows)):
            group = list(zip(lane.rows, pages[begin:], strict=False))
            for row, (page, parts) in group:
                size = used_bytes(parts)
                row[:size].copy_(self._region.pages[page][:size], non_blocking=True)
            if not has_waited:
                lane.stream.wait_event(launched)
                has_waited = True
            for row, (_, parts) in group:
                sums.append(self._checksums.of(row, used_bytes(parts), lane.spare))
                for part in parts:
                    move(part, row, is_load=True)
        return torch.stack(sums)


def _fill(row: Tensor, parts: list[PagePart]) -> None:
    for part in parts:
        move(part, row, is_load=False)
