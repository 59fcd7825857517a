"""Triton pieces of experts' kernels: a tile of weights in any format, and what an expert applies.

Owns the way from stored numbers to those of a product. Must not know which rows chose an expert.
"""

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.choose import is_card
from kernels.fp8 import BLOCK, DualWeight, Fp8Weight, Weight
from kernels.int4 import Int4Weight
from kernels.mxfp4 import GROUP


class Stored(NamedTuple):
    """A stack as the kernels take it: its numbers, scales and zero points (any tensor where there
    are none), and the constants that say how they are meant.
    """

    values: Tensor
    scales: Tensor
    zeros: Tensor
    form: str
    group: int


def stored(weight: Weight) -> Stored:
    """Raises `TypeError` for a weight of two forms, which no stack has."""
    if isinstance(weight, Tensor):
        return Stored(weight, weight, weight, "plain", 1)
    if isinstance(weight, Int4Weight):
        zeros = weight.words if weight.zeros is None else weight.zeros
        form = "int4" if weight.zeros is None else "int4 with zeros"
        return Stored(weight.words, weight.scales, zeros, form, weight.group)
    if isinstance(weight, Fp8Weight):
        form, group = ("blocks", BLOCK) if weight.is_blocked else ("rows", 1)
        return Stored(weight.values, weight.scales, weight.scales, form, group)
    if isinstance(weight, DualWeight):
        raise TypeError("experts have one form")
    return Stored(weight.pairs, weight.powers, weight.powers, "mxfp4", GROUP)


def dot_type(x: Tensor) -> tl.dtype:
    """What products are taken in. The interpreter knows bfloat16 as storage only."""
    if x.dtype == torch.bfloat16:
        return tl.bfloat16 if is_card(x.device) else tl.float32
    return {torch.float16: tl.float16, torch.float32: tl.float32}[x.dtype]


@triton.jit
def weight_tile(
    values_ptr,  # the stack: numbers [N, DEPTH], words of eight or bytes of two
    scales_ptr,  # [N], [N / 128, DEPTH / 128] or [N, DEPTH / GROUP]
    zeros_ptr,  # uint8 [N, DEPTH / GROUP]
    rows,  # int64 [ROWS], rows of the stack
    columns,  # int32 [COLUMNS], those from DEPTH on give 0
    DEPTH: tl.constexpr,  # columns of the stack
    GROUP: tl.constexpr,  # columns that share a scale
    FORM: tl.constexpr,  # of `Stored.form`
):
    """Weights [ROWS, COLUMNS]: as they are stored if "plain" or "rows", where `row_scales` are for
    the sums, else float32.
    """
    at, inside = columns[None, :], (columns < DEPTH)[None, :]
    row = rows[:, None]
    if FORM == "plain" or FORM == "rows":  # noqa: PLR1714 - no tuples of strings in device code
        return tl.load(values_ptr + row * DEPTH + at, inside, 0.0)
    elif FORM == "blocks":  # noqa: RET505 - what follows a return is compiled all the same
        values = tl.load(values_ptr + row * DEPTH + at, inside, 0.0).to(tl.float32)
        width: tl.constexpr = (DEPTH + GROUP - 1) // GROUP
        return values * tl.load(scales_ptr + row // GROUP * width + at // GROUP, inside, 0.0)
    elif FORM == "mxfp4":
        pairs = tl.load(values_ptr + row * (DEPTH // 2) + at // 2, inside, 0).to(tl.int32)
        power = tl.load(scales_ptr + row * (DEPTH // 32) + at // 32, inside, 0).to(tl.int32)
        return e2m1((pairs >> (at % 2 * 4)) & 15) * (power << 23).to(tl.float32, bitcast=True)
    else:
        # `kernels.int4.weight` has the order of columns in words.
        word, place = at // 32 * 4 + at % 8 // 2, at % 32 // 8 + at % 2 * 4
        words = tl.load(values_ptr + row * (DEPTH // 8) + word, inside, 0)
        numbers = ((words >> (place * 4)) & 15).to(tl.float32)
        group = row * (DEPTH // GROUP) + at // GROUP
        scales = tl.load(scales_ptr + group, inside, 0.0).to(tl.float32)
        if FORM == "int4":
            return (numbers - 8.0) * scales
        return (numbers - tl.load(zeros_ptr + group, inside, 0).to(tl.float32)) * scales


@triton.jit
def row_scales(scales_ptr, rows, FORM: tl.constexpr):
    """What sums of a row's products are multiplied by: float32 like `rows`, or 1."""
    if FORM == "rows":
        return tl.load(scales_ptr + rows)
    else:  # noqa: RET505 - what follows a return is compiled all the same
        return 1.0


@triton.jit
def e2m1(bits):
    """The number of four bits, int32: a sign, two bits of exponent and one of mantissa."""
    mantissa, exponent = (bits & 1).to(tl.float32), (bits >> 1) & 3
    whole = (1.0 + 0.5 * mantissa) * ((exponent + 126) << 23).to(tl.float32, bitcast=True)
    size = tl.where(exponent == 0, 0.5 * mantissa, whole)
    return tl.where(bits >= 8, -size, size)


@triton.jit
def activated(
    gate,  # float32, any shape
    up,  # float32, like gate
    SLOPE: tl.constexpr,  # of `Activation`
    SHIFT: tl.constexpr,  # of `Activation`
    LIMIT: tl.constexpr,  # of `Activation`, 0 for none
):
    """What an expert makes of gates and ups."""
    if LIMIT > 0.0:
        gate = tl.minimum(gate, LIMIT)
        up = tl.minimum(tl.maximum(up, -LIMIT), LIMIT)
    share = tl.maximum(gate * SLOPE, -80.0)  # the exponential stays a number
    return gate / (1.0 + tl.exp(-share)) * (up + SHIFT)
