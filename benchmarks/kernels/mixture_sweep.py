"""Finds the best configuration for the products around experts, in 16 bits: of Qwen3-30B-A3B,
Qwen3.6-35B-A3B, gpt-oss-20b and GLM-4.7-Flash, whose outputs have few weight rows.

`python -m benchmarks.kernels mixture_sweep --jobs 15 --json FILE`, then `python -m
benchmarks.linear_table --onto FILE`: entries of other sizes stay. The
first variant of a case is what serves now.
"""

from collections.abc import Iterator

import torch

from benchmarks.kernels.case import KernelCase
from benchmarks.kernels.linear import case
from benchmarks.kernels.linear_sweep import gemvs, skinnies
from benchmarks.kernels.wide_27b_sweep import has_registers, wides
from kernels.linear.choose import Op, choose
from kernels.linear.config import Config

SHAPES = (
    (Op.NORM_LINEAR, 5120, 2048),  # 30B-A3B: qkv, out
    (Op.LINEAR_ADD, 2048, 4096),
    (Op.NORM_LINEAR, 9216, 2048),  # 35B-A3B: qkv of full layers, rows of the rule
    (Op.NORM_LINEAR, 8192, 2048),
    (Op.NORM_LINEAR, 4096, 2048),
    (Op.NORM_LINEAR, 5120, 2880),  # gpt-oss-20b: qkv, out
    (Op.LINEAR_ADD, 2880, 4096),
    (Op.LINEAR_ADD, 2048, 5120),  # GLM-4.7-Flash: out
)
HEADS = ((151936, 2048), (248320, 2048), (201088, 2880))
_ROWS = (1, 2, 8, 64)
_FEW_ROWS = 8
_HEAD_ROWS = 2**15


def cases(device: torch.device) -> Iterator[KernelCase]:
    """Each shape of a layer, and the heads; none off CUDA."""
    if device.type != "cuda":
        return
    for num_rows in _ROWS:
        for op, num_weight_rows, depth in SHAPES:
            yield case(
                op,
                num_rows,
                num_weight_rows,
                depth,
                _configs(op, num_rows, num_weight_rows, depth),
                device,
            )
    for num_rows in (1, 8, 64):
        for num_weight_rows, depth in HEADS:
            configs = _configs(Op.NORM_LINEAR, num_rows, num_weight_rows, depth)
            yield case(Op.NORM_LINEAR, num_rows, num_weight_rows, depth, configs, device)


def _configs(op: Op, num_rows: int, num_weight_rows: int, depth: int) -> list[Config]:
    usual = choose(op, num_rows, num_weight_rows, depth, torch.bfloat16, has_wide=True)
    found: list[Config] = [] if usual is None else [usual]
    if num_rows <= 2:
        found += gemvs(op, num_rows, num_weight_rows, depth)
    elif num_weight_rows <= _HEAD_ROWS:
        of_wide = wides(op, num_weight_rows)
        found += [config for config in of_wide if has_registers(config, num_rows)]
    if num_rows > _FEW_ROWS or num_weight_rows > _HEAD_ROWS:
        found += skinnies(op, num_rows, num_weight_rows, depth) if num_rows > 1 else ()
    return [*dict.fromkeys(found)]
