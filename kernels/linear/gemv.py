"""Triton matrix-vector products for one to four rows, on the ordinary lanes.

Owns the kernel and its launch, for weights in 16, 8 and 4 bits; their loaders are in `loaders`.
Must not know which shape wants which configuration.

Memory latency limits it: 4.3 TB/s at about 700 ns of latency need 3 MB on their way, 23 KB per SM
of an H200. So a program requests its whole share of the weights at once, 8 to 48 KB straight into
registers, and several programs share an SM: 100 KB and more are on their way while other programs
add up. Weights depend on no kernel, so they are requested before `gdc_wait`: the reads of the next
product overlap the end of the kernel ahead. Multiplying takes little: 50 M multiplications for
100 MB and one row, 2 us of 25.

Weights of 8 bits stay in 8 bits up to the product. A thread has as many numbers as with 16 bits, so
that x is laid out the same way; a request has half the bytes. In 4 bits a thread has words, and
reads the eight columns of each.
"""

from functools import cache

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.choose import has_pdl
from kernels.fp8 import Fp8Weight
from kernels.int4 import Int4Weight
from kernels.launch import Launch
from kernels.linear.config import Gemv
from kernels.linear.epilogue import NOTHING, Epilogue, EpilogueForm
from kernels.linear.loaders import (
    WeightForm,
    numbers_added,
    numbers_held,
    parts_for,
    words_added,
    words_held,
    x_held,
)
from kernels.linear.parts import weight_rows
from kernels.silu_mul.kernel import opened


