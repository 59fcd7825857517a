"""Triton pieces that kernels share: which weight rows are a program's, and rows asked for ahead.

Owns the order of rows in a program: with SwiGLU, gate rows and their up rows by turns, so that a
pair ends up side by side. Must not know what is done with them.
"""

import triton
import triton.language as tl


@triton.jit
def weight_rows(tile, num_out, BLOCK_N: tl.constexpr, SWIGLU: tl.constexpr) -> tl.tensor:
    """The weight rows of a program, int64 [BLOCK_N]; `num_out` outputs in all.

    Rows past the end repeat the last row, so loads need no mask; the results of these rows are not
    stored.
    """
    places = tl.arange(0, BLOCK_N)
    if SWIGLU:
        pairs = tl.minimum(tile * (BLOCK_N // 2) + places // 2, num_out - 1)
        return (pairs + (places % 2) * num_out).to(tl.int64)
    return tl.minimum(tile * BLOCK_N + places, num_out - 1).to(tl.int64)


@triton.jit
def prefetch(row_ptrs, first, last, BYTES: tl.constexpr):
    """Ask for BYTES of each row, from column `first` on, as far as the L2 cache.

    One request per 64 bytes, what the cache fetches at least. The bulk form takes its address from
    a uniform register: a loop over the lanes of a warp, a microsecond long.
    """
    width: tl.constexpr = 64 * 8 // row_ptrs.dtype.element_ty.primitive_bitwidth
    columns = first + tl.arange(0, BYTES // 64) * width
    tl.inline_asm_elementwise(
        """
        {
            .reg .pred inside;
            setp.ne.s32 inside, $2, 0;
            @inside prefetch.global.L2 [$1];
            mov.u32 $0, 0;
        }
        """,
        "=r,l,r", [row_ptrs[:, None] + columns[None, :], (columns < last)[None, :].to(tl.int32)],
        dtype=tl.int32, is_pure=False, pack=1,
    )  # fmt: skip
