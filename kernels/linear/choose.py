"""Which kernel serves a product, and how it is cut up.

Owns the rule; its exceptions are in `measured`. Must not know tensors. The measurements behind both
come from `python -m benchmarks.kernels linear_sweep` and `fp8_sweep`.
"""

from collections.abc import Mapping
from enum import StrEnum
from functools import cache
from typing import Final

import torch

from kernels.linear.config import MAX_TILE_ROWS, MAX_WIDE_ROWS, Config, Gemv, Skinny, Wide
from kernels.linear.measured import TUNED, TUNED_FP8, Product

MAX_ROWS: Final = 64
"""The most rows of shapes without a measurement. For more the library nears the tensor cores' rate.
"""

MAX_BLOCKED_ROWS: Final = 512
"""The most rows by weights with scales by block in Triton. That kernel reads one byte per weight
for every 128 rows and multiplies at the rate of 16 bits; the library first costs 5 bytes of traffic
per weight.
"""

TUNED_ROWS: Final = (1, 2, 4, 8, 16, 32, 64, 128, 160, 208, 256)
"""The numbers of rows that are measured. Other numbers of rows use the configuration of the next
larger number, which has the same padding up to 128 rows. 160 and 208 are sizes of decode graphs. 5
to 16 rows are all multiplied as 16; large products are measured with 8 of them.
"""

TUNED_ROWS_FP8: Final = (1, 2, 4, 16, 32, 64, 128, 192, 256)
"""The numbers of rows that are measured for weights in 8 bits."""

_HALVES: Final = frozenset({torch.bfloat16, torch.float16})

_UNKNOWN: Final = Wide(groups=0, splits=0)
"""Stands for a missing entry of a table, where None means the library."""

_LONG: Final = Wide(groups=3, splits=1, reads_once=False, band=8)
"""The tiles for a prompt's gates and ups. The library's product alone is 2 to 3 % faster, but then
another kernel must read its result for the SwiGLU (decision 0016)."""

_LONG_FP8: Final[Wide | None] = None
"""A prompt's gates and ups in 8 bits: the library. For an 8B's gates and ups with SwiGLU `_LONG`
takes 163 us for 1,024 rows where the library takes 168, but 686 for 4,096 where the library takes
629 (`python -m benchmarks.kernels wide_fp8_sweep --case swiglu`, H200)."""

_NARROW_ROWS: Final = 32

_ROWS_AT_ONCE: Final = 16
"""The fewest rows that tensor cores multiply."""

_PADDED_ROWS: Final = range(5, 17)
_FEW_ROWS: Final = 8
_PADDED_WEIGHTS: Final = 2**24
"""`_PADDED_ROWS` rows, which are multiplied as 16, go to the wide kernel if the product has at
least `_PADDED_WEIGHTS` weights, as those of Qwen3-8B. A decode of 8 sequences took 4.28 ms with all
products of a layer by the wide kernel, and 4.51 with those of `measured`, though with a faster
attention (`python -m benchmarks.engine.modes`, H200)."""

_FEW: Final = Wide(groups=1, splits=1, reads_once=True, stages=20)
"""The wide kernel for so few rows; `of_few_rows` sets its tiles. With as many stages as shared
memory holds, up to 17 MB of weights are on their way ahead of a product. That takes 3 to 6 % less
time for 8 rows than 8 stages, except for the tiles of gates and ups (`python -m benchmarks.kernels
rows_sweep --case T=8`, H200)."""

_FEW_OF_MANY: Final = Wide(groups=3, splits=1, reads_once=True)

_NEARLY: Final = 0.95

_PROGRAMS_AT_ONCE: Final = {1: 132, 2: 132, 3: 114, 4: 120}
"""How many programs an H200 runs at once, by how many of them are a cluster, which lies within one
of its parts of 16 or 18 multiprocessors. 43 clusters of 3 took as long as two rounds: 8,192 weight
rows of a 27B 25.4 us, where 64 clusters of 2 take 20.8 (`python -m benchmarks.kernels
wide_27b_sweep`)."""

