"""Which kernel serves a product, and how it is cut up.

Owns the rule and, in `tuned`, its exceptions. Must not know tensors. The measurements behind both
come from `python -m benchmarks.kernels linear_sweep` and `fp8_sweep`.
"""

from enum import StrEnum
from functools import cache
from typing import Final

import torch

from kernels.linear.config import MAX_TILE_ROWS, Config, Gemv, Skinny
from kernels.linear.tuned import TUNED
from kernels.linear.tuned_fp8 import TUNED as TUNED_FP8

MAX_ROWS: Final = 64
"""Beyond it the library serves what nobody has measured: it nears the tensor cores' rate."""

MAX_BLOCKED_ROWS: Final = 512
"""Of weights with scales by block: 128 rows at once read one byte per weight and multiply it at the
rate of 16 bits, the library's way costs 5 bytes per weight before it does."""

TUNED_ROWS: Final = (1, 2, 4, 16, 32, 64, 128, 192, 256)
"""Rows that are measured; other numbers use the next one's configuration, of the same padding up to
128."""

_HALVES: Final = frozenset({torch.bfloat16, torch.float16})

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
) -> Config | None:
    """How to multiply rows [num_rows, depth] by a weight [num_weight_rows, depth]; None: library.

    `scale_block` 0 is a weight in `dtype`, 1 one in 8 bits with scales by row, more by block.
    float32 goes to the library: the tensor cores would round it to 10 bits.
    """
    if num_rows == 0 or dtype not in _HALVES:
        return None
    if scale_block > 1:
        return _choose_blocked(op, num_rows, num_weight_rows, depth, scale_block)
    if num_rows > TUNED_ROWS[-1]:
        return None
    return _choose(op, num_rows, num_weight_rows, depth, scale_block == 1)


@cache
def _choose(op: Op, num_rows: int, num_weight_rows: int, depth: int, is_fp8: bool) -> Config | None:
    rows = next(tuned for tuned in TUNED_ROWS if tuned >= num_rows)
    key = (op.value, rows, num_weight_rows, depth)
    table = TUNED_FP8 if is_fp8 else TUNED
    return table[key] if key in table else rule(op, rows, num_weight_rows, depth, is_fp8=is_fp8)


@cache
def _choose_blocked(
    op: Op, num_rows: int, num_weight_rows: int, depth: int, scale_block: int
) -> Config | None:
    """As by row, in tiles that one scale serves. The library would widen the whole weight."""
    if num_rows > MAX_BLOCKED_ROWS:
        return None
    config = _choose(op, min(num_rows, MAX_TILE_ROWS), num_weight_rows, depth, is_fp8=True)
    if isinstance(config, Gemv):
        return config
    if config is None:
        config = _skinny(min(num_rows, MAX_TILE_ROWS), num_weight_rows, depth, is_fp8=True)
    block_n, block_k = min(config.block_n, scale_block), min(config.block_k, scale_block)
    splits = even_splits(depth, block_k, config.splits)
    return config._replace(block_n=block_n, block_k=block_k, splits=splits, quantises=False)


def rule(
    op: Op, num_rows: int, num_weight_rows: int, depth: int, *, is_fp8: bool = False
) -> Config | None:
    """The configuration of a shape that nobody has measured."""
    if num_rows > MAX_ROWS:
        return None
    if num_rows == 1 and depth <= _MAX_GEMV_DEPTH:
        return _gemv(op, num_weight_rows, depth, is_fp8=is_fp8)
    return _skinny(num_rows, num_weight_rows, depth, is_fp8=is_fp8)


def _gemv(op: Op, num_weight_rows: int, depth: int, *, is_fp8: bool) -> Gemv:
    """About 32 KB per program, but at least four programs per SM."""
    num_warps = 4 if depth % 1024 == 0 else 2
    size = 32768 if is_fp8 else 16384
    block_n, least = 16, 2 if op is Op.NORM_SWIGLU else 1
    while block_n > least and (block_n * depth > size or num_weight_rows < 4 * _SMS * block_n):
        block_n //= 2
    return Gemv(block_n, num_warps * 256, num_warps)


def _skinny(num_rows: int, num_weight_rows: int, depth: int, *, is_fp8: bool) -> Skinny:
    """64 weight rows, and as many splits as make two programs per SM, each of 3 tiles or more.

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
    splits = even_splits(depth, block_k, min(2 * _SMS // tiles, depth // (3 * block_k), 8))
    return Skinny(block_n, block_k, splits, num_warps, num_stages)


def even_splits(depth: int, block_k: int, splits: int) -> int:
    """At most `splits`, and none of them without work: parts are whole tiles."""
    tiles = -(-depth // block_k)
    per_split = -(-tiles // max(1, splits))
    return -(-tiles // per_split)
