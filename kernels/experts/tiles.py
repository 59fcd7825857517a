"""Triton pieces of experts' kernels: a tile of weights in any format, and what an expert applies.

Owns the way from stored numbers to those of a product. Must not know which rows chose an expert.
"""

from typing import Final, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.choose import is_card
from kernels.fp8 import BLOCK, FP8, DualWeight, Fp8Weight, Weight
from kernels.int4 import Int4Weight
from kernels.mxfp4 import GROUP


class ExpertTiles(NamedTuple):
    """What a program takes at once: outputs, and columns of the product, a power of two each; its
    warps, how many tiles of columns are on their way, and how many of them a program of few rows
    requests ahead of its wait. One costs no registers: they hold the sums behind it. `held`: gates
    and ups of few rows, in 16 or 8 bits, are requested all at once.
    """

    outputs: int
    columns: int
    warps: int = 4
    stages: int = 3
    ahead: int = 0
    held: bool = False


_DOTS: Final = {
    torch.bfloat16: tl.bfloat16, torch.float16: tl.float16, torch.float32: tl.float32,
    FP8: tl.float8e4nv,
}  # fmt: skip

_UNPACKED_BYTES: Final = 16
"""What a thread unpacks at least of MXFP4. On an H200 (Triton 3.6) tiles that leave a thread less
gave wrong numbers."""


def is_packed(dot: tl.dtype, form: str, tiles: ExpertTiles) -> bool:
    """Whether numbers of MXFP4 become bfloat16 four bytes at a time."""
    threads, num_bytes = 32 * tiles.warps, tiles.outputs * tiles.columns // 2
    is_wide = num_bytes >= threads * _UNPACKED_BYTES
    return form == "mxfp4" and dot == tl.bfloat16 and is_wide


class StoredStack(NamedTuple):
    """A stack as the kernels take it: its numbers, scales and zero points (any tensor where there
    are none), and the constants that say how they are meant.
    """

    values: Tensor
    scales: Tensor
    zeros: Tensor
    form: str
    group: int


class StackSizes(NamedTuple):
    """What the kernels of a stack are compiled for, but for tiles: the columns of a row, the gates
    of an expert, the experts of a row, how the stack is stored, and whether experts have a bias.
    """

    hidden: int
    width: int
    active: int
    form: str
    group: int
    has_bias: bool

    def constants(self, tiles: ExpertTiles) -> dict[str, object]:
        """The constants that all of these kernels have."""
        return {
            "HIDDEN": self.hidden, "WIDTH": self.width, "ACTIVE": self.active,
            "GROUP": self.group, "FORM": self.form, "BIAS": self.has_bias,
            "OUTPUTS": tiles.outputs, "COLUMNS": tiles.columns,
        }  # fmt: skip


def stored(weight: Weight) -> StoredStack:
    """Raises `TypeError` for a weight of two forms, which no stack has."""
    if isinstance(weight, Tensor):
        return StoredStack(weight, weight, weight, "plain", 1)
    if isinstance(weight, Int4Weight):
        zeros = weight.words if weight.zeros is None else weight.zeros
        form = "int4" if weight.zeros is None else "int4 with zeros"
        return StoredStack(weight.words, weight.scales, zeros, form, weight.group)
    if isinstance(weight, Fp8Weight):
        form, group = ("blocks", BLOCK) if weight.is_blocked else ("rows", 1)
        return StoredStack(weight.values, weight.scales, weight.scales, form, group)
    if isinstance(weight, DualWeight):
        raise TypeError("experts have one form")
    return StoredStack(weight.pairs, weight.powers, weight.powers, "mxfp4", GROUP)


def dot_type(x: Tensor) -> tl.dtype:
    """What products are taken in. The interpreter knows bfloat16 and e4m3 as storage only."""
    if x.dtype in {torch.bfloat16, FP8} and not is_card(x.device):
        return tl.float32
    return _DOTS[x.dtype]


