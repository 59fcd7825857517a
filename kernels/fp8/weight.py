"""A weight: a matrix in the dtype of the rows, one in 8-bit floats with its scales, or both.

Owns the two layouts of scales: by row, and by block of 128 x 128 as published checkpoints have it.
"""

from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from kernels.int4.weight import Int4Weight
from kernels.mxfp4 import Mxfp4Weight

FP8: Final = torch.float8_e4m3fn

BLOCK: Final = 128
"""Rows and columns that share a scale in the layout by block."""


DUAL_ROWS: Final = 257
"""Fewer rows are multiplied in 16 bits where a weight has both forms: they are bound by reading it,
or nearly, and have kernels of their own up to 256."""


@dataclass(frozen=True, slots=True, eq=False)
class Fp8Weight:
    """The weight `values * scales`, [N, K].

    `values` e4m3 [N, K], row-major; `scales` float32, [N] one per row, or [ceil(N / 128),
    ceil(K / 128)] one per block; both contiguous on one device. Raises `ValueError` for others.
    """

    values: Tensor
    scales: Tensor

    def __post_init__(self) -> None:
        """Checked once, not at every product."""
        values, scales = self.values, self.scales
        if values.ndim != 2 or values.dtype != FP8 or not values.is_contiguous():
            raise ValueError(f"weight {tuple(values.shape)} {values.dtype} is no e4m3 matrix")
        blocks = tuple(-(-size // BLOCK) for size in values.shape)
        if scales.shape not in (values.shape[:1], blocks) or scales.dtype != torch.float32:
            raise ValueError(f"scales {tuple(scales.shape)} {scales.dtype} of {tuple(self.shape)}")
        if not scales.is_contiguous() or scales.device != values.device:
            raise ValueError(f"scales on {scales.device}, contiguous: {scales.is_contiguous()}")

    @property
    def shape(self) -> torch.Size:
        """[N, K]."""
        return self.values.shape

    @property
    def is_blocked(self) -> bool:
        """Whether a scale belongs to a block, not to a row."""
        return self.scales.ndim == 2

    @property
    def nbytes(self) -> int:
        """The bytes of values and scales."""
        return self.values.nbytes + self.scales.nbytes

    def to(self, device: torch.device) -> "Fp8Weight":
        """The same weight on another device."""
        return Fp8Weight(self.values.to(device), self.scales.to(device))

    def rows(self, chosen: Tensor | slice) -> "Fp8Weight":
        """These rows of a weight with scales by row: int64 [M], or a slice. Raises `ValueError` for
        scales by block.
        """
        if self.is_blocked:
            raise ValueError("scales by block do not move with single rows")
        # torch picks rows of bytes on every device, of 8-bit floats it does not.
        values = self.values.view(torch.uint8)[chosen].view(FP8)
        return Fp8Weight(values, self.scales[chosen])


@dataclass(frozen=True, slots=True, eq=False)
class DualWeight:
    """A weight [N, K] in the dtype of the rows, and once more in 8 bits for products of many rows.

    `fp8` has scales by row. Raises `ValueError` for others.
    """

    dense: Tensor
    fp8: Fp8Weight

    def __post_init__(self) -> None:
        """Checked once, not at every product."""
        if self.dense.shape != self.fp8.shape or self.fp8.is_blocked:
            raise ValueError(f"{tuple(self.fp8.shape)} beside {tuple(self.dense.shape)}")

    @property
    def shape(self) -> torch.Size:
        """[N, K]."""
        return self.dense.shape

    @property
    def nbytes(self) -> int:
        """The bytes of both forms."""
        return self.dense.nbytes + self.fp8.nbytes

    def of_rows(self, num_rows: int) -> Tensor | Fp8Weight:
        """The form for a product of `num_rows` rows."""
        return self.fp8 if num_rows >= DUAL_ROWS else self.dense


Weight = Tensor | Fp8Weight | DualWeight | Int4Weight | Mxfp4Weight
"""The weights that a product accepts: [N, K], row-major. The last is for experts only."""


def parts_of(weight: Tensor | Fp8Weight) -> tuple[Tensor, Tensor | None, int]:
    """(values, scales, rows and columns that share a scale: 0 without scales, 1 by row)."""
    if isinstance(weight, Fp8Weight):
        return weight.values, weight.scales, BLOCK if weight.is_blocked else 1
    return weight, None, 0
