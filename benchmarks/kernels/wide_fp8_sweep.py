"""Finds the best configuration of `kernels.linear.wide` for weights in 8 bits, beside the present
choice, in less than a minute.

`python -m benchmarks.kernels wide_fp8_sweep --jobs 15 --json FILE`, then `python -m
benchmarks.linear_table --fp8 --onto FILE`: entries of other sizes
stay. The first variant of a case is the choice without it; `--case T=64` measures those rows only.
"""

from collections.abc import Iterator, Sequence

import torch

from benchmarks.kernels.case import KernelCase
from benchmarks.kernels.fp8 import SHAPES, case
from benchmarks.kernels.fp8_27b_sweep import SHAPES as SHAPES_27B
from kernels.linear.choose import Op, choose
from kernels.linear.config import MAX_TILE_ROWS, MAX_WIDE_ROWS, Config, Wide

_DRAFTED = ((Op.NORM_LINEAR, 10240, 4096), (Op.NORM_LINEAR, 151936, 4096))  # 128 rows: 8 at once
"""Products of DFlash besides its layers, which have the model's shapes: keys and values of the
context, and the copy of the head.
"""

_GATES = Op.NORM_SWIGLU, 24576, 4096
_BANDS = (4, 8, 16)

_SMALL_DEPTH = 3072
"""The 0.6B's products are over before all their programs have begun."""

_TILES = {
    Op.NORM_LINEAR: ((1, 1), (1, 2), (2, 1), (2, 2)),
    Op.LINEAR_ADD: ((1, 1), (1, 2), (2, 2), (2, 3), (3, 3)),
    Op.NORM_SWIGLU: ((2, 1), (3, 1)),
}
"""Groups and splits."""

_TILES_OF_MANY = ((2, 1), (3, 1))
_MOST_DEEP_ROWS = 64
_MANY = 2**15
"""Weight rows that make many tiles for each multiprocessor."""


def cases(device: torch.device) -> Iterator[KernelCase]:
    """The layers of an 8B by decodes and drafts, a drafter's other products, and 64 sequences of a
    27B; none without CUDA.
    """
    if device.type != "cuda":
        return
    sizes = [(shape, (16, 64, 128, 192, 256)) for shape in SHAPES if shape[2] > _SMALL_DEPTH]
    sizes += [(shape, (128,)) for shape in _DRAFTED]
    sizes += [(shape, (64, 192)) for shape in SHAPES_27B[:4]]  # decodes; and two drafts of each
    sizes += [(_GATES, (1024, 4096))]  # drafts of 64 sequences, and prompts
    for (op, num_weight_rows, depth), all_rows in sizes:
        for num_rows in all_rows:
            size = op, num_rows, num_weight_rows, depth
            usual = choose(*size, torch.bfloat16, 1)
            configs = [] if usual is None else [usual]
            if num_rows > MAX_WIDE_ROWS:
                configs += [Wide(3, 1, band=band) for band in _BANDS]
            else:
                wides = [*_wides(op, num_weight_rows)]
                configs += [*wides, *_deeper(wides, num_rows), *_halves(op, num_rows)]
            yield case(*size, configs, device, peers=False)


def _wides(op: Op, num_weight_rows: int) -> Iterator[Wide]:
    is_many = num_weight_rows > _MANY and op is not Op.NORM_SWIGLU
    for groups, splits in _TILES_OF_MANY if is_many else _TILES[op]:
        yield Wide(groups, splits, reads_once=splits > 1)


def _deeper(wides: Sequence[Wide], num_rows: int) -> Iterator[Config]:
    """Variants with more of the weight in flight ahead of the product, and with longer reads of
    it.
    """
    for wide in wides:
        if wide.groups == 1 and num_rows <= _MOST_DEEP_ROWS:
            yield wide._replace(stages=20)
            yield wide._replace(stages=20, cached_bytes=256)
        elif wide.groups > 2 and num_rows <= 2 * _MOST_DEEP_ROWS:
            yield wide._replace(cached_bytes=256)


def _halves(op: Op, num_rows: int) -> Iterator[Config]:
    if op is not Op.NORM_SWIGLU and num_rows > MAX_TILE_ROWS:
        for groups, splits in ((2, 2), (3, 2)):
            yield Wide(groups, splits, band=2, rows=num_rows // 2)
