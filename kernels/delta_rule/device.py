"""A layer of the gated delta rule on a CUDA device: which kernel serves which rows of a step.

Owns the choice, by the number of decodes: `fused.py` for few, `streamed.py` for many, `prompts.py`
for spans of several rows. Must not know what a kernel does.
"""

from typing import Final

from torch import Tensor

from kernels.delta_rule.fused import FusedTiles, fused
from kernels.delta_rule.plan import DeltaPlan
from kernels.delta_rule.prompts import prompts
from kernels.delta_rule.shapes import DeltaSizes, DeltaState, DeltaWeights, GateProduct
from kernels.delta_rule.streamed import StreamTiles, streamed

MANY_TILES: Final = StreamTiles()
"""The tiles for more than `_SOME` sequences. A layer of the 27B takes an H200 33.0, 62.9, 121 and
459 us for 16, 32, 64 and 256 of them; a copy of their states would take 24.3, 48.5, 97 and 388.
With three stages they take 46, 81, 142 and 530 (`python -m benchmarks.kernels delta_sweep --case
decode`).
"""

SOME_TILES: Final = FusedTiles(num_warps=4, registers=255, columns=32)
"""The tiles for up to `_SOME` sequences: a layer of the 27B takes 4.5 us for one, 19.0 for 8."""

FEW_TILES: Final = FusedTiles(num_warps=8, registers=255, columns=16)
"""The tiles for up to `_FEW` sequences, with the product of their gates: 7.0 us for two."""

_FEW: Final = 2
"""The most sequences whose gates are computed beside the rule."""

_SOME: Final = 8
"""The most sequences of the fused kernel."""


def takes_product(num_rows: int, plan: DeltaPlan) -> bool:
    """Whether the gates of a step may be given as a `GateProduct`: in a step of few decodes alone
    each program computes its own gates, from two rows of the weight.
    """
    return num_rows == plan.num_decodes <= _FEW


def mix(
    rows: Tensor,
    gates: Tensor | GateProduct,
    weights: DeltaWeights,
    eps: float,
    state: DeltaState,
    plan: DeltaPlan,
    sizes: DeltaSizes,
) -> Tensor:
    """See `kernels.delta_rule.mix`."""
    out = rows.new_empty(len(rows), sizes.value_columns)
    if plan.num_decodes:
        decode(rows, gates, weights, eps, state, plan, sizes, out)
    if len(plan.starts) > plan.num_decodes and len(plan.chunks):
        if isinstance(gates, GateProduct):
            raise TypeError("prompts take their gates as numbers")
        prompts(rows, gates, weights, eps, state, plan, sizes, out)
    return out


def decode(
    rows: Tensor,
    gates: Tensor | GateProduct,
    weights: DeltaWeights,
    eps: float,
    state: DeltaState,
    plan: DeltaPlan,
    sizes: DeltaSizes,
    out: Tensor,
    tiles: FusedTiles | StreamTiles | None = None,
) -> None:
    """Row i of the first `plan.num_decodes` of a step, into `out` [T, HV V]; moves states on."""
    num_decodes = plan.num_decodes
    if tiles is None:
        if isinstance(gates, GateProduct):
            tiles = FEW_TILES
        else:
            tiles = SOME_TILES if num_decodes <= _SOME else MANY_TILES
    if isinstance(tiles, FusedTiles):
        fused(rows, gates, weights, eps, state, plan, sizes, out, tiles)
        return
    if isinstance(gates, GateProduct):
        raise TypeError("this kernel takes gates as numbers")
    streamed(rows, gates, weights, eps, state, plan, sizes, out, tiles)
