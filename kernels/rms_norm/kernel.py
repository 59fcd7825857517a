"""Triton root-mean-square normalisation, alone or with a sum ahead of it or behind it: one program
per row.

Owns the launches. Must not know layers.
"""

from functools import cache

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.choose import has_pdl
from kernels.launch import Launch


@triton.jit
def _rms_norm_kernel(
    x_ptr,  # [T, num_columns], to which the bias is added if BIASED
    bias_ptr,  # [num_columns], read if BIASED
    residual_ptr,  # [T, num_columns], added behind the norm if ADDS
    weight_ptr,  # [weight_rows, num_columns], for rows by turns
    scale_ptr,  # one number, what the sum is multiplied with if SCALES
    out_ptr,  # [T, num_columns]
    num_columns,  # columns of a row
    weight_rows,  # rows of the weight
    eps,  # added to the mean square
    BLOCK: tl.constexpr,  # the power of two from `num_columns` on
    BIASED: tl.constexpr,  # whether there is a bias
    ADDS: tl.constexpr,  # whether there is a residual
    SCALES: tl.constexpr,  # whether there is a scale
    EARLY: tl.constexpr,  # whether the kernel behind may start at once
    PDL: tl.constexpr,  # whether it may start while the kernel ahead ends
):
    if PDL and EARLY:
        tl.extra.cuda.gdc_launch_dependents()
    row = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, BLOCK)
    inside = columns < num_columns
    weight_at = (row % weight_rows) * num_columns + columns
    weight = tl.load(weight_ptr + weight_at, mask=inside, other=0.0).to(tl.float32)
    if BIASED:
        bias = tl.load(bias_ptr + columns, mask=inside, other=0.0).to(tl.float32)
    if PDL:
        tl.extra.cuda.gdc_wait()
        if not EARLY:
            tl.extra.cuda.gdc_launch_dependents()
    at = row * num_columns + columns
    dtype = out_ptr.dtype.element_ty
    x = tl.load(x_ptr + at, mask=inside, other=0.0).to(tl.float32)
    if BIASED:
        x = (x + bias).to(dtype)
        tl.store(x_ptr + at, x, mask=inside)
        x = x.to(tl.float32)
    scale = tl.rsqrt(tl.sum(x * x, 0) / num_columns + eps)
    # The reference rounds before the weight. Arithmetic stays in float32: the interpreter knows
    # bfloat16 as storage only.
    normed = (x * scale).to(dtype).to(tl.float32) * weight
    if ADDS:
        normed = normed.to(dtype).to(tl.float32)
        normed += tl.load(residual_ptr + at, mask=inside, other=0.0).to(tl.float32)
    if SCALES:
        normed = normed.to(dtype).to(tl.float32) * tl.load(scale_ptr).to(tl.float32)
    tl.store(out_ptr + at, normed.to(dtype), mask=inside)


def rms_norm(
    x: Tensor, weight: Tensor, eps: float, *, num_warps: int | None = None, is_early: bool = False
) -> Tensor:
    """See `kernels.rms_norm.rms_norm`; weight has the last or the last two dimensions of x."""
    x = x.contiguous()
    out = x.new_empty(x.shape)
    _launch(x, None, None, weight, None, out, eps, num_warps, is_early=is_early)
    return out


def bias_norm(
    x: Tensor, bias: Tensor, weight: Tensor, eps: float, *, num_warps: int | None = None
) -> Tensor:
    """See `kernels.rms_norm.bias_norm`."""
    out = x.new_empty(x.shape)
    _launch(x, bias, None, weight, None, out, eps, num_warps)
    return out


def norm_add(
    x: Tensor,
    weight: Tensor,
    eps: float,
    residual: Tensor,
    scale: Tensor | None = None,
    *,
    num_warps: int | None = None,
) -> Tensor:
    """See `kernels.rms_norm.norm_add`."""
    x, residual = x.contiguous(), residual.contiguous()
    out = x.new_empty(x.shape)
    _launch(x, None, residual, weight, scale, out, eps, num_warps)
    return out


def _launch(
    x: Tensor,
    bias: Tensor | None,
    residual: Tensor | None,
    weight: Tensor,
    factor: Tensor | None,
    out: Tensor,
    eps: float,
    num_warps: int | None,
    *,
    is_early: bool = False,
) -> None:
    numbers = x.numel()
    if not numbers:
        return
    num_columns = x.shape[-1]
    parts = bias, residual, factor
    has_parts = tuple([part is not None for part in parts])
    given = weight.numel() // num_columns, eps, num_warps, *has_parts, is_early
    launch = _launch_of(x.device, num_columns, *given)
    bias, residual, factor = (x if part is None else part for part in parts)
    operands = x, bias, residual, weight.contiguous(), factor, out
    launch((numbers // num_columns, 1, 1), operands)


@cache
def _launch_of(
    device: torch.device,
    num_columns: int,
    weight_rows: int,
    eps: float,
    num_warps: int | None,
    is_biased: bool,
    adds: bool,
    scales: bool,
    is_early: bool,
) -> Launch:
    block = triton.next_power_of_2(num_columns)
    return Launch(
        _rms_norm_kernel,
        {
            "num_columns": num_columns,
            "weight_rows": weight_rows,
            "eps": eps,
            "BLOCK": block,
            "BIASED": is_biased,
            "ADDS": adds,
            "SCALES": scales,
            "EARLY": is_early,
            "PDL": has_pdl(device),
        },
        num_warps=num_warps or max(1, min(8, block // 512)),
    )
