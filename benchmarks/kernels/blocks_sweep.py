"""Products of weights in 8 bits with scales by block: what is chosen, other tiles of the kernel
that multiplies them as they lie, and Triton's kernel, which widens them, or the library.

`python -m benchmarks.kernels blocks_sweep --jobs 15 --json FILE`. The first variant of a case is
the choice; `--case T=64` measures those rows only.
"""

from collections.abc import Iterator
from itertools import product
from typing import Final

import torch

from benchmarks.kernels.case import KernelCase
from benchmarks.kernels.fp8 import case
from kernels.fp8 import BLOCK
from kernels.linear.choose import Op, choose
from kernels.linear.config import MAX_TILE_ROWS, Config, Wide

_ROWS: Final = (2, 8, 16, 64, 128, 256, 384, 553, 1024, 4096)
_PRODUCTS: Final = (
    (Op.NORM_LINEAR, 5120, 2048),
    (Op.LINEAR_ADD, 2048, 4096),
    (Op.NORM_LINEAR, 6144, 4096),
    (Op.LINEAR_ADD, 4096, 4096),
    (Op.NORM_SWIGLU, 24576, 4096),
    (Op.LINEAR_ADD, 4096, 12288),
    (Op.NORM_SWIGLU, 34816, 5120),
    (Op.LINEAR_ADD, 5120, 17408),
    (Op.NORM_SWIGLU, 6144, 1024),
)
"""The shapes of products in a 30B mixture, an 8B, a 27B and a 0.6B."""

_TILES: Final = ((1, 1), (1, 3), (2, 2), (3, 1), (3, 4))
"""Warp groups, and programs that share a tile's columns."""

_TILES_OF_MANY: Final = (
    (3, 1, 144),
    (3, 2, 144),
    (3, 1, 128),
    (3, 1, 112),
    (2, 1, 144),
    (2, 2, 128),
)
"""The same with rows of a tile."""


def cases(device: torch.device) -> Iterator[KernelCase]:
    """The cases; there are none off CUDA."""
    if device.type != "cuda":
        return
    for (op, num_weight_rows, depth), num_rows in product(_PRODUCTS, _ROWS):
        size = op, num_rows, num_weight_rows, depth
        chosen, widening = (
            choose(*size, torch.bfloat16, BLOCK, has_wide=has_wide) for has_wide in (True, False)
        )
        configs: dict[Config | None, None] = {chosen: None, widening: None}
        configs |= dict.fromkeys(_others(op, num_rows))
        yield case(*size, list(configs), device, by_block=True, peers=False)


def _others(op: Op, num_rows: int) -> Iterator[Wide]:
    most_splits = 1 if op is Op.NORM_SWIGLU else 4
    if num_rows > MAX_TILE_ROWS:
        for groups, splits, rows in _TILES_OF_MANY:
            if splits <= most_splits:
                yield Wide(groups=groups, splits=splits, rows=rows, band=8)
        return
    for groups, splits in _TILES:
        if splits <= most_splits:
            yield Wide(groups=groups, splits=splits, reads_once=True, stages=20)
