"""Finds the best configuration of `kernels.linear` for weights in 8 bits, scaled by block.

`python -m benchmarks.kernels blocks_sweep --jobs 15 --json FILE`, then `python -m
benchmarks.linear_table --blocks --onto FILE`. Each time is that of a whole layer of the 30B mixture
at 600 tokens (`mixture_chain`) in which this product differs: a product timed alone does not show
that its weights are loaded while the launch ahead ends.
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import Final

import torch

from benchmarks.kernels import mixture_chain
from benchmarks.kernels.case import KernelCase
from benchmarks.kernels.linear import written
from kernels.fp8 import BLOCK
from kernels.linear.choose import Op, choose, even_splits
from kernels.linear.config import Config, Skinny

_ROWS: Final = (4, 16, 32, 64)
_FEW_ROWS: Final = 16
_CONTEXT: Final = 600
_PRODUCTS: Final = ((Op.NORM_LINEAR, 5120, 2048), (Op.LINEAR_ADD, 2048, 4096))
_TILES: Final = ((64, 4, 4), (64, 4, 6), (128, 8, 4))
"""Weight rows, warps and stages."""


def cases(device: torch.device) -> Iterator[KernelCase]:
    """None off CUDA."""
    if device.type != "cuda":
        return
    for num_rows in _ROWS:
        for op, num_weight_rows, depth in _PRODUCTS:
            configs = _configs(op, num_rows, num_weight_rows, depth)
            case = mixture_chain.case_of(
                "30b blocks",
                num_rows,
                _CONTEXT,
                {
                    written(config): mixture_chain.MixtureForm(qkv=config)
                    if op is Op.NORM_LINEAR
                    else mixture_chain.MixtureForm(out=config)
                    for config in configs
                },
                device,
            )
            yield replace(
                case,
                name=f"{op} {num_weight_rows} x {depth} T={num_rows} blocks",
                variants=[variant for variant in case.variants if "now" not in variant.name],
            )


def _configs(op: Op, num_rows: int, num_weight_rows: int, depth: int) -> list[Config]:
    """The present configuration, and tiles by the number of programs that share their columns. 8
    rows use the configuration for 16; with two programs a tile a layer of 8 rows takes 2 % longer
    than with four.
    """
    now = choose(op, num_rows, num_weight_rows, depth, torch.bfloat16, BLOCK)
    found: dict[Config, None] = {} if now is None else {now: None}
    for block_n, warps, stages in _TILES:
        for splits in (4, 8) if num_rows <= _FEW_ROWS else (2, 3, 4, 8):
            config = Skinny(block_n, BLOCK, even_splits(depth, BLOCK, splits), warps, stages)
            found[config] = None
            if op is Op.NORM_LINEAR and splits <= 4:
                found[config._replace(fuses_norm=False)] = None
    return list(found)
