"""Finds the best configuration of `kernels.linear.wide` for each shape, beside the library and the
winners of `linear_sweep`.

`python -m benchmarks.kernels wide_sweep --jobs 16 --json FILE`; see `linear_sweep` for the table.
`rows_sweep` measures few configurations of the 8B in half a minute.
"""

from collections.abc import Iterator

import torch

from benchmarks.kernels.case import KernelCase
from benchmarks.kernels.linear import LAYERS, case
from kernels.linear.choose import TUNED_ROWS, Op
from kernels.linear.config import Config, Skinny, Wide
from kernels.linear.measured import TUNED

_FEWEST_ROWS = 4
_CLUSTERS = ((1, 1), (1, 2), (2, 1), (2, 2), (2, 3), (3, 1), (3, 3))
"""Groups and splits. At most 30 clusters of 4 programs fit on an H200 at once."""


def cases(device: torch.device) -> Iterator[KernelCase]:
    """Every candidate of every shape from 4 rows on; none without CUDA."""
    if device.type != "cuda":
        return
    for op, num_weight_rows, depth in LAYERS:
        known = {
            config
            for key, config in TUNED.items()
            if (key[0], *key[2:]) == (op.value, num_weight_rows, depth)
            and key[1] >= _FEWEST_ROWS
            and isinstance(config, Skinny)
        }
        for num_rows in TUNED_ROWS:
            if num_rows >= _FEWEST_ROWS:
                configs = [*sorted(known), *_wides(op)]
                yield case(op, num_rows, num_weight_rows, depth, configs, device)


def _wides(op: Op) -> Iterator[Config]:
    for groups, splits in _CLUSTERS:
        if op is not Op.NORM_SWIGLU or splits == 1:
            yield Wide(groups, splits, reads_once=splits > 1)
