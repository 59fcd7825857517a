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
"""Numbers of one program: 32 for each of its lanes, four words at once."""
_MOST_WORDS = 64
"""The most words of a row in one program."""


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
    words_ptr,  # int32 [num_rows, DEPTH / 8], eight weights each
    scale_ptr,  # [num_rows, DEPTH / GROUP]
    zero_ptr,  # uint8 [num_rows, DEPTH / GROUP], zero points
    out_ptr,  # [num_rows, DEPTH], what comes out
    num_rows,  # rows of the weight
    DEPTH: tl.constexpr,  # columns of the weight
    GROUP: tl.constexpr,  # columns of a group
    ROWS: tl.constexpr,  # rows of a program
    WORDS: tl.constexpr,  # words of a row in a program
    ZEROS: tl.constexpr,  # whether groups have zero points
):
    num_words: tl.constexpr = DEPTH // 8
    rows = (tl.program_id(1) * ROWS + tl.arange(0, ROWS)).to(tl.int64)[:, None]
    at = (tl.program_id(0) * WORDS + tl.arange(0, WORDS))[None, :]
    inside = (rows < num_rows) & (at < num_words)
    words = tl.load(words_ptr + rows * num_words + at, inside, 0)
    scale_at = rows * (DEPTH // GROUP) + at // (GROUP // 8)
    scales = tl.load(scale_ptr + scale_at, inside, 0.0).to(tl.float32)
    middle = tl.full([ROWS, WORDS], 8388616.0, tl.float32)
    if ZEROS:
        middle = tl.load(zero_ptr + scale_at, inside, 0).to(tl.float32) + 8388608.0
    dtype = out_ptr.dtype.element_ty
    # Pairs of eighths 0 and 2, 1 and 3: the last index counts eighths, the one before it two each.
    even = tl.join(_pair(words, scales, middle, dtype, 0), _pair(words, scales, middle, dtype, 2))
    odd = tl.join(_pair(words, scales, middle, dtype, 1), _pair(words, scales, middle, dtype, 3))
    # [rows, fours of words, word, number of a pair, twos of eighths, eighth]: a lane that has four
    # words has 32 columns.
    spread = tl.join(even, odd).reshape(ROWS, WORDS // 4, 4, 2, 2, 2)
    values = tl.permute(spread, (0, 1, 4, 5, 2, 3)).reshape(ROWS, 8 * WORDS)
    columns = (tl.program_id(0) * 8 * WORDS + tl.arange(0, 8 * WORDS))[None, :]
    tl.store(out_ptr + rows * DEPTH + columns, values, (rows < num_rows) & (columns < DEPTH))


@triton.jit
def _pair(words, scales, middle, dtype: tl.constexpr, EIGHTH: tl.constexpr):
    """Two neighbours of an eighth, [.., 2]: 2^23 + q, less 2^23 + z, is exact."""
    low = ((words >> (4 * EIGHTH)) & 15) | 0x4B000000
    high = ((words >> (4 * EIGHTH + 16)) & 15) | 0x4B000000
    first = (low.to(tl.float32, bitcast=True) - middle) * scales
    second = (high.to(tl.float32, bitcast=True) - middle) * scales
    return tl.join(first.to(dtype), second.to(dtype))


def dequantise(weight: Int4Weight, dtype: torch.dtype) -> Tensor:
    """See `kernels.int4.dequantise`; without `order`."""
    num_rows, depth = weight.shape
    out = torch.empty(num_rows, depth, dtype=dtype, device=weight.words.device)
    zeros = weight.words if weight.zeros is None else weight.zeros
    num_words = weight.words.shape[1]
    words = min(_MOST_WORDS, triton.next_power_of_2(num_words))
    tile_rows = _TILE // (8 * words)
    _dequantise_kernel[(triton.cdiv(num_words, words), triton.cdiv(num_rows, tile_rows))](
        weight.words, weight.scales, zeros, out, num_rows,
        DEPTH=depth, GROUP=weight.group, ROWS=tile_rows, WORDS=words,
        ZEROS=weight.zeros is not None,
    )  # fmt: skip
    return out