@triton.jit
def weight_tile(
    values_ptr,  # the stack: numbers [N, DEPTH], words of eight or bytes of two
    scales_ptr,  # [N], [N / 128, DEPTH / 128] or [N, DEPTH / GROUP]
    zeros_ptr,  # uint8 [N, DEPTH / GROUP]
    rows,  # int64 [ROWS], rows of the stack
    start,  # the first column, a multiple of COLUMNS
    lanes,  # int32 [COLUMNS], those of the tile: columns from DEPTH on give 0
    DEPTH: tl.constexpr,  # columns of the stack
    GROUP: tl.constexpr,  # columns that share a scale
    FORM: tl.constexpr,  # `StoredStack.form`
):
    """Weights [ROWS, COLUMNS]: as they are stored if "plain" or "rows", where `row_scales` are for
    the sums, else float32. `number_pairs` has those of "mxfp4".
    """
    at = start + lanes[None, :]
    row, inside = rows[:, None], at < DEPTH
    if FORM == "plain" or FORM == "rows":  # noqa: PLR1714 - no tuples of strings in device code
        return tl.load(values_ptr + row * DEPTH + at, inside, 0.0)
    elif FORM == "blocks":  # noqa: RET505 - what follows a return is compiled all the same
        values = tl.load(values_ptr + row * DEPTH + at, inside, 0.0).to(tl.float32)
        return _scaled_by_block(values, scales_ptr, rows, start, DEPTH, GROUP)
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
def _scaled_by_block(values, scales_ptr, rows, start, DEPTH: tl.constexpr, GROUP: tl.constexpr):
    """Values [ROWS, COLUMNS] of `weight_tile` times their scales, of which a row has one for GROUP
    columns: read for each number they would be four times the bytes of the numbers.
    """
    width: tl.constexpr = (DEPTH + GROUP - 1) // GROUP
    num_rows: tl.constexpr = values.shape[0]
    columns: tl.constexpr = values.shape[1]
    scales_ptrs = scales_ptr + rows // GROUP * width
    if columns <= GROUP:
        return values * tl.load(scales_ptrs + start // GROUP)[:, None]
    else:  # noqa: RET505 - what follows a return is compiled all the same
        blocks = start // GROUP + tl.arange(0, columns // GROUP)
        scales = tl.load(scales_ptrs[:, None] + blocks[None, :], (blocks < width)[None, :], 0.0)
        apart = tl.reshape(values, [num_rows, columns // GROUP, GROUP]) * scales[:, :, None]
        return tl.reshape(apart, [num_rows, columns])


@triton.jit
def row_scales(scales_ptr, rows, FORM: tl.constexpr, PACKED: tl.constexpr):
    """What sums of a row's products are multiplied by: float32 like `rows`, or one number."""
    if FORM == "rows":
        return tl.load(scales_ptr + rows)
    elif FORM == "mxfp4" and PACKED:  # noqa: RET505 - what follows a return is compiled all the same
        return 18446744073709551616.0  # 2^64, see `_bfloats`
    else:
        return 1.0


@triton.jit
def column_pairs(x_ptr, x_rows, start, DEPTH: tl.constexpr, COLUMNS: tl.constexpr):
    """Even and odd columns [ROWS, COLUMNS / 2] of x from `start` on, 0 past the end. `x_rows` are
    places of rows [ROWS], those below 0 give 0.
    """
    at = start + 2 * tl.arange(0, COLUMNS // 2)[:, None] + tl.arange(0, 2)[None, :]
    inside = (x_rows >= 0)[:, None, None] & (at < DEPTH)[None, :, :]
    return tl.split(tl.load(x_ptr + x_rows[:, None, None] + at[None, :, :], inside, 0.0))


@triton.jit
def number_pairs(
    pairs_ptr,  # uint8 [N, DEPTH / 2], two columns each
    powers_ptr,  # uint8 [N, DEPTH / 32]
    rows,  # int64 [ROWS], rows of the stack
    start,  # the first column
    DEPTH: tl.constexpr,
    COLUMNS: tl.constexpr,
    PACKED: tl.constexpr,  # whether bfloat16 is wanted, as cards have it
):
    """Weights of MXFP4 in even and in odd columns, [ROWS, COLUMNS / 2] each. If PACKED they are
    2^-64 times what they are meant to be.

    Pairs stay apart: neighbours would have to be shuffled between threads.
    """
    groups = start // 32 + tl.arange(0, COLUMNS // 32)
    inside = (groups < DEPTH // 32)[None, :]
    place = rows[:, None] * (DEPTH // 32) + groups[None, :]
    powers = tl.load(powers_ptr + place, inside, 0)[:, :, None]
    bytes_ptr = pairs_ptr + (place * 16)[:, :, None] + tl.arange(0, 16)[None, None, :]
    pairs = tl.load(bytes_ptr, inside[:, :, None], 0)
    if PACKED:
        low, high = _bfloats(pairs, powers)
    else:
        bits, scale = pairs.to(tl.int32), (powers.to(tl.int32) << 23).to(tl.float32, bitcast=True)
        low, high = e2m1(bits & 15) * scale, e2m1(bits >> 4) * scale
    size: tl.constexpr = COLUMNS // 2
    return (
        tl.reshape(low, [rows.shape[0], size]),
        tl.reshape(high, [rows.shape[0], size]),
    )


@triton.jit
def _bfloats(pairs, powers):
    """The numbers in the low and in the high halves of bytes, as bfloat16.

    Sign and bits of a number become those of a bfloat16 whose exponent is 126 too low, which may be
    subnormal; the product with 2^126 is exact. The scale is part of the factor, and so that it does
    not exceed a bfloat16's exponent 2^-64 is too: 2^(126 + power - 127 - 64).
    """
    factor = ((powers.to(tl.int16) + 62) << 7).to(tl.bfloat16, bitcast=True)
    return tl.inline_asm_elementwise(
        """
        {
            .reg .b32 a, b, s, t, z, r0, r1, r2, r3;
            mov.b32 z, 0x80008000;
            prmt.b32 a, $4, 0, 0x4140;
            prmt.b32 b, $4, 0, 0x4342;
            shl.b32 s, a, 12;
            shl.b32 t, a, 6;
            and.b32 s, s, 0x80008000;
            lop3.b32 t, t, 0x01C001C0, s, 0xEA;
            fma.rn.bf16x2 r0, t, $5, z;
            shl.b32 s, b, 12;
            shl.b32 t, b, 6;
            and.b32 s, s, 0x80008000;
            lop3.b32 t, t, 0x01C001C0, s, 0xEA;
            fma.rn.bf16x2 r1, t, $6, z;
            shl.b32 s, a, 8;
            shl.b32 t, a, 2;
            and.b32 s, s, 0x80008000;
            lop3.b32 t, t, 0x01C001C0, s, 0xEA;
            fma.rn.bf16x2 r2, t, $5, z;
            shl.b32 s, b, 8;
            shl.b32 t, b, 2;
            and.b32 s, s, 0x80008000;
            lop3.b32 t, t, 0x01C001C0, s, 0xEA;
            fma.rn.bf16x2 r3, t, $6, z;
            mov.b32 $0, r0;
            mov.b32 $1, r1;
            mov.b32 $2, r2;
            mov.b32 $3, r3;
        }
        """,
        "=r,=r,=r,=r,r,r,r",
        [pairs, factor],
        dtype=(tl.bfloat16, tl.bfloat16),
        is_pure=True,
        pack=4,
    )


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
    SLOPE: tl.constexpr,  # slope of `Activation`
    SHIFT: tl.constexpr,  # shift of `Activation`
    LIMIT: tl.constexpr,  # limit of `Activation`, 0 for none
    CUBIC: tl.constexpr,  # cubic of `Activation`, 0 for none
):
    """What an expert makes of gates and ups."""
    if LIMIT > 0.0:
        gate = tl.minimum(gate, LIMIT)
        up = tl.minimum(tl.maximum(up, -LIMIT), LIMIT)
    turned = gate
    if CUBIC > 0.0:
        turned += CUBIC * gate * gate * gate
    share = tl.maximum(turned * SLOPE, -80.0)  # the exponential stays a number
    return gate / (1.0 + tl.exp(-share)) * (up + SHIFT)
