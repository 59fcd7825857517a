"""Triton matrix-vector products for one to four rows, on the ordinary lanes.

Owns the kernel and its launch. Must not know which shape wants which configuration.

Memory latency limits it: 4.3 TB/s at about 700 ns of latency need 3 MB on their way, 23 KB per SM
of an H200. So a program requests its whole share of the weights at once, 8 to 48 KB straight into
registers, and several programs share an SM: 100 KB and more are on their way while other programs
add up. Weights depend on no kernel, so they are requested before `gdc_wait`: the reads of the next
product overlap the end of the kernel ahead. Multiplying takes little: 50 M multiplications for
100 MB and one row, 2 us of 25.

Weights of 8 bits stay in 8 bits up to the product. A thread has as many numbers as with 16 bits, so
that x is laid out the same way; a request has half the bytes.
"""

from functools import cache

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.choose import has_pdl
from kernels.fp8 import Fp8Weight, parts_of
from kernels.launch import Launch
from kernels.linear.config import Gemv
from kernels.linear.parts import weight_rows
from kernels.silu_mul.kernel import opened


@triton.jit
def _gemv_kernel(
    x_ptr,  # [T, depth], rows of x
    norm_ptr,  # [depth], weights of the norm
    weight_ptr,  # [num_out (2 num_out with SWIGLU), depth]
    scale_ptr,  # scales of weights, by row or by block
    bias_ptr,  # [num_out]
    residual_ptr,  # [T, num_out], added to the product
    out_ptr,  # [T, num_out]
    num_out,  # columns of the result
    eps,  # of the norm
    K: tl.constexpr,  # depth: columns of x and of the weight
    ROWS: tl.constexpr,  # rows of x
    BLOCK_N: tl.constexpr,  # weight rows of a tile
    BLOCK_K: tl.constexpr,  # columns at once
    SCALE_BLOCK: tl.constexpr,  # 0: no scales, 1: by row, more: by block
    NORM: tl.constexpr,  # whether x is normed
    BIAS: tl.constexpr,  # whether there is one
    RESIDUAL: tl.constexpr,  # whether there is one
    SWIGLU: tl.constexpr,  # whether the weight has gates and ups
    GELU: tl.constexpr,  # whether gates open by GELU, not SiLU
    PDL: tl.constexpr,  # whether it may start while the kernel ahead ends
):
    if PDL:
        tl.extra.cuda.gdc_launch_dependents()
    tile = tl.program_id(0)
    # The hint keeps eight neighbours to a thread, whatever the width of a weight.
    lanes = tl.max_contiguous(tl.multiple_of(tl.arange(0, BLOCK_K), 8), 8)
    rows = weight_rows(tile, num_out, BLOCK_N, SWIGLU)
    ptrs = weight_ptr + rows[:, None] * K + lanes[None, :]
    weights = ()
    norms = ()
    scales = ()
    for start in tl.static_range(0, K, BLOCK_K):
        # Unrolled: the tuples grow while the kernel is compiled.
        at = start + lanes
        weights += (_chunk(ptrs + start, at[None, :], start + BLOCK_K, K),)  # type: ignore[assignment]
        if NORM:
            norms += (_chunk(norm_ptr + at, at, start + BLOCK_K, K),)  # type: ignore[assignment]
        if SCALE_BLOCK > 1:
            scales += (
                _block_scales(scale_ptr, tile, at, num_out, K, BLOCK_N, SCALE_BLOCK, SWIGLU),
            )  # type: ignore[assignment]
    if SCALE_BLOCK == 1:
        row_scales = tl.load(scale_ptr + rows)
    if PDL:
        tl.extra.cuda.gdc_wait()
    for row in tl.static_range(ROWS):
        sums = _row(x_ptr + row * K, weights, norms, scales, eps, K, BLOCK_N, BLOCK_K, NORM)
        if SCALE_BLOCK == 1:
            sums *= row_scales
        _finish(
            sums, row, bias_ptr, residual_ptr, out_ptr, num_out, BLOCK_N, BIAS, RESIDUAL, SWIGLU,
            GELU,
        )  # fmt: skip


@triton.jit
def _chunk(ptrs, columns, END: tl.constexpr, K: tl.constexpr):
    """Columns up to END, or K. Weights are read once: they leave the cache first."""
    if END <= K:
        return tl.load(ptrs, eviction_policy="evict_first")
    return tl.load(ptrs, columns < K, 0.0, eviction_policy="evict_first")


