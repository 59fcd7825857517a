"""Weights in 4-bit integers, with a scale and a zero point per group of columns.

Owns their layout, their quantisation and their way back. Must not know products.
"""

import torch
from torch import Tensor

from kernels.choose import uses_triton
from kernels.int4 import reference
from kernels.int4.weight import GROUPS, MIDDLE, PER_WORD, Int4Weight, packed, unpacked

__all__ = [
    "GROUPS",
    "MIDDLE",
    "PER_WORD",
    "Int4Weight",
    "dequantise",
    "in_order",
    "packed",
    "quantize",
    "unpacked",
]


def quantize(weight: Tensor) -> Int4Weight:
    """A weight [N, K] of any float dtype, group by group: the range of a group, or a part of it,
    becomes 0 to 15; of seven parts the one with the least squared error. `GROUPS` has the sizes.

    Raises `ValueError` where none divides K.
    """
    if weight.ndim != 2 or not any(weight.shape[1] % group == 0 for group in GROUPS):
        raise ValueError(f"weight {tuple(weight.shape)}: no group of {GROUPS} divides its columns")
    return reference.quantize(weight)


def dequantise(weight: Int4Weight, dtype: torch.dtype) -> Tensor:
    """The weight [N, K] in `dtype`, each number rounded once; its columns as they are stored."""
    if uses_triton(weight.words):
        from kernels.int4 import kernel

        return kernel.dequantise(weight, dtype)
    return reference.dequantise(weight, dtype)


def in_order(weight: Int4Weight, dtype: torch.dtype) -> Tensor:
    """The weight [N, K] in `dtype`, its columns in the matrix's order."""
    dense = dequantise(weight, dtype)
    if weight.order is None:
        return dense
    out = torch.empty_like(dense)
    out[:, weight.order] = dense
    return out
