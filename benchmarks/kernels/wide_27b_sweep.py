"""Finds the best configuration for the products of Qwen3.6-27B's layers in 16 bits, of 8 to 128
rows, in less than two minutes.

`python -m benchmarks.kernels wide_27b_sweep --jobs 15 --json FILE`, then `python -m
benchmarks.linear_table --onto FILE`: entries of other sizes stay. The
first variant of a case is what serves now.

By count: its gates and ups are 182 tiles of 192 weight rows and its outputs 80 tiles of 64, which
two programs share, so one program on each of 132 multiprocessors takes two rounds, the second of
them half empty. Several programs on a multiprocessor run all at once.
"""

from collections.abc import Iterator

import torch

from benchmarks.kernels.case import KernelCase
from benchmarks.kernels.fp8_27b_sweep import SHAPES
from benchmarks.kernels.linear import case
from kernels.linear.choose import Op, choose
from kernels.linear.config import Config, Skinny, Wide

_ROWS = (64, 8, 32, 128)
_DEEP_STAGES = 20
_MULTIPROCESSORS = 132
_FEWEST = 76
"""Programs that leave less than half of the card's multiprocessors empty."""

_TRITON = (Skinny(128, 64, 1, 8, 3), Skinny(128, 64, 1, 8, 3, fuses_norm=False))
_OF_GATES = (*_TRITON, Skinny(64, 128, 1, 4, 3), Skinny(64, 128, 1, 4, 3, fuses_norm=False))
_HEAD = (Wide(2, 1), Wide(3, 1), Wide(2, 1, programs=2), Wide(2, 1, reads_once=True))

_ALL_REGISTERS = 65536
"""Registers of a multiprocessor."""
_OTHER_REGISTERS = 26
"""Registers of a multiplying thread beside its sums."""


def cases(device: torch.device) -> Iterator[KernelCase]:
    """Each shape of a layer, and the head; none off CUDA."""
    if device.type != "cuda":
        return
    for num_rows in _ROWS:
        for op, num_weight_rows, depth in SHAPES:
            usual = choose(op, num_rows, num_weight_rows, depth, torch.bfloat16, has_wide=True)
            configs: list[Config] = [] if usual is None else [usual]
            found = wides(op, num_weight_rows)
            configs += [config for config in found if has_registers(config, num_rows)]
            if op is Op.NORM_SWIGLU and num_rows < _ROWS[-1]:
                configs += _OF_GATES
            yield case(op, num_rows, num_weight_rows, depth, [*dict.fromkeys(configs)], device)
    yield case(Op.NORM_LINEAR, 64, 248320, 5120, list(_HEAD), device)


def has_registers(config: Wide, num_rows: int) -> bool:
    """Whether the sums of `num_rows` rows of x fit into registers, beside as many programs on a
    multiprocessor.
    """
    if config.programs == 1:
        return True
    threads = 128 * (config.groups + 1) * config.programs
    return config.tile_rows(num_rows) // 2 + _OTHER_REGISTERS <= _ALL_REGISTERS // threads // 8 * 8


def wides(op: Op, num_weight_rows: int) -> Iterator[Wide]:
    """All whose programs run at once, and fill most of the card."""
    for programs in (1, 2, 3):
        for groups in (1, 2, 3):
            for splits in (1,) if op is Op.NORM_SWIGLU else (1, 2, 3, 4):
                count = splits * -(-num_weight_rows // (64 * groups))
                least = max(_FEWEST, _MULTIPROCESSORS * (programs - 1))
                if least < count <= _MULTIPROCESSORS * programs:
                    yield Wide(
                        groups, splits, reads_once=True, stages=_DEEP_STAGES, programs=programs
                    )
