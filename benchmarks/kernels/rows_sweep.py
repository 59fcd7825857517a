"""Compares what serves an 8B's products of 8 to 256 rows with new configurations of
`kernels.linear.wide`, and gates and ups of 512 and 1,024 rows with the library, in half a minute.

`python -m benchmarks.kernels rows_sweep --jobs 15 --json FILE`, then `python -m
benchmarks.linear_table --onto FILE`: entries of other sizes stay. The
first variant of a case is what serves now. 8 rows have no entry: `_FEW` in
`kernels.linear.choose` is theirs.
"""

from collections.abc import Iterator

import torch

from benchmarks.kernels.case import KernelCase
from benchmarks.kernels.linear import LAYERS, case
from kernels.linear.choose import Op, choose
from kernels.linear.config import Config, Wide

_SMALL_DEPTH = 3072
"""The 0.6B's products are over before all their programs have begun."""

_HEAD_ROWS = 2**15
_DEEP_STAGES = 20
_MOST_READ_ROWS = 128

_HALVES = ((1, 1), (2, 1), (2, 2), (3, 1), (3, 2))
"""Groups and splits for tiles of half the rows: fewer programs read all of x, 96 or 128 of them the
whole weight. By count this takes 11 to 14 us less of a layer at 208 and 256 rows, in all products
but gates and ups.
"""
_FEWEST_HALVED_ROWS = 128


def cases(device: torch.device) -> Iterator[KernelCase]:
    """All products but the head; none without CUDA."""
    if device.type != "cuda":
        return
    for op, num_weight_rows, depth in LAYERS:
        if depth <= _SMALL_DEPTH or num_weight_rows > _HEAD_ROWS:
            continue
        for num_rows in (8, 64, 128, 160, 208, 256):
            usual = choose(op, num_rows, num_weight_rows, depth, torch.bfloat16, has_wide=True)
            configs: list[Config] = [] if usual is None else [usual]
            configs += [*_faster(usual, num_rows), *_halves(op, num_rows)]
            yield case(op, num_rows, num_weight_rows, depth, configs, device)
    for num_rows in (512, 1024):
        configs = [Wide(3, 1, band=band) for band in (8, 2)]
        yield case(Op.NORM_SWIGLU, num_rows, 24576, 4096, configs, device)


def _faster(usual: Config | None, num_rows: int) -> Iterator[Config]:
    """Variants of the usual configuration, bound by reading the weight, with longer reads of it,
    and with all the stages that shared memory holds.
    """
    if isinstance(usual, Wide) and num_rows <= _MOST_READ_ROWS:
        yield usual._replace(cached_bytes=256)
        if usual.groups < 3:
            yield usual._replace(stages=_DEEP_STAGES)
            yield usual._replace(stages=_DEEP_STAGES, cached_bytes=256)


def _halves(op: Op, num_rows: int) -> Iterator[Config]:
    if op is not Op.NORM_SWIGLU and num_rows >= _FEWEST_HALVED_ROWS:
        for groups, splits in _HALVES:
            yield Wide(groups, splits, band=2, rows=-(-num_rows // 32) * 16)
