"""Finds the best tiles of `kernels.linear.int4_tiles` for the shapes of `int4`.

`python -m benchmarks.kernels int4_sweep --jobs 15 --json FILE`; the best of each case is printed.
The tiles of `kernels.linear.int4_choose` follow from it, and `python -m benchmarks.linear_table
--int4 FILE` writes where the rule finds others. Some 60 s on an H200 with 16
cores; `--case "T=1 "` or `--case "T=16 "` alone 25 s.
"""

from collections.abc import Iterator

import torch

from benchmarks.kernels.case import KernelCase
from benchmarks.kernels.int4 import LAYERS, case
from kernels.linear import int4_choose, int4_tiles
from kernels.linear.config import Int4Tiles


def _lone(
    warps_m: int, warps_k: int, m_tiles: int, wide: int, stages: int, blocks: int, turns: int = 1
) -> Int4Tiles:
    return Int4Tiles(
        warps_m, warps_k, m_tiles, 1, 1, stages, blocks, turns=turns, wide=wide, lone=True
    )


_CANDIDATES = {
    1: (
        _lone(1, 4, 2, 1, 15, 2, 3),
        _lone(1, 4, 2, 1, 15, 2),
        *[_lone(1, 1, 1, 1, 24, blocks, 8) for blocks in (2, 3)],
        *[_lone(1, 1, 1, 2, 16, blocks, 8) for blocks in (2, 3)],
        _lone(1, 1, 2, 1, 16, 2, 8),
        _lone(1, 2, 1, 2, 12, 2, 4),
        _lone(1, 2, 2, 2, 8, 2, 4),
        _lone(1, 2, 1, 4, 8, 2, 4),
        _lone(1, 4, 2, 2, 8, 2, 2),
        _lone(1, 4, 2, 2, 8, 2),
        _lone(1, 4, 2, 4, 4, 2),
        _lone(1, 4, 2, 4, 4, 2, 2),
        _lone(1, 4, 3, 1, 12, 2, 2),
        _lone(1, 4, 3, 2, 6, 2),
        _lone(1, 4, 3, 2, 6, 2, 2),
        _lone(1, 4, 3, 4, 3, 2),
        _lone(1, 8, 2, 2, 8, 2),
        _lone(1, 8, 2, 4, 4, 2),
        _lone(1, 8, 3, 2, 6, 2),
        _lone(1, 8, 3, 4, 3, 2),
        _lone(2, 4, 2, 1, 6, 2),
        _lone(2, 4, 2, 2, 4, 2),
        _lone(2, 2, 2, 1, 6, 3),
        _lone(2, 2, 2, 2, 3, 3),
        _lone(2, 4, 2, 2, 3, 3),
        _lone(2, 2, 3, 1, 6, 2),
        _lone(2, 4, 3, 1, 6, 2),
        _lone(2, 4, 3, 2, 3, 2),
        _lone(2, 4, 3, 1, 4, 3),
        Int4Tiles(1, 4, 2, 1, 1, 12, 2, turns=4),
        Int4Tiles(1, 4, 2, 1, 1, 9, 2, turns=3),
        Int4Tiles(2, 2, 1, 1, 1, 12, 2, turns=4),
        Int4Tiles(1, 4, 3, 1, 1, 9, 2, turns=3),
        Int4Tiles(2, 2, 2, 1, 1, 6, 2, turns=2),
        Int4Tiles(2, 2, 2, 1, 1, 6, 1, turns=3),
        Int4Tiles(4, 2, 2, 1, 1, 6, 1, turns=2),
        Int4Tiles(2, 2, 2, 1, 1, 6, 2),
        Int4Tiles(2, 2, 2, 1, 1, 4, 3),
        Int4Tiles(2, 2, 2, 1, 1, 3, 3),
        Int4Tiles(2, 2, 3, 1, 1, 3, 3),
        Int4Tiles(2, 2, 3, 1, 1, 4, 2, turns=2),
    ),
    4: (
        _lone(1, 4, 2, 2, 8, 2),
        _lone(1, 4, 2, 2, 6, 2, 2),
        _lone(1, 4, 2, 4, 4, 2),
        _lone(1, 4, 3, 2, 6, 2, 2),
        _lone(2, 4, 2, 2, 4, 2),
        _lone(2, 2, 2, 1, 4, 3),
        _lone(2, 2, 2, 2, 2, 3),
        _lone(2, 2, 3, 1, 6, 2),
        _lone(2, 2, 3, 1, 3, 3),
        _lone(2, 4, 3, 2, 3, 2),
    ),
    16: (
        Int4Tiles(2, 2, 2, 2, 1, 4, 3),
        Int4Tiles(2, 2, 2, 2, 1, 2, 3, wide=2),
        Int4Tiles(2, 4, 2, 2, 1, 3, 2, wide=2),
        Int4Tiles(1, 4, 3, 2, 1, 3, 2, wide=2),
        Int4Tiles(2, 2, 2, 2, 1, 4, 2, turns=2),
        Int4Tiles(2, 2, 2, 2, 1, 6, 1, turns=3),
        Int4Tiles(1, 4, 2, 2, 1, 6, 2, turns=3),
        Int4Tiles(2, 2, 2, 2, 1, 8, 1, turns=4),
        Int4Tiles(2, 2, 2, 2, 1, 12, 1, turns=6),
        Int4Tiles(4, 2, 2, 2, 1, 6, 1, turns=2),
        Int4Tiles(4, 2, 3, 2, 1, 4, 1, turns=2),
        Int4Tiles(6, 2, 2, 2, 1, 4, 1, turns=2),
        Int4Tiles(12, 2, 1, 2, 1, 4, 1),
        Int4Tiles(9, 2, 2, 2, 1, 3, 1),
        Int4Tiles(3, 2, 3, 2, 1, 3, 2, early=True),
        Int4Tiles(2, 2, 3, 2, 1, 2, 3, early=True),
        Int4Tiles(8, 1, 1, 2, 1, 6, 1, early=True, wgmma=True),
        Int4Tiles(12, 1, 1, 2, 1, 4, 1, early=True, wgmma=True),
    ),
    32: (
        Int4Tiles(2, 2, 2, 4, 1, 4, 2),
        Int4Tiles(8, 1, 1, 4, 1, 4, 1, early=True, wgmma=True),
        Int4Tiles(12, 1, 1, 4, 1, 4, 1, early=True, wgmma=True),
    ),
    64: (
        Int4Tiles(4, 2, 1, 8, 1, 4, 1, early=True),
        Int4Tiles(4, 2, 1, 8, 1, 4, 1, early=True, turns=2),
        Int4Tiles(2, 2, 2, 8, 1, 2, 2, early=True),
        Int4Tiles(12, 1, 1, 8, 1, 4, 1, early=True, wgmma=True),
        Int4Tiles(8, 1, 1, 8, 1, 4, 1, early=True, wgmma=True),
        Int4Tiles(8, 2, 1, 8, 1, 4, 1, early=True, wgmma=True),
        Int4Tiles(4, 2, 1, 8, 1, 4, 1, early=True, wgmma=True),
    ),
    128: (
        Int4Tiles(12, 1, 1, 16, 1, 4, 1, early=True, wgmma=True),
        Int4Tiles(8, 1, 1, 16, 1, 4, 1, early=True, wgmma=True),
    ),
    512: (),
}
"""By rows of x; of the last the choice and the widened weight alone."""

