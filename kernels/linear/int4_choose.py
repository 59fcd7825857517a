"""How products by `int4_tiles` are cut up for an H200: rows of x, weight rows and columns only.

Owns the rule; its exceptions are in `measured`. Must not know tensors. Both follow `python -m
benchmarks.kernels int4_sweep`.

Programs of a cluster find their places less easily than single ones: where two of them fill every
multiprocessor, some clusters wait for others to end (12,288 columns by 4 programs took as long as
by 2 of twice the work). So few rows of x take single programs, or pairs of deep weights, as many as
run at once. A stage of 256 columns takes about 0.3 us of a program, however few weight rows it has:
tiles of few weight rows have stages of 512 or 1,024.
"""

from functools import cache
from itertools import product
from typing import Final

from kernels.linear.config import Int4Tiles
from kernels.linear.int4_tiles import COLUMNS, fits
from kernels.linear.measured import TUNED_INT4

_MULTIPROCESSORS: Final = 132
"""Multiprocessors of an H200."""
_LEAST_STEPS: Final = 4
_MAX_SPLITS: Final = 8
"""The most programs of a cluster."""

_DEEP_COLUMNS: Final = 8192
"""Beyond it the steps of one program take too long, one after the other: two share them."""

_MOST_LONE_COLUMNS: Final = 20480
"""A longer row, whole in shared memory, leaves too little of it for stages."""

_FEW_BY_32: Final = Int4Tiles(
    warps_m=1, warps_k=4, m_tiles=2, eights=1, splits=1, stages=6, blocks=2, turns=2, wide=2
)
"""2 to 8 rows of x, in tiles of 32 weight rows."""

_ROW_BY_32: Final = _FEW_BY_32._replace(stages=4, wide=4, lone=True)
"""A single row of x, in tiles of 32 weight rows."""

_DEEP_ROW_BY_32: Final = _ROW_BY_32._replace(stages=6, blocks=1, turns=3)
"""The tiles for one row by a deep weight, one program on a multiprocessor."""

_DEEP_ROW_BY_16: Final = _FEW_BY_32._replace(warps_k=2, m_tiles=1, stages=12, turns=4, lone=True)
"""A single row of x by a deep weight, in tiles of 16 weight rows."""

_PAIR_BY_32: Final = _FEW_BY_32._replace(splits=2, stages=8, lone=True)
"""Up to 8 rows of x: two programs share the columns of a tile of 32 weight rows."""

_PAIR_BY_48: Final = _PAIR_BY_32._replace(m_tiles=3, stages=6)
"""Up to 8 rows of x: two programs share the columns of a tile of 48 weight rows."""

_TWO_AT_ONCE: Final = Int4Tiles(
    warps_m=2, warps_k=4, m_tiles=2, eights=1, splits=1, stages=4, blocks=2, wide=2, lone=True
)
"""Up to 8 rows of x, in tiles of 64 weight rows, two programs on a multiprocessor."""

_ROW_THREE_AT_ONCE: Final = (
    Int4Tiles(warps_m=2, warps_k=2, m_tiles=2, eights=1, splits=1, stages=6, blocks=3, lone=True),
    Int4Tiles(warps_m=2, warps_k=4, m_tiles=3, eights=1, splits=1, stages=4, blocks=3, lone=True),
)
"""A single row of x, in tiles of 64 or 96 weight rows, three programs on a multiprocessor: the one
whose last round is fuller.
"""

_FEW_THREE_AT_ONCE: Final = (
    Int4Tiles(warps_m=2, warps_k=2, m_tiles=2, eights=1, splits=1, stages=4, blocks=3),
    Int4Tiles(warps_m=2, warps_k=2, m_tiles=3, eights=1, splits=1, stages=3, blocks=3),
)
"""2 to 8 rows of x, in tiles of 64 or 96 weight rows, three programs on a multiprocessor: the
one whose last round is fuller.
"""

_LEAST_SHARE: Final = 0.75
"""The least share of the multiprocessors that programs must fill; where they are fewer, several
share their columns.
"""

_LEAST_ALONE: Final = 0.7
"""The least share of the multiprocessors that programs of 9 to 16 rows must fill, one on each."""

