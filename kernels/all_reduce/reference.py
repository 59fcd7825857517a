"""Plain torch sum of parts."""

from collections.abc import Sequence

import torch
from torch import Tensor


def add_parts(parts: Sequence[Tensor], residual: Tensor | None) -> Tensor:
    """See `kernels.all_reduce.add_parts`; `parts` has one part of each rank, in their order."""
    first, *others = parts
    total = first.to(torch.float32)
    for part in others:
        total = total + part.to(torch.float32)
    if residual is not None:
        total = total + residual.to(torch.float32)
    return total.to(first.dtype)
