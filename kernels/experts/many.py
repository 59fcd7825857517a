"""Triton experts for many rows: pairs in a list by expert, which is built on the card, and products
of its tiles.

Owns the list, both kernels and their launches. A grid has room for the worst case, an expert for
every tile that could begin; programs beyond the tiles that there are end at once. So a captured
graph serves every choice.
"""

from functools import cache
from typing import Final, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.choose import has_pdl
from kernels.experts import widened
from kernels.experts.long_list import list_pairs
from kernels.experts.pair_sums import add_pairs
from kernels.experts.row_tiles import down_tiles, list_rows, rounded_rows, up_tiles
from kernels.experts.shapes import Activation, ExpertWeights, Routed
from kernels.experts.tiles import (
    ExpertTiles,
    StackSizes,
    activated,
    column_pairs,
    dot_type,
    is_packed,
    number_pairs,
    row_scales,
    stored,
    weight_tile,
)
from kernels.experts.widened import HeldExperts
from kernels.fp8 import Fp8Weight, Weight, quantize_rows
from kernels.launch import Launch
from kernels.mxfp4 import Mxfp4Weight

_APART_ROWS: Final = 64
"""From tiles of this many rows on a launch of its own sums the pairs of rows. On an H200 the
down products of 4,096 rows of a 30B took 474 us where programs count which came last, and 297
with that launch, both in 8 bits.
"""
_LISTED: Final = 1024
_LONG_PAIRS: Final = 8 * _LISTED
"""The most pairs of a list that is built in one launch. With more the list is built part by part.
In one launch each expert's program reads all of them: 32,768 pairs of 128 experts took 61 us, and
38 in parts; 8,192 pairs 16 and 17 (H200)."""


class PairList(NamedTuple):
    """Pairs by expert, in tiles of `rows`: `pairs` int32 [tiles, rows], of one expert each, in
    order, then the number of all pairs; `experts` int32 [tiles]; `num_tiles` int32 [1], how many
    of the tiles there are.
    """

    pairs: Tensor
    experts: Tensor
    num_tiles: Tensor
    rows: int