_TILES: Final = {
    1: (Int4Tiles(warps_m=2, warps_k=2, m_tiles=2, eights=1, splits=1, stages=6, blocks=2), 2),
    4: (Int4Tiles(warps_m=2, warps_k=2, m_tiles=2, eights=4, splits=1, stages=4, blocks=2), 2),
    8: (
        Int4Tiles(
            warps_m=4, warps_k=2, m_tiles=1, eights=8, splits=1, stages=4, blocks=1, early=True
        ),
        1,
    ),
}
"""The tiles by eights of rows, for programs on a multiprocessor that share columns."""

_SIXTEEN: Final = (
    Int4Tiles(warps_m=2, warps_k=2, m_tiles=2, eights=2, splits=1, stages=6, blocks=1, turns=3),
    Int4Tiles(warps_m=2, warps_k=2, m_tiles=2, eights=2, splits=1, stages=4, blocks=2, turns=2),
    Int4Tiles(warps_m=2, warps_k=2, m_tiles=2, eights=2, splits=1, stages=4, blocks=3),
)
"""9 to 16 rows, by the programs that a multiprocessor has to hold: 1 to 3."""

_LARGE_SIXTEEN: Final = Int4Tiles(
    warps_m=2, warps_k=2, m_tiles=3, eights=2, splits=1, stages=2, blocks=3, early=True
)
_LARGE: Final = Int4Tiles(
    warps_m=2, warps_k=2, m_tiles=2, eights=8, splits=1, stages=2, blocks=2, early=True
)
"""The first is for 9 to 16 rows of x, the second for more, where tiles of 64 weight rows fill the
card more than once.
"""


def grouped(warps_m: int, warps_k: int, eights: int, splits: int) -> Int4Tiles:
    """Tiles that are multiplied by warp groups; see `Int4Tiles`."""
    return Int4Tiles(
        warps_m=warps_m,
        warps_k=warps_k,
        m_tiles=1,
        eights=eights,
        splits=splits,
        stages=4,
        blocks=1,
        early=True,
        wgmma=True,
    )


_GROUPED: Final = tuple(
    grouped(warps_m, warps_k, eights, splits)
    for (warps_m, warps_k), eights, splits in product(((12, 1), (8, 1), (4, 2)), (4, 8), (1, 2, 3))
)
"""The tiles by the tensor cores of warp groups. Clusters of more than three do not find places
everywhere, and of 128 rows of x only two stages fit.
"""

MEASURED_ROWS: Final = (32, 64, 128)
"""The most rows of x for which the sweep's best tiles are kept where the rules find others."""

_LEAST_GROUPED: Final = 17
"""The least rows of x for warp groups. With fewer rows the norm is in the product, where warps
multiply alone.
"""
_STEP_US: Final = {4: 0.26, 8: 0.42}
"""Microseconds of a step of 64 weight rows, by eights of rows: 80 % of the tensor cores' rate, or
what the lanes take that make the numbers.
"""
_CACHE_BYTES_PER_US: Final = 7e6
"""Bytes per microsecond of the L2 cache, from which each program reads all rows of x."""
_FIXED_US: Final = (0.0, 4.0, 4.5, 4.5)
_AT_ONCE: Final = (0, 132, 132, 120)
"""Programs, one on a multiprocessor; both by how many share columns."""

_INVARIANT: Final = Int4Tiles(
    warps_m=4, warps_k=1, m_tiles=1, eights=8, splits=1, stages=4, blocks=1
)
"""The tiles with `invariant`. Their rows of x are as many as there are, and each sum is added up in
the same order.
"""


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
    if invariant:
        config = _INVARIANT._replace(eights=_eights(num_rows))
        programs = _programs(config, num_weight_rows)
        return _shared(config, programs, _MULTIPROCESSORS, depth)
    if has_wgmma and (found := _measured(num_rows, num_weight_rows, depth, group)) is not None:
        return found
    return by_rule(num_rows, num_weight_rows, depth, group=group, has_wgmma=has_wgmma)