@triton.jit
def _block_scales(
    scale_ptr, tile, columns, num_out,
    K: tl.constexpr, BLOCK_N: tl.constexpr, SCALE_BLOCK: tl.constexpr, SWIGLU: tl.constexpr,
):  # fmt: skip
    """What the weights in `columns` are scaled by, [1 or BLOCK_N, columns]: a program's rows lie in
    one block, with SWIGLU by turns in that of the gates and that of the ups.
    """
    at = tl.minimum(columns, K - 1) // SCALE_BLOCK
    width: tl.constexpr = (K + SCALE_BLOCK - 1) // SCALE_BLOCK
    if SWIGLU:
        block = tile * (BLOCK_N // 2) // SCALE_BLOCK
        gate = tl.load(scale_ptr + block * width + at)
        up = tl.load(scale_ptr + (block + num_out // SCALE_BLOCK) * width + at)
        is_up = tl.arange(0, BLOCK_N) % 2 == 1
        return tl.where(is_up[:, None], up[None, :], gate[None, :])
    else:  # noqa: RET505 - what follows a return is compiled all the same
        return tl.load(scale_ptr + tile * BLOCK_N // SCALE_BLOCK * width + at)[None, :]


@triton.jit
def _row(
    x_ptr, weights, norms, scales, eps,
    K: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, NORM: tl.constexpr,
):  # fmt: skip
    """One row's sums over K, float32 [BLOCK_N]."""
    lanes = tl.arange(0, BLOCK_K)
    products = tl.zeros([BLOCK_N, BLOCK_K // 8], tl.float32)
    squares = tl.zeros([BLOCK_K], tl.float32)
    for start in tl.static_range(0, K, BLOCK_K):
        x = tl.load(x_ptr + start + lanes, start + lanes < K, 0.0).to(tl.float32)
        if NORM:
            squares += x * x
            x *= norms[start // BLOCK_K].to(tl.float32)
        # Eight neighbours lie in one thread: their sum costs no exchange.
        x = x[None, :]
        if len(scales) > 0:
            x = x * scales[start // BLOCK_K]
        product = weights[start // BLOCK_K].to(tl.float32) * x
        products += tl.sum(product.reshape(BLOCK_N, BLOCK_K // 8, 8), 2)
    sums = tl.sum(products, 1)
    if NORM:
        sums *= tl.rsqrt(tl.sum(squares, 0) / K + eps)
    return sums


@triton.jit
def _finish(
    sums, row, bias_ptr, residual_ptr, out_ptr, num_out,
    BLOCK_N: tl.constexpr, BIAS: tl.constexpr, RESIDUAL: tl.constexpr, SWIGLU: tl.constexpr,
    GELU: tl.constexpr,
):  # fmt: skip
    size: tl.constexpr = BLOCK_N // 2 if SWIGLU else BLOCK_N
    if SWIGLU:
        gate, up = sums.reshape(size, 2).split()
        sums = opened(gate, GELU) * up
    columns = tl.program_id(0) * size + tl.arange(0, size)
    inside = columns < num_out
    if BIAS:
        sums += tl.load(bias_ptr + columns, inside, 0.0).to(tl.float32)
    if RESIDUAL:
        sums += tl.load(residual_ptr + row * num_out + columns, inside, 0.0).to(tl.float32)
    out = sums.to(out_ptr.dtype.element_ty)
    tl.store(out_ptr + row * num_out + columns, out, inside)


def gemv(
    x: Tensor,
    weight: Tensor | Fp8Weight,
    config: Gemv,
    *,
    norm: Tensor | None = None,
    eps: float = 0.0,
    bias: Tensor | None = None,
    residual: Tensor | None = None,
    swiglu: bool = False,
    is_gelu: bool = False,
) -> Tensor:
    """`residual + (rms_norm(x) W^T + bias)`, or the SwiGLU of it: x [T, K], T up to 4.

    See `kernels.linear` for shapes; bias and swiglu exclude each other. The normed row is never
    rounded: its scale is applied to the finished sums.
    """
    num_rows, depth = x.shape
    num_weight_rows = weight.shape[0]
    values, scales, scale_block = parts_of(weight)
    launch, num_tiles, num_out = _launch_of(
        config, x.device, num_rows, num_weight_rows, depth, eps, scale_block,
        norm is not None, bias is not None, residual is not None, swiglu, is_gelu,
    )  # fmt: skip
    out = x.new_empty(num_rows, num_out)
    operands = (norm, values, scales, bias, residual)
    launch((num_tiles, 1, 1), (x, *[x if part is None else part for part in operands], out))
    return out


@cache
def _launch_of(
    config: Gemv,
    device: torch.device,
    num_rows: int,
    num_weight_rows: int,
    depth: int,
    eps: float,
    scale_block: int,
    has_norm: bool,
    has_bias: bool,
    has_residual: bool,
    swiglu: bool,
    is_gelu: bool,
) -> tuple[Launch, int, int]:
    """The launch, and the numbers of programs and outputs."""
    pdl = has_pdl(device)
    num_out = num_weight_rows // 2 if swiglu else num_weight_rows
    constants = {
        "num_out": num_out, "eps": eps, "K": depth, "ROWS": num_rows, "BLOCK_N": config.block_n,
        "BLOCK_K": config.block_k, "SCALE_BLOCK": scale_block, "NORM": has_norm, "BIAS": has_bias,
        "RESIDUAL": has_residual, "SWIGLU": swiglu, "GELU": is_gelu, "PDL": pdl,
    }  # fmt: skip
    launch = Launch(_gemv_kernel, constants, num_warps=config.num_warps, launch_pdl=pdl)
    return launch, triton.cdiv(num_weight_rows, config.block_n), num_out
