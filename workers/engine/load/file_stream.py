"""Byte ranges of files into tensors on a card, as fast as the disk, the host and the bus allow.

Owns the reading threads and their staging buffers: each thread reads a piece into one of two pinned
buffers while the card fetches the other on a stream of the thread's own. Must not know formats.
"""

import os
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Final

import torch
from torch import Tensor

PIECE_BYTES: Final = 16 * 2**20
"""Large enough for the bus, small enough that the threads share a tensor."""

NUM_THREADS: Final = 6
"""A thread copies about 6 GB/s out of the page cache; PCIe 5 takes some 50."""


class FileStream:
    """Queues copies with `put`; they are done after `settle`, and nothing follows `close`. The
    caller closes the files. Work launched before a `put` may still use the memory of its tensor,
    for example if it belonged to a layer that is being quantised: the copy comes behind that work.
    """

    def __init__(
        self, device: torch.device, num_threads: int = NUM_THREADS, piece_bytes: int = PIECE_BYTES
    ) -> None:
        self.done_bytes = 0
        self._device = device
        self._piece_bytes = piece_bytes
        self._threads = ThreadPoolExecutor(num_threads, "weights")
        self._own = threading.local()
        # One entry for each piece of the checkpoint: a thousand small objects for 16 GB.
        self._pieces: list[Future[int]] = []

    def put(self, descriptor: int, offset: int, dtype: torch.dtype, out: Tensor) -> None:
        """Copy elements of `dtype` from `offset` of a file into the contiguous `out`."""
        flat, launched = out.view(-1), self._launched()
        step = self._piece_bytes // dtype.itemsize
        for start in range(0, flat.numel(), step):
            part = flat[start : start + step]
            at = offset + start * dtype.itemsize
            self._pieces.append(
                self._threads.submit(self._copy, descriptor, at, dtype, part, launched)
            )

    def settle(self, progress: Callable[[], None]) -> None:
        """Wait for all copies, calling `progress` after each. Raises `OSError` for a short file."""
        pieces, self._pieces = self._pieces, []
        for piece in as_completed(pieces):
            self.done_bytes += piece.result()
            progress()
        self._synchronize()

    def close(self) -> None:
        """End the threads. Copies that have not begun are dropped; the others are done."""
        self._threads.shutdown(cancel_futures=True)
        self._synchronize()

    def _synchronize(self) -> None:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)

    def _launched(self) -> torch.cuda.Event | None:
        """What the caller has launched so far."""
        if self._device.type != "cuda":
            return None
        event = torch.cuda.Event()  # type: ignore[no-untyped-call]
        event.record(torch.cuda.current_stream(self._device))
        return event

    # Each thread has its own mode; weights that a wake reads again were made in this one.
    @torch.inference_mode()
    def _copy(
        self,
        descriptor: int,
        offset: int,
        dtype: torch.dtype,
        out: Tensor,
        launched: torch.cuda.Event | None,
    ) -> int:
        staging = self._staging()
        num_bytes = out.numel() * dtype.itemsize
        with staging.next() as buffer:
            array: Any = buffer.numpy()
            read_whole(descriptor, offset, memoryview(array)[:num_bytes])
            if launched is not None:
                launched.wait()
            out.copy_(buffer[:num_bytes].view(dtype), non_blocking=True)
        return num_bytes

    def _staging(self) -> "_Staging":
        staging: _Staging | None = getattr(self._own, "staging", None)
        if staging is None:
            staging = self._own.staging = _Staging(self._device, self._piece_bytes)
        return staging


class _Staging:
    """Two buffers of one thread, used in turn, each waited for before it is filled again."""

    def __init__(self, device: torch.device, piece_bytes: int) -> None:
        is_card = device.type == "cuda"
        self._buffers = [
            torch.empty(piece_bytes, dtype=torch.uint8, pin_memory=is_card) for _ in range(2)
        ]
        cuda: Any = torch.cuda  # torch.cuda's constructors have no types
        self._stream = cuda.Stream(device) if is_card else None
        self._fetched = [cuda.Event() for _ in range(2)] if is_card else []
        self._turn = 0

    def next(self) -> "_Turn":
        self._turn ^= 1
        event = self._fetched[self._turn] if self._fetched else None
        return _Turn(self._buffers[self._turn], self._stream, event)


class _Turn:
    """One use of a buffer: wait until the card has fetched it, fill it, have it fetched."""

    def __init__(
        self, buffer: Tensor, stream: torch.cuda.Stream | None, event: torch.cuda.Event | None
    ) -> None:
        self._buffer = buffer
        self._stream = stream
        self._event = event
        self._current: AbstractContextManager[object] = (
            nullcontext() if stream is None else torch.cuda.stream(stream)
        )

    def __enter__(self) -> Tensor:
        if self._event is not None:
            self._event.synchronize()
        self._current.__enter__()
        return self._buffer

    def __exit__(self, *error: object) -> None:
        if self._event is not None:
            self._event.record(self._stream)
        self._current.__exit__(None, None, None)


def read_whole(descriptor: int, offset: int, into: memoryview) -> None:
    """Fill `into` from a file. Raises `OSError` if the file ends before."""
    filled = 0
    while filled < len(into):
        num = os.preadv(descriptor, [into[filled:]], offset + filled)
        if num == 0:
            raise OSError(f"the file ends at {offset + filled}, {len(into) - filled} bytes early")
        filled += num
