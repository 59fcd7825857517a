"""Finds the best configuration of `kernels.linear` for each shape.

`python -m benchmarks.kernels linear_sweep --jobs 16 --json FILE`, then `python -m
benchmarks.linear_table FILE`.
"""

import itertools
from collections.abc import Iterator

import torch

from benchmarks.kernels.case import KernelCase
from benchmarks.kernels.linear import BARE, LAYERS, case
from kernels.linear.choose import TUNED_ROWS, Op, even_splits
from kernels.linear.config import Config, Gemv, Skinny

SMS = 132
_SHARED_BYTES = 227 * 1024

# block_n, block_k, warps, stages, by padded rows: 60 to 130 KB of shared memory each.
_TILES = {
    16: [
        (16, 256, 4, 4), (32, 128, 4, 4), (32, 256, 4, 3), (64, 64, 4, 6), (64, 128, 4, 3),
        (64, 128, 4, 4), (64, 256, 4, 3), (128, 64, 4, 4), (128, 128, 8, 3),
    ],
    32: [
        (32, 128, 4, 4), (64, 64, 4, 6), (64, 128, 4, 3), (64, 128, 4, 4), (128, 64, 4, 4),
        (128, 128, 8, 3),
    ],
    64: [
        (64, 64, 4, 4), (64, 64, 4, 6), (64, 128, 4, 3), (128, 64, 4, 4), (128, 64, 8, 4),
        (128, 128, 8, 3),
    ],
    128: [(64, 64, 4, 5), (128, 64, 8, 4), (128, 128, 8, 3)],
}  # fmt: skip
# The same with rows of x per program: 80 to 200 KB.
_TILES_OF_MANY = [
    (64, 64, 4, 5, 64), (128, 64, 4, 4, 64), (128, 64, 8, 4, 64), (64, 128, 4, 3, 64),
    (256, 64, 8, 3, 64), (64, 64, 4, 5, 128), (128, 64, 8, 4, 128), (128, 128, 8, 3, 128),
    (256, 64, 8, 3, 128), (128, 64, 8, 3, 256), (64, 64, 8, 4, 256),
]  # fmt: skip
_MANY_ROWS = 128
_FULL_ENOUGH = 0.85
"""Share of the card that must be busy while the last programs run."""


def cases(device: torch.device) -> Iterator[KernelCase]:
    """Every candidate of every shape at every tuned number of rows."""
    shapes = BARE + LAYERS if device.type == "cuda" else [(Op.LINEAR_ADD, 64, 96)]
    for op, num_weight_rows, depth in shapes:
        for num_rows in (1, 16, 64) if op is Op.LINEAR else TUNED_ROWS:
            configs = [*gemvs(op, num_rows, num_weight_rows, depth)] if num_rows <= 4 else []
            if num_rows >= _MANY_ROWS:
                configs += _of_many_rows(op, num_rows, num_weight_rows, depth)
            elif num_rows > 1:
                configs += skinnies(op, num_rows, num_weight_rows, depth)
            yield case(op, num_rows, num_weight_rows, depth, configs, device)


def gemvs(op: Op, num_rows: int, num_weight_rows: int, depth: int) -> Iterator[Config]:
    """Configurations with 4 to 64 KB per program and at least one program per SM; for several rows
    only 4 warps.
    """
    for num_warps in (2, 4, 8) if num_rows == 1 else (4,):
        for block_n in (1, 2, 4, 8, 16, 32):
            num_bytes = block_n * depth * 2
            registers = num_bytes / (num_warps * 32 * 4)
            if (
                4096 <= num_bytes <= 65536
                and registers <= (128 if num_rows == 1 else 64)
                and num_warps * 256 <= depth
                and num_weight_rows >= SMS * block_n
                and not (op is Op.NORM_SWIGLU and block_n == 1)
            ):
                yield Gemv(block_n, num_warps * 256, num_warps)


def skinnies(op: Op, num_rows: int, num_weight_rows: int, depth: int) -> Iterator[Config]:
    """Configurations with as many programs as the card holds at once, or half as many of twice the
    length.

    For comparison also with a separate norm, and without a prefetch.
    """
    rows = max(16, num_rows)
    for block_n, block_k, num_warps, num_stages in _TILES[rows]:
        shared = (block_n + rows) * block_k * 2 * num_stages
        tiles = -(-num_weight_rows // block_n)
        at_once = SMS * (_SHARED_BYTES // shared) // tiles
        full = even_splits(depth, block_k, min(at_once, depth // (2 * block_k), 16))
        config = Skinny(block_n, block_k, full, num_warps, num_stages)
        yield config
        if full > 1 and num_rows >= 16:
            yield config._replace(splits=even_splits(depth, block_k, full // 2))
        if op in {Op.NORM_LINEAR, Op.NORM_SWIGLU} and block_n >= 64 and num_rows >= 16:
            yield config._replace(fuses_norm=False)
        if block_n == 64 and num_stages == 4:
            yield config._replace(prefetched_bytes=0)


def _of_many_rows(op: Op, num_rows: int, num_weight_rows: int, depth: int) -> Iterator[Config]:
    """Each tile uncut, and cut along K into the fewest parts that nearly fill whole rounds of the
    card.
    """
    fuses_norm = op not in {Op.NORM_LINEAR, Op.NORM_SWIGLU}
    for block_n, block_k, num_warps, num_stages, block_rows in _TILES_OF_MANY:
        if block_rows >= 2 * num_rows:
            continue
        shared = (block_n + block_rows) * block_k * 2 * num_stages
        at_once = SMS * (_SHARED_BYTES // shared)
        tiles = -(-num_weight_rows // block_n) * -(-num_rows // block_rows)
        most = min(8, depth // (4 * block_k)) if tiles < 4 * at_once else 1
        cut = (even_splits(depth, block_k, n) for n in range(2, most + 1))
        full = (
            n for n in cut if tiles * n / at_once % 1 > _FULL_ENOUGH or tiles * n % at_once == 0
        )
        for splits in (1, *itertools.islice(full, 1)):
            yield Skinny(
                block_n,
                block_k,
                splits,
                num_warps,
                num_stages,
                fuses_norm=fuses_norm,
                block_rows=block_rows,
            )
