"""A weight of 4-bit floats (e2m1) with a power of two (e8m0) for each 32 columns."""

from dataclasses import dataclass, replace
from typing import Final

import torch
from torch import Tensor

GROUP: Final = 32
"""Columns that share a power."""


@dataclass(frozen=True, slots=True, eq=False)
class Mxfp4Weight:
    """The weight `values * 2^(powers - 127)`, [N, K].

    `pairs` uint8 [N, K / 2]: two columns each, the first in the low half; `powers` uint8
    [N, K / 32]. Both contiguous on one device. If it `is_placed`, the bits of each four bytes are
    where the kernels in CUDA C++ want them (`kernels.mxfp4.placing`). Raises `ValueError` for
    others.
    """

    pairs: Tensor
    powers: Tensor
    is_placed: bool = False

    def __post_init__(self) -> None:
        """Checked once, not at every product."""
        pairs, powers = self.pairs, self.powers
        for part in (pairs, powers):
            if part.ndim != 2 or part.dtype != torch.uint8 or not part.is_contiguous():
                raise ValueError(f"{tuple(part.shape)} {part.dtype} are no bytes in rows")
        if powers.shape != (pairs.shape[0], 2 * pairs.shape[1] // GROUP) or self.shape[1] % GROUP:
            raise ValueError(f"powers {tuple(powers.shape)} of {tuple(self.shape)}")

    @property
    def shape(self) -> torch.Size:
        """[N, K]."""
        return torch.Size((self.pairs.shape[0], 2 * self.pairs.shape[1]))

    @property
    def nbytes(self) -> int:
        """The bytes of numbers and scales."""
        return self.pairs.nbytes + self.powers.nbytes

    def to(self, device: torch.device) -> "Mxfp4Weight":
        """The same weight on another device."""
        return replace(self, pairs=self.pairs.to(device), powers=self.powers.to(device))

    def rows(self, chosen: Tensor | slice) -> "Mxfp4Weight":
        """These rows: int64 [M], or a slice."""
        return replace(self, pairs=self.pairs[chosen], powers=self.powers[chosen])
