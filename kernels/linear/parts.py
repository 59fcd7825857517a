"""Triton pieces that both product kernels share: which weight rows.

Owns the order of rows in a program: with SwiGLU, gate rows and their up rows by turns, so that a
pair ends up side by side.
"""

import triton
import triton.language as tl


@triton.jit
def weight_rows(tile, num_out, BLOCK_N: tl.constexpr, SWIGLU: tl.constexpr) -> tl.tensor:
    """The weight rows of a program, int64 [BLOCK_N]; `num_out` outputs in all.

    Rows past the end repeat the last one: loads need no mask, and what comes of them is not stored.
    """
    places = tl.arange(0, BLOCK_N)
    if SWIGLU:
        pairs = tl.minimum(tile * (BLOCK_N // 2) + places // 2, num_out - 1)
        return (pairs + (places % 2) * num_out).to(tl.int64)
    return tl.minimum(tile * BLOCK_N + places, num_out - 1).to(tl.int64)
