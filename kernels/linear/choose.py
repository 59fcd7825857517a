"""Which kernel serves a product, and how it is cut up.

Owns the rule and, in `tuned`, its exceptions. Must not know tensors. The measurements behind both
come from `python -m benchmarks.kernels linear_sweep`.
"""

from enum import StrEnum
from functools import cache
from typing import Final

import torch

from kernels.linear.config import Config, Gemv, Skinny
from kernels.linear.tuned import TUNED

MAX_ROWS: Final = 64
"""Beyond it the library serves what nobody has measured: it nears the tensor cores' rate."""

TUNED_ROWS: Final = (1, 2, 4, 16, 32, 64, 128)
"""Rows that are measured; other numbers use the next one's configuration, of the same padding."""

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
    op: Op, num_rows: int, num_weight_rows: int, depth: int, dtype: torch.dtype
) -> Config | None:
    """How to multiply rows [num_rows, depth] by a weight [num_weight_rows, depth]; None: library.

    float32 goes to the library: the tensor cores would round it to 10 bits.
    """
    if num_rows == 0 or num_rows > TUNED_ROWS[-1] or dtype not in _HALVES:
        return None
    return _choose(op, num_rows, num_weight_rows, depth)


@cache
def _choose(op: Op, num_rows: int, num_weight_rows: int, depth: int) -> Config | None:
    rows = next(tuned for tuned in TUNED_ROWS if tuned >= num_rows)
    key = (op.value, rows, num_weight_rows, depth)
    return TUNED[key] if key in TUNED else rule(op, rows, num_weight_rows, depth)


def rule(op: Op, num_rows: int, num_weight_rows: int, depth: int) -> Config | None:
    """The configuration of a shape that nobody has measured."""
    if num_rows > MAX_ROWS:
        return None
    if num_rows == 1 and depth <= _MAX_GEMV_DEPTH:
        return _gemv(op, num_weight_rows, depth)
    return _skinny(num_rows, num_weight_rows, depth)


def _gemv(op: Op, num_weight_rows: int, depth: int) -> Gemv:
    """About 32 KB per program, but at least four programs per SM."""
    num_warps = 4 if depth % 1024 == 0 else 2
    block_n, least = 16, 2 if op is Op.NORM_SWIGLU else 1
    while block_n > least and (block_n * depth > 16384 or num_weight_rows < 4 * _SMS * block_n):
        block_n //= 2
    return Gemv(block_n, num_warps * 256, num_warps)


def _skinny(num_rows: int, num_weight_rows: int, depth: int) -> Skinny:
    """64 weight rows, and as many splits as make two programs per SM, each of 3 tiles or more."""
    block_n, block_k = 64, 128 if num_rows <= 32 else 64
    tiles = -(-num_weight_rows // block_n)
    splits = even_splits(depth, block_k, min(2 * _SMS // tiles, depth // (3 * block_k), 8))
    return Skinny(block_n, block_k, splits, num_warps=4, num_stages=4)


def even_splits(depth: int, block_k: int, splits: int) -> int:
    """At most `splits`, and none of them without work: parts are whole tiles."""
    tiles = -(-depth // block_k)
    per_split = -(-tiles // max(1, splits))
    return -(-tiles // per_split)
