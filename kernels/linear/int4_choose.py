"""How products by `int4_tiles` are cut up for an H200: rows of x, weight rows and columns only.

Owns the tables. Must not know tensors. They follow `python -m benchmarks.kernels int4_sweep`.

Programs of a cluster find their places less easily than single ones: where two of them fill every
multiprocessor, some clusters wait for others to end (12,288 columns by 4 programs took as long as
by 2 of twice the work). So few rows of x take single programs, one for each multiprocessor: tiles
of few weight rows, whose columns several groups of warps take in turns. They leave room for a
program of the next product, which has its first tiles on their way before this one has ended.
"""

from functools import cache
from itertools import product
from typing import Final

from kernels.linear.config import Int4Tiles
from kernels.linear.int4_tiles import COLUMNS, fits

_MULTIPROCESSORS: Final = 132
"""Of an H200."""
_LEAST_STEPS: Final = 4
_MAX_SPLITS: Final = 8
"""Programs of a cluster."""

_IN_TURNS: Final = (
    Int4Tiles(1, 4, 2, 1, 1, 12, 2, turns=4),
    Int4Tiles(1, 4, 3, 1, 1, 9, 2, turns=3),
    Int4Tiles(2, 2, 2, 1, 1, 6, 2, turns=2),
)
"""Up to 8 rows, where one program for each multiprocessor has all weight rows."""

_DEEP: Final = Int4Tiles(1, 4, 2, 1, 1, 9, 2, turns=3)
_DEEP_COLUMNS: Final = 12288
"""Beyond it scales leave room for fewer stages: more programs have more on their way."""
_MOST_DEEP_ROWS: Final = 2 * 32 * _MULTIPROCESSORS

_LEAST_SHARE: Final = 0.75
"""Of the multiprocessors; fewer programs share their columns."""

_MANY_TILES: Final = (Int4Tiles(2, 2, 2, 1, 1, 4, 3), Int4Tiles(2, 2, 3, 1, 1, 3, 3))
"""Up to 8 rows, three programs on a multiprocessor: the one whose last round is fuller."""

_TILES: Final = {
    1: (Int4Tiles(2, 2, 2, 1, 1, 6, 2), 2), 2: (Int4Tiles(2, 2, 2, 2, 1, 4, 3), 2),
    4: (Int4Tiles(2, 2, 2, 4, 1, 4, 2), 2), 8: (Int4Tiles(4, 2, 1, 8, 1, 4, 1, early=True), 1),
}  # fmt: skip
"""By eights of rows; programs on a multiprocessor that share columns."""

_LARGE: Final = {
    2: Int4Tiles(3, 2, 3, 2, 1, 3, 2, early=True), 8: Int4Tiles(2, 2, 2, 8, 1, 2, 2, early=True),
}  # fmt: skip
"""The same where the tiles of 64 weight rows fill the card more than once."""

_GROUPED: Final = tuple(
    Int4Tiles(warps_m, warps_k, 1, eights, splits, 4, 1, early=True, wgmma=True)
    for (warps_m, warps_k), eights, splits in product(((12, 1), (8, 1), (4, 2)), (4, 8), (1, 2, 3))
)
"""By the tensor cores of warp groups. Clusters of more than three do not find places everywhere,
and of 128 rows of x only two stages fit: by calculation little is loaded beside.
"""
_LEAST_GROUPED: Final = 17
"""Rows of x. The norm of fewer is in the product, where warps multiply alone."""
_STEP_US: Final = {4: 0.26, 8: 0.42}
"""Of 64 weight rows, by eights of rows: 80 % of the tensor cores' rate, or what the lanes take that
make the numbers.
"""
_CACHE_BYTES_PER_US: Final = 7e6
"""Of the L2 cache, from which each program reads all rows of x."""
_FIXED_US: Final = (0.0, 4.0, 4.5, 4.5)
_AT_ONCE: Final = (0, 132, 132, 120)
"""Programs, one on a multiprocessor; both by how many share columns."""

_INVARIANT: Final = Int4Tiles(4, 1, 1, 8, 1, 4, 1)
"""Its rows of x are as many as there are: each sum is added up in the same order."""


@cache
def chosen(
    num_rows: int,
    num_weight_rows: int,
    depth: int,
    *,
    group: int = 128,
    invariant: bool = False,
    has_wgmma: bool = False,
) -> Int4Tiles:
    """How a product is cut up; with `invariant` columns as the weight alone has it. `has_wgmma`: in
    bfloat16, weights and x, where warp groups were found to multiply right.
    """
    eights = min(8, 1 << max(0, -(-num_rows // 8) - 1).bit_length())
    if invariant:
        config = _INVARIANT._replace(eights=eights)
        programs = _programs(config, num_weight_rows)
        return _shared(config, programs, _MULTIPROCESSORS, depth)
    if has_wgmma and num_rows >= _LEAST_GROUPED:
        costs = {
            config: _grouped_us(config, num_rows, num_weight_rows, depth)
            for config in _GROUPED
            if fits(config, depth, group)
        }
        if costs:
            return min(costs, key=lambda config: costs[config])
    if eights == 1 and (single := _single(num_weight_rows, depth)) is not None:
        return single
    config, at_once = _TILES[eights]
    row_tiles = -(-num_rows // (8 * eights))
    programs = _programs(config, num_weight_rows) * row_tiles
    slots = _MULTIPROCESSORS * (config.blocks if eights == 2 else at_once)
    if eights in _LARGE and programs > slots:
        return _LARGE[eights]
    return _shared(config, programs, _MULTIPROCESSORS * at_once, depth)


def _single(num_weight_rows: int, depth: int) -> Int4Tiles | None:
    """Up to 8 rows of x, by programs that share nothing; None where they would be too few."""
    for config in _IN_TURNS:
        programs = _programs(config, num_weight_rows)
        if programs <= _LEAST_SHARE * _MULTIPROCESSORS:
            return None
        if depth > _DEEP_COLUMNS and num_weight_rows <= _MOST_DEEP_ROWS:
            return _DEEP
        if programs <= _MULTIPROCESSORS:
            return config
    slots = 3 * _MULTIPROCESSORS
    rows = {
        config: -(-_programs(config, num_weight_rows) // slots) * config.tile
        for config in _MANY_TILES
    }
    return min(_MANY_TILES, key=lambda config: rows[config])


def _shared(config: Int4Tiles, programs: int, slots: int, depth: int) -> Int4Tiles:
    """With as many programs for each tile as run at once."""
    most = min(_MAX_SPLITS, slots // programs, -(-depth // COLUMNS) // _LEAST_STEPS)
    return config._replace(splits=max(1, most))


def _grouped_us(config: Int4Tiles, num_rows: int, num_weight_rows: int, depth: int) -> float:
    """By calculation: rounds of programs, each of so many steps, that the cache or the tensor cores
    limit.
    """
    tile_rows = 8 * config.eights
    programs = _programs(config, num_weight_rows) * -(-num_rows // tile_rows) * config.splits
    rounds = -(-programs // _AT_ONCE[config.splits])
    steps = -(-depth // (COLUMNS * config.splits))
    step_bytes = config.tile * COLUMNS // 2 + tile_rows * COLUMNS * 2
    read_us = step_bytes * min(programs, _AT_ONCE[config.splits]) / _CACHE_BYTES_PER_US
    step_us = max(read_us, config.tile // 64 * _STEP_US[config.eights])
    return rounds * steps * step_us + _FIXED_US[config.splits]


def _programs(config: Int4Tiles, num_weight_rows: int) -> int:
    return -(-num_weight_rows // config.tile)
