"""Finds the best tiles of `kernels.linear.int4_tiles` for the shapes of `int4`.

`python -m benchmarks.kernels int4_sweep --jobs 12 --json FILE`; the best of each case is printed.
"""

from collections.abc import Iterator

import torch

from benchmarks.kernels.case import Case
from benchmarks.kernels.int4 import LAYERS, case
from kernels.linear import int4_tiles
from kernels.linear.config import Int4Tiles

_FEW = (
    Int4Tiles(2, 2, 2, 1, 1, 4, 3),
    Int4Tiles(4, 1, 1, 1, 1, 6, 2),
    Int4Tiles(4, 1, 2, 1, 1, 4, 2),
    Int4Tiles(2, 4, 2, 1, 1, 6, 2),
    Int4Tiles(2, 2, 1, 1, 1, 6, 3),
    Int4Tiles(4, 2, 1, 1, 1, 6, 2),
)
"""For up to 16 rows."""

_MANY = (
    Int4Tiles(4, 2, 2, 8, 1, 4, 1, early=True),
    Int4Tiles(4, 1, 2, 8, 1, 4, 1, early=True),
    Int4Tiles(2, 2, 2, 8, 1, 2, 2, early=True),
    Int4Tiles(4, 2, 1, 8, 1, 4, 1, early=True),
    Int4Tiles(8, 1, 2, 8, 1, 3, 1, early=True),
    Int4Tiles(8, 1, 1, 8, 1, 4, 1),
    Int4Tiles(4, 1, 1, 8, 1, 2, 2),
)
"""For more."""

_SPLITS = (1, 2, 3, 4, 6, 8)
_PROGRAMS = range(120, 300)


def cases(device: torch.device) -> Iterator[Case]:
    """Every candidate of every shape for 1, 16 and 64 rows; none off CUDA."""
    if device.type != "cuda":
        return
    for op, num_weight_rows, depth in LAYERS[:4]:
        for num_rows in (1, 16, 64):
            configs = [*_candidates(num_rows, num_weight_rows, depth)]
            yield case(op, num_rows, num_weight_rows, depth, configs, device)


def _candidates(num_rows: int, num_weight_rows: int, depth: int) -> Iterator[Int4Tiles]:
    """Each with as many splits as fill the card once, and twice."""
    eights = -(-num_rows // 8)
    chosen = int4_tiles.chosen(num_rows, num_weight_rows, depth)
    yield chosen
    for tile in _FEW if eights <= 2 else _MANY:
        tiles = -(-num_weight_rows // tile.tile)
        counts = [n for n in _SPLITS if n * tiles in _PROGRAMS] or [1]
        for splits in {counts[0], counts[-1]}:
            config = tile._replace(eights=eights, splits=splits)
            if config != chosen and depth // int4_tiles.COLUMNS >= 2 * splits:
                yield config
