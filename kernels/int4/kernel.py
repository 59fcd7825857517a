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

from kernels.int4.weight import Int4Weight

_TILE = 4096
"""Numbers of one program: of one group in some rows."""


@triton.jit
def plane_of(words, PLANE: tl.constexpr):
    """`1 + q / 16` of one of eight planes, float32 like words."""
    at: tl.constexpr = 19 - 4 * PLANE
    moved = words << at if at > 0 else words >> -at
    return ((moved & 0x780000) | 0x3F800000).to(tl.float32, bitcast=True)


@triton.constexpr_function
def column_of(plane):
    """A plane's column, from that of plane 0 on: word w has that at 32 (w / 4) + 2 (w % 4)."""
    return 8 * (plane % 4) + plane // 4


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
    words_ptr, scale_ptr, zero_ptr, out_ptr, num_rows, depth,
    GROUP: tl.constexpr, ROWS: tl.constexpr, ZEROS: tl.constexpr,
):  # fmt: skip
    group = tl.program_id(1)
    rows = (tl.program_id(0) * ROWS + tl.arange(0, ROWS)).to(tl.int64)[:, None]
    inside = rows < num_rows
    columns = (group * GROUP + tl.arange(0, GROUP))[None, :]
    # Each word is asked for eight times, seven times of the nearest cache: results leave in rows.
    at = columns // 32 * 4 + columns % 8 // 2
    words = tl.load(words_ptr + rows * (depth // 8) + at, inside, 0)
    nibbles = columns % 32 // 8 + columns % 2 * 4
    whole = ((words >> (4 * nibbles)) & 15) | 0x4B000000
    scale_at = rows * (depth // GROUP) + group
    scales = tl.load(scale_ptr + scale_at, inside, 0.0).to(tl.float32)
    middle = 8388616.0
    if ZEROS:
        middle = tl.load(zero_ptr + scale_at, inside, 0).to(tl.float32) + 8388608.0
    # 2^23 + q, less 2^23 + z.
    values = (whole.to(tl.float32, bitcast=True) - middle) * scales
    tl.store(out_ptr + rows * depth + columns, values.to(out_ptr.dtype.element_ty), inside)


def dequantise(weight: Int4Weight, dtype: torch.dtype) -> Tensor:
    """See `kernels.int4.dequantise`; without `order`."""
    num_rows, depth = weight.shape
    out = torch.empty(num_rows, depth, dtype=dtype, device=weight.words.device)
    zeros = weight.words if weight.zeros is None else weight.zeros
    tile_rows = _TILE // weight.group
    _dequantise_kernel[(triton.cdiv(num_rows, tile_rows), depth // weight.group)](
        weight.words, weight.scales, zeros, out, num_rows, depth,
        GROUP=weight.group, ROWS=tile_rows, ZEROS=weight.zeros is not None,
    )  # fmt: skip
    return out
