"""Triton matrix-vector products of 4-bit weights for one and two rows, on the ordinary lanes.

Owns the kernel and its launch. As in `gemv`, a program asks for its whole share of the words at
once, before the kernel ahead has ended. A number takes a shift, an operation on bits and a
multiply-add; its group's scale and zero point are applied to the sum of eight numbers, once per
word: sum((q - z) s x) = 16 s (sum(v x) - (1 + z / 16) sum(x)) with v = 1 + q / 16.
"""

from functools import cache
from typing import Final

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.choose import has_pdl
from kernels.int4 import PER_WORD, Int4Weight
from kernels.int4.kernel import column_of, plane_of, scales_of
from kernels.launch import Launch
from kernels.linear.gemv import _finish
from kernels.linear.parts import weight_rows

MAX_ROWS: Final = 2
"""The most rows of x here; more take the tensor cores."""

_BYTES: Final = 16 * 1024
"""Bytes of words in one program."""
_MOST_WORDS: Final = 512


@triton.jit
def _int4_gemv_kernel(
    x_ptr,  # [ROWS, K], rows of x
    norm_ptr,  # [K], weights of the norm
    words_ptr,  # int32 [weight rows, K / 8], eight weights each
    scale_ptr,  # [weight rows, K / GROUP]
    zero_ptr,  # uint8 [weight rows, K / GROUP], zero points
    bias_ptr,  # [num_out]
    residual_ptr,  # [ROWS, num_out], added to the product
    out_ptr,  # [ROWS, num_out]
    num_out,  # columns of the result
    eps,  # of the norm
    K: tl.constexpr,  # depth: columns of x and of the weight
    ROWS: tl.constexpr,  # rows of x
    BLOCK_N: tl.constexpr,  # weight rows of a tile
    BLOCK_W: tl.constexpr,  # words at once
    GROUP: tl.constexpr,  # columns of a group
    ZEROS: tl.constexpr,  # whether groups have zero points
    NORM: tl.constexpr,  # whether x is normed
    BIAS: tl.constexpr,  # whether there is one
    RESIDUAL: tl.constexpr,  # whether there is one
    SWIGLU: tl.constexpr,  # whether the weight has gates and ups
    GELU: tl.constexpr,  # whether gates open by GELU, not SiLU
    PDL: tl.constexpr,  # whether it may start while the kernel ahead ends
):
    if PDL:
        tl.extra.cuda.gdc_launch_dependents()
    num_words: tl.constexpr = K // 8
    per: tl.constexpr = GROUP // 8
    lanes = tl.max_contiguous(tl.multiple_of(tl.arange(0, BLOCK_W), 4), 4)
    rows = weight_rows(tl.program_id(0), num_out, BLOCK_N, SWIGLU)[:, None]
    words = ()
    factors = ()
    offsets = ()
    for start in tl.static_range(0, num_words, BLOCK_W):
        at = (start + lanes)[None, :]
        words += (_words(words_ptr + rows * num_words + at, at, start + BLOCK_W, num_words),)  # type: ignore[assignment]
        scale_at = rows * (K // GROUP) + at // per
        factor, offset = scales_of(scale_ptr, zero_ptr, scale_at, at < num_words, ZEROS)
        factors += (factor,)  # type: ignore[assignment]
        offsets += (offset,)  # type: ignore[assignment]
    if PDL:
        tl.extra.cuda.gdc_wait()
    for row in tl.static_range(ROWS):
        products = tl.zeros([BLOCK_N, BLOCK_W], tl.float32)
        squares = tl.zeros([BLOCK_W], tl.float32)
        for start in tl.static_range(0, num_words, BLOCK_W):
            at = start + lanes
            columns = at // 4 * 32 + at % 4 * 2
            sums = tl.zeros([BLOCK_N, BLOCK_W], tl.float32)
            total = tl.zeros([BLOCK_W], tl.float32)
            for plane in tl.static_range(8):
                x = tl.load(x_ptr + row * K + columns + column_of(plane), at < num_words, 0.0)
                x = x.to(tl.float32)
                if NORM:
                    squares += x * x
                    norms = tl.load(norm_ptr + columns + column_of(plane), at < num_words, 0.0)
                    x *= norms.to(tl.float32)
                sums += plane_of(words[start // BLOCK_W], plane) * x[None, :]
                total += x
            products += sums * factors[start // BLOCK_W]
            products -= total[None, :] * offsets[start // BLOCK_W]
        result = tl.sum(products, 1)
        if NORM:
            result *= tl.rsqrt(tl.sum(squares, 0) / K + eps)
        _finish(
            result, row, bias_ptr, residual_ptr, out_ptr, num_out, BLOCK_N, BIAS, RESIDUAL, SWIGLU,
            GELU,
        )  # fmt: skip


@triton.jit
def _words(ptrs, at, END: tl.constexpr, NUM_WORDS: tl.constexpr):
    """Words up to END, or the last. They are read once: they leave the cache first."""
    if END <= NUM_WORDS:
        return tl.load(ptrs, eviction_policy="evict_first")
    return tl.load(ptrs, at < NUM_WORDS, 0, eviction_policy="evict_first")


def int4_gemv(
    x: Tensor,
    weight: Int4Weight,
    *,
    norm: Tensor | None = None,
    eps: float = 0.0,
    bias: Tensor | None = None,
    residual: Tensor | None = None,
    swiglu: bool = False,
    is_gelu: bool = False,
) -> Tensor:
    """`residual + (rms_norm(x) W^T + bias)`, or the SwiGLU of it: x [T, K], T up to `MAX_ROWS`, its
    columns as the weight stores them. The normed row is never rounded.
    """
    num_rows, depth = x.shape
    launch, num_tiles, num_out = _launch_of(
        x.device, num_rows, weight.shape[0], depth, weight.group, eps, weight.zeros is not None,
        norm is not None, bias is not None, residual is not None, swiglu, is_gelu,
    )  # fmt: skip
    out = x.new_empty(num_rows, num_out)
    operands = (norm, weight.words, weight.scales, weight.zeros, bias, residual)
    launch((num_tiles, 1, 1), (x, *[x if part is None else part for part in operands], out))
    return out


@cache
def _launch_of(
    device: torch.device,
    num_rows: int,
    num_weight_rows: int,
    depth: int,
    group: int,
    eps: float,
    has_zeros: bool,
    has_norm: bool,
    has_bias: bool,
    has_residual: bool,
    swiglu: bool,
    is_gelu: bool,
) -> tuple[Launch, int, int]:
    """The launch, and the numbers of programs and outputs."""
    pdl = has_pdl(device)
    num_words = depth // PER_WORD
    words = min(_MOST_WORDS, triton.next_power_of_2(num_words))
    chunks = triton.cdiv(num_words, words)
    block_n = 2
    while block_n < 16 and 8 * block_n * words * chunks <= _BYTES:
        block_n *= 2
    num_out = num_weight_rows // 2 if swiglu else num_weight_rows
    constants = {
        "num_out": num_out, "eps": eps, "K": depth, "ROWS": num_rows, "BLOCK_N": block_n,
        "BLOCK_W": words, "GROUP": group, "ZEROS": has_zeros, "NORM": has_norm, "BIAS": has_bias,
        "RESIDUAL": has_residual, "SWIGLU": swiglu, "GELU": is_gelu, "PDL": pdl,
    }  # fmt: skip
    launch = Launch(_int4_gemv_kernel, constants, num_warps=4, launch_pdl=pdl)
    return launch, triton.cdiv(num_weight_rows, block_n), num_out
