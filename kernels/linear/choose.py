"""Which kernel serves a product, and how it is cut up.

Owns the rule and, in `tuned`, its exceptions. Must not know tensors. The measurements behind both
come from `python -m benchmarks.kernels linear_sweep` and `fp8_sweep`.
"""

from enum import StrEnum
from functools import cache
from typing import Final

import torch

from kernels.linear.config import MAX_TILE_ROWS, MAX_WIDE_ROWS, Config, Gemv, Skinny, Wide
from kernels.linear.tuned import TUNED
from kernels.linear.tuned_fp8 import TUNED as TUNED_FP8

MAX_ROWS: Final = 64
"""Beyond it the library serves shapes without a measurement: it nears the tensor cores' rate."""

MAX_BLOCKED_ROWS: Final = 512
"""Limit for weights with scales by block: 128 rows at once read one byte per weight and multiply it
at the rate of 16 bits, the library's way costs 5 bytes per weight before it does."""

TUNED_ROWS: Final = (1, 2, 4, 16, 32, 64, 128, 160, 208, 256)
"""Rows that are measured; other numbers use the next one's configuration, of the same padding up to
128. 160 and 208 are the sizes of decode graphs."""

TUNED_ROWS_FP8: Final = (1, 2, 4, 16, 32, 64, 128, 192, 256)
"""The same for weights in 8 bits."""

_HALVES: Final = frozenset({torch.bfloat16, torch.float16})

_UNKNOWN: Final = Wide(0, 0)
"""No entry."""

_LONG: Final = Wide(3, 1, reads_once=False, band=8)
"""For a prompt's gates and ups: the library's product alone is 2 to 3 % faster, and leaves them to
a kernel that reads them once more (decision 0016)."""

_LONG_FP8: Final[Wide | None] = None
"""The same in 8 bits: of an 8B's gates and ups with SwiGLU, `_LONG` takes 163 us of 1,024 rows
where the library takes 168, but 686 of 4,096 where it takes 629 (`python -m benchmarks.kernels
wide_fp8_sweep --case swiglu`, H200)."""

_NARROW_ROWS: Final = 32

_ROWS_AT_ONCE: Final = 16
"""What tensor cores multiply at least."""

_PADDED_ROWS: Final = range(5, 17)
_PADDED_WEIGHTS: Final = 2**24
"""Rows that are multiplied as 16, of layers as large as those of Qwen3-8B: a decode of 8 sequences
with all products of a layer by the wide kernel took 4.28 ms where those of `tuned` took 4.51
(`python -m benchmarks.engine.modes`, H200), though its attention was the slower one."""

_FEW: Final = Wide(1, 1, reads_once=True, stages=20)
"""All but the tiles for so few rows. With as many stages as shared memory holds, up to 17 MB of
weights are on their way ahead of a product: 3 to 6 % less of 8 rows than with 8 stages, but for the
tiles of gates and ups (`python -m benchmarks.kernels rows_sweep --case T=8`, H200)."""

_FEW_OF_MANY: Final = Wide(3, 1, reads_once=True)

_WIDE_WEIGHTS: Final = 2**23
"""A product of 3 million weights is over before its programs have begun well."""

_HEAD_ROWS: Final = 2**15

_LONG_DEPTH: Final = 2048
_LONG_PADDING: Final = 32
"""One row of padding to so many takes as much as is won."""

_EIGHT_BIT_TILES: Final = {
    16: ((64, 512, 4, 3), (64, 256, 4, 3), (128, 256, 8, 3)),
    32: ((64, 256, 4, 3), (64, 128, 4, 4)),
    64: ((64, 256, 4, 3), (64, 128, 4, 4), (128, 128, 8, 4)),
    128: ((128, 256, 8, 3), (64, 128, 4, 4)),
}
"""Weight rows, columns, warps and stages, by padded rows: those that won for the layers of
Qwen3-0.6B and 8B with weights and x in 8 bits (`tuned_fp8`), the most frequent first."""

_MOST_SPLITS: Final = 4
_SM_BYTES: Final = 227 * 1024

_FEW_WEIGHT_ROWS: Final = 128
"""So few are two tiles: what counts is how long one program takes, not how many bytes all read."""

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
        return _choose_blocked(op, num_rows, num_weight_rows, depth, scale_block)
    is_large = num_weight_rows * depth >= _PADDED_WEIGHTS and num_weight_rows <= _HEAD_ROWS
    is_fp8 = scale_block == 1
    if has_wide and not is_fp8 and is_large and num_rows in _PADDED_ROWS:
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
    # Two and four rows that were not measured are padded to 16.
    padded = max(rows, _ROWS_AT_ONCE) if rows > 1 else 1
    keys = [(op.value, size, num_weight_rows, depth) for size in (rows, padded)]
    found = next((table[key] for key in keys if key in table), _UNKNOWN)
    if found is _UNKNOWN or (isinstance(found, Wide) and not has_wide):
        # In 8 bits only what was measured is left to it.
        by_rule = has_wide and not is_fp8
        return rule(op, rows, num_weight_rows, depth, is_fp8=is_fp8, has_wide=by_rule)
    return found


def _tuned_rows(num_rows: int, *, is_fp8: bool) -> int:
    rows = TUNED_ROWS_FP8 if is_fp8 else TUNED_ROWS
    return next(tuned for tuned in rows if tuned >= num_rows)


