"""The copies of all ranks from and to the host, as the copies of one engine.

Owns when a transfer is over, which is when it is over at each rank, and the checksum of pages that
lie in parts at all ranks. Must not know what is copied, nor processes.

The first rank keeps the record of pages. Every rank has a region of its own with as many pages, and
page N of each is its share of the same block or state.
"""

import queue
from collections.abc import Callable, Sequence
from typing import Final, final

from workers.engine.parallel.calls import OpenedReport, TransferCall, TransferredReport
from workers.engine.tier.copies import PageCopies
from workers.scheduler.tier import Transfer, Transferred

RankReport = tuple[int, OpenedReport | TransferredReport]
"""A rank's number, and what it reports."""

_ODD: Final = 0x9E3779B97F4A7C15
_WORD: Final = 1 << 64


@final
class RanksCopies:
    """See `PageCopies`. `own` are this rank's; `tell` has the `num_others` others begin a transfer
    too, and `reports` holds what they report, which other threads write.
    """

    def __init__(
        self,
        own: PageCopies,
        num_others: int,
        tell: Callable[[TransferCall], None],
        reports: "queue.SimpleQueue[RankReport]",
    ) -> None:
        self._own = own
        self._count = 1 + num_others
        self._tell = tell
        self._reports = reports
        self._under_way: dict[int, Transfer] = {}
        self._sums: dict[int, dict[int, Sequence[int]]] = {}
        self._opened: dict[tuple[int, int], int] = {}

    def begin(self, transfer: Transfer) -> None:
        """See `PageCopies`."""
        self._under_way[transfer.number] = transfer
        self._tell(TransferCall(transfer))
        self._own.begin(transfer)

    def take_done(self) -> list[Transferred]:
        """See `PageCopies`: what is over at all ranks."""
        for one in self._own.take_done():
            self._note(0, one.number, [each for sums in one.checksums for each in sums])
        self._take_reports()
        over = [number for number, found in self._sums.items() if len(found) == self._count]
        return [self._joined(number) for number in over]

    def take_opened(self) -> list[range]:
        """See `PageCopies`: what is open at all ranks."""
        found = [(pages.start, pages.stop) for pages in self._own.take_opened()]
        self._take_reports()
        for pages in found:
            self._open(pages)
        over = [pages for pages, count in self._opened.items() if count == self._count]
        for pages in over:
            del self._opened[pages]
        return [range(*pages) for pages in over]

    def close(self) -> None:
        """See `PageCopies`. The other ranks end with this one."""
        self._own.close()

    def _take_reports(self) -> None:
        while not self._reports.empty():
            rank, report = self._reports.get()
            if isinstance(report, OpenedReport):
                self._open((report.start, report.stop))
            else:
                self._note(rank, report.number, report.sums)

    def _open(self, pages: tuple[int, int]) -> None:
        self._opened[pages] = self._opened.get(pages, 0) + 1

    def _note(self, rank: int, number: int, sums: Sequence[int]) -> None:
        self._sums.setdefault(number, {})[rank] = sums

    def _joined(self, number: int) -> Transferred:
        """The transfer that is over, each page with one checksum of all its parts."""
        transfer, found = self._under_way.pop(number), self._sums.pop(number)
        of_ranks = [found[rank] for rank in sorted(found)]
        joined = iter([joined_sum(parts) for parts in zip(*of_ranks, strict=True)])
        return Transferred(
            number, tuple([tuple([next(joined) for _ in copy.pages]) for copy in transfer.copies])
        )


def joined_sum(parts: Sequence[int]) -> int:
    """The checksum of a page, a signed 64-bit integer, from the checksums of its parts in the order
    of ranks.
    """
    mixed = 0
    for part in parts:
        mixed = (mixed * _ODD + part) % _WORD
    return mixed - _WORD if mixed >= _WORD >> 1 else mixed