@triton.jit
def _gemv_kernel(
    x_ptr,  # [T, depth], rows of x
    norm_ptr,  # [depth], weights of the norm
    weight_ptr,  # [num_out (2 num_out with SWIGLU), depth], or int32 words of eight [.., depth / 8]
    scale_ptr,  # scales of weights, by row, block or group
    zero_ptr,  # uint8, zero points by group
    bias_ptr,  # [num_out]
    residual_ptr,  # [T, num_out], added to the product
    out_ptr,  # [T, num_out]
    num_out,  # columns of the result
    eps,  # epsilon of the norm
    K: tl.constexpr,  # depth: columns of x and of the weight
    ROWS: tl.constexpr,  # rows of x
    BLOCK_N: tl.constexpr,  # weight rows of a tile
    BLOCK_K: tl.constexpr,  # columns at once
    SCALE_BLOCK: tl.constexpr,  # 0: no scales, 1: by row, more: by block
    GROUP: tl.constexpr,  # in 4 bits the columns of a group, else 0
    ZEROS: tl.constexpr,  # whether groups have zero points
    NORM: tl.constexpr,  # whether x is normed
    BIAS: tl.constexpr,  # whether there is a bias
    RESIDUAL: tl.constexpr,  # whether there is a residual
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
    held = ()
    for start in tl.static_range(0, K, BLOCK_K):
        # Unrolled: the tuple grows while the kernel is compiled.
        if GROUP > 0:
            held += (
                words_held(
                    weight_ptr, scale_ptr, zero_ptr, rows, start // 8, K, BLOCK_K // 8, GROUP, ZEROS
                ),
            )  # type: ignore[assignment]
        else:
            held += (
                numbers_held(
                    weight_ptr + rows[:, None] * K + lanes[None, :] + start, scale_ptr, norm_ptr,
                    start + lanes, tile, num_out, start + BLOCK_K, K, BLOCK_N, SCALE_BLOCK, NORM,
                    SWIGLU,
                ),
            )  # type: ignore[assignment]  # fmt: skip
    row_scales = tl.load(scale_ptr + rows) if SCALE_BLOCK == 1 else 1.0
    size: tl.constexpr = BLOCK_N // 2 if SWIGLU else BLOCK_N
    columns = tile * size + tl.arange(0, size)
    bias = tl.load(bias_ptr + columns, columns < num_out, 0.0).to(tl.float32) if BIAS else 0.0
    if PDL:
        tl.extra.cuda.gdc_wait()
    # Ahead of the sums, which are barriers: behind them a program would wait for each once more.
    residuals = _residuals(residual_ptr, columns, num_out, ROWS, RESIDUAL)
    xs = _rows_held(x_ptr, K, BLOCK_K, ROWS, GROUP == 0 and ROWS > 1)
    for row in tl.static_range(ROWS):
        products = tl.zeros([BLOCK_N, BLOCK_K // 8], tl.float32)
        squares = tl.zeros([BLOCK_K // 8 if GROUP > 0 else BLOCK_K], tl.float32)
        for start in tl.static_range(0, K, BLOCK_K):
            if GROUP > 0:
                products, squares = words_added(
                    products, squares, held[start // BLOCK_K], x_ptr + row * K, norm_ptr,
                    start // 8, K, BLOCK_N, BLOCK_K // 8, NORM,
                )  # fmt: skip
            else:
                x = _chunk_of(xs, x_ptr, row, start, K, BLOCK_K, ROWS)
                products, squares = numbers_added(
                    products, squares, held[start // BLOCK_K], x, BLOCK_N, BLOCK_K, SCALE_BLOCK,
                    NORM,
                )  # fmt: skip
        sums = tl.sum(products, 1)
        if NORM:
            sums *= tl.rsqrt(tl.sum(squares, 0) / K + eps)
        if SCALE_BLOCK == 1:
            sums *= row_scales
        _finish(
            sums, bias, residuals[row], out_ptr + row * num_out, columns, num_out, BLOCK_N, BIAS,
            RESIDUAL, SWIGLU, GELU,
        )  # fmt: skip


@triton.jit
def _residuals(residual_ptr, columns, num_out, ROWS: tl.constexpr, RESIDUAL: tl.constexpr):
    """What is added to the sums of each row, float32; 0 without a residual."""
    found = ()
    for row in tl.static_range(ROWS):
        if RESIDUAL:
            at = residual_ptr + row * num_out + columns
            found += (tl.load(at, columns < num_out, 0.0).to(tl.float32),)  # type: ignore[assignment]
        else:
            found += (0.0,)  # type: ignore[assignment]
    return found


@triton.jit
def _rows_held(
    x_ptr, K: tl.constexpr, BLOCK_K: tl.constexpr, ROWS: tl.constexpr, HELD: tl.constexpr
):
    """The chunks of all rows of x, row after row, if they are HELD."""
    found = ()
    if HELD:
        for row in tl.static_range(ROWS):
            for start in tl.static_range(0, K, BLOCK_K):
                found += (x_held(x_ptr + row * K, start, K, BLOCK_K),)  # type: ignore[assignment]
    else:
        found += (0.0,)  # type: ignore[assignment]
    return found


@triton.jit
def _chunk_of(
    xs, x_ptr, row: tl.constexpr, start: tl.constexpr, K: tl.constexpr, BLOCK_K: tl.constexpr,
    ROWS: tl.constexpr,
):  # fmt: skip
    """A chunk of a row of x: one that `_rows_held` holds, or of the only row."""
    if ROWS > 1:
        return xs[row * ((K + BLOCK_K - 1) // BLOCK_K) + start // BLOCK_K]
    else:  # noqa: RET505 - what follows a return is compiled all the same
        return x_held(x_ptr, start, K, BLOCK_K)


@triton.jit
def _finish(
    sums,  # float32 [BLOCK_N], of a row of x
    bias,  # float32 [columns]
    residual,  # float32 [columns], of the row
    out_ptr,  # [num_out], of the row
    columns,  # indices of columns of the result
    num_out,  # columns of the result
    BLOCK_N: tl.constexpr,  # weight rows of a tile
    BIAS: tl.constexpr,  # whether there is a bias
    RESIDUAL: tl.constexpr,  # whether there is a residual
    SWIGLU: tl.constexpr,  # whether the weight has gates and ups
    GELU: tl.constexpr,  # whether gates open by GELU, not SiLU
):
    """A row's sums, with what follows a product, to `out_ptr`."""
    if SWIGLU:
        gate, up = sums.reshape(BLOCK_N // 2, 2).split()
        sums = opened(gate, GELU) * up
    if BIAS:
        sums += bias
    if RESIDUAL:
        sums += residual
    out = sums.to(out_ptr.dtype.element_ty)
    tl.store(out_ptr + columns, out, columns < num_out)


def gemv(
    x: Tensor,
    weight: Tensor | Fp8Weight | Int4Weight,
    config: Gemv,
    epilogue: Epilogue = NOTHING,
) -> Tensor:
    """The product and its epilogue: x [T, K], T up to 4, its columns as the weight stores them.

    The normed row is never rounded: its scale is applied to the finished sums.
    """
    num_rows, depth = x.shape
    num_weight_rows = weight.shape[0]
    form, elements, scales, zeros = parts_for(weight)
    launch, num_tiles, num_out = _launch_of(
        config, x.device, num_rows, num_weight_rows, depth, form, epilogue.eps, epilogue.form
    )
    out = x.new_empty(num_rows, num_out)
    operands = (epilogue.norm, elements, scales, zeros, epilogue.bias, epilogue.residual)
    launch((num_tiles, 1, 1), (x, *[x if part is None else part for part in operands], out))
    return out


@cache
def _launch_of(
    config: Gemv,
    device: torch.device,
    num_rows: int,
    num_weight_rows: int,
    depth: int,
    form: WeightForm,
    eps: float,
    epilogue: EpilogueForm,
) -> tuple[Launch, int, int]:
    """The launch, and the numbers of programs and outputs."""
    num_out = epilogue.num_out(num_weight_rows)
    constants = {
        "num_out": num_out,
        "eps": eps,
        "K": depth,
        "ROWS": num_rows,
        "BLOCK_N": config.block_n,
        "BLOCK_K": config.block_k,
        **form.constants(),
        **epilogue.constants(),
        "PDL": has_pdl(device),
    }
    launch = Launch(_gemv_kernel, constants, num_warps=config.num_warps)
    return launch, triton.cdiv(num_weight_rows, config.block_n), num_out
