"""Triton products of some rows with a 4-bit weight, on the tensor cores.

Owns the kernel and its launch. The words of a tile come through shared memory; each two of their
eight planes become a tile of weights in x's dtype, in registers, rounded once as a widened weight
is, and meet their own columns of x, eight side by side. Else it is as `skinny`: weights on the left
side, x padded, programs that share the columns of a tile add up in a fixed order.
"""

from functools import cache
from typing import Final

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.choose import has_pdl, is_card, shared_bytes
from kernels.int4 import PER_WORD, Int4Weight
from kernels.int4.kernel import plane_of, scales_of
from kernels.launch import Launch, scratch
from kernels.linear.parts import weight_rows
from kernels.linear.skinny import _counters, _finish, _gathered, _Ready, _residual

MAX_ROWS: Final = 256
"""Beyond it a widened weight is multiplied sooner: 0.2 ms per layer of an 8B to widen it."""

INVARIANT_ROWS: Final = 64
"""Rows of a tile, always, where no row may depend on others."""

_BLOCK_N: Final = 64
_MOST_TILE_ROWS: Final = 64
_PROGRAMS: Final = 264
"""Two for each multiprocessor of an H200."""
_OTHER_BYTES: Final = 4096
_HOPPER_BYTES: Final = 227 * 1024


