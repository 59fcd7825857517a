"""Experts in MXFP4 for very many rows: unpacked to 16 bits, some experts at a time, because the
products for many rows are fastest in 16 bits.

Owns the number of rows from which that pays, and the numbers in 16 bits, which lie in the launches'
scratch. Must not know products. The kernel for MXFP4 unpacks a weight again for each tile of rows;
to unpack a layer's experts once costs as much as a few hundred rows.
"""

from collections.abc import Iterator
from functools import cache
from typing import Final, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.choose import is_card
from kernels.experts.tiles import e2m1
from kernels.launch import Launch, scratch
from kernels.mxfp4 import GROUP, Mxfp4Weight

_LEAST_PAIRS: Final = 36
"""Pairs of an expert on average from which on unpacking pays. On an H200 a layer of gpt-oss-20b
takes 1,119 us as it lies and 1,309 unpacked for 256 rows, 1,567 and 1,136 for 384, 2,332 and 1,265
for 550.
"""

_PART_NUMBERS: Final = 2**27
"""Numbers in 16 bits at a time, 256 MiB: eight experts' gates and ups of gpt-oss-20b."""

_WARPS: Final = 4
_WORDS: Final = 32 * _WARPS
_STEPS: Final = 8
"""A thread takes so many words of four bytes, all on their way at once, and stores 16 bytes of
each beside those of the next thread."""


_BYTES: Final = (
    "and.b32 b, $4, 0xFF;",
    "bfe.u32 b, $4, 8, 8;",
    "bfe.u32 b, $4, 16, 8;",
    "shr.u32 b, $4, 24;",
)
"""What takes a byte out of a word, from the lowest byte on."""

_TWO: Final = """
    mul.lo.u32 t, b, 0x1001;
    shl.b32 s, t, 12;
    shl.b32 t, t, 6;
    and.b32 s, s, 0x80008000;
    lop3.b32 t, t, 0x01C001C0, s, 0xEA;
    fma.rn.bf16x2 t, t, c, z;
    fma.rn.bf16x2 {out}, t, $5, z;
"""
"""What `_two_by_two` makes of a byte."""

_TWO_BY_TWO = tl.constexpr(
    "{ .reg .b32 b, t, s, z, c; mov.b32 z, 0x80008000; mov.b32 c, 0x7E807E80;"
    + "".join([byte + _TWO.format(out=f"${place}") for place, byte in enumerate(_BYTES)])
    + "}"
)


class HeldExperts(NamedTuple):
    """Matrices of `num_experts` experts from `first` on: a stack of these alone."""

    stack: Tensor
    first: int
    num_experts: int


def widens(x: Tensor, gate_up: object, num_pairs: int, num_experts: int) -> bool:
    """Whether so many pairs of rows of x are worth it. In float16 a power may be out of range."""
    is_many = num_pairs >= _LEAST_PAIRS * num_experts
    return isinstance(gate_up, Mxfp4Weight) and x.dtype == torch.bfloat16 and is_many


def parts(stack: Mxfp4Weight, num_experts: int) -> Iterator[HeldExperts]:
    """All experts of a stack, some at a time: each part is valid until the next one is asked for.
    Launches on one device must be ordered, and the first not inside a capture.
    """
    (num_rows, depth), device = stack.shape, stack.pairs.device
    rows = num_rows // num_experts
    count = min(num_experts, max(1, _PART_NUMBERS // (rows * depth)))
    room = scratch(device, count * rows * depth // 2).view(torch.bfloat16)
    launch = _launch(device)
    for first in range(0, num_experts, count):
        held = min(count, num_experts - first)
        part = stack.rows(slice(first * rows, (first + held) * rows))
        num_groups = held * rows * depth // GROUP
        wide = room[: num_groups * GROUP]
        num_words = num_groups * (GROUP // 8)
        words = part.pairs.view(torch.int32), part.powers, wide.view(torch.int32)
        launch((triton.cdiv(num_words, _WORDS * _STEPS), 1, 1), words, (num_words,))
        yield HeldExperts(wide.view(held * rows, depth), first, held)


@triton.jit(do_not_specialize=["num_words"])
def _widen_kernel(
    words_ptr,  # int32 [num_words], eight columns each
    powers_ptr,  # uint8 [num_words / 4]
    out_ptr,  # out: int32 [num_words, 4], two bfloat16 each
    num_words,  # words of the part
    WORDS: tl.constexpr,  # words at a time: one of a thread, or two moves more would be needed
    STEPS: tl.constexpr,  # steps of a program
    PACKED: tl.constexpr,  # whether in a card's own instructions
):
    """Program (words). It starts when all ahead of it has ended, because others read what it
    overwrites.
    """
    first = tl.program_id(0).to(tl.int64) * (WORDS * STEPS) + tl.arange(0, WORDS)
    words, powers = (), ()
    for step in tl.static_range(STEPS):  # all loads ahead of the first store
        at = first + step * WORDS
        words += (tl.load(words_ptr + at, at < num_words, 0),)  # type: ignore[assignment]
        powers += (tl.load(powers_ptr + at // 4, at < num_words, 0),)  # type: ignore[assignment]
    for step in tl.static_range(STEPS):
        at = first + step * WORDS
        power = powers[step].to(tl.int32)  # type: ignore[var-annotated]
        if PACKED:
            one, two, three, four = _two_by_two(words[step], power << 7 | power << 23)
        else:
            scale = (power << 23).to(tl.float32, bitcast=True)
            one, two = _pair(words[step], scale), _pair(words[step] >> 8, scale)
            three, four = _pair(words[step] >> 16, scale), _pair(words[step] >> 24, scale)
        numbers = tl.reshape(tl.join(tl.join(one, three), tl.join(two, four)), [WORDS, 4])
        place = at[:, None] * 4 + tl.arange(0, 4)[None, :]
        tl.store(out_ptr + place, numbers, (at < num_words)[:, None])


@triton.jit
def _pair(byte, scale):
    """The numbers of a byte, int32 whose higher bits do not count: two bfloat16 in an int32. Both
    are exact, so their bits are the upper ones of a float32.
    """
    low = (e2m1(byte & 15) * scale).to(tl.int32, bitcast=True)
    high = (e2m1((byte >> 4) & 15) * scale).to(tl.int32, bitcast=True)
    return ((low >> 16) & 0xFFFF) | (high & -65536)


@triton.jit
def _two_by_two(words, factors):
    """The eight numbers of a word times a power, two bfloat16 in each of four int32. `factors` are
    the powers as bfloat16, twice.

    Sign and bits of a number become those of a bfloat16 whose exponent is 126 too low, which may be
    subnormal: the product with 2^126 is exact, and so is that with the power.
    """
    return tl.inline_asm_elementwise(
        _TWO_BY_TWO,
        "=&r,=&r,=&r,=&r,r,r",
        [words, factors],
        dtype=(tl.int32, tl.int32, tl.int32, tl.int32),
        is_pure=True,
        pack=1,
    )


@cache
def _launch(device: torch.device) -> Launch:
    constants = {"WORDS": _WORDS, "STEPS": _STEPS, "PACKED": is_card(device)}
    return Launch(_widen_kernel, constants, num_warps=_WARPS)
