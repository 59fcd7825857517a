"""Weights and rows in 8-bit floats: e4m3, one sign, four exponent and three mantissa bits.

Owns the type of a quantised weight and the checked entry that quantises rows. A number x is kept as
`x / scale`, rounded to the nearest e4m3 (at most 2^-4 of itself away), where the scale of a row is
its largest magnitude over 448, the largest e4m3. Must not know products.
"""

from typing import Final

import torch
from torch import Tensor

from kernels.choose import uses_triton
from kernels.fp8 import reference
from kernels.fp8.weight import BLOCK, DUAL_ROWS, FP8, DualWeight, Fp8Weight, Weight, parts_of

__all__ = [
    "BLOCK",
    "DUAL_ROWS",
    "FP8",
    "DualWeight",
    "Fp8Weight",
    "Weight",
    "dequantise",
    "parts_of",
    "quantize_blocks",
    "quantize_rows",
    "quantize_weight",
]

MAX_COLUMNS: Final = 65536
"""A program of the kernel holds a whole row."""


def quantize_rows(
    x: Tensor, norm: Tensor | None = None, eps: float = 0.0, *, is_early: bool = False
) -> tuple[Tensor, Tensor]:
    """(values e4m3 [T, K], scales float32 [T]) of rows x [T, K], or of `rms_norm(x, norm, eps)`.

    x float32, bfloat16 or float16, contiguous; norm [K] like x or float32. A row of zeros has
    zeros and a scale above 0; products with a row that holds NaN or infinity are NaN. With
    `is_early` the kernel behind may start before the one ahead has ended: until its own wait it
    must read only what no kernel of the step writes. Raises `ValueError`.
    """
    if x.ndim != 2 or not x.is_floating_point() or not 0 < x.shape[1] <= MAX_COLUMNS:
        raise ValueError(f"rows {tuple(x.shape)} {x.dtype}")
    if norm is not None and not (
        norm.shape == x.shape[1:] and norm.dtype in (x.dtype, torch.float32)
    ):
        raise ValueError(f"norm {tuple(norm.shape)} {norm.dtype} for {x.shape[1]} columns")
    if uses_triton(x):
        from kernels.fp8 import kernel

        return kernel.quantize_rows(x, norm, eps, is_early=is_early)
    return reference.quantize_rows(x, norm, eps)


def quantize_weight(weight: Tensor) -> Fp8Weight:
    """A weight [N, K] with one scale per row. Raises `ValueError`."""
    return Fp8Weight(*quantize_rows(weight))


def quantize_blocks(weight: Tensor) -> Fp8Weight:
    """A weight [N, K] with one scale for each block of 128 x 128, or for fewer of the last rows and
    columns. Takes some 12 bytes of memory beside it for each of up to 2^27 numbers.
    """
    return reference.quantize_blocks(weight)


def dequantise(weight: Fp8Weight, dtype: torch.dtype) -> Tensor:
    """The weight [N, K] in `dtype`: each product of value and scale rounded once."""
    if uses_triton(weight.values):
        from kernels.fp8 import kernel

        return kernel.dequantise(weight, dtype)
    return reference.dequantise(weight, dtype)
