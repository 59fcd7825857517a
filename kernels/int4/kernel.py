"""Triton pieces of 4-bit weights: a plane of words as numbers, and a whole weight widened.

Owns the way from bits to floats. Must not know products.

Four bits at the top of a float32's mantissa under the exponent of 1 are `1 + q / 16`: a shift and
one operation on bits for three inputs, where a conversion takes eight times as long. `(1 + q / 16)
* 16 s - (16 + z) s` is `(q - z) s`, exactly: all of it fits into 24 bits for scales of 16.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.int4.weight import PER_WORD, Int4Weight

_TILE_ROWS = 16
_TILE_WORDS = 64


@triton.jit
def plane_of(words, PLANE: tl.constexpr):
    """`1 + q / 16` of one of eight planes, float32 like words."""
    at: tl.constexpr = 19 - 4 * PLANE
    moved = words << at if at > 0 else words >> -at
    return ((moved & 0x780000) | 0x3F800000).to(tl.float32, bitcast=True)


@triton.jit
def scales_of(scale_ptr, zero_ptr, at, mask, ZEROS: tl.constexpr):
    """(16 s, (16 + z) s), float32 like `at`; 0 where not `mask`."""
    scales = tl.load(scale_ptr + at, mask, 0.0).to(tl.float32)
    if ZEROS:
        zeros = tl.load(zero_ptr + at, mask, 0).to(tl.float32)
        return 16 * scales, (16 + zeros) * scales
    else:  # noqa: RET505 - what follows a return is compiled all the same
        return 16 * scales, 24 * scales


@triton.jit
def _dequantise_kernel(
    words_ptr, scale_ptr, zero_ptr, out_ptr, num_rows, num_words,
    GROUP: tl.constexpr, ROWS: tl.constexpr, WORDS: tl.constexpr, ZEROS: tl.constexpr,
):  # fmt: skip
    per: tl.constexpr = GROUP // 8
    rows = (tl.program_id(0) * ROWS + tl.arange(0, ROWS)).to(tl.int64)[:, None]
    lanes = (tl.program_id(1) * WORDS + tl.arange(0, WORDS))[None, :]
    inside = (rows < num_rows) & (lanes < num_words)
    words = tl.load(words_ptr + rows * num_words + lanes, inside, 0)
    at = rows * (num_words // per) + lanes // per
    factor, offset = scales_of(scale_ptr, zero_ptr, at, inside, ZEROS)
    columns = rows * num_words * 8 + lanes // per * GROUP + lanes % per
    for plane in tl.static_range(8):
        values = plane_of(words, plane) * factor - offset
        tl.store(out_ptr + columns + plane * per, values.to(out_ptr.dtype.element_ty), inside)


def dequantise(weight: Int4Weight, dtype: torch.dtype) -> Tensor:
    """See `kernels.int4.dequantise`; without `order`."""
    num_rows, depth = weight.shape
    num_words = depth // PER_WORD
    out = torch.empty(num_rows, depth, dtype=dtype, device=weight.words.device)
    zeros = weight.words if weight.zeros is None else weight.zeros
    _dequantise_kernel[(triton.cdiv(num_rows, _TILE_ROWS), triton.cdiv(num_words, _TILE_WORDS))](
        weight.words, weight.scales, zeros, out, num_rows, num_words,
        GROUP=weight.group, ROWS=_TILE_ROWS, WORDS=_TILE_WORDS, ZEROS=weight.zeros is not None,
    )  # fmt: skip
    return out
