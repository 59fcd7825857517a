"""A weight of 4-bit integers with a scale, and perhaps a zero point, per group of columns.

Owns the one layout into which all formats of checkpoints are repacked, and its way back. A word of
32 bits holds eight columns of one group that lie an eighth of the group apart: bits 4 i to 4 i + 3
of word j are column `i * group / 8 + j` of the group. So each of the eight planes of a tile of
words is a tile of columns that lie side by side in eights of a group, and no number crosses lanes.
"""

from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

GROUPS: Final = (128, 64, 32)
"""Columns that share a scale; the first that divides a depth is taken for a 16-bit weight."""

PER_WORD: Final = 8
MIDDLE: Final = 8
"""The zero point of a weight without zero points."""

_SCALES: Final = (torch.float16, torch.bfloat16, torch.float32)


@dataclass(frozen=True, slots=True, eq=False)
class Int4Weight:
    """The weight `(q - zeros) * scales`, [N, K].

    `words` int32 [N, K / 8]; `scales` [N, K / group], 16 bits or float32; `zeros` uint8 like
    scales, None for `MIDDLE`. With `order` int64 [K], column i of all these is column `order[i]` of
    the matrix. All contiguous on one device. Raises `ValueError` for others.
    """

    words: Tensor
    scales: Tensor
    zeros: Tensor | None = None
    order: Tensor | None = None

    def __post_init__(self) -> None:
        """Checked once, not at every product."""
        words, scales, zeros = self.words, self.scales, self.zeros
        if words.ndim != 2 or words.dtype != torch.int32 or not words.is_contiguous():
            raise ValueError(f"words {tuple(words.shape)} {words.dtype}")
        fits = scales.ndim == 2 and scales.shape[0] == words.shape[0] and scales.dtype in _SCALES
        if not fits or not scales.is_contiguous() or scales.device != words.device:
            raise ValueError(f"scales {tuple(scales.shape)} {scales.dtype} of {tuple(self.shape)}")
        if scales.shape[1] * self.group != self.shape[1] or self.group not in GROUPS:
            raise ValueError(f"{scales.shape[1]} groups of {self.shape[1]} columns")
        if zeros is not None and (
            zeros.shape != scales.shape or zeros.dtype != torch.uint8 or not zeros.is_contiguous()
        ):
            raise ValueError(f"zeros {tuple(zeros.shape)} {zeros.dtype} of {tuple(scales.shape)}")
        if self.order is not None and self.order.shape != self.shape[1:]:
            raise ValueError(f"order {tuple(self.order.shape)} of {tuple(self.shape)}")

    @property
    def shape(self) -> torch.Size:
        """[N, K]."""
        return torch.Size((self.words.shape[0], PER_WORD * self.words.shape[1]))

    @property
    def group(self) -> int:
        """Columns that share a scale."""
        return PER_WORD * self.words.shape[1] // max(1, self.scales.shape[1])

    @property
    def nbytes(self) -> int:
        """What all parts take."""
        parts = (self.words, self.scales, self.zeros, self.order)
        return sum([part.nbytes for part in parts if part is not None])

    def to(self, device: torch.device) -> "Int4Weight":
        """The same weight on another device."""
        parts = (self.words, self.scales, self.zeros, self.order)
        return Int4Weight(*[None if part is None else part.to(device) for part in parts])  # type: ignore[arg-type]

    def rows(self, chosen: Tensor) -> "Int4Weight":
        """These rows, int64 [M]."""
        zeros = None if self.zeros is None else self.zeros[chosen]
        return Int4Weight(self.words[chosen], self.scales[chosen], zeros, self.order)


def packed(values: Tensor, group: int) -> Tensor:
    """The words int32 [N, K / 8] of numbers 0 to 15, any integer dtype [N, K]."""
    planes = values.to(torch.int32).view(values.shape[0], -1, PER_WORD, group // PER_WORD)
    words = planes[:, :, 0].clone()
    for plane in range(1, PER_WORD):
        words |= planes[:, :, plane] << (4 * plane)
    return words.view(values.shape[0], -1)


def unpacked(words: Tensor, group: int) -> Tensor:
    """The numbers 0 to 15, int32 [N, K], of words."""
    grouped = words.view(words.shape[0], -1, 1, group // PER_WORD)
    shifts = torch.arange(0, 32, 4, dtype=torch.int32, device=words.device)
    return ((grouped >> shifts.view(1, 1, -1, 1)) & 15).view(words.shape[0], -1)
