"""Copies between a card and the page-locked region, beside the steps.

Owns two streams, each with rows of staging memory on the card. Must not know what is copied when.

A block's keys and values lie in as many pieces as there are layers. One kernel copies all blocks of
a transfer to rows, or from them, and sums them on the way: so the host's thread makes a few
launches for each transfer instead of some for each block (a load of 4 GiB has a thousand blocks).
Rows whose pages are neighbours take the bus together. The host waits for none of it.

- A store gathers on the stream of the steps: what the next step writes to these blocks comes later.
  The rows must be free then, so a store takes a stream on which no transfer is under way.
- A load fills rows, and scatters and sums them on a stream of its own, behind the steps that were
  launched before: some of them may still write to the blocks for an earlier owner. No step reads
  the blocks before the host has compared the sums.
- A state is gathered on the stream of its copy, because its slot is kept until the copy is over.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, final

import torch
from torch import Tensor

from workers.engine.tier.copies import move
from workers.engine.tier.page_words import WORD, Checksums, PagePart, PageWords, used_bytes
from workers.engine.tier.region import HostRegion
from workers.scheduler.tier import Copy, TierLayout, Transfer, Transferred

STAGING_BYTES: Final = 64 * 2**20
"""Bytes of staging memory of each of two streams. Larger copies gain nothing: one of 64 MiB takes
1.2 ms by the bus.
"""

NUM_STREAMS: Final = 2


def staging_rows(page_bytes: int) -> int:
    """Pages that the staging memory of one stream holds."""
    return max(1, min(256, STAGING_BYTES // page_bytes))


def staging_bytes(page_bytes: int) -> int:
    """All memory of the card that copies take. A row has the size of a page of the host."""
    row_bytes = TierLayout.within(b"", page_bytes, 0).page_bytes
    return NUM_STREAMS * (staging_rows(page_bytes) + 1) * row_bytes + row_bytes


class PageRun(NamedTuple):
    """Neighbouring pages from `page` on, in neighbouring rows from `row` on."""

    row: int
    page: int
    num_pages: int


def runs_of(pages: Sequence[int], piece_pages: int) -> list[PageRun]:
    """The runs of rising `pages`, page i in row i. A run lies within a piece of `piece_pages`: no
    copy may cross two registrations with the driver.
    """
    runs: list[PageRun] = []
    for row, page in enumerate(pages):
        if runs and page % piece_pages:
            last = runs[-1]
            if page == last.page + last.num_pages:
                runs[-1] = last._replace(num_pages=last.num_pages + 1)
                continue
        runs.append(PageRun(row, page, 1))
    return runs


@dataclass(slots=True, eq=False)
class _Lane:
    """A stream and its memory: `rows` uint8 [rows, bytes of a page of the host], the `places` int32
    [rows] of their blocks, their `sums` int64 [rows, sums of a block], and `spare` int64 for the
    products of one row.
    """

    stream: torch.cuda.Stream
    rows: Tensor
    places: Tensor
    sums: Tensor
    spare: Tensor
    num_open: int = 0


@dataclass(slots=True)
class _UnderWay:
    """A transfer. `sums` come to the host: first those of blocks, in the order of their pages, then
    those of states. `places` stay as they are until the card has read them.
    """

    transfer: Transfer
    lane: _Lane
    places: Tensor | None
    sums: Tensor
    done: torch.cuda.Event

    def checksums(self) -> tuple[tuple[int, ...], ...]:
        """The checksums of the pages of each copy."""
        sums = iter(self.sums.tolist())
        copies = self.transfer.copies
        of_blocks = {copy.pages[0]: next(sums) for copy in _by_page(copies)}
        return tuple(
            [
                tuple([next(sums) for _ in copy.pages])
                if copy.is_state
                else (of_blocks[copy.pages[0]],)
                for copy in copies
            ]
        )


@final
class CardCopies:
    """See `PageCopies`."""

    def __init__(self, region: HostRegion, words: PageWords, device: torch.device) -> None:
        self._region = region
        self._words = words
        self._device = device
        self._checksums = Checksums(words.page_bytes, device)
        # A multiple of words, and at least `words.page_bytes`.
        page_bytes = region.layout.page_bytes
        self._lanes = [self._lane(page_bytes) for _ in range(NUM_STREAMS)]
        self._under_way: deque[_UnderWay] = deque()
        words.launch_once(device)

    def _lane(self, page_bytes: int) -> _Lane:
        num_rows, device = staging_rows(self._words.page_bytes), self._device
        return _Lane(
            torch.cuda.Stream(device),  # type: ignore[no-untyped-call]
            torch.zeros((num_rows, page_bytes), dtype=torch.uint8, device=device),
            torch.zeros(num_rows, dtype=torch.int32, device=device),
            torch.zeros((num_rows, self._words.num_sums), dtype=torch.int64, device=device),
            torch.zeros(page_bytes // WORD, dtype=torch.int64, device=device),
        )

    @torch.inference_mode()
    def begin(self, transfer: Transfer) -> None:
        """See `PageCopies`."""
        lane = min(self._lanes, key=lambda one: one.num_open)
        blocks = _by_page(transfer.copies)
        assert len(blocks) <= len(lane.rows)
        places = _pinned([copy.place for copy in blocks]) if blocks else None
        if places is not None and not transfer.is_load:
            assert lane.num_open == 0
            self._copy_blocks(lane, places, len(blocks), is_load=False)
        launched = torch.cuda.Event()  # type: ignore[no-untyped-call]
        launched.record()
        with torch.cuda.stream(lane.stream):
            if not transfer.is_load:
                lane.stream.wait_event(launched)
            sums = []
            if places is not None:
                self._take_bus(lane, blocks, is_load=transfer.is_load)
                if transfer.is_load:
                    lane.stream.wait_event(launched)
                    self._copy_blocks(lane, places, len(blocks), is_load=True)
                sums.append(lane.sums[: len(blocks)].sum(1))
            elif transfer.is_load:
                lane.stream.wait_event(launched)
            states = [copy for copy in transfer.copies if copy.is_state]
            sums += [self._copy_state(lane, each, is_load=transfer.is_load) for each in states]
            on_card = sums[0] if len(sums) == 1 else torch.cat(sums)
            on_host = torch.empty(on_card.shape, dtype=on_card.dtype, pin_memory=True)
            on_host.copy_(on_card, non_blocking=True)
            done = torch.cuda.Event()  # type: ignore[no-untyped-call]
            done.record()
        lane.num_open += 1
        self._under_way.append(_UnderWay(transfer, lane, places, on_host, done))

    def take_done(self) -> list[Transferred]:
        """See `PageCopies`."""
        found = []
        for one in list(self._under_way):
            if not one.done.query():  # type: ignore[no-untyped-call]
                continue
            self._under_way.remove(one)
            one.lane.num_open -= 1
            found.append(Transferred(one.transfer.number, one.checksums()))
        return found

    def take_opened(self) -> list[range]:
        """See `PageCopies`."""
        return self._region.take_opened()

    def close(self) -> None:
        """See `PageCopies`."""
        torch.cuda.synchronize(self._device)
        self._region.close()

    def _copy_blocks(self, lane: _Lane, places: Tensor, count: int, *, is_load: bool) -> None:
        """Copy blocks to the lane's rows, or from them, and sum them; on the current stream."""
        lane.places[:count].copy_(places, non_blocking=True)
        rows = lane.rows[:count].view(torch.int64)
        weights, sums = self._checksums.weights, lane.sums[:count]
        self._words.copy_blocks(lane.places[:count], rows, weights, sums, is_load=is_load)

    def _take_bus(self, lane: _Lane, blocks: Sequence[Copy], *, is_load: bool) -> None:
        pages = self._region.pages
        numbers = [copy.pages[0] for copy in blocks]
        for row, page, count in runs_of(numbers, self._region.piece_pages):
            on_card, on_host = lane.rows[row : row + count], pages[page : page + count]
            if is_load:
                on_card.copy_(on_host, non_blocking=True)
            else:
                on_host.copy_(on_card, non_blocking=True)

    def _copy_state(self, lane: _Lane, copy: Copy, *, is_load: bool) -> Tensor:
        """Copy the pages of a state one after the other through the rows. Returns their sums."""
        sums = []
        for at, (page, parts) in enumerate(
            zip(copy.pages, self._words.state(copy.place), strict=True)
        ):
            row, size = lane.rows[at % len(lane.rows)], used_bytes(parts)
            on_host = self._region.pages[page][:size]
            if is_load:
                row[:size].copy_(on_host, non_blocking=True)
            else:
                _fill(row, parts)
                on_host.copy_(row[:size], non_blocking=True)
            sums.append(self._checksums.of(row, size, lane.spare))
            if is_load:
                for part in parts:
                    move(part, row, is_load=True)
        return torch.stack(sums)


def _by_page(copies: Sequence[Copy]) -> list[Copy]:
    """The copies of blocks, in the order of their pages."""
    return sorted([copy for copy in copies if not copy.is_state], key=lambda copy: copy.pages[0])


def _pinned(numbers: Sequence[int]) -> Tensor:
    """The numbers as int32 in page-locked memory."""
    return torch.tensor(numbers, dtype=torch.int32).pin_memory()


def _fill(row: Tensor, parts: list[PagePart]) -> None:
    for part in parts:
        move(part, row, is_load=False)
