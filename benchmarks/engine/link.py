"""How long a small copy takes beside large ones on another stream.

Owns the measurement. A step's numbers go to the card and its tokens come back: a few hundred bytes.
`python -m benchmarks.engine.host_tier` prints it.
"""

import statistics
import time
from collections.abc import Callable

import torch
from torch import Tensor

_MIB = 2**20
_WORDS = 256
_REPEATS = 60


def print_small_copies(pages: Tensor, device: torch.device) -> None:
    """`pages` are page-locked."""
    stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
    host = torch.zeros(_WORDS, dtype=torch.int32).pin_memory()
    card = torch.zeros(_WORDS, dtype=torch.int32, device=device)
    ways: list[tuple[str, Callable[[], object]]] = [
        ("copy to the card", lambda: card.copy_(host, non_blocking=True)),
        ("copy to the host", lambda: host.copy_(card, non_blocking=True)),
    ]
    for is_load in (True, False):
        for size in (0, 1, 8, 64):
            for what, small in ways:
                large = _large(pages, size * _MIB, device, is_load=is_load) if size else _nothing
                taken = _times_us(stream, large, small)
                way = "to the card" if is_load else "to the host"
                print(
                    f"small copy: {what} beside copies of {size} MiB {way}: p50 "
                    f"{statistics.median(taken):.0f} us, max {max(taken):.0f}",
                    flush=True,
                )


def _nothing() -> None:
    """No copies beside."""


def _large(
    pages: Tensor, num_bytes: int, device: torch.device, *, is_load: bool
) -> Callable[[], None]:
    """Copies of that size, 128 MiB together, one behind the other."""
    each = max(1, num_bytes // pages.shape[1])
    staging = torch.zeros((each, pages.shape[1]), dtype=torch.uint8, device=device)

    def begin() -> None:
        for at in range(0, 128 * _MIB, each * pages.shape[1]):
            first = at // pages.shape[1]
            if first + each > len(pages):
                return
            if is_load:
                staging.copy_(pages[first : first + each], non_blocking=True)
            else:
                pages[first : first + each].copy_(staging, non_blocking=True)

    return begin


def _times_us(
    stream: torch.cuda.Stream, large: Callable[[], None], small: Callable[[], object]
) -> list[float]:
    """Microseconds of the small copy on the card, launched a moment after the large ones."""
    taken = []
    for _ in range(_REPEATS):
        torch.cuda.synchronize()
        with torch.cuda.stream(stream):
            large()
        time.sleep(0.0002)
        begin, end = [
            torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
            for _ in range(2)
        ]
        begin.record()
        small()
        end.record()
        end.synchronize()
        taken.append(begin.elapsed_time(end) * 1e3)
    return taken
