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

from kernels.experts.tiles import e2m1
from kernels.launch import Launch, scratch
from kernels.mxfp4 import GROUP, Mxfp4Weight

_LEAST_PAIRS: Final = 48
"""Pairs of an expert on average from which on unpacking pays: 384 rows of gpt-oss-20b. By bytes its
24 layers are unpacked in 13 ms at 3.5 TB/s, and as they lie 384 rows take 32 (84 us a row, one
H200). Not measured itself.
"""

_PART_NUMBERS: Final = 2**27
"""Numbers in 16 bits at a time, 256 MiB: eight experts' gates and ups of gpt-oss-20b."""

_GROUPS: Final = 128
"""Groups of columns of a program."""


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
        grid = triton.cdiv(num_groups, _GROUPS), 1, 1
        launch(grid, (part.pairs, part.powers, wide), (num_groups,))
        yield HeldExperts(wide.view(held * rows, depth), first, held)


@triton.jit(do_not_specialize=["num_groups"])
def _widen_kernel(
    pairs_ptr,  # uint8 [num_groups, 16], two columns each
    powers_ptr,  # uint8 [num_groups]
    out_ptr,  # out: bfloat16 [num_groups, 32]
    num_groups,
    GROUPS: tl.constexpr,  # groups of a program
):
    """Program (groups). It starts when all ahead of it has ended, because others read what it
    overwrites.
    """
    groups = tl.program_id(0).to(tl.int64) * GROUPS + tl.arange(0, GROUPS)
    inside = groups < num_groups
    powers = tl.load(powers_ptr + groups, inside, 0).to(tl.int32)
    scales = (powers << 23).to(tl.float32, bitcast=True)[:, None]
    at = groups[:, None] * 16 + tl.arange(0, 16)[None, :]
    bits = tl.load(pairs_ptr + at, inside[:, None], 0).to(tl.int32)
    numbers = tl.interleave(e2m1(bits & 15) * scales, e2m1(bits >> 4) * scales)
    place = groups[:, None] * 32 + tl.arange(0, 32)[None, :]
    tl.store(out_ptr + place, numbers.to(out_ptr.dtype.element_ty), inside[:, None])


@cache
def _launch(device: torch.device) -> Launch:  # noqa: ARG001 - one for each device
    return Launch(_widen_kernel, {"GROUPS": _GROUPS}, num_warps=4)