_ROUNDING: Final = tuple(
    Wide(groups=groups, splits=splits, rows=rows, band=8)
    for groups, rows in ((3, 144), (3, 128), (3, 112), (2, 144), (2, 128))
    for splits in (1, 2)
)
"""The tiles of many rows for weights with scales by block. Few sizes, as each is compiled."""

_BEGINNING: Final = 400_000
"""The cost of a program beside its products, as a number of products of a warp group (`_cost`)."""

_FEWER_GROUPS: Final = {2: 1.1}
"""The factor by which products of fewer than three warp groups take longer."""

_WIDE_WEIGHTS: Final = 2**23
"""The fewest weights of a product by the wide kernel without a measurement: one of 3 million is
over before all its programs have started."""

_HEAD_ROWS: Final = 2**15

_LONG_DEPTH: Final = 2048
_LONG_PADDING: Final = 32
"""If more than one row in this many is padding, the padding costs more than `_LONG` gains."""

_EIGHT_BIT_TILES: Final = {
    16: ((64, 512, 4, 3), (64, 256, 4, 3), (128, 256, 8, 3)),
    32: ((64, 256, 4, 3), (64, 128, 4, 4)),
    64: ((64, 256, 4, 3), (64, 128, 4, 4), (128, 128, 8, 4)),
    128: ((128, 256, 8, 3), (64, 128, 4, 4)),
}
"""Tiles by padded rows, as weight rows, columns, warps and stages: those that were the fastest for
layers of Qwen3-0.6B and 8B with weights and x in 8 bits (`measured`), the most frequent first."""

_MOST_SPLITS: Final = 4
_SM_BYTES: Final = 227 * 1024

_FEW_WEIGHT_ROWS: Final = 128
"""A weight of at most this many rows makes two tiles. Then the time of one program counts, not the
number of bytes that all programs read.
"""

_MAX_GEMV_DEPTH: Final = 32768
_SMS: Final = 132


class Op(StrEnum):
    """The entries of `kernels.linear`."""

    LINEAR = "linear"
    NORM_LINEAR = "norm_linear"
    NORM_SWIGLU = "norm_swiglu"
    LINEAR_ADD = "linear_add"


def choose(
    op: Op,
    num_rows: int,
    num_weight_rows: int,
    depth: int,
    dtype: torch.dtype,
    scale_block: int = 0,
    *,
    has_wide: bool = False,
) -> Config | None:
    """How to multiply rows [num_rows, depth] by a weight [num_weight_rows, depth]; None: library.

    `scale_block` 0 is a weight in `dtype`, 1 one in 8 bits with scales by row, more by block.
    float32 goes to the library: the tensor cores would round it to 10 bits. `has_wide` says whether
    `kernels.linear.wide` serves this product here.
    """
    if num_rows == 0 or dtype not in _HALVES:
        return None
    if scale_block > 1:
        if has_wide and num_rows > 1:
            return _rounding(op, num_rows, num_weight_rows, depth, scale_block)
        return _choose_blocked(op, num_rows, num_weight_rows, depth, scale_block)
    is_fp8 = scale_block == 1
    if has_wide and not is_fp8 and num_rows in _PADDED_ROWS:
        known = TUNED.get((op.value, _FEW_ROWS, num_weight_rows, depth), _UNKNOWN)
        if known is not _UNKNOWN:
            return known
        if num_weight_rows * depth >= _PADDED_WEIGHTS and num_weight_rows <= _HEAD_ROWS:
            return of_few_rows(op, num_weight_rows)
    if num_rows > TUNED_ROWS[-1]:
        is_long = has_wide and _suits_long(op, num_rows, depth)
        return (_LONG_FP8 if is_fp8 else _LONG) if is_long else None
    return _choose(op, num_rows, num_weight_rows, depth, is_fp8, has_wide)


