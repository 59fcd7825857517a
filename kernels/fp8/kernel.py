"""Triton quantisation of rows, alone or after their normalisation, and the way back of weights.

Owns the launches: one program per row, and one per tile of a weight. Must not know what they are.
"""

from functools import cache

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.choose import has_pdl
from kernels.fp8.reference import LARGEST, TINY
from kernels.fp8.weight import BLOCK, FP8, Fp8Weight
from kernels.launch import Launch

_TILE_ROWS = 32
"""Divides the rows of a block, so that one scale serves a tile."""


@triton.jit
def _quantize_rows_kernel(
    x_ptr,  # [T, num_columns]
    norm_ptr,  # [num_columns], weights of the norm
    values_ptr,  # 8 bits [T, num_columns], what comes out
    scales_ptr,  # float32 [T]
    num_columns,  # columns of a row
    eps,  # epsilon of the norm
    LARGEST: tl.constexpr,  # largest number of 8 bits
    TINY: tl.constexpr,  # the least that the largest number of a row counts as
    BLOCK: tl.constexpr,  # the power of two from `num_columns` on
    NORM: tl.constexpr,  # whether rows are normed
    EARLY: tl.constexpr,  # whether the kernel behind may start at once
    PDL: tl.constexpr,  # whether it may start while the kernel ahead ends
):
    if PDL and EARLY:
        tl.extra.cuda.gdc_launch_dependents()
    row = tl.program_id(0)
    columns = tl.arange(0, BLOCK)
    inside = columns < num_columns
    if NORM:
        norm = tl.load(norm_ptr + columns, inside, 0.0).to(tl.float32)
    if PDL:
        tl.extra.cuda.gdc_wait()
        if not EARLY:
            tl.extra.cuda.gdc_launch_dependents()
    at = row.to(tl.int64) * num_columns + columns
    x = tl.load(x_ptr + at, inside, 0.0).to(tl.float32)
    if NORM:
        # Rounded where `kernels.rms_norm` rounds.
        dtype = x_ptr.dtype.element_ty
        scale = tl.rsqrt(tl.sum(x * x, 0) / num_columns + eps)
        x = ((x * scale).to(dtype).to(tl.float32) * norm).to(dtype).to(tl.float32)
    scale = tl.maximum(tl.max(tl.abs(x), 0), TINY) / LARGEST
    x = tl.clamp(x * tl.div_rn(1.0, scale), -LARGEST, LARGEST, propagate_nan=tl.PropagateNan.ALL)
    tl.store(values_ptr + at, x.to(values_ptr.dtype.element_ty), inside)
    tl.store(scales_ptr + row, scale)


def quantize_rows(
    x: Tensor, norm: Tensor | None, eps: float, *, is_early: bool = False
) -> tuple[Tensor, Tensor]:
    """See `kernels.fp8.quantize_rows`."""
    num_rows, num_columns = x.shape
    values = torch.empty(num_rows, num_columns, dtype=FP8, device=x.device)
    scales = torch.empty(num_rows, dtype=torch.float32, device=x.device)
    if num_rows:
        launch = _quantise_launch(x.device, num_columns, eps, norm is not None, is_early)
        launch((num_rows, 1, 1), (x, x if norm is None else norm, values, scales))
    return values, scales


@cache
def _quantise_launch(
    device: torch.device, num_columns: int, eps: float, has_norm: bool, is_early: bool
) -> Launch:
    block = triton.next_power_of_2(num_columns)
    constants = {
        "num_columns": num_columns, "eps": eps, "LARGEST": LARGEST, "TINY": TINY, "BLOCK": block,
        "NORM": has_norm, "EARLY": is_early, "PDL": has_pdl(device),
    }  # fmt: skip
    num_warps = max(1, min(16, block // 1024))
    return Launch(_quantize_rows_kernel, constants, num_warps=num_warps)


@triton.jit
def _dequantise_kernel(
    values_ptr,  # 8 bits [num_rows, depth]
    scales_ptr,  # float32, by row, or by block of COLUMNS x COLUMNS
    out_ptr,  # [num_rows, depth], what comes out
    num_rows,  # rows of the weight
    depth,  # columns of the weight
    ROWS: tl.constexpr,  # rows of a program, which divide a block's
    COLUMNS: tl.constexpr,  # columns of a program: those of a block
    BLOCKED: tl.constexpr,  # whether scales are by block
):
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    columns = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    inside = (rows < num_rows)[:, None] & (columns < depth)[None, :]
    at = rows[:, None].to(tl.int64) * depth + columns[None, :]
    values = tl.load(values_ptr + at, inside, 0.0).to(tl.float32)
    if BLOCKED:
        row = tl.program_id(0) * ROWS // COLUMNS
        values *= tl.load(scales_ptr + row * tl.num_programs(1) + tl.program_id(1))
    else:
        values *= tl.load(scales_ptr + rows, rows < num_rows, 0.0)[:, None]
    tl.store(out_ptr + at, values.to(out_ptr.dtype.element_ty), inside)


def dequantise(weight: Fp8Weight, dtype: torch.dtype) -> Tensor:
    """See `kernels.fp8.dequantise`."""
    num_rows, depth = weight.shape
    out = torch.empty(num_rows, depth, dtype=dtype, device=weight.values.device)
    _dequantise_kernel[(triton.cdiv(num_rows, _TILE_ROWS), triton.cdiv(depth, BLOCK))](
        weight.values, weight.scales, out, num_rows, depth,
        ROWS=_TILE_ROWS, COLUMNS=BLOCK, BLOCKED=weight.is_blocked,
    )  # fmt: skip
    return out
