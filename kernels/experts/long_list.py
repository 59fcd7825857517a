"""Triton's list of very many pairs by expert, in three launches: counts, their sums, then places.

Owns the kernels. A program has some of the pairs. By the counts of those ahead it knows where its
own of each expert begin, and by sums over its own where each of them stands, so the order is that
of the pairs whatever ran first, and all pairs are read twice, whatever the number of experts.
"""

from functools import cache
from typing import Final, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.choose import has_pdl
from kernels.launch import Launch, scratch

_PART: Final = 256
"""Pairs of a program."""

_NUMBERS: Final = 8192
"""The numbers of a table of pairs and experts that a program holds at once: 32 registers of a
thread.
"""
_LEAST: Final = 16
"""The least pairs, and the least experts, of such a table, which tensor cores multiply."""

_ADDED_PARTS: Final = 64
_ADDED_EXPERTS: Final = 16
"""Counts that a program adds up at once."""

_OWNERS: Final = 128
"""Tiles of an expert that are named at once."""


class _Launches(NamedTuple):
    counting: Launch
    adding: Launch
    placing: Launch
    padded: int
    """A power of two, at least the number of experts."""


@triton.jit(do_not_specialize=["num_pairs"])
def _count_kernel(
    chosen_ptr,  # int32 [num_pairs], the expert of each pair
    counts_ptr,  # out: int32 [programs, E_PAD]
    num_pairs,  # pairs of rows and experts
    E_PAD: tl.constexpr,  # a power of two, at least the number of experts
    PART: tl.constexpr,  # pairs of a program
    PDL: tl.constexpr,  # whether it may start while the kernel ahead ends
):
    """Program (part of the pairs)."""
    if PDL:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    at = tl.program_id(0) * PART + tl.arange(0, PART)
    inside = at < num_pairs
    counts = tl.histogram(tl.load(chosen_ptr + at, inside, 0), E_PAD, mask=inside)
    tl.store(counts_ptr + tl.program_id(0) * E_PAD + tl.arange(0, E_PAD), counts)


@triton.jit(do_not_specialize=["num_parts"])
def _add_kernel(
    counts_ptr,  # int32 [num_parts + 1, E_PAD], become those of all parts ahead
    num_parts,  # parts of the pairs
    E_PAD: tl.constexpr,  # a power of two, at least the number of experts
    PARTS: tl.constexpr,  # parts at a time
    EXPERTS: tl.constexpr,  # experts of a program
    PDL: tl.constexpr,  # whether it may start while the kernel ahead ends
):
    """Program (some experts). The last row of counts is that of all parts."""
    if PDL:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    experts = tl.program_id(0) * EXPERTS + tl.arange(0, EXPERTS)
    ahead = tl.zeros([EXPERTS], tl.int32)
    for start in range(0, num_parts, PARTS):
        part = start + tl.arange(0, PARTS)[:, None]
        at = counts_ptr + part * E_PAD + experts[None, :]
        counts = tl.load(at, part < num_parts, 0)
        tl.store(at, tl.cumsum(counts, 0) - counts + ahead[None, :], part < num_parts)
        ahead += tl.sum(counts, 0)
    tl.store(counts_ptr + num_parts * E_PAD + experts, ahead)


