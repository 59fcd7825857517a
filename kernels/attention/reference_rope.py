"""Plain torch rotary embedding; the CPU path."""

import torch
from torch import Tensor


def rope_angles(positions: Tensor, inverse_frequencies: Tensor) -> tuple[Tensor, Tensor]:
    """cos and sin [T, D / 2] float32 of positions [T] times inverse_frequencies [D / 2] float32."""
    angles = positions.float().unsqueeze(1) * inverse_frequencies
    return angles.cos(), angles.sin()


def rope(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """See `kernels.attention.rope.rope`."""
    first, second = x.float().chunk(2, dim=-1)
    cos, sin = cos.unsqueeze(1), sin.unsqueeze(1)
    turned = (first * cos - second * sin, second * cos + first * sin)
    return torch.cat(turned, dim=-1).to(x.dtype)
