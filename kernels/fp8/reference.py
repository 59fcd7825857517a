"""Plain torch quantisation of rows, and the way back of weights; the CPU path."""

from typing import Final

import torch
import torch.nn.functional as F  # noqa: N812 - the name that torch's own documentation uses
from torch import Tensor

from kernels.fp8.weight import BLOCK, FP8, Fp8Weight
from kernels.rms_norm import reference as norms

LARGEST: Final = 448.0
"""The largest e4m3. A cast of a larger number would be NaN."""

TINY: Final = 2.0**-100
"""A row's largest magnitude counts as this at least, so that its scale is a number to divide by."""


_PART: Final = 2**27
"""Numbers that are quantised by block at once."""


def quantize_rows(x: Tensor, norm: Tensor | None, eps: float) -> tuple[Tensor, Tensor]:
    """See `kernels.fp8.quantize_rows`."""
    if norm is not None:
        x = norms.rms_norm(x, norm, eps)
    x = x.to(torch.float32)
    scales = x.abs().amax(1).clamp_min(TINY) / LARGEST
    return (x * (1 / scales)[:, None]).clamp(-LARGEST, LARGEST).to(FP8), scales


def quantize_blocks(weight: Tensor) -> Fp8Weight:
    """See `kernels.fp8.quantize_blocks`."""
    num_rows, depth = weight.shape
    step = max(1, _PART // depth // BLOCK) * BLOCK
    parts = [_blocks(weight[first : first + step]) for first in range(0, num_rows, step)]
    values, scales = zip(*parts, strict=True)
    return Fp8Weight(torch.cat(values), torch.cat(scales))


def _blocks(weight: Tensor) -> tuple[Tensor, Tensor]:
    num_rows, depth = weight.shape
    padded = F.pad(weight.to(torch.float32), (0, -depth % BLOCK, 0, -num_rows % BLOCK))
    tiles = padded.unflatten(1, (-1, BLOCK)).unflatten(0, (-1, BLOCK))
    scales = tiles.abs().amax((1, 3)).clamp_min(TINY) / LARGEST
    scaled = (tiles / scales[:, None, :, None]).clamp(-LARGEST, LARGEST).to(FP8)
    return scaled.flatten(2).flatten(0, 1)[:num_rows, :depth].contiguous(), scales


def dequantise(weight: Fp8Weight, dtype: torch.dtype) -> Tensor:
    """See `kernels.fp8.dequantise`."""
    scales = weight.scales
    if not weight.is_blocked:
        return (weight.values.to(torch.float32) * scales[:, None]).to(dtype)
    num_rows, depth = weight.shape
    spread = scales.repeat_interleave(BLOCK, 0)[:num_rows].repeat_interleave(BLOCK, 1)[:, :depth]
    return (weight.values.to(torch.float32) * spread).to(dtype)
