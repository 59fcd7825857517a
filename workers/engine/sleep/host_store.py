"""Memory of the host that takes what a device gives back: page-locked, and ready before it is used.

Owns the pieces and the thread that makes them. Must not know what is kept there.

Locking memory takes 0.35 s per GiB, so a thread does it beside the steps. A copy must lie within
one locked piece: what is longer is copied piece by piece (`parts`).
"""

from __future__ import annotations

import mmap
import sys
from collections.abc import Callable, Iterator
from threading import Condition, Thread
from typing import Final, final

import torch
from torch import Tensor

from workers.engine.memory import locked_pages
from workers.memory_room import MemoryRoom

PIECE_BYTES: Final = 256 * 2**20
_SPARED: Final = 4
"""Pieces of the host's memory that are left to others."""


@final
class HostStore:
    """Pieces of `piece_bytes`, at most `most_bytes` of them. With a `card` they are locked for it.
    `fill` is called with each new piece, in the order of the pieces, by the thread that makes them.
    Before each, `room` says what the host has left.
    """

    def __init__(
        self,
        most_bytes: int,
        room: Callable[[], MemoryRoom],
        card: torch.device | None = None,
        fill: Callable[[int, Tensor], None] | None = None,
        piece_bytes: int = PIECE_BYTES,
    ) -> None:
        self.most_bytes = most_bytes
        self.trouble = ""
        self._room = room
        self._card = card
        self._fill = fill
        self._piece_bytes = piece_bytes
        self._pieces: list[Tensor] = []
        self._wanted = 0
        self._changed = Condition()
        self._thread: Thread | None = None

    def __repr__(self) -> str:
        return f"<HostStore of {self.num_bytes} bytes, {self._wanted} wanted>"

    @property
    def num_bytes(self) -> int:
        """Bytes that are ready."""
        return len(self._pieces) * self._piece_bytes

    def want(self, num_bytes: int) -> None:
        """Begin to make `num_bytes` ready, or as many as the bound allows."""
        most = self.most_bytes // self._piece_bytes * self._piece_bytes
        wanted = min(-(-num_bytes // self._piece_bytes) * self._piece_bytes, most)
        if wanted <= self._wanted or self.trouble:
            return
        with self._changed:
            self._wanted = wanted
            self._changed.notify_all()
        if self._thread is None:
            self._thread = Thread(target=self._make, name="host store", daemon=True)
            self._thread.start()

    def wait(self) -> None:
        """Return when all that was wanted is ready, or cannot be."""
        with self._changed:
            self._changed.wait_for(lambda: self.num_bytes >= self._wanted or self.trouble != "")

    def parts(self, at: int, num_bytes: int) -> Iterator[tuple[int, Tensor]]:
        """The memory of a range of bytes that is ready, one part in each piece, with where it
        begins in the range.
        """
        done = 0
        while done < num_bytes:
            number, offset = divmod(at + done, self._piece_bytes)
            size = min(num_bytes - done, self._piece_bytes - offset)
            yield done, self._pieces[number][offset : offset + size]
            done += size

    def _make(self) -> None:
        if self._card is not None:
            torch.cuda.set_device(self._card)  # the current card belongs to a thread
        while not self.trouble:
            with self._changed:
                self._changed.wait_for(lambda: self.num_bytes < self._wanted)
            try:
                piece = self._piece()
                if piece is None:
                    return
                if self._fill is not None:
                    self._fill(self.num_bytes, piece)
            except (OSError, RuntimeError) as error:  # errors of the host and of the driver
                self._fail(f"the host's memory for a sleep is not ready ({error})")
                return
            with self._changed:
                self._pieces.append(piece)
                self._changed.notify_all()

    def _piece(self) -> Tensor | None:
        room = self._room()
        if room.num_bytes < _SPARED * self._piece_bytes:
            self._fail(f"{room.source} leaves no more of the host's memory for a sleep")
            return None
        pages = mmap.mmap(-1, self._piece_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        if self._card is not None and hasattr(mmap, "MADV_HUGEPAGE"):
            pages.madvise(mmap.MADV_HUGEPAGE)
        held = torch.frombuffer(pages, dtype=torch.uint8)
        if self._card is None:
            return held
        place, size = held.data_ptr(), self._piece_bytes
        locked_pages.populate(place, size)
        if status := locked_pages.lock(place, size):
            self._fail(
                f"the driver locks no more memory of the host for a sleep (error {status}): raise "
                "the limit of locked memory (ulimit -l)"
            )
            return None
        return held

    def _fail(self, why: str) -> None:
        print(why, file=sys.stderr, flush=True)
        with self._changed:
            self.trouble = why
            self._changed.notify_all()