@cache
def by_rule(
    num_rows: int,
    num_weight_rows: int,
    depth: int,
    *,
    group: int = 128,
    has_wgmma: bool = False,
) -> Int4Tiles:
    """How a product is cut up that was not measured; see `chosen`."""
    eights = _eights(num_rows)
    if has_wgmma and num_rows >= _LEAST_GROUPED:
        costs = {
            config: _grouped_us(config, num_rows, num_weight_rows, depth)
            for config in _GROUPED
            if fits(config, depth, group)
        }
        if costs:
            return min(costs, key=lambda config: costs[config])
    if eights == 1 and (few := _few(num_rows, num_weight_rows, depth)) is not None:
        return few
    if eights == 2:
        return _sixteen(num_weight_rows, depth)
    config, at_once = _TILES[eights]
    row_tiles = -(-num_rows // (8 * eights))
    programs = _programs(config, num_weight_rows) * row_tiles
    if eights == 8 and programs > _MULTIPROCESSORS:
        return _LARGE
    return _shared(config, programs, _MULTIPROCESSORS * at_once, depth)


def _eights(num_rows: int) -> int:
    """Eights of rows of a tile: a power of two, at most 8."""
    return min(8, 1 << max(0, -(-num_rows // 8) - 1).bit_length())


def _measured(num_rows: int, num_weight_rows: int, depth: int, group: int) -> Int4Tiles | None:
    most_rows = 1 << (num_rows - 1).bit_length()
    config = TUNED_INT4.get((most_rows, num_weight_rows, depth))
    return config if config is not None and fits(config, depth, group) else None


def _few(num_rows: int, num_weight_rows: int, depth: int) -> Int4Tiles | None:
    """Up to 8 rows of x; None where programs would be too few."""
    most, programs = 2 * _MULTIPROCESSORS, _programs(_ROW_BY_32, num_weight_rows)
    if programs <= _LEAST_SHARE * _MULTIPROCESSORS:
        return None
    is_one = num_rows == 1
    if is_one and depth > _MOST_LONE_COLUMNS:
        found = _few(2, num_weight_rows, depth)
        return found and found._replace(lone=False)
    if programs > most:
        if _programs(_TWO_AT_ONCE, num_weight_rows) <= most:
            return _TWO_AT_ONCE
        return _fuller(_ROW_THREE_AT_ONCE if is_one else _FEW_THREE_AT_ONCE, num_weight_rows)
    if is_one and depth > _DEEP_COLUMNS and programs <= _MULTIPROCESSORS:
        return _DEEP_ROW_BY_32
    if is_one and depth > _DEEP_COLUMNS and _programs(_DEEP_ROW_BY_16, num_weight_rows) <= most:
        return _DEEP_ROW_BY_16
    for config in (_PAIR_BY_32, _PAIR_BY_48):
        is_shared = depth > _DEEP_COLUMNS
        if is_shared and config.splits * _programs(config, num_weight_rows) <= most:
            return config
    return _ROW_BY_32 if is_one else _FEW_BY_32


def _fuller(tiles: tuple[Int4Tiles, ...], num_weight_rows: int) -> Int4Tiles:
    """The one whose last round of three programs on a multiprocessor is fuller."""
    slots = 3 * _MULTIPROCESSORS
    rows = {
        config: -(-_programs(config, num_weight_rows) // slots) * config.tile for config in tiles
    }
    return min(tiles, key=lambda config: rows[config])


def _sixteen(num_weight_rows: int, depth: int) -> Int4Tiles:
    """9 to 16 rows of x."""
    one, _, three = _SIXTEEN
    programs = _programs(one, num_weight_rows)
    if programs > 3 * _MULTIPROCESSORS:
        return _LARGE_SIXTEEN
    if programs > _MULTIPROCESSORS:
        return _SIXTEEN[-(-programs // _MULTIPROCESSORS) - 1]
    alone = _shared(one, programs, _MULTIPROCESSORS, depth)
    if alone.splits * programs >= _LEAST_ALONE * _MULTIPROCESSORS:
        return alone
    return _shared(three, programs, 2 * _MULTIPROCESSORS, depth)


def _shared(config: Int4Tiles, programs: int, slots: int, depth: int) -> Int4Tiles:
    """The config with as many programs for each tile as run at once."""
    most = min(_MAX_SPLITS, slots // programs, -(-depth // COLUMNS) // _LEAST_STEPS)
    return config._replace(splits=max(1, most))


def _grouped_us(config: Int4Tiles, num_rows: int, num_weight_rows: int, depth: int) -> float:
    """The calculated time in us: rounds of programs, each of some steps, which the cache or the
    tensor cores limit.
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