@cache
def _choose(
    op: Op,
    num_rows: int,
    num_weight_rows: int,
    depth: int,
    is_fp8: bool,
    has_wide: bool = False,
) -> Config | None:
    rows = _tuned_rows(num_rows, is_fp8=is_fp8)
    table = TUNED_FP8 if is_fp8 else TUNED
    found = _measured(table, op, rows, num_weight_rows, depth)
    if found is _UNKNOWN or (isinstance(found, Wide) and not has_wide):
        # In 8 bits the wide kernel serves only what was measured.
        by_rule = has_wide and not is_fp8
        return rule(op, rows, num_weight_rows, depth, is_fp8=is_fp8, has_wide=by_rule)
    return found


def _measured(
    table: Mapping[Product, Config | None], op: Op, rows: int, num_weight_rows: int, depth: int
) -> Config | None:
    """The configuration in a table; else `_UNKNOWN`."""
    # Two to eight rows that were not measured are padded to 16.
    padded = (_FEW_ROWS, _ROWS_AT_ONCE) if 1 < rows < _ROWS_AT_ONCE else ()
    keys = [(op.value, size, num_weight_rows, depth) for size in (rows, *padded)]
    return next((table[key] for key in keys if key in table), _UNKNOWN)


def _tuned_rows(num_rows: int, *, is_fp8: bool) -> int:
    rows = TUNED_ROWS_FP8 if is_fp8 else TUNED_ROWS
    return next(tuned for tuned in rows if tuned >= num_rows)


def _is_tuned(op: Op, num_rows: int, num_weight_rows: int, depth: int) -> bool:
    """Whether the product was measured with Triton's kernels, the only ones for scales by block."""
    rows = _tuned_rows(num_rows, is_fp8=True)
    found = TUNED_FP8.get((op.value, rows, num_weight_rows, depth), _UNKNOWN)
    return not isinstance(found, Wide)


