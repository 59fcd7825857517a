"""Finds the best configuration of `kernels.linear` for weights in 8 bits, scaled by row.

`python -m benchmarks.kernels fp8_sweep --jobs 14 --json FILE`, then `python -m
benchmarks.linear_table --fp8 FILE`. The 27B's shapes have a sweep of
their own, `fp8_27b_sweep`.
"""

from collections.abc import Iterator

import torch

from benchmarks.kernels.case import KernelCase
from benchmarks.kernels.fp8 import SHAPES, case
from kernels.linear.choose import TUNED_ROWS_FP8, Op, even_splits
from kernels.linear.config import MAX_TILE_ROWS, Config, Gemv, Skinny

SMS = 132
_SHARED_BYTES = 227 * 1024

# block_n, block_k, warps, stages, by padded rows. For unquantised x: winners on an H200.
_TILES = {
    16: [(64, 128, 4, 4), (64, 256, 4, 3), (64, 256, 4, 4), (128, 128, 8, 4), (128, 256, 8, 3)],
    32: [(64, 128, 4, 4), (64, 256, 4, 3), (128, 128, 8, 4)],
    64: [(64, 128, 4, 4), (128, 128, 8, 3)],
    128: [(64, 64, 4, 4)],
}
# For x in 8 bits too: 50 to 130 KB of shared memory each.
_TILES_QUANTISED = {
    16: [(64, 128, 4, 4), (64, 256, 4, 3), (64, 256, 4, 4), (64, 512, 4, 3), (128, 256, 8, 3)],
    32: [(64, 128, 4, 4), (64, 256, 4, 3), (64, 256, 4, 4), (128, 256, 8, 3)],
    64: [(64, 128, 4, 4), (64, 256, 4, 3), (128, 128, 8, 4), (128, 256, 8, 3)],
    128: [(64, 128, 4, 4), (128, 128, 8, 4), (128, 256, 8, 3)],
}


def cases(device: torch.device) -> Iterator[KernelCase]:
    """Every candidate of every shape at every tuned number of rows."""
    shapes = SHAPES if device.type == "cuda" else [(Op.LINEAR_ADD, 64, 96)]
    for op, num_weight_rows, depth in shapes:
        for num_rows in TUNED_ROWS_FP8:
            configs = [*gemvs(op, num_rows, num_weight_rows, depth)] if num_rows <= 2 else []
            if num_rows > 1:
                configs += skinnies(op, num_rows, num_weight_rows, depth)
            yield case(op, num_rows, num_weight_rows, depth, configs, device, peers=False)


def gemvs(op: Op, num_rows: int, num_weight_rows: int, depth: int) -> Iterator[Config]:
    """Configurations with 8 to 64 KB per program and at least one program per SM; for two rows only
    4 warps.
    """
    for num_warps in (2, 4, 8) if num_rows == 1 else (4,):
        for block_n in (1, 2, 4, 8, 16):
            num_bytes = block_n * depth
            registers = num_bytes / (num_warps * 32 * 4)
            if (
                (4096 if depth < 4096 else 8192) <= num_bytes <= 65536
                and registers <= (96 if num_rows == 1 else 64)
                and num_warps * 256 <= depth
                and num_weight_rows >= SMS * block_n
                and not (op is Op.NORM_SWIGLU and block_n == 1)
            ):
                yield Gemv(block_n, num_warps * 256, num_warps)


def skinnies(op: Op, num_rows: int, num_weight_rows: int, depth: int) -> Iterator[Skinny]:
    """Configurations with as many programs as the card holds at once, or half as many of twice the
    length.

    Unquantised x with a norm, fused or separate: widened weights leave few registers for it.
    """
    rows = max(16, num_rows)
    has_norm = op in {Op.NORM_LINEAR, Op.NORM_SWIGLU}
    for quantises in (False, True):
        for tile in (_TILES_QUANTISED if quantises else _TILES)[min(rows, MAX_TILE_ROWS)]:
            block_n, block_k, num_warps, num_stages = tile
            if block_n > 64 and num_weight_rows < 4096:
                continue
            shared = (
                (block_n + min(rows, MAX_TILE_ROWS) * (1 if quantises else 2))
                * block_k
                * num_stages
            )
            tiles = -(-num_weight_rows // block_n) * -(-rows // MAX_TILE_ROWS)
            at_once = SMS * min(4, _SHARED_BYTES // shared) // tiles
            full = even_splits(depth, block_k, min(at_once, depth // (2 * block_k), 16))
            config = Skinny(block_n, block_k, full, num_warps, num_stages, quantises=quantises)
            yield config
            if full > 2:
                yield config._replace(splits=even_splits(depth, block_k, full // 2))
            if has_norm and not quantises:
                yield config._replace(fuses_norm=False)