@triton.jit(do_not_specialize=["num_pairs", "num_parts"])
def _place_kernel(
    chosen_ptr,  # int32 [num_pairs], the expert of each pair
    counts_ptr,  # int32 [num_parts + 1, E_PAD], of all parts ahead
    pairs_ptr,  # out: int32 [tiles, ROWS]
    experts_ptr,  # out: int32 [tiles]
    num_tiles_ptr,  # out: int32 [1]
    num_pairs,  # pairs of rows and experts
    num_parts,  # parts of the pairs
    E_PAD: tl.constexpr,  # a power of two, at least the number of experts
    ROWS: tl.constexpr,  # pairs of a tile
    PART: tl.constexpr,  # pairs of a part
    SOME: tl.constexpr,  # pairs at a time
    OWNERS: tl.constexpr,  # tiles of an expert at a time
    PDL: tl.constexpr,  # whether it may start while the kernel ahead ends
):
    """Program (part of the pairs, or behind the parts an expert whose tiles it names and fills)."""
    if PDL:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    program, numbers = tl.program_id(0), tl.arange(0, E_PAD)
    counts = tl.load(counts_ptr + num_parts * E_PAD + numbers)
    tiles = (counts + ROWS - 1) // ROWS
    first = tl.cumsum(tiles, 0) - tiles
    if program < num_parts:
        place = first * ROWS + tl.load(counts_ptr + program * E_PAD + numbers)
        lanes = tl.arange(0, SOME)
        is_ahead = (lanes[None, :] < lanes[:, None]).to(tl.float16)
        for start in range(0, PART, SOME):
            at = program * PART + start + tl.arange(0, SOME)
            chosen = tl.load(chosen_ptr + at, at < num_pairs, -1)
            is_own = (chosen[:, None] == numbers[None, :]).to(tl.int32)
            # Of each pair and expert how many pairs ahead chose it: products of ones, exact.
            ranks = tl.dot(is_ahead, is_own.to(tl.float16)).to(tl.int32)
            places = ranks + place[None, :]
            tl.store(pairs_ptr + tl.sum(is_own * places, 1), at, at < num_pairs)
            place += tl.sum(is_own, 0)
    else:
        expert = program - num_parts
        is_expert = numbers == expert
        own_first = tl.sum(tl.where(is_expert, first, 0), 0)
        own_tiles = tl.sum(tl.where(is_expert, tiles, 0), 0)
        own_count = tl.sum(tl.where(is_expert, counts, 0), 0)
        if expert == 0:
            tl.store(num_tiles_ptr, tl.sum(tiles, 0))
        for start in range(0, own_tiles, OWNERS):
            tile = start + tl.arange(0, OWNERS)
            tl.store(experts_ptr + own_first + tile, expert + 0 * tile, tile < own_tiles)
        lane = (own_tiles - 1) * ROWS + tl.arange(0, ROWS)
        tl.store(pairs_ptr + own_first * ROWS + lane, num_pairs + 0 * lane, lane >= own_count)


def list_pairs(
    chosen: Tensor,
    pairs: Tensor,
    experts: Tensor,
    num_tiles: Tensor,
    num_experts: int,
    rows: int,
) -> None:
    """Write the list of `kernels.experts.many.PairList`. Launches on one device must be ordered,
    and the first not inside a capture.
    """
    num_pairs, device = chosen.numel(), chosen.device
    count, add, place, padded = _launches(device, num_experts, rows)
    num_parts = triton.cdiv(num_pairs, _PART)
    counts = scratch(device, (num_parts + 1) * padded).view(torch.int32)
    count((num_parts, 1, 1), (chosen, counts), (num_pairs,))
    add((padded // _ADDED_EXPERTS, 1, 1), (counts,), (num_parts,))
    given = chosen, counts, pairs, experts, num_tiles
    place((num_parts + num_experts, 1, 1), given, (num_pairs, num_parts))


@cache
def _launches(device: torch.device, num_experts: int, rows: int) -> _Launches:
    padded, has = max(_LEAST, triton.next_power_of_2(num_experts)), has_pdl(device)
    parts = {"E_PAD": padded, "PART": _PART, "PDL": has}
    added = {"E_PAD": padded, "PARTS": _ADDED_PARTS, "EXPERTS": _ADDED_EXPERTS, "PDL": has}
    some = min(_PART // 2, max(_LEAST, _NUMBERS // padded))
    placed = parts | {"ROWS": rows, "SOME": some, "OWNERS": _OWNERS}
    return _Launches(
        Launch(_count_kernel, parts, num_warps=4),
        Launch(_add_kernel, added, num_warps=4),
        Launch(_place_kernel, placed, num_warps=8),
        padded,
    )
