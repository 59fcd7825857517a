"""The region of host memory that outlives the engine: mapped, and page-locked piece by piece.

Owns the mapping and which pages can be used yet. The supervisor owns the file behind it, a memfd,
and passes its descriptor to each engine. Must not know what a page holds.

On a machine with a card the pages are locked for copies by its bus. That takes 0.4 s per GiB, so a
thread does it while the model loads and serves: first the pages that hold something. A copy must
lie within one locked piece, and a page does.
"""

from __future__ import annotations

import mmap
import os
import queue
import sys
from collections.abc import Iterable
from threading import Thread
from typing import Final, final

import torch
from torch import Tensor

from housekeeping.sizes import bytes_text
from workers.engine.memory import locked_pages
from workers.scheduler.tier import TierLayout

_PIECE_BYTES: Final = 32 * 2**20
"""Locked at once: the driver holds a lock meanwhile, 1.3 ms for memory that is populated already,
and populating holds one of the kernel's for 16 ms. Pieces of 256 MiB gave answers beside them gaps
of 15 ms (p99) and 27 ms at most, where 4.5 are usual.
"""

_END: Final = range(0)
"""The end of the opened pages: after this entry no page opens any more."""


@final
class HostRegion:
    """The pages of one `layout`. With a `card` each page is locked for it before it is open, as a
    part of a piece of `piece_pages`.
    """

    def __init__(
        self, fd: int | None, layout: TierLayout, card: torch.device | None = None
    ) -> None:
        """Map the file `fd`, or one of the engine's own; its size becomes that of the layout.
        Raises `OSError`.
        """
        self.layout = layout
        own = os.memfd_create("herma-cache", os.MFD_CLOEXEC) if fd is None else os.dup(fd)
        try:
            if os.fstat(own).st_size != layout.num_bytes:
                os.ftruncate(own, layout.num_bytes)
            self._map = mmap.mmap(own, layout.num_bytes, flags=mmap.MAP_SHARED)
        finally:
            os.close(own)
        self.index = memoryview(self._map)[: layout.pages_at]
        whole = torch.frombuffer(self._map, dtype=torch.uint8)
        self.pages: Tensor = whole[layout.pages_at :].view(layout.num_pages, layout.page_bytes)
        self.piece_pages = max(1, _PIECE_BYTES // layout.page_bytes)
        self._card = card
        self._opened: queue.SimpleQueue[range] = queue.SimpleQueue()
        self._locked: list[int] = []
        self._num_to_lock = 0 if card is None else layout.num_pages
        self._is_closing = False
        self._thread: Thread | None = None
        self._has_begun = False

    def __repr__(self) -> str:
        return f"<HostRegion of {self.layout.num_pages} pages>"

    @property
    def num_coming(self) -> int:
        """Bytes of the host that it takes yet, while its pages are locked for a card."""
        return self._num_to_lock * self.layout.page_bytes

    def open(self, first: Iterable[int] = ()) -> None:
        """Begin to open the pages, the pages of `first` before the others. Further calls do
        nothing.
        """
        if self._has_begun:
            return
        self._has_begun = True
        pieces = self._pieces()
        if self._card is None:
            for piece in pieces:
                self._opened.put(piece)
            self._opened.put(_END)
            return
        wanted = set(first)
        ordered = sorted(pieces, key=lambda piece: not any(page in wanted for page in piece))
        self._thread = Thread(target=self._open_all, args=(ordered, self._card), daemon=True)
        self._thread.start()

    def take_opened(self) -> list[range]:
        """The pages that were opened since the last call; an empty range when no more will be."""
        found = []
        while not self._opened.empty():
            found.append(self._opened.get())
        return found

    def wait_opened(self) -> None:
        """Return when no more pages will be opened; without a card all are open at once."""
        if self._thread is not None:
            self._thread.join()

    def close(self) -> None:
        """Unlock the pages. No copy may be under way."""
        self._is_closing = True
        self.wait_opened()
        if self._locked:
            torch.cuda.synchronize()
        for at in self._locked:
            locked_pages.unlock(at)
        self._locked.clear()

    def _pieces(self) -> list[range]:
        each, count = self.piece_pages, self.layout.num_pages
        return [range(at, min(count, at + each)) for at in range(0, count, each)]

    def _open_all(self, pieces: list[range], card: torch.device) -> None:
        try:
            self._lock_all(pieces, card)
        finally:
            self._num_to_lock = 0
            self._opened.put(_END)

    def _lock_all(self, pieces: list[range], card: torch.device) -> None:
        # Set for this thread, or the first card would get a context that nothing uses.
        torch.cuda.set_device(card)
        num_locked = 0
        for piece in pieces:
            if self._is_closing:
                return
            part = self.pages[piece.start : piece.stop]
            at, size = part.data_ptr(), part.nbytes
            locked_pages.populate(at, size)
            status = locked_pages.lock(at, size)
            if status != 0:
                each = self.layout.page_bytes
                print(
                    f"the driver locks no more memory of the host (error {status}), so the host "
                    f"cache has {bytes_text(num_locked * each)} of the "
                    f"{bytes_text(len(self.pages) * each)} that it was given: raise the limit of "
                    "locked memory (ulimit -l) or lower cache.host",
                    file=sys.stderr,
                    flush=True,
                )
                return
            num_locked += len(piece)
            self._num_to_lock -= len(piece)
            self._locked.append(at)
            self._opened.put(piece)
