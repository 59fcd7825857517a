"""Plain torch quantisation to 4 bits, and the way back; the CPU path."""

import torch
from torch import Tensor

from kernels.int4.weight import GROUPS, MIDDLE, Int4Weight, packed, unpacked

_SHRINKS = (1.0, 0.95, 0.9, 0.85, 0.8, 0.75, 0.7)
"""A smaller range cuts a group's extremes and rounds all others less."""


_AT_ONCE = 2**25
"""Numbers of a part of a matrix, which several float32 copies of it take beside the result."""


def quantize(weight: Tensor) -> Int4Weight:
    """See `kernels.int4.quantize`."""
    group = next(size for size in GROUPS if weight.shape[1] % size == 0)
    if weight.is_meta:
        return _shapes_only(weight, group)
    num_rows = max(1, _AT_ONCE // weight.shape[1])
    parts = [_quantised(part, group) for part in weight.split(num_rows)]
    words, scales, zeros = (torch.cat(each) for each in zip(*parts, strict=True))
    return Int4Weight(words, scales, zeros)


def _shapes_only(weight: Tensor, group: int) -> Int4Weight:
    """An empty weight of the right shapes: to infer them, torch would import its compiler, which
    takes seconds.
    """
    num_rows, depth = weight.shape
    scales = weight.new_empty(num_rows, depth // group)
    words = weight.new_empty(num_rows, depth // 8, dtype=torch.int32)
    return Int4Weight(words, scales, torch.empty_like(scales, dtype=torch.uint8))


def _quantised(weight: Tensor, group: int) -> tuple[Tensor, Tensor, Tensor]:
    num_rows, depth = weight.shape
    grouped = weight.to(torch.float32).view(num_rows, -1, group)
    low = grouped.amin(2).clamp_max(0)
    high = grouped.amax(2).clamp_min(0)
    best: tuple[Tensor, Tensor, Tensor] | None = None
    least = torch.full_like(low, torch.inf)
    for shrink in _SHRINKS:
        scales = ((high - low) * shrink / 15).clamp_min(1e-10).to(weight.dtype)
        wide = scales.to(torch.float32)
        zeros = (-low * shrink / wide).round().clamp(0, 15)
        values = ((grouped / wide[..., None]).round() + zeros[..., None]).clamp(0, 15)
        error = ((values - zeros[..., None]) * wide[..., None] - grouped).square().sum(2)
        is_better = error < least
        least = torch.where(is_better, error, least)
        found = values.to(torch.uint8), scales, zeros.to(torch.uint8)
        if best is None:
            best = found
            continue
        masks = is_better[..., None], is_better, is_better
        best = tuple(
            torch.where(m, new, old) for m, new, old in zip(masks, found, best, strict=True)
        )  # type: ignore[assignment]
    assert best is not None
    values, scales, zeros = best
    return packed(values.view(num_rows, depth), group), scales, zeros


def dequantise(weight: Int4Weight, dtype: torch.dtype) -> Tensor:
    """See `kernels.int4.dequantise`: exact in float32, rounded once; without `order`."""
    num_rows, depth = weight.shape
    group = weight.group
    values = unpacked(weight.words).view(num_rows, -1, group)
    zeros = MIDDLE if weight.zeros is None else weight.zeros.to(torch.int32)[..., None]
    wide = (values - zeros).to(torch.float32) * weight.scales.to(torch.float32)[..., None]
    return wide.view(num_rows, depth).to(dtype)
