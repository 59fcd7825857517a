"""The tensors of a layer of the gated delta rule: weights, states and rings.

Owns their shapes and the check that they fit together. Must not know how the layer is computed.
"""

from typing import NamedTuple

import torch
from torch import Tensor


class DeltaSizes(NamedTuple):
    """HK key heads of K dimensions, HV value heads of V."""

    num_key_heads: int
    num_value_heads: int
    key_dim: int
    value_dim: int

    @property
    def key_columns(self) -> int:
        """Columns of all queries, or of all keys."""
        return self.num_key_heads * self.key_dim

    @property
    def value_columns(self) -> int:
        """Columns of all values, and of what is put out."""
        return self.num_value_heads * self.value_dim

    @property
    def columns(self) -> int:
        """C: queries, keys and values, which go through the convolution."""
        return 2 * self.key_columns + self.value_columns


class DeltaWeights(NamedTuple):
    """A layer's weights beside its products.

    `conv` [C, W], whose last column meets the current row, and `norm` [V], both in the rows' dtype
    or float32; `decay` (a checkpoint's A_log) and `dt_bias` float32 [HV].
    """

    conv: Tensor
    decay: Tensor
    dt_bias: Tensor
    norm: Tensor


class GateProduct(NamedTuple):
    """The factors of gates that are not computed yet: `rms_norm(hidden, norm, eps) weight^T`, with
    hidden [T, H], norm [H] and weight [2 HV, H] in the rows' dtype (the norm may be float32).
    """

    hidden: Tensor
    norm: Tensor
    eps: float
    weight: Tensor

    @property
    def shape(self) -> tuple[int, int]:
        """The shape of the gates."""
        return self.hidden.shape[0], self.weight.shape[0]


class DeltaState(NamedTuple):
    """The states of a layer, by slot.

    `matrices` float32 [slots, HV, K, V]; `tails` [slots, W - 1, C], the last rows that went into
    the convolution, as they came in, oldest first, in the rows' dtype. A slot is contiguous. The
    distance between two slots may exceed the size of a slot, because all layers of a slot are
    stored together.
    """

    matrices: Tensor
    tails: Tensor


class DeltaRing(NamedTuple):
    """The rows of each sequence's last `verify` that may be taken back, by slot: `rows` [slots, R,
    C] as they came into the convolution, and `gates` [slots, R, 2 HV], both in the rows' dtype. A
    step has at most R such rows of one sequence. As with states, the distance between two slots may
    exceed the size of a slot.
    """

    rows: Tensor
    gates: Tensor


def sizes_of(
    rows: Tensor, gates: Tensor | GateProduct, weights: DeltaWeights, state: DeltaState
) -> DeltaSizes:
    """The sizes by the state's shape. Raises `ValueError` for what does not fit them."""
    matrices, tails = state
    num_slots, num_heads, key_dim, value_dim = matrices.shape
    columns, width = weights.conv.shape
    num_key_heads = (columns - num_heads * value_dim) // (2 * key_dim)
    sizes = DeltaSizes(num_key_heads, num_heads, key_dim, value_dim)
    if num_key_heads < 1 or sizes.columns != columns or num_heads % num_key_heads:
        raise ValueError(f"state {tuple(matrices.shape)} for a convolution of {columns} columns")
    if matrices.dtype != torch.float32 or tails.shape != (num_slots, width - 1, columns):
        raise ValueError(f"state {matrices.dtype}, tails {tuple(tails.shape)}")
    wanted = columns + sizes.value_columns, 2 * num_heads
    if (rows.shape[1], gates.shape[1]) != wanted or rows.shape[0] != gates.shape[0]:
        raise ValueError(f"rows {tuple(rows.shape)}, gates {tuple(gates.shape)}, not {wanted}")
    if weights.decay.shape != (num_heads,) or weights.dt_bias.shape != (num_heads,):
        raise ValueError(f"decay {tuple(weights.decay.shape)} for {num_heads} heads")
    if weights.norm.shape != (value_dim,):
        raise ValueError(f"norm {tuple(weights.norm.shape)} for heads of {value_dim}")
    return sizes
