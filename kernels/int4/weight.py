"""A weight of 4-bit integers with a scale, and perhaps a zero point, per group of columns.

Owns the one layout into which all formats of checkpoints are repacked, and its way back. Four words
of 32 bits hold 32 columns: word t of them columns 2 t and 2 t + 1 of each of their four eights. The
first of the pair of eighth p is nibble p, the second nibble p + 4: sixteen bits apart, so that a
shift, an operation on bits and a subtraction make two numbers of 16 bits of them. The words of a
tensor core's lane, by `ldmatrix`, are thus its part of two fragments of 16 columns.
"""

from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

GROUPS: Final = (128, 64, 32)
"""Columns that share a scale; the first that divides a depth is taken for a 16-bit weight."""

PER_WORD: Final = 8
_BLOCK: Final = 32
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
        """The bytes of all parts."""
        parts = (self.words, self.scales, self.zeros, self.order)
        return sum([part.nbytes for part in parts if part is not None])

    def to(self, device: torch.device) -> "Int4Weight":
        """The same weight on another device."""
        parts = (self.words, self.scales, self.zeros, self.order)
        return Int4Weight(*[None if part is None else part.to(device) for part in parts])  # type: ignore[arg-type]

    def rows(self, chosen: Tensor | slice) -> "Int4Weight":
        """These rows: int64 [M], or a slice."""
        zeros = None if self.zeros is None else self.zeros[chosen]
        return Int4Weight(self.words[chosen], self.scales[chosen], zeros, self.order)


def packed(values: Tensor, group: int) -> Tensor:
    """The words int32 [N, K / 8] of numbers 0 to 15, any integer dtype [N, K]; groups of 32 columns
    or a multiple of it.
    """
    if group % _BLOCK:
        raise ValueError(f"groups of {group} columns")
    eights = values.to(torch.int32).view(values.shape[0], -1, 4, 4, 2)
    words = torch.zeros_like(eights[:, :, 0, :, 0])
    for nibble in range(PER_WORD):
        words |= eights[:, :, nibble % 4, :, nibble // 4] << (4 * nibble)
    return words.view(values.shape[0], -1)


def unpacked(words: Tensor) -> Tensor:
    """The numbers 0 to 15, int32 [N, K], of words."""
    shifts = torch.arange(0, 32, 4, dtype=torch.int32, device=words.device).view(2, 4)
    # [N, blocks, eighth, word, which of a pair]
    spread = words.view(words.shape[0], -1, 1, 4, 1) >> shifts.t().view(1, 1, 4, 1, 2)
    return (spread & 15).reshape(words.shape[0], -1)
