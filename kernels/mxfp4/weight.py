"""A weight of 4-bit floats (e2m1) with a power of two (e8m0) for each 32 columns."""

from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

GROUP: Final = 32
"""Columns that share a power."""

_BIAS: Final = 127
_VALUES: Final = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
"""The values of the numbers without their sign, by their bits."""


@dataclass(frozen=True, slots=True, eq=False)
class Mxfp4Weight:
    """The weight `values * 2^(powers - 127)`, [N, K].

    `pairs` uint8 [N, K / 2]: two columns each, the first in the low half; `powers` uint8
    [N, K / 32]. Both contiguous on one device. Raises `ValueError` for others.
    """

    pairs: Tensor
    powers: Tensor

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
        return Mxfp4Weight(self.pairs.to(device), self.powers.to(device))

    def rows(self, chosen: Tensor | slice) -> "Mxfp4Weight":
        """These rows: int64 [M], or a slice."""
        return Mxfp4Weight(self.pairs[chosen], self.powers[chosen])


def dequantise(weight: Mxfp4Weight, dtype: torch.dtype) -> Tensor:
    """The numbers [N, K], each rounded once to `dtype`."""
    bits = torch.stack((weight.pairs & 15, weight.pairs >> 4), dim=-1).flatten(1).int()
    table = torch.tensor(_VALUES + tuple(-value for value in _VALUES), device=bits.device)
    powers = torch.exp2(weight.powers.float() - _BIAS)
    return (table[bits] * powers.repeat_interleave(GROUP, 1)).to(dtype)