@triton.jit(do_not_specialize=["num_rows"])
def _int4_skinny_kernel(
    x_ptr,  # [T, depth], rows of x
    words_ptr,  # int32 [weight rows, depth / 8], eight weights each
    scale_ptr,  # [weight rows, depth / GROUP]
    zero_ptr,  # uint8 [weight rows, depth / GROUP], zero points
    bias_ptr,  # [num_out]
    residual_ptr,  # [T, num_out], added to the product
    out_ptr,  # [T, num_out]
    scratch_ptr,  # float32, sums of parts
    arrived_ptr,  # int32 [tiles], programs that have added up
    num_rows,  # T
    num_out,  # columns of the result
    depth,  # columns of x and of the weight
    ROWS: tl.constexpr,  # rows of x in a tile
    ROW_TILES: tl.constexpr,  # tiles of rows
    BLOCK_N: tl.constexpr,  # weight rows of a tile
    BLOCK_W: tl.constexpr,  # words at once
    SPLITS: tl.constexpr,  # programs that share a tile's columns
    STAGES: tl.constexpr,  # tiles of columns on their way at once
    EVEN: tl.constexpr,  # whether BLOCK_W divides the words
    GROUP: tl.constexpr,  # columns of a group
    ZEROS: tl.constexpr,  # whether groups have zero points
    BIAS: tl.constexpr,  # whether there is one
    RESIDUAL: tl.constexpr,  # whether there is one
    SWIGLU: tl.constexpr,  # whether the weight has gates and ups
    GELU: tl.constexpr,  # whether gates open by GELU, not SiLU
    PDL: tl.constexpr,  # whether it may start while the kernel ahead ends
):
    """One tile of BLOCK_N weight rows times ROWS rows of x, over one of SPLITS parts of K."""
    if PDL:
        tl.extra.cuda.gdc_launch_dependents()
    per: tl.constexpr = GROUP // 8
    num_words = depth // 8
    tile, row_tile = tl.program_id(0) // ROW_TILES, tl.program_id(0) % ROW_TILES
    part = tl.cdiv(tl.cdiv(num_words, BLOCK_W), SPLITS) * BLOCK_W
    first = tl.program_id(1) * part
    last = tl.minimum(first + part, num_words)
    lanes = tl.arange(0, BLOCK_W)[None, :]
    pairs = tl.arange(0, 2 * BLOCK_W)
    weights_at = weight_rows(tile, num_out, BLOCK_N, SWIGLU)[:, None]
    if PDL:
        tl.extra.cuda.gdc_wait()
    rows = tl.minimum(row_tile * ROWS + tl.arange(0, ROWS), num_rows - 1)[:, None]
    sums = tl.zeros([BLOCK_N, ROWS], tl.float32)
    for start in tl.range(first, last, BLOCK_W, num_stages=STAGES):
        at = start + lanes
        # Where tiles are even a mask that is true everywhere costs nothing.
        inside = at < (2147483647 if EVEN else num_words)
        words = tl.load(words_ptr + weights_at * num_words + at, inside, 0)
        scale_at = weights_at * (num_words // per) + at // per
        factor, offset = scales_of(scale_ptr, zero_ptr, scale_at, inside, ZEROS)
        columns = (start * 8 + pairs // 8 * 32 + pairs % 8)[None, :]
        for plane in tl.static_range(4):
            at_plane = columns + 8 * plane
            x = tl.load(
                x_ptr + rows * depth + at_plane, at_plane < (2147483647 if EVEN else depth), 0.0
            )
            low = (plane_of(words, plane) * factor - offset).to(x.dtype)
            high = (plane_of(words, plane + 4) * factor - offset).to(x.dtype)
            weights = tl.join(low, high).reshape(BLOCK_N, 2 * BLOCK_W)
            sums = tl.dot(weights, x.T, sums, input_precision="ieee")
    residual = _residual(
        residual_ptr, tile, row_tile * ROWS, num_rows, num_out, BLOCK_N, ROWS, RESIDUAL
    )
    if SPLITS > 1:
        none = tl.zeros([ROWS], tl.float32)
        sums, none, is_last = _gathered(
            sums, none, scratch_ptr, arrived_ptr, BLOCK_N, ROWS, SPLITS, False
        )
    else:
        is_last = True
    if is_last:
        _finish(
            sums, residual, tile, row_tile * ROWS, bias_ptr, out_ptr, num_rows, num_out,
            BLOCK_N, ROWS, BIAS, RESIDUAL, SWIGLU, GELU,
        )  # fmt: skip


def int4_skinny(
    x: Tensor,
    weight: Int4Weight,
    *,
    bias: Tensor | None = None,
    residual: Tensor | None = None,
    swiglu: bool = False,
    is_gelu: bool = False,
    invariant: bool = False,
) -> Tensor:
    """`residual + (x W^T + bias)`, or the SwiGLU of it: x [T, K], its columns as the weight stores
    them. Launches on one device must be ordered, and the first not inside a capture, as in
    `skinny`.
    """
    num_rows, depth = x.shape
    ready = _ready(
        x.device, num_rows, weight.shape[0], depth, weight.group, x.itemsize,
        weight.zeros is not None, bias is not None, residual is not None, swiglu, is_gelu,
        invariant,
    )  # fmt: skip
    out = x.new_empty(num_rows, ready.num_out)
    operands = (weight.words, weight.scales, weight.zeros, bias, residual)
    parts = [x if part is None else part for part in operands]
    ready.launch(ready.grid, (x, *parts, out, ready.scratch, ready.arrived), (num_rows,))
    return out


@cache
def _ready(
    device: torch.device,
    num_rows: int,
    num_weight_rows: int,
    depth: int,
    group: int,
    row_bytes: int,
    has_zeros: bool,
    has_bias: bool,
    has_residual: bool,
    swiglu: bool,
    is_gelu: bool,
    invariant: bool,
) -> _Ready:
    num_words = depth // PER_WORD
    tile_rows = min(_MOST_TILE_ROWS, max(16, triton.next_power_of_2(num_rows)))
    if invariant:
        tile_rows = INVARIANT_ROWS
    row_tiles = triton.cdiv(num_rows, tile_rows)
    tiles = triton.cdiv(num_weight_rows, _BLOCK_N) * row_tiles
    words, stages = _stages(device, tile_rows, row_bytes, has_zeros)
    words = min(words, max(16, triton.next_power_of_2(num_words)))
    splits = 1 if invariant else max(1, min(_PROGRAMS // tiles, num_words // (4 * words), 8))
    num_out = num_weight_rows // 2 if swiglu else num_weight_rows
    launch = _launch_of(
        device, tile_rows, row_tiles, num_out, depth, words, splits, stages, group, has_zeros,
        has_bias, has_residual, swiglu, is_gelu,
    )  # fmt: skip
    parts = tiles * splits if splits > 1 else 0
    return _Ready(
        launch,
        (tiles, splits, 1),
        num_out,
        scratch(device, parts * (_BLOCK_N + 1) * tile_rows),
        _counters(device),
    )


def _stages(
    device: torch.device, tile_rows: int, row_bytes: int, has_zeros: bool
) -> tuple[int, int]:
    """Words of a tile, and tiles on their way, that fit into the card's shared memory."""
    limit = shared_bytes(device) if is_card(device) else _HOPPER_BYTES
    words, stages = 32, 4
    # Scales and zero points travel as often as words do.
    each = _BLOCK_N * (4 + 4 + has_zeros) + tile_rows * PER_WORD * row_bytes
    while stages * words * each + _OTHER_BYTES > limit:
        if stages > 2:
            stages -= 1
        elif words > 16:
            words //= 2
        else:
            break
    return words, stages


@cache
def _launch_of(
    device: torch.device,
    tile_rows: int,
    row_tiles: int,
    num_out: int,
    depth: int,
    words: int,
    splits: int,
    stages: int,
    group: int,
    has_zeros: bool,
    has_bias: bool,
    has_residual: bool,
    swiglu: bool,
    is_gelu: bool,
) -> Launch:
    pdl = has_pdl(device)
    constants = {
        "num_out": num_out, "depth": depth, "ROWS": tile_rows, "ROW_TILES": row_tiles,
        "BLOCK_N": _BLOCK_N, "BLOCK_W": words, "SPLITS": splits, "STAGES": stages,
        "EVEN": depth // PER_WORD % words == 0, "GROUP": group, "ZEROS": has_zeros,
        "BIAS": has_bias, "RESIDUAL": has_residual, "SWIGLU": swiglu, "GELU": is_gelu, "PDL": pdl,
    }  # fmt: skip
    return Launch(_int4_skinny_kernel, constants, num_warps=4, launch_pdl=pdl)