@triton.jit(do_not_specialize=["num_pairs"])
def _list_kernel(
    chosen_ptr,  # int32 [num_pairs], the expert of each pair
    pairs_ptr,  # out: int32 [tiles, ROWS]
    experts_ptr,  # out: int32 [tiles]
    num_tiles_ptr,  # out: int32 [1]
    num_pairs,
    E_PAD: tl.constexpr,  # a power of two above the number of experts
    ROWS: tl.constexpr,  # pairs of a tile
    BLOCK: tl.constexpr,  # pairs at a time
    PDL: tl.constexpr,
):
    """Program (expert): it counts all experts' pairs to know where its own begin."""
    if PDL:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    expert = tl.program_id(0)
    steps, numbers = tl.arange(0, BLOCK), tl.arange(0, E_PAD)
    counts = tl.zeros([E_PAD], tl.int32)
    for start in range(0, num_pairs, BLOCK):
        at = start + steps
        counts += tl.histogram(tl.load(chosen_ptr + at, at < num_pairs, E_PAD - 1), E_PAD)
    is_expert = numbers < tl.num_programs(0)
    tiles = tl.where(is_expert, (counts + ROWS - 1) // ROWS, 0)
    first = tl.sum(tl.where(numbers < expert, tiles, 0), 0)
    own_tiles = tl.sum(tl.where(numbers == expert, tiles, 0), 0)
    if expert == 0:
        tl.store(num_tiles_ptr, tl.sum(tiles, 0))
    listed = 0
    for start in range(0, num_pairs, BLOCK):
        at = start + steps
        is_own = (tl.load(chosen_ptr + at, at < num_pairs, E_PAD - 1) == expert).to(tl.int32)
        place = first * ROWS + listed + tl.cumsum(is_own, 0) - is_own
        tl.store(pairs_ptr + place, at, is_own == 1)
        listed += tl.sum(is_own, 0)
    lanes = tl.arange(0, ROWS)
    for tile in range(first, first + own_tiles):
        tl.store(experts_ptr + tile, expert)
        place = tile * ROWS + lanes
        tl.store(pairs_ptr + place, num_pairs + 0 * lanes, place >= first * ROWS + listed)


@triton.jit
def _added(
    sums, x, values_ptr, scales_ptr, zeros_ptr, rows,
    first_row,  # the program's first row; by blocks all its rows share scales
    start, steps, DEPTH: tl.constexpr, GROUP: tl.constexpr, FORM: tl.constexpr, DOT: tl.constexpr,
    EIGHT: tl.constexpr,
):  # fmt: skip
    """Sums [ROWS, OUTPUTS] with the products of a tile of columns: see `weight_tile`. In 8 bits
    scales by block are for the tile's products, not for its weights.
    """
    if EIGHT and FORM == "blocks":
        own = weight_tile(values_ptr, scales_ptr, zeros_ptr, rows, start, steps, DEPTH, 1, "rows")
        block = first_row // GROUP * ((DEPTH + GROUP - 1) // GROUP) + start // GROUP
        product = tl.dot(x, tl.trans(own.to(DOT)), input_precision="ieee")
        return sums + product * tl.load(scales_ptr + block)
    else:  # noqa: RET505 - what follows a return is compiled all the same
        own = weight_tile(values_ptr, scales_ptr, zeros_ptr, rows, start, steps, DEPTH, GROUP, FORM)
        return tl.dot(x, tl.trans(own.to(DOT)), sums, input_precision="ieee")


@triton.jit(do_not_specialize=["num_pairs", "first_expert", "num_held"])
def _gate_up_kernel(
    x_ptr,  # [rows, HIDDEN], normed
    x_scales_ptr,  # float32 [rows], read if x is in 8 bits
    pairs_ptr,  # int32 [tiles, ROWS], those from `num_pairs` on fill a tile
    experts_ptr,  # int32 [tiles]
    num_tiles_ptr,  # int32 [1]
    values_ptr,  # the stack of gates and ups [E 2 WIDTH, HIDDEN]; `weight_tile` has the forms
    scales_ptr,  # scales of the stack
    zeros_ptr,  # zero points of the stack
    bias_ptr,  # [E, 2 WIDTH], read if BIAS
    out_ptr,  # out: [num_pairs, WIDTH]
    num_pairs,
    first_expert,  # first expert of those in the stack
    num_held,  # experts in the stack: another's tiles are left alone
    HIDDEN: tl.constexpr,  # columns of x
    WIDTH: tl.constexpr,  # gates of an expert
    ACTIVE: tl.constexpr,  # pairs of a row
    GROUP: tl.constexpr,  # columns that share a scale
    FORM: tl.constexpr,  # form of the stack
    SLOPE: tl.constexpr,  # SLOPE, SHIFT, LIMIT and CUBIC are those of `Activation`
    SHIFT: tl.constexpr,
    LIMIT: tl.constexpr,
    CUBIC: tl.constexpr,
    BIAS: tl.constexpr,
    ROWS: tl.constexpr,  # pairs of a tile
    OUTPUTS: tl.constexpr,  # gates of a program
    COLUMNS: tl.constexpr,  # columns at a time
    DOT: tl.constexpr,  # what products are taken in
    EIGHT: tl.constexpr,  # whether both sides are in 8 bits
    PACKED: tl.constexpr,  # whether `number_pairs` makes bfloat16
    PDL: tl.constexpr,
):
    """Program (tile of gates, tile of pairs)."""
    if PDL:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    tile = tl.program_id(1)
    if tile >= tl.load(num_tiles_ptr):
        return
    expert = tl.load(experts_ptr + tile).to(tl.int64) - first_expert
    if (expert < 0) | (expert >= num_held):
        return
    pairs = tl.load(pairs_ptr + tile * ROWS + tl.arange(0, ROWS))
    gates = tl.program_id(0) * OUTPUTS + tl.arange(0, OUTPUTS)
    first_row = expert * (2 * WIDTH) + tl.program_id(0) * OUTPUTS
    rows = expert * (2 * WIDTH) + tl.minimum(gates, WIDTH - 1)
    steps = tl.arange(0, COLUMNS)
    is_pair = (pairs < num_pairs)[:, None]
    x_rows = (pairs // ACTIVE).to(tl.int64) * HIDDEN
    gate = tl.zeros([ROWS, OUTPUTS], tl.float32)
    up = tl.zeros([ROWS, OUTPUTS], tl.float32)
    for start in range(0, HIDDEN, COLUMNS):
        if FORM == "mxfp4":
            given = tl.where(pairs < num_pairs, x_rows, -1)
            even, odd = column_pairs(x_ptr, given, start, HIDDEN, COLUMNS)
            even, odd = even.to(DOT), odd.to(DOT)
            low, high = number_pairs(values_ptr, scales_ptr, rows, start, HIDDEN, COLUMNS, PACKED)
            gate = tl.dot(even, tl.trans(low.to(DOT)), gate, input_precision="ieee")
            gate = tl.dot(odd, tl.trans(high.to(DOT)), gate, input_precision="ieee")
            low, high = number_pairs(
                values_ptr, scales_ptr, rows + WIDTH, start, HIDDEN, COLUMNS, PACKED
            )
            up = tl.dot(even, tl.trans(low.to(DOT)), up, input_precision="ieee")
            up = tl.dot(odd, tl.trans(high.to(DOT)), up, input_precision="ieee")
        else:
            at = start + steps
            shown = is_pair & (at < HIDDEN)[None, :]
            x = tl.load(x_ptr + x_rows[:, None] + at[None, :], shown, 0.0).to(DOT)
            gate = _added(
                gate, x, values_ptr, scales_ptr, zeros_ptr, rows, first_row, start, steps, HIDDEN,
                GROUP, FORM, DOT, EIGHT,
            )  # fmt: skip
            up = _added(
                up, x, values_ptr, scales_ptr, zeros_ptr, rows + WIDTH, first_row + WIDTH, start,
                steps, HIDDEN, GROUP, FORM, DOT, EIGHT,
            )  # fmt: skip
    gate *= row_scales(scales_ptr, rows[None, :], FORM, PACKED)
    up *= row_scales(scales_ptr, rows[None, :] + WIDTH, FORM, PACKED)
    if EIGHT:
        x_scales = tl.load(x_scales_ptr + pairs // ACTIVE, pairs < num_pairs, 0.0)[:, None]
        gate *= x_scales
        up *= x_scales
    if BIAS:
        biases_ptr = bias_ptr + first_expert * (2 * WIDTH) + rows
        gate += tl.load(biases_ptr).to(tl.float32)[None, :]
        up += tl.load(biases_ptr + WIDTH).to(tl.float32)[None, :]
    out = activated(gate, up, SLOPE, SHIFT, LIMIT, CUBIC).to(out_ptr.dtype.element_ty)
    place = pairs.to(tl.int64)[:, None] * WIDTH + gates[None, :]
    tl.store(out_ptr + place, out, is_pair & (gates < WIDTH)[None, :])


@triton.jit(do_not_specialize=["num_pairs", "first_expert", "num_held"])
def _down_kernel(
    gated_ptr,  # [num_pairs, WIDTH]
    gated_scales_ptr,  # float32 [num_pairs], read if they are in 8 bits
    pairs_ptr,  # int32 [tiles, ROWS], those from `num_pairs` on fill a tile
    experts_ptr,  # int32 [tiles]
    num_tiles_ptr,  # int32 [1]
    weights_ptr,  # float32 [num_pairs], the weight of each
    values_ptr,  # the stack [E HIDDEN, WIDTH]
    scales_ptr,  # scales of the stack
    zeros_ptr,  # zero points of the stack
    bias_ptr,  # [E, HIDDEN], read if BIAS
    residual_ptr,  # [rows, HIDDEN]
    products_ptr,  # [num_pairs, HIDDEN], scratch
    arrived_ptr,  # int32 [rows, tiles of outputs], zeros, which are zeros again behind the launch
    out_ptr,  # out: [rows, HIDDEN]
    num_pairs,
    first_expert,  # first expert of those in the stack
    num_held,  # experts in the stack: another's tiles are left alone
    HIDDEN: tl.constexpr,  # outputs of an expert
    WIDTH: tl.constexpr,  # gates of an expert
    ACTIVE: tl.constexpr,  # pairs of a row
    GROUP: tl.constexpr,  # columns that share a scale
    FORM: tl.constexpr,  # form of the stack
    BIAS: tl.constexpr,
    SUMS: tl.constexpr,  # whether rows are summed here
    ROWS: tl.constexpr,  # pairs of a tile
    OUTPUTS: tl.constexpr,  # outputs of a program
    COLUMNS: tl.constexpr,  # columns at a time
    DOT: tl.constexpr,  # what products are taken in
    EIGHT: tl.constexpr,  # whether both sides are in 8 bits
    PACKED: tl.constexpr,  # whether `number_pairs` makes bfloat16
    PDL: tl.constexpr,
):
    """Program (tile of outputs, tile of pairs). With SUMS that which adds the last of a row's
    products sums them, in the order of its experts: no sum depends on which came last.
    """
    if PDL:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    tile = tl.program_id(1)
    if tile >= tl.load(num_tiles_ptr):
        return
    expert = tl.load(experts_ptr + tile).to(tl.int64) - first_expert
    if (expert < 0) | (expert >= num_held):
        return
    pairs = tl.load(pairs_ptr + tile * ROWS + tl.arange(0, ROWS))
    outputs = tl.program_id(0) * OUTPUTS + tl.arange(0, OUTPUTS)
    first_row = expert * HIDDEN + tl.program_id(0) * OUTPUTS
    rows = expert * HIDDEN + tl.minimum(outputs, HIDDEN - 1)
    steps = tl.arange(0, COLUMNS)
    is_pair, is_output = pairs < num_pairs, (outputs < HIDDEN)[None, :]
    wide_pairs = pairs.to(tl.int64)[:, None]
    product = tl.zeros([ROWS, OUTPUTS], tl.float32)
    for start in range(0, WIDTH, COLUMNS):
        if FORM == "mxfp4":
            given = tl.where(is_pair, pairs.to(tl.int64) * WIDTH, -1)
            even, odd = column_pairs(gated_ptr, given, start, WIDTH, COLUMNS)
            low, high = number_pairs(values_ptr, scales_ptr, rows, start, WIDTH, COLUMNS, PACKED)
            product = tl.dot(even.to(DOT), tl.trans(low.to(DOT)), product, input_precision="ieee")
            product = tl.dot(odd.to(DOT), tl.trans(high.to(DOT)), product, input_precision="ieee")
        else:
            at = start + steps
            shown = is_pair[:, None] & (at < WIDTH)[None, :]
            gated = tl.load(gated_ptr + wide_pairs * WIDTH + at[None, :], shown, 0.0).to(DOT)
            product = _added(
                product, gated, values_ptr, scales_ptr, zeros_ptr, rows, first_row, start, steps,
                WIDTH, GROUP, FORM, DOT, EIGHT,
            )  # fmt: skip
    product *= row_scales(scales_ptr, rows[None, :], FORM, PACKED)
    if EIGHT:
        product *= tl.load(gated_scales_ptr + pairs, is_pair, 0.0)[:, None]
    if BIAS:
        biases_ptr = bias_ptr + first_expert * HIDDEN + rows
        product += tl.load(biases_ptr).to(tl.float32)[None, :]
    dtype = products_ptr.dtype.element_ty
    place = wide_pairs * HIDDEN + outputs[None, :]
    tl.store(products_ptr + place, product.to(dtype), is_pair[:, None] & is_output)
    if SUMS:
        tl.debug_barrier()  # every thread's products are stored before the count shows it
        row = pairs // ACTIVE
        count_ptrs = arrived_ptr + row * tl.num_programs(0) + tl.program_id(0)
        arrived = tl.atomic_add(count_ptrs, 1, mask=is_pair, sem="acq_rel", scope="gpu")
        tl.debug_barrier()
        is_last = is_pair & (arrived == ACTIVE - 1)
        tl.store(count_ptrs, 0, is_last)
        _sum_rows(
            weights_ptr, products_ptr, residual_ptr, out_ptr, row, outputs, is_last, HIDDEN, ACTIVE,
            ROWS, OUTPUTS,
        )  # fmt: skip


@triton.jit
def _sum_rows(
    weights_ptr, products_ptr, residual_ptr, out_ptr, row, outputs, is_last, HIDDEN: tl.constexpr,
    ACTIVE: tl.constexpr, ROWS: tl.constexpr, OUTPUTS: tl.constexpr,
):  # fmt: skip
    """Write the rows whose last pair it is: their products, weighed, and what they are added to."""
    shown = is_last[:, None] & (outputs < HIDDEN)[None, :]
    first = row.to(tl.int64)[:, None] * ACTIVE
    total = tl.zeros([ROWS, OUTPUTS], tl.float32)
    for place in range(ACTIVE):
        weight = tl.load(weights_ptr + first + place, is_last[:, None], 0.0)
        # By way of L2: L1 may hold what stood there before.
        part = tl.load(
            products_ptr + (first + place) * HIDDEN + outputs[None, :], shown, 0.0,
            cache_modifier=".cg",
        )  # fmt: skip
        total += part.to(tl.float32) * weight
    place = row.to(tl.int64)[:, None] * HIDDEN + outputs[None, :]
    total += tl.load(residual_ptr + place, shown, 0.0).to(tl.float32)
    tl.store(out_ptr + place, total.to(out_ptr.dtype.element_ty), shown)


def most_tiles(num_pairs: int, num_experts: int, rows: int) -> int:
    """Tiles that there may be: each expert's last one may be nearly empty."""
    return min(num_pairs, num_experts + num_pairs // rows)


def pair_list(experts: Tensor, num_experts: int, rows: int = 0) -> PairList:
    """The list of the pairs whose experts are int32 [T, K], in tiles of `rows`, a power of two, for
    the products below from 16 on; 0: as many as do well.
    """
    num_pairs, device = experts.numel(), experts.device
    rows = rows or list_rows(num_pairs, num_experts, device)
    tiles = most_tiles(num_pairs, num_experts, rows)
    numbers = torch.empty(tiles * rows + tiles + 1, dtype=torch.int32, device=device)
    pairs, own, count = torch.split(numbers, [tiles * rows, tiles, 1])
    if num_pairs > _LONG_PAIRS:
        list_pairs(experts, pairs, own, count, num_experts, rows)
        return PairList(pairs, own, count, rows)
    launch = _list_launch(device, num_experts, rows)
    launch((num_experts, 1, 1), (experts, pairs, own, count), (num_pairs,))
    return PairList(pairs, own, count, rows)


def gate_up(
    x: Tensor,
    stack: Weight | HeldExperts,
    bias: Tensor | None,
    listed: PairList,
    num_pairs: int,
    width: int,
    activation: Activation,
    tiles: ExpertTiles | None = None,
    out: Tensor | None = None,
    scales: Tensor | None = None,
) -> Tensor:
    """Gates times ups of each pair, [T K, width]; of a part of all experts those of its pairs are
    written to `out`, which must be given too for x in 8 bits with `scales` float32 [T].
    """
    weight, *held = _experts_of(stack, 2 * width)
    values, own_scales, zeros, form, group = stored(weight)
    tiles = tiles or up_tiles(form, listed.rows, x)
    out = x.new_empty(num_pairs, width) if out is None else out
    active = num_pairs // x.shape[0]
    sizes = StackSizes(x.shape[1], width, active, form, group, bias is not None)
    given = sizes, activation, listed.rows, dot_type(x), scales is not None, tiles
    launch = _gate_up_launch(x.device, *given)
    other = x if bias is None else bias
    x_scales = x if scales is None else scales
    operands = x, x_scales, *listed[:3], values, own_scales, zeros, other, out
    grid = triton.cdiv(width, tiles.outputs), listed.experts.shape[0], 1
    launch(grid, operands, (num_pairs, *held))
    return out


def down(
    gated: Tensor,
    stack: Weight,
    bias: Tensor | None,
    listed: PairList,
    routed: Routed,
    residual: Tensor,
    tiles: ExpertTiles | None = None,
    scales: Tensor | None = None,
) -> Tensor:
    """`residual` plus the weighed sums of pairs, [T, hidden]; `scales` float32 [T K] are those of
    `gated` in 8 bits. Launches on one device must be ordered, and the first of a size not inside a
    capture.
    """
    products = residual.new_empty(gated.shape[0], residual.shape[1])
    given = gated, stack, bias, listed, routed, residual, products
    out = torch.empty_like(residual)
    is_apart = listed.rows >= _APART_ROWS
    _down(*given, None if is_apart else out, tiles, scales)
    if is_apart:
        add_pairs(products, routed.weights, residual, out)
    return out


def _down(
    gated: Tensor,
    stack: Weight | HeldExperts,
    bias: Tensor | None,
    listed: PairList,
    routed: Routed,
    residual: Tensor,
    products: Tensor,
    out: Tensor | None,
    tiles: ExpertTiles | None = None,
    scales: Tensor | None = None,
) -> None:
    """Write `products` [T K, hidden] of each pair, of a part of all experts those of its pairs; and
    their sums to `out`, if that is given.
    """
    width, hidden = gated.shape[1], residual.shape[1]
    weight, *held = _experts_of(stack, hidden)
    values, own_scales, zeros, form, group = stored(weight)
    active = routed.experts.shape[1]
    tiles = tiles or down_tiles(form, listed.rows, gated)
    sizes = StackSizes(hidden, width, active, form, group, bias is not None)
    given = sizes, listed.rows, dot_type(gated), scales is not None, out is not None, tiles
    launch = _down_launch(gated.device, *given)
    across, device = triton.cdiv(hidden, tiles.outputs), gated.device
    counters = listed.experts
    if out is not None:
        counters = _counters(device, (residual.shape[0] * across - 1).bit_length())
    operands = (
        gated, gated if scales is None else scales, *listed[:3], routed.weights, values, own_scales,
        zeros, gated if bias is None else bias, residual, products, counters,
        residual if out is None else out,
    )  # fmt: skip
    launch((across, listed.experts.shape[0], 1), operands, (gated.shape[0], *held))


def mix_widened(
    x: Tensor,
    gate_up_stack: Mxfp4Weight,
    down_stack: Mxfp4Weight,
    weights: ExpertWeights,
    routed: Routed,
    num_experts: int,
    activation: Activation,
    residual: Tensor,
) -> Tensor:
    """`residual` plus the weighed sums of pairs, by experts that are widened a part at a time."""
    (num_pairs, width), hidden = (routed.experts.numel(), down_stack.shape[1]), residual.shape[1]
    listed = pair_list(routed.experts, num_experts)
    gated = x.new_empty(num_pairs, width)
    for part in widened.parts(gate_up_stack, num_experts):
        bias = weights.gate_up_bias
        gate_up(x, part, bias, listed, num_pairs, width, activation, out=gated)
    products = x.new_empty(num_pairs, hidden)
    for part in widened.parts(down_stack, num_experts):
        _down(gated, part, weights.down_bias, listed, routed, residual, products, None)
    out = torch.empty_like(residual)
    add_pairs(products, routed.weights, residual, out)
    return out


def mix_rounded(
    x: Tensor,
    gate_up_stack: Fp8Weight,
    down_stack: Fp8Weight,
    weights: ExpertWeights,
    routed: Routed,
    num_experts: int,
    activation: Activation,
    residual: Tensor,
) -> Tensor:
    """`residual` plus the weighed sums of pairs; rows of x, and what is between both products, are
    rounded to 8 bits, one scale each.
    """
    num_pairs, width = routed.experts.numel(), down_stack.shape[1]
    rows = rounded_rows(num_pairs, num_experts, x.device)
    listed = pair_list(routed.experts, num_experts, rows)
    values, scales = quantize_rows(x)
    gated = x.new_empty(num_pairs, width)
    given = values, gate_up_stack, weights.gate_up_bias, listed, num_pairs, width, activation
    gate_up(*given, out=gated, scales=scales)
    values, scales = quantize_rows(gated)
    bias = weights.down_bias
    return down(values, down_stack, bias, listed, routed, residual, scales=scales)


def _experts_of(stack: Weight | HeldExperts, expert_rows: int) -> tuple[Weight, int, int]:
    """The matrices, the number of the first expert among them, and how many experts they are."""
    return stack if isinstance(stack, HeldExperts) else (stack, 0, stack.shape[0] // expert_rows)


@cache
def _list_launch(device: torch.device, num_experts: int, rows: int) -> Launch:
    padded = triton.next_power_of_2(num_experts + 1)
    constants = {"E_PAD": padded, "ROWS": rows, "BLOCK": _LISTED, "PDL": has_pdl(device)}
    return Launch(_list_kernel, constants, num_warps=4)


@cache
def _gate_up_launch(
    device: torch.device,
    sizes: StackSizes,
    activation: Activation,
    rows: int,
    dot: tl.dtype,
    eight: bool,
    tiles: ExpertTiles,
) -> Launch:
    slope, shift, limit, cubic = activation
    constants = sizes.constants(tiles) | {
        "SLOPE": slope, "SHIFT": shift, "LIMIT": limit, "CUBIC": cubic, "ROWS": rows, "DOT": dot,
        "EIGHT": eight, "PACKED": is_packed(dot, sizes.form, tiles),
        "PDL": has_pdl(device),
    }  # fmt: skip
    return Launch(_gate_up_kernel, constants, num_warps=tiles.warps, num_stages=tiles.stages)


@cache
def _down_launch(
    device: torch.device,
    sizes: StackSizes,
    rows: int,
    dot: tl.dtype,
    eight: bool,
    sums: bool,
    tiles: ExpertTiles,
) -> Launch:
    constants = sizes.constants(tiles) | {
        "SUMS": sums, "ROWS": rows, "DOT": dot, "EIGHT": eight,
        "PACKED": is_packed(dot, sizes.form, tiles), "PDL": has_pdl(device),
    }  # fmt: skip
    return Launch(_down_kernel, constants, num_warps=tiles.warps, num_stages=tiles.stages)


@cache
def _counters(device: torch.device, bits: int) -> Tensor:
    """Counters of a launch: zeros, which every launch leaves as zeros."""
    return torch.zeros(1 << bits, dtype=torch.int32, device=device)