@cache
def _rounding(op: Op, num_rows: int, num_weight_rows: int, depth: int, scale_block: int) -> Wide:
    """The tiles that multiply rows rounded to 8 bits by weights with scales by block. Nine shapes
    of 2 to 4,096 rows take 1 % longer than by the best of five to nine tiles, and 12 % at most
    (`python -m benchmarks.kernels blocks_sweep`, H200).
    """
    most_splits = 1 if op is Op.NORM_SWIGLU else max(1, depth // scale_block)
    if num_rows > MAX_TILE_ROWS:
        fitting = (config for config in _ROUNDING if config.splits <= most_splits)
        return min(fitting, key=lambda config: _cost(config, num_rows, num_weight_rows, depth))
    return _at_once(num_weight_rows, most_splits, is_large=True) or _FEW_OF_MANY


def _cost(config: Wide, num_rows: int, num_weight_rows: int, depth: int) -> float:
    """A measure of time: the rounds in which programs run, times what a program of each takes."""
    tiles = -(-num_weight_rows // (64 * config.groups)) * -(-num_rows // config.rows)
    rounds = -(-tiles * config.splits // _PROGRAMS_AT_ONCE[config.splits])
    columns = config.groups * config.tile_rows(num_rows) * depth / config.splits
    return rounds * (_BEGINNING + columns * _FEWER_GROUPS.get(config.groups, 1.0))


@cache
def _choose_blocked(
    op: Op, num_rows: int, num_weight_rows: int, depth: int, scale_block: int
) -> Config | None:
    """The configuration for scales by row, with tiles that do not cross a scale's block. The
    library would widen the whole weight.
    """
    if num_rows > MAX_BLOCKED_ROWS:
        return None
    rows = min(num_rows, MAX_TILE_ROWS)
    config = _choose(op, rows, num_weight_rows, depth, is_fp8=True)
    if isinstance(config, Gemv):
        return config
    if not isinstance(config, Skinny) or not _is_tuned(op, rows, num_weight_rows, depth):
        config = _skinny(rows, num_weight_rows, depth, is_fp8=True)
    block_n, block_k = min(config.block_n, scale_block), min(config.block_k, scale_block)
    splits = even_splits(depth, block_k, config.splits)
    return config._replace(block_n=block_n, block_k=block_k, splits=splits, quantises=False)


@cache
def of_few_rows(op: Op, num_weight_rows: int) -> Wide:
    """`_at_once`, or the largest tiles."""
    most_splits = 1 if op is Op.NORM_SWIGLU else max(_PROGRAMS_AT_ONCE)
    return _at_once(num_weight_rows, most_splits) or _FEW_OF_MANY


def _at_once(num_weight_rows: int, most_splits: int, *, is_large: bool = False) -> Wide | None:
    """The tiles with the most programs that still run at once, or with nearly as many programs and
    fewer splits (with `is_large`: larger tiles); None if no tiles qualify. A SwiGLU is not cut
    along its columns: its `most_splits` is 1.
    """
    fitting = {
        _FEW._replace(groups=groups, splits=splits): programs
        for splits, most in _PROGRAMS_AT_ONCE.items()
        for groups in (1, 2, 3)
        if splits <= most_splits
        and (programs := splits * -(-num_weight_rows // (64 * groups))) <= most
    }
    most = max(fitting.values(), default=0)
    nearly = [config for config, programs in fitting.items() if programs >= _NEARLY * most]
    if is_large:
        nearly.sort(key=lambda config: -config.groups)
    return next(iter(nearly), None)


def _suits_long(op: Op, num_rows: int, depth: int) -> bool:
    """Whether a product of many rows suits `_LONG`: a deep SwiGLU with little padding. Rows are
    padded to a multiple of 256; 300 padded to 512 take half as long again as the library.
    """
    padded = -(-num_rows // MAX_WIDE_ROWS) * MAX_WIDE_ROWS
    is_deep_swiglu = op is Op.NORM_SWIGLU and depth >= _LONG_DEPTH
    return is_deep_swiglu and padded - num_rows <= num_rows // _LONG_PADDING


def library_rows(most: int) -> int:
    """The largest number of rows, up to `most` and beyond the measured ones, whose gates and ups
    the library multiplies on every card; 0 if there is none. Such a step takes the most memory: the
    library writes gates and ups, where our kernel writes only their SwiGLU.
    """
    rows = range(most, TUNED_ROWS[-1], -1)
    return next((n for n in rows if not _suits_long(Op.NORM_SWIGLU, n, _LONG_DEPTH)), 0)


def rule(
    op: Op,
    num_rows: int,
    num_weight_rows: int,
    depth: int,
    *,
    is_fp8: bool = False,
    has_wide: bool = False,
) -> Config | None:
    """The configuration of a shape without a measurement."""
    if has_wide and num_rows > _NARROW_ROWS and num_weight_rows * depth >= _WIDE_WEIGHTS:
        return _wide(op, num_weight_rows)
    if num_weight_rows <= _FEW_WEIGHT_ROWS and num_rows > _ROWS_AT_ONCE and not is_fp8:
        return _narrow(num_rows, depth)
    if num_rows > (MAX_TILE_ROWS if is_fp8 else MAX_ROWS):
        return None
    if num_rows == 1 and depth <= _MAX_GEMV_DEPTH:
        return _gemv(op, num_weight_rows, depth, is_fp8=is_fp8)
    if is_fp8:
        return _of_eight_bits(num_rows, num_weight_rows, depth)
    return _skinny(num_rows, num_weight_rows, depth)


def _wide(op: Op, num_weight_rows: int) -> Wide | None:
    """The best configuration, or nearly, for all of Qwen3-8B's and a 27B's products at 64 to 256
    rows.
    """
    if op is Op.NORM_SWIGLU:
        return Wide(groups=3, splits=1)
    if num_weight_rows > _HEAD_ROWS:
        return Wide(groups=1, splits=2, reads_once=True) if op is Op.LINEAR_ADD else None
    return _at_once(num_weight_rows, max(_PROGRAMS_AT_ONCE)) or Wide(
        groups=2, splits=2, reads_once=True
    )


def _gemv(op: Op, num_weight_rows: int, depth: int, *, is_fp8: bool) -> Gemv:
    """About 32 KB of weights per program, but at least four programs per SM. In 8 bits a program
    has at least two rows of 17,408 columns: for one row, x would be more bytes than the weights.
    """
    num_warps = 4 if depth % 1024 == 0 else 2
    size = 35 * 1024 if is_fp8 else 16384
    block_n, least = 16, 2 if op is Op.NORM_SWIGLU else 1
    while block_n > least and (block_n * depth > size or num_weight_rows < 4 * _SMS * block_n):
        block_n //= 2
    return Gemv(block_n=block_n, block_k=num_warps * 256, num_warps=num_warps)


def _narrow(num_rows: int, depth: int) -> Skinny:
    """The tiles for few weight rows: programs of four tiles of columns, all on their way at once,
    and of 16 rows of x, or of 32 for many rows, so that all programs run at once. 64 rows by 96
    weight rows of 5,120 columns make 80 programs; `_skinny` makes 16 of ten tiles each, and the
    last of them has to read four times as many sums. The library takes three kernels: norm, product
    and sums.
    """
    block_k, num_stages = 128, 4
    splits = even_splits(depth, block_k, -(-depth // (num_stages * block_k)))
    block_rows = _ROWS_AT_ONCE if num_rows <= MAX_ROWS else 2 * _ROWS_AT_ONCE
    return Skinny(
        block_n=64,
        block_k=block_k,
        splits=splits,
        num_warps=4,
        num_stages=num_stages,
        block_rows=block_rows,
    )


def _skinny(num_rows: int, num_weight_rows: int, depth: int, *, is_fp8: bool = False) -> Skinny:
    """Tiles of 64 weight rows, and as many splits as make two programs per SM, each of at least 3
    tiles of columns. With more tiles than that, three programs share an SM: otherwise the 544 tiles
    of gates and ups would take two rounds and a sixteenth. This is the best for all such shapes of
    Qwen3-8B that were measured.

    With weights of one byte, x is twice as many bytes relative to them, and every tile reads x
    again. So tiles have 128 weight rows where there are enough.
    """
    block_n, block_k = 64, 128 if num_rows <= 32 else 64
    num_warps, num_stages = 4, 4
    if is_fp8:
        block_k = 128
        if num_weight_rows >= 4096:
            block_n, num_warps = 128, 8
        num_stages = 4 if num_rows <= 32 else 3
    tiles = -(-num_weight_rows // block_n)
    if not is_fp8 and tiles > 2 * _SMS:
        num_stages = 3
    splits = even_splits(depth, block_k, min(2 * _SMS // tiles, depth // (3 * block_k), 8))
    return Skinny(
        block_n=block_n, block_k=block_k, splits=splits, num_warps=num_warps, num_stages=num_stages
    )


def _of_eight_bits(num_rows: int, num_weight_rows: int, depth: int) -> Skinny:
    """The one of `_EIGHT_BIT_TILES` whose programs leave the fewest places of the card empty. Four
    programs share the 17,408 columns of each of the 80 tiles of an output; the 544 tiles of gates
    and ups are not shared.
    """
    padded = max(16, num_rows)
    found: dict[Skinny, float] = {}
    for block_n, block_k, num_warps, num_stages in _EIGHT_BIT_TILES[padded]:
        tile_bytes = (block_n + padded) * block_k
        at_once = _SMS * min(4, _SM_BYTES // (tile_bytes * num_stages))
        tiles = -(-num_weight_rows // block_n)
        wanted = min(at_once // tiles, depth // (2 * block_k), _MOST_SPLITS)
        splits = even_splits(depth, block_k, wanted)
        config = Skinny(
            block_n=block_n,
            block_k=block_k,
            splits=splits,
            num_warps=num_warps,
            num_stages=num_stages,
            quantises=True,
        )
        programs = tiles * splits
        found[config] = programs / (-(-programs // at_once) * at_once)
    return max(found, key=lambda config: found[config])


def even_splits(depth: int, block_k: int, splits: int) -> int:
    """At most `splits`, and none of them without work: parts are whole tiles."""
    tiles = -(-depth // block_k)
    per_split = -(-tiles // max(1, splits))
    return -(-tiles // per_split)
