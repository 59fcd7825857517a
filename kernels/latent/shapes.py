"""The tensors of a layer's latent attention.

Owns their shapes. Must not know how the layer is computed.
"""

from typing import NamedTuple

from torch import Tensor

from kernels.linear import Weight


class LatentWeights(NamedTuple):
    """What a layer has beside its first product and its last; H heads of N dimensions that do not
    turn, T that do, and V of a value; the latent has R numbers.

    `norm` [R] is that of the latent, `key_up` [H, N, R] and `value_up` [H, V, R] make keys and
    values of it, never in fewer than 16 bits. Where queries have a latent of their own, of Q
    numbers, `query_norm` [Q] is its norm and `query_up` [H (N + T), Q] makes queries of it.
    """

    norm: Tensor
    key_up: Tensor
    value_up: Tensor
    query_norm: Tensor | None = None
    query_up: Weight | None = None
