"""Products of some tens to thousands of rows in CUDA C++, for Hopper: `wide.cu`.

Owns the kernel's constants, its one generated instruction, and the launch. Must not know which
shape wants which configuration.

The weight is the product's left side, in tiles of 64 rows per warp group. x is the right side, with
its rows padded only to a multiple of 16: 160 rows cost 160, where Triton's tiles are powers of two.
One warp only fetches, and keeps as many tiles on their way as shared memory holds.

For the copy engine and shared memory two 8-bit floats are one number of 16 bits. Only the multiply
instruction differs, and sums are scaled: at the end those by rows, those by blocks every 128
columns, which takes as many registers again as the sums have.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Final

import torch
from torch import Tensor

from kernels.cuda.hopper import ALIGNED, BF16, E4M3, SHARED_BYTES, header, runs_on, tile_products
from kernels.cuda.source import CudaSource
from kernels.fp8 import Fp8Weight, parts_of
from kernels.linear.config import MAX_WIDE_ROWS, Wide
from kernels.linear.epilogue import NOTHING, Epilogue, EpilogueForm

_COLUMNS: Final = 64
_BARRIER_BYTES: Final = 16
_RESERVED_BYTES: Final = 1024
"""Bytes of shared memory that the card reserves for each program on a multiprocessor."""

_MOST_ROWS_OF_THREE_GROUPS: Final = 192
"""The most rows of one instruction in a program of 512 threads, each of which begins with 128
registers.
"""

_REGISTERS: Final = {1: (40, 232), 2: (40, 232), 3: (32, 160)}
"""Registers by groups: of each fetching thread, and of each multiplying one; 65,536 in all. Where a
multiprocessor holds several programs all threads have the same number.
"""


def _instructions(constants: Mapping[str, int]) -> dict[str, str]:
    """Products of 64 rows of weights by x, in two halves where one takes too many registers."""
    rows, groups = constants["ROWS"], constants["GROUPS"]
    parts = 2 if groups == 3 and rows > _MOST_ROWS_OF_THREE_GROUPS else 1
    kind = E4M3 if constants["FP8"] else BF16
    return {**header(), "multiply.h": tile_products(rows, kind=kind, parts=parts)}


product: Final = CudaSource(__name__, "product", Path(__file__).with_name("wide.cu"), _instructions)


def suits(x: Tensor, depth: int, num_out: int, *, is_fp8: bool = False) -> bool:
    """Whether this card runs it, and for such a product: `num_out` features of the result. With
    `is_fp8` the weight is in 8 bits, and rows are quantised.
    """
    fits = x.dtype == torch.bfloat16 and depth % (_COLUMNS * (1 + is_fp8)) == 0 and num_out % 4 == 0
    return fits and runs_on(x.device)


def is_aligned(*tensors: Tensor | None) -> bool:
    """Whether all tensors lie at addresses that the kernel can read."""
    return not any(x.data_ptr() % ALIGNED for x in tensors if x is not None)


def wide(
    x: Tensor,
    weight: Tensor | Fp8Weight,
    config: Wide,
    epilogue: Epilogue = NOTHING,
    *,
    x_scales: Tensor | None = None,
) -> Tensor:
    """The product with a bias and a residual, or a SwiGLU: x [T, K], weight [N, K], bfloat16. For a
    weight in 8 bits, scaled by row or by block, x is quantised too; `x_scales` float32 [T] has the
    scale of each row of x.

    Ask `suits` and `is_aligned` first. The result is the same every time. Raises `CompileError`,
    `DriverError`, and `ValueError` for other parts of an epilogue, a SwiGLU in splits, or more rows
    than a tile's without a band.
    """
    num_rows, form = x.shape[0], epilogue.form
    tile_rows = config.tile_rows(num_rows)
    if form.has_norm or form.is_gelu:
        raise ValueError(f"{config} has no norm or gelu: {form}")
    values, scales, scale_block = parts_of(weight)
    if (x.dtype, x_scales is None) != (values.dtype, scales is None):
        raise ValueError(
            f"rows {x.dtype} by a weight {values.dtype}, scales: {x_scales is not None}"
        )
    if (form.swiglu and config.splits > 1) or (num_rows > tile_rows and not config.band):
        raise ValueError(f"{config} for {num_rows} rows, swiglu={form.swiglu}")
    num_out, residual, bias = form.num_out(weight.shape[0]), epilogue.residual, epilogue.bias
    out = x.new_empty(num_rows, num_out, dtype=torch.bfloat16)
    constants = constants_of(config, tile_rows, form, scale_block=scale_block)
    if x.is_meta:
        product.record(constants)
        return out
    from kernels.cuda.driver import launch, loaded, tile_map

    depth = x.shape[1] * x.element_size() // 2
    features = features_of(config, form)
    threads = 128 * (config.groups + 1)
    launch(
        loaded(product, constants, threads, shared_bytes(constants), x.device),
        num_programs(config, num_rows, num_out, form),
        torch.cuda.current_stream(x.device).cuda_stream,
        (
            tile_map(values.data_ptr(), weight.shape[0], depth, features, config.cached_bytes),
            tile_map(x.data_ptr(), num_rows, depth, tile_rows),
        ),
        (
            x if residual is None else residual,
            out,
            x if x_scales is None else x_scales,
            x if scales is None else scales,
            x if bias is None else bias,
        ),
        (num_rows, num_out, depth),
    )
    return out


@cache
def constants_of(
    config: Wide, tile_rows: int, form: EpilogueForm = NOTHING.form, *, scale_block: int = 0
) -> Mapping[str, int]:
    """The kernel's macros; `scale_block` as `kernels.fp8.parts_of` has it. Raises `ValueError` for
    more rows than its registers hold.
    """
    most = config.most_blocked_rows if scale_block > 1 else MAX_WIDE_ROWS
    if tile_rows > most:
        raise ValueError(f"{config} has tiles of {tile_rows} rows, scales by {scale_block}")
    shared = (SHARED_BYTES + _RESERVED_BYTES) // config.programs - _RESERVED_BYTES
    stages = min(config.stages, shared // _stage_bytes(config.groups, tile_rows))
    fetching, multiplying = _REGISTERS[config.groups]
    return {
        "GROUPS": config.groups, "ROWS": tile_rows, "STAGES": stages, "SPLITS": config.splits,
        "SWIGLU": int(form.swiglu), "BIAS": int(form.has_bias),
        "RESIDUAL": int(form.has_residual),
        "ONCE": int(config.reads_once),
        "BAND": config.band, "FETCH_REGISTERS": fetching, "MULTIPLY_REGISTERS": multiplying,
        "FP8": int(scale_block > 0), "BLOCKED": int(scale_block > 1), "PROGRAMS": config.programs,
    }  # fmt: skip


def features_of(config: Wide, form: EpilogueForm) -> int:
    """The columns of the result that a tile has."""
    return 64 * config.groups // (1 + form.swiglu)


def num_programs(config: Wide, num_rows: int, num_out: int, form: EpilogueForm) -> int:
    """The programs of a launch."""
    row_tiles = -(-num_rows // config.tile_rows(num_rows))
    return -(-num_out // features_of(config, form)) * row_tiles * config.splits


def shared_bytes(constants: Mapping[str, int]) -> int:
    """The bytes of shared memory that a program takes."""
    return constants["STAGES"] * _stage_bytes(constants["GROUPS"], constants["ROWS"])


def _stage_bytes(groups: int, tile_rows: int) -> int:
    """Two tiles, and two barriers."""
    return (64 * groups + tile_rows) * _COLUMNS * 2 + _BARRIER_BYTES
