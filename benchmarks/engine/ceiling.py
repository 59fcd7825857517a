"""What the card of this run can do: its copy bandwidth and its products, measured in seconds.

Owns the measurement, ahead of the model: cards of one name differ by several per cent, and so does
one card from hour to hour. Must not know models.
"""

from collections.abc import Callable
from typing import Final

import torch
from torch import Tensor

from benchmarks.engine.floor import Ceiling
from kernels.choose import has_fp8
from kernels.fp8 import FP8

_COPIED_BYTES: Final = 2**30
"""Far more than any cache of a card holds."""

_SIDE: Final = 8192
"""The rows and columns of the square matrices."""

_RUNS: Final = 10


def measured_ceiling(device: torch.device) -> Ceiling | None:
    """The ceilings of a card; None for a CPU. Takes 3 GiB meanwhile."""
    if device.type != "cuda":
        return None
    copied = _copied(device)
    wide = _multiplied(device, torch.bfloat16)
    narrow = _multiplied(device, FP8) if has_fp8(device) else wide
    torch.cuda.empty_cache()
    return Ceiling(copied, wide, narrow)


def _copied(device: torch.device) -> float:
    """Bytes/s, read and written."""
    source = torch.zeros(_COPIED_BYTES, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    return 2 * _COPIED_BYTES / _seconds(lambda: target.copy_(source))


def _multiplied(device: torch.device, dtype: torch.dtype) -> float:
    """FLOP/s of a product of matrices of `dtype`."""
    one, other = (torch.randn(_SIDE, _SIDE, device=device).to(dtype) for _ in range(2))
    scale = torch.ones((), device=device)

    def multiply() -> Tensor:
        if dtype != FP8:
            return torch.mm(one, other.t())
        return torch._scaled_mm(  # noqa: SLF001 - torch has no other entry
            one, other.t(), scale_a=scale, scale_b=scale, out_dtype=torch.bfloat16
        )

    return 2 * _SIDE**3 / _seconds(multiply)


def _seconds(act: Callable[[], object]) -> float:
    """The time of one run, after two runs to warm up."""
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
    act()
    act()
    begin.record()
    for _ in range(_RUNS):
        act()
    end.record()
    end.synchronize()
    milliseconds: float = begin.elapsed_time(end)
    return 1e-3 * milliseconds / _RUNS