_MULTIPROCESSORS = 132
_FEWEST, _MOST = 96, 560
"""Programs, before their columns are shared."""
_GROUP = 128


def cases(device: torch.device) -> Iterator[KernelCase]:
    """Every candidate of every shape for 1 to 512 rows; none off CUDA."""
    if device.type != "cuda":
        return
    for op, num_weight_rows, depth in LAYERS:
        for num_rows in _CANDIDATES:
            configs = [*dict.fromkeys(_candidates(num_rows, num_weight_rows, depth))]
            yield case(op, num_rows, num_weight_rows, depth, configs, device)


def _candidates(num_rows: int, num_weight_rows: int, depth: int) -> Iterator[Int4Tiles]:
    """Each alone if that makes programs enough, and with as many splits as fill the card."""
    yield int4_choose.chosen(num_rows, num_weight_rows, depth, has_wgmma=True)
    for tile in _CANDIDATES[num_rows]:
        if not int4_tiles.fits(tile._replace(splits=3), depth, _GROUP):
            continue
        tiles = -(-num_weight_rows // tile.tile)
        if _FEWEST <= tiles <= _MOST and int4_tiles.fits(tile, depth, _GROUP):
            yield tile
        splits = _MULTIPROCESSORS * min(2, tile.blocks) // tiles
        is_tried = num_rows > 1 or tile.stages == 6 or tile.wide == 2
        most = depth // (4 * int4_tiles.COLUMNS)
        if is_tried and 2 <= splits <= most:
            yield tile._replace(splits=splits)
