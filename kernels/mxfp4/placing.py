"""Where the bits of numbers are, as checkpoints have them and as kernels in CUDA C++ want them.

Owns both orders. Must not know which kernels read which, nor when weights are placed.

A word of four bytes has eight columns, in the checkpoint's order each in four bits that follow each
other: a sign, two of exponent, one of mantissa. A bfloat16 has them at 15 and at 8 to 6, if its
exponent may be 126 too low; a register holds two of them. So two neighbours of a placed word are
taken out by one instruction or two, where the word as it is stored takes four
(`kernels/experts/e2m1.h`): they are there already, or are turned there, or one multiplication
shifts their three parts there.
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import Final

import torch
from torch import Tensor

from kernels.mxfp4.weight import Mxfp4Weight

_PLACES: Final = ((15, 8, 7, 6), (5, 30, 29, 28), (2, 27, 26, 25), (1, 0, 4, 3))
"""Of a placed word the bits of columns 0, 2, 4 and 6, the sign first. Those of the columns behind
them are 16 bits further round the word."""

_SIGN: Final = 31
"""The bit of a word that makes an int32 negative."""

_MOST_WORDS: Final = 2**24
"""Words at a time, so that little memory is taken beside the weight."""


def place(weight: Mxfp4Weight) -> Mxfp4Weight:
    """The same weight, placed, in the memory of `weight`, which is not valid any more."""
    _move(weight.pairs, [(stored, place) for stored, place in _bits()])
    return replace(weight, is_placed=True)


def in_order(weight: Mxfp4Weight) -> Tensor:
    """The pairs uint8 [N, K / 2] of a weight in the checkpoint's order."""
    pairs = weight.pairs
    if weight.is_placed:
        pairs = pairs.clone()
        _move(pairs, [(place, stored) for stored, place in _bits()])
    return pairs


def check_placed(weight: Mxfp4Weight) -> None:
    """Raises `ValueError` unless a kernel in CUDA C++ may read it."""
    if not weight.is_placed:
        raise ValueError(f"the bits of a weight {tuple(weight.shape)} in MXFP4 are not placed")


def _move(pairs: Tensor, bits: list[tuple[int, int]]) -> None:
    """Move bits of each word, where from and where to. Those that go equally far go together."""
    masks = dict.fromkeys([to - at for at, to in bits], 0)
    for at, to in bits:
        masks[to - at] |= (-1 if to == _SIGN else 1) << to
    for words in pairs.view(torch.int32).flatten().split(_MOST_WORDS):
        moved = torch.zeros_like(words)
        for far, mask in masks.items():
            moved |= (words << far if far > 0 else words >> -far) & mask
        words.copy_(moved)


def _bits() -> Iterator[tuple[int, int]]:
    """Where each bit of a word is in the checkpoint's order, and where in a placed word."""
    for pair, places in enumerate(_PLACES):
        for which in range(2):
            for part, place in enumerate(places):
                yield 8 * pair + 4 * which + 3 - part, (place + 16 * which) % 32
