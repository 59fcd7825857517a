"""Finds the best configuration for the products of Qwen3.6-27B's layers in 8 bits, of 1, 16, 32 and
64 rows, and for its gates and ups of few rows in 16 bits, in less than a minute.

`python -m benchmarks.kernels fp8_27b_sweep --jobs 15 --json FILE`, then `python -m
benchmarks.linear_table --fp8 --onto FILE`: entries of other sizes stay.
The first variant of a case is the rule's, which serves a shape without an entry.
"""

from collections.abc import Iterator

import torch

from benchmarks.kernels.case import KernelCase
from benchmarks.kernels.fp8 import case
from benchmarks.kernels.fp8_sweep import gemvs, skinnies
from benchmarks.kernels.linear import case as in_16_bits
from kernels.linear.choose import Op, choose, even_splits, rule
from kernels.linear.config import Config, Skinny

SHAPES = (
    (Op.NORM_LINEAR, 16384, 5120),  # queries, keys, values and z of the delta rule
    (Op.LINEAR_ADD, 5120, 6144),  # out
    (Op.NORM_SWIGLU, 34816, 5120),
    (Op.LINEAR_ADD, 5120, 17408),
    (Op.NORM_LINEAR, 8192, 5120),  # attention
    (Op.NORM_LINEAR, 6144, 5120),  # its gates
)


_MORE_TILES = ((128, 128, 8, 3), (128, 256, 8, 2), (64, 128, 4, 3))
"""Weight rows, columns, warps, stages, for more rows: 272 tiles of gates and ups at once."""

_HALVES = (Skinny(64, 128, 1, 4, 4), Skinny(64, 128, 2, 4, 3), Skinny(128, 64, 1, 8, 3))
_HALVES += (Skinny(128, 64, 1, 8, 4), Skinny(64, 128, 1, 4, 3, fuses_norm=False))
"""For 544 tiles of gates and ups in 16 bits, beside the rule's."""


def cases(device: torch.device) -> Iterator[KernelCase]:
    """First one row of each product, then more rows in 8 bits, then gates and ups in 16."""
    shapes = SHAPES if device.type == "cuda" else [(Op.LINEAR_ADD, 64, 96)]
    for num_rows in (1, 64, 32, 16):
        for op, num_weight_rows, depth in shapes:
            usual = rule(op, num_rows, num_weight_rows, depth, is_fp8=True)
            found: list[Config | None] = [usual]
            if num_rows == 1:
                found += gemvs(op, num_rows, num_weight_rows, depth)
            else:
                given = op, num_rows, num_weight_rows, depth
                found += [config for config in skinnies(*given) if config.quantises]
                found += [_whole(depth, num_weight_rows, *tile) for tile in _MORE_TILES]
                best = choose(*given, torch.bfloat16, 1)
                if isinstance(best, Skinny):
                    found += [best, best._replace(waits=True)]
                    found += [best._replace(prefetched_bytes=2**at) for at in (14, 16)]
            own = [*dict.fromkeys(config for config in found if config is not None)]
            yield case(op, num_rows, num_weight_rows, depth, own, device, peers=False)
    for num_rows in (32, 8) if device.type == "cuda" else ():
        wide = Op.NORM_SWIGLU, num_rows, 34816, 5120
        given_by_rule = choose(*wide, torch.bfloat16)
        found = [config for config in (given_by_rule, *_HALVES) if config is not None]
        yield in_16_bits(*wide, [*dict.fromkeys(found)], device)


def _whole(depth: int, num_weight_rows: int, *tile: int) -> Skinny:
    """A configuration cut along the columns into at most 396 programs, three per multiprocessor."""
    block_n, block_k, num_warps, num_stages = tile
    splits = even_splits(depth, block_k, min(4, 396 // -(-num_weight_rows // block_n)))
    return Skinny(block_n, block_k, splits, num_warps, num_stages, quantises=True)
