"""Drawn layers of the gated delta rule, and steps of theirs."""

from typing import NamedTuple

import torch
from torch import Tensor

from kernels.delta_rule import DeltaRing, DeltaSizes, DeltaState, DeltaWeights

SIZES = DeltaSizes(num_key_heads=2, num_value_heads=6, key_dim=16, value_dim=12)
EPS = 1e-6
WIDTH = 4


class Layer(NamedTuple):
    """A layer with slots whose content is poison until a span has begun at 0."""

    weights: DeltaWeights
    state: DeltaState
    ring: DeltaRing


def layer(
    num_slots: int,
    *,
    sizes: DeltaSizes = SIZES,
    most_rows: int = 4,
    dtype: torch.dtype = torch.float32,
) -> Layer:
    """A drawn layer, whose weights are the same for all `num_slots`."""
    drawn = torch.Generator().manual_seed(1)
    heads = sizes.num_value_heads
    weights = DeltaWeights(
        conv=torch.randn(sizes.columns, WIDTH, generator=drawn).to(dtype),
        decay=torch.rand(heads, generator=drawn),
        dt_bias=torch.randn(heads, generator=drawn),
        norm=torch.rand(sizes.value_dim, generator=drawn).to(dtype),
    )
    nan = float("nan")
    state = DeltaState(
        torch.full((num_slots, heads, sizes.key_dim, sizes.value_dim), nan),
        torch.full((num_slots, WIDTH - 1, sizes.columns), nan, dtype=dtype),
    )
    ring = DeltaRing(
        torch.full((num_slots, most_rows, sizes.columns), nan, dtype=dtype),
        torch.full((num_slots, most_rows, 2 * heads), nan, dtype=dtype),
    )
    return Layer(weights, state, ring)


def drawn_rows(
    num_rows: int, seed: int, *, sizes: DeltaSizes = SIZES, dtype: torch.dtype = torch.float32
) -> tuple[Tensor, Tensor]:
    """Rows and gates of a sequence."""
    drawn = torch.Generator().manual_seed(seed)
    columns = sizes.columns + sizes.value_columns
    rows = torch.randn(num_rows, columns, generator=drawn)
    gates = torch.randn(num_rows, 2 * sizes.num_value_heads, generator=drawn)
    return rows.to(dtype), gates.to(dtype)