def _is_tuned(op: Op, num_rows: int, num_weight_rows: int, depth: int) -> bool:
    """Whether by Triton's kernels, which alone read scales by block."""
    rows = _tuned_rows(num_rows, is_fp8=True)
    found = TUNED_FP8.get((op.value, rows, num_weight_rows, depth), _UNKNOWN)
    return not isinstance(found, Wide)


@cache
def _choose_blocked(
    op: Op, num_rows: int, num_weight_rows: int, depth: int, scale_block: int
) -> Config | None:
    """As by row, in tiles that one scale serves. The library would widen the whole weight."""
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
    """As many programs as run at once, or the largest tiles if there are more. A SwiGLU is not cut
    along its columns.
    """
    splits = (1,) if op is Op.NORM_SWIGLU else (1, 2, 3)
    found = {
        _FEW._replace(groups=groups, splits=split): split * -(-num_weight_rows // (64 * groups))
        for split in splits
        for groups in (1, 2, 3)
    }
    fitting = {config: programs for config, programs in found.items() if programs <= _SMS}
    if not fitting:
        return _FEW_OF_MANY
    return max(fitting, key=lambda config: fitting[config])


def _suits_long(op: Op, num_rows: int, depth: int) -> bool:
    """Rows are multiplied by the 256: 300 as 512, which takes half as long again as the library."""
    padded = -(-num_rows // MAX_WIDE_ROWS) * MAX_WIDE_ROWS
    is_deep_swiglu = op is Op.NORM_SWIGLU and depth >= _LONG_DEPTH
    return is_deep_swiglu and padded - num_rows <= num_rows // _LONG_PADDING


def library_rows(most: int) -> int:
    """The largest number of rows up to `most`, beyond those that are measured, whose gates and ups
    the library multiplies on any card: it leaves them in memory, where ours leaves their SwiGLU, a
    third. 0 if there is none.
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
    """What is best, or nearly, for all of Qwen3-8B's layers at 64 to 256 rows."""
    if op is Op.NORM_SWIGLU:
        return Wide(3, 1)
    if op is Op.LINEAR_ADD:
        return Wide(1, 2, reads_once=True)
    return None if num_weight_rows > _HEAD_ROWS else Wide(2, 2, reads_once=True)


def _gemv(op: Op, num_weight_rows: int, depth: int, *, is_fp8: bool) -> Gemv:
    """About 32 KB per program, but at least four programs per SM. In 8 bits two rows of 17,408: of
    one x would be twice as many bytes as the weights.
    """
    num_warps = 4 if depth % 1024 == 0 else 2
    size = 35 * 1024 if is_fp8 else 16384
    block_n, least = 16, 2 if op is Op.NORM_SWIGLU else 1
    while block_n > least and (block_n * depth > size or num_weight_rows < 4 * _SMS * block_n):
        block_n //= 2
    return Gemv(block_n, num_warps * 256, num_warps)


def _narrow(num_rows: int, depth: int) -> Skinny:
    """Four tiles of columns, which are on their way at once, and 16 rows of x: of 64 rows, 96
    weight rows and 5,120 columns 80 programs, where `_skinny` makes 16 of ten tiles each, of whose
    sums the last has to read four times as many. Of more rows 32, so that all run at once; the
    library takes a kernel for the norm, one for the product and one for its sums.
    """
    block_k, num_stages = 128, 4
    splits = even_splits(depth, block_k, -(-depth // (num_stages * block_k)))
    block_rows = _ROWS_AT_ONCE if num_rows <= MAX_ROWS else 2 * _ROWS_AT_ONCE
    return Skinny(64, block_k, splits, 4, num_stages, block_rows=block_rows)


def _skinny(num_rows: int, num_weight_rows: int, depth: int, *, is_fp8: bool = False) -> Skinny:
    """64 weight rows, and as many splits as make two programs per SM, each of 3 tiles or more. Of
    more tiles three programs share an SM: 544 of gates and ups would take two rounds and a
    sixteenth. So it is for all such shapes of Qwen3-8B that were measured.

    Beside weights of one byte x weighs twice as much, and a tile of them fetches it again: so 128
    weight rows where there are enough.
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
    return Skinny(block_n, block_k, splits, num_warps, num_stages)


def _of_eight_bits(num_rows: int, num_weight_rows: int, depth: int) -> Skinny:
    """That of the tiles whose programs leave the fewest places of the card empty: 17,408 columns of
    the 80 tiles of an output are shared by four programs each, 544 tiles of gates and ups by none.
    """
    padded = max(16, num_rows)
    found: dict[Skinny, float] = {}
    for block_n, block_k, num_warps, num_stages in _EIGHT_BIT_TILES[padded]:
        tile_bytes = (block_n + padded) * block_k
        at_once = _SMS * min(4, _SM_BYTES // (tile_bytes * num_stages))
        tiles = -(-num_weight_rows // block_n)
        wanted = min(at_once // tiles, depth // (2 * block_k), _MOST_SPLITS)
        splits = even_splits(depth, block_k, wanted)
        config = Skinny(block_n, block_k, splits, num_warps, num_stages, quantises=True)
        programs = tiles * splits
        found[config] = programs / (-(-programs // at_once) * at_once)
    return max(found, key=lambda config: found[config])


def even_splits(depth: int, block_k: int, splits: int) -> int:
    """At most `splits`, and none of them without work: parts are whole tiles."""
    tiles = -(-depth // block_k)
    per_split = -(-tiles // max(1, splits))
    return -(-tiles // per_split)
