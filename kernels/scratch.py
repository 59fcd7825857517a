"""Memory that kernels use between two of their programs, or two launches, and leave to the next.

Owns the rule: one stream per device. All launches of a device take their scratch from here, each
writes to it only when the kernels ahead of it have ended, so none needs one of its own, and none
asks for memory at every launch (a microsecond of the CPU's time each). It is never given back, as
captured graphs name it: under twice the largest request, and under four times that in all.
"""

from functools import cache

import torch
from torch import Tensor


def scratch(device: torch.device, numbers: int) -> Tensor:
    """Float32 [`numbers` or more], of whatever content."""
    return _scratch(device, max(0, numbers - 1).bit_length())


@cache
def _scratch(device: torch.device, bits: int) -> Tensor:
    return torch.empty(1 << bits, device=device, dtype=torch.float32)
