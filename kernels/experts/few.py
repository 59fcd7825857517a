"""Triton experts for few rows: a program for each pair, or row, and tile of outputs; nothing is
sorted.

Owns both kernels and their launches. Rows that chose one expert read its weights one after the
other, mostly from the cache. Products are taken on the ordinary lanes, in an order that depends on
sizes alone: so a row's result is the same to the bit whatever stands beside it. An expert that all
rows share may be one more pair of each.
"""

from functools import cache
from typing import Final, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.choose import has_pdl
from kernels.experts.choose import JOINED_ROWS
from kernels.experts.shapes import Activation, Routed
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
from kernels.fp8 import DualWeight, Weight
from kernels.launch import Launch

_UP: Final = {
    "plain": ExpertTiles(outputs=4, columns=1024, held=True),
    "rows": ExpertTiles(outputs=4, columns=1024, held=True),
    "mxfp4": ExpertTiles(outputs=8, columns=512),
}
WARP_COLUMNS = tl.constexpr(256)
_USUAL_UP: Final = ExpertTiles(outputs=8, columns=256)
_HELD_COLUMNS: Final = 2048
"""The most columns of which a program holds four gates and ups at once, in 64 registers of a
thread in 16 bits; with more columns it holds fewer gates.
"""
_DOWN: Final = {"rows": ExpertTiles(outputs=8, columns=256, warps=8, ahead=12)}
_USUAL_DOWN: Final = ExpertTiles(outputs=4, columns=1024)
_SHALLOW_DOWN: Final = ExpertTiles(outputs=8, columns=512)
"""The tiles by the form of a stack, the best on an H200 at one row (`python -m benchmarks.kernels
experts`). What is down takes all columns at once, in most models, and few outputs, because a row
alone has no more programs than tiles of outputs; in 8 bits a warp has an output of its own, and a
dozen tiles are requested ahead of the wait; the last is for 512 columns and fewer."""


@triton.jit
def _products_of_pairs(even, odd, low, high):
    """Products of x and rows of weights, of even and odd columns together."""
    return low.to(tl.float32) * even.to(tl.float32) + high.to(tl.float32) * odd.to(tl.float32)


@triton.jit
def _held_products(
    x_ptr,  # the row of x
    values_ptr, scales_ptr, zeros_ptr, rows, HIDDEN: tl.constexpr, WIDTH: tl.constexpr,
    GROUP: tl.constexpr, FORM: tl.constexpr, OUTPUTS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """Products [OUTPUTS, COLUMNS] of a row with gates and with ups, not scaled by row. All numbers
    are requested ahead of the first product: what follows a barrier would wait once more.
    """
    # The hint keeps eight neighbours to a thread, as it has them of x, whatever a weight's width.
    lanes = tl.max_contiguous(tl.multiple_of(tl.arange(0, COLUMNS), 8), 8)
    xs = ()
    gates = ()
    ups = ()
    for start in tl.static_range(0, HIDDEN, COLUMNS):
        at = start + lanes
        xs += (tl.load(x_ptr + at, at < HIDDEN, 0.0),)  # type: ignore[assignment]
        gates += (  # type: ignore[assignment]
            weight_tile(values_ptr, scales_ptr, zeros_ptr, rows, start, lanes, HIDDEN, GROUP, FORM),
        )
        ups += (  # type: ignore[assignment]
            weight_tile(
                values_ptr, scales_ptr, zeros_ptr, rows + WIDTH, start, lanes, HIDDEN, GROUP, FORM
            ),
        )
    gate = tl.zeros([OUTPUTS, COLUMNS], tl.float32)
    up = tl.zeros([OUTPUTS, COLUMNS], tl.float32)
    for start in tl.static_range(0, HIDDEN, COLUMNS):
        x = xs[start // COLUMNS].to(tl.float32)[None, :]  # type: ignore[var-annotated]
        gate += gates[start // COLUMNS].to(tl.float32) * x
        up += ups[start // COLUMNS].to(tl.float32) * x
    return gate, up


@triton.jit
def _looped_products(
    x_ptr,  # the row of x
    values_ptr, scales_ptr, zeros_ptr, rows, HIDDEN: tl.constexpr, WIDTH: tl.constexpr,
    GROUP: tl.constexpr, FORM: tl.constexpr, OUTPUTS: tl.constexpr, COLUMNS: tl.constexpr,
    SUMS: tl.constexpr, PACKED: tl.constexpr,
):  # fmt: skip
    """`_held_products` in any form, some columns after the other, [OUTPUTS, SUMS]."""
    steps = tl.arange(0, COLUMNS)
    gate = tl.zeros([OUTPUTS, SUMS], tl.float32)
    up = tl.zeros([OUTPUTS, SUMS], tl.float32)
    for start in range(0, HIDDEN, COLUMNS):
        if FORM == "mxfp4":
            even, odd = column_pairs(x_ptr, tl.zeros([1], tl.int32), start, HIDDEN, COLUMNS)
            low, high = number_pairs(values_ptr, scales_ptr, rows, start, HIDDEN, COLUMNS, PACKED)
            gate += _products_of_pairs(even, odd, low, high)
            low, high = number_pairs(
                values_ptr, scales_ptr, rows + WIDTH, start, HIDDEN, COLUMNS, PACKED
            )
            up += _products_of_pairs(even, odd, low, high)
        else:
            at = start + steps
            x = tl.load(x_ptr + at, at < HIDDEN, 0.0).to(tl.float32)[None, :]
            tile = weight_tile(
                values_ptr, scales_ptr, zeros_ptr, rows, start, steps, HIDDEN, GROUP, FORM
            )
            gate += tile.to(tl.float32) * x
            tile = weight_tile(
                values_ptr, scales_ptr, zeros_ptr, rows + WIDTH, start, steps, HIDDEN, GROUP, FORM
            )
            up += tile.to(tl.float32) * x
    return gate, up


@triton.jit
def _gate_up_kernel(
    x_ptr,  # [rows, HIDDEN], normed
    experts_ptr,  # int32 [pairs], the expert of each
    values_ptr,  # the stack of gates and ups [E 2 WIDTH, HIDDEN]; `weight_tile` has the forms
    scales_ptr,  # scales of the stack
    zeros_ptr,  # zero points of the stack
    shared_values_ptr,  # the shared expert's [2 WIDTH, HIDDEN], in the same form, read if SHARED
    shared_scales_ptr,  # scales of the shared expert
    shared_zeros_ptr,  # zero points of the shared expert
    bias_ptr,  # [E, 2 WIDTH], read if BIAS
    out_ptr,  # out: [pairs, WIDTH]
    HIDDEN: tl.constexpr,  # columns of x
    WIDTH: tl.constexpr,  # gates of an expert
    ACTIVE: tl.constexpr,  # experts that a row chooses
    SHARED: tl.constexpr,  # 1 if a row's last pair is the shared expert's, else 0
    GROUP: tl.constexpr,  # columns that share a scale
    FORM: tl.constexpr,  # form of the stack
    SLOPE: tl.constexpr,  # SLOPE, SHIFT, LIMIT and CUBIC are those of `Activation`
    SHIFT: tl.constexpr,
    LIMIT: tl.constexpr,
    CUBIC: tl.constexpr,
    BIAS: tl.constexpr,
    OUTPUTS: tl.constexpr,  # gates of a program
    COLUMNS: tl.constexpr,  # columns at a time
    SUMS: tl.constexpr,  # sums of an output, COLUMNS, or half as many of pairs
    PACKED: tl.constexpr,  # whether `number_pairs` makes bfloat16
    HELD: tl.constexpr,  # whether all numbers of a program are requested at once
    PDL: tl.constexpr,
):
    """Program (pair, tile of gates)."""
    if PDL:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    pair = tl.program_id(0)
    x_row = pair // (ACTIVE + SHARED)
    if SHARED:
        place = pair % (ACTIVE + SHARED)
        chosen_ptr = experts_ptr + x_row * ACTIVE + place
        expert = tl.load(chosen_ptr, place < ACTIVE, 0).to(tl.int64)
        if place == ACTIVE:
            values_ptr = shared_values_ptr
            scales_ptr = shared_scales_ptr
            zeros_ptr = shared_zeros_ptr
    else:
        expert = tl.load(experts_ptr + pair).to(tl.int64)
    gates = tl.program_id(1) * OUTPUTS + tl.arange(0, OUTPUTS)
    # Those past the end repeat the last: loads need no mask, and they are not stored.
    rows = expert * (2 * WIDTH) + tl.minimum(gates, WIDTH - 1)
    x_ptr += x_row.to(tl.int64) * HIDDEN
    # Columns are added up at the end: that takes all threads of a program.
    if HELD:
        gate, up = _held_products(
            x_ptr, values_ptr, scales_ptr, zeros_ptr, rows, HIDDEN, WIDTH, GROUP, FORM, OUTPUTS,
            COLUMNS,
        )  # fmt: skip
    else:
        gate, up = _looped_products(
            x_ptr, values_ptr, scales_ptr, zeros_ptr, rows, HIDDEN, WIDTH, GROUP, FORM, OUTPUTS,
            COLUMNS, SUMS, PACKED,
        )  # fmt: skip
    gates_sum = tl.sum(gate, 1) * row_scales(scales_ptr, rows, FORM, PACKED)
    ups_sum = tl.sum(up, 1) * row_scales(scales_ptr, rows + WIDTH, FORM, PACKED)
    if BIAS:
        gates_sum += tl.load(bias_ptr + rows).to(tl.float32)
        ups_sum += tl.load(bias_ptr + rows + WIDTH).to(tl.float32)
    out = activated(gates_sum, ups_sum, SLOPE, SHIFT, LIMIT, CUBIC).to(out_ptr.dtype.element_ty)
    tl.store(out_ptr + pair.to(tl.int64) * WIDTH + gates, out, gates < WIDTH)


@triton.jit
def _down_tile(
    values_ptr, scales_ptr, zeros_ptr, shared_values_ptr, shared_scales_ptr, shared_zeros_ptr,
    rows, start, steps, WIDTH: tl.constexpr, GROUP: tl.constexpr, FORM: tl.constexpr,
    OWN: tl.constexpr,  # whether it is an expert's of the stack, not the shared one's
):  # fmt: skip
    """`weight_tile` of one pair."""
    if OWN:
        return weight_tile(
            values_ptr, scales_ptr, zeros_ptr, rows, start, steps, WIDTH, GROUP, FORM
        )
    else:  # noqa: RET505 - what follows a return is compiled all the same
        return weight_tile(
            shared_values_ptr, shared_scales_ptr, shared_zeros_ptr, rows, start, steps, WIDTH,
            GROUP, FORM,
        )  # fmt: skip


@triton.jit
def _down_ahead(
    experts_ptr,  # experts of the row
    values_ptr, scales_ptr, zeros_ptr, shared_values_ptr, shared_scales_ptr, shared_zeros_ptr,
    own_rows,  # int64 [OUTPUTS], of an expert
    steps, HIDDEN: tl.constexpr, WIDTH: tl.constexpr, ACTIVE: tl.constexpr, GROUP: tl.constexpr,
    FORM: tl.constexpr, COLUMNS: tl.constexpr, AHEAD: tl.constexpr,
):  # fmt: skip
    """The first AHEAD tiles of a program, by pair and columns."""
    chunks: tl.constexpr = (WIDTH + COLUMNS - 1) // COLUMNS
    tiles = ()
    for piece in tl.static_range(AHEAD):
        rows = own_rows
        if piece // chunks < ACTIVE:
            # By way of L2: this multiprocessor may have read what stood there before.
            expert = tl.load(experts_ptr + piece // chunks, cache_modifier=".cg")
            rows += expert.to(tl.int64) * HIDDEN
        tiles += (  # type: ignore[assignment]
            _down_tile(
                values_ptr, scales_ptr, zeros_ptr, shared_values_ptr, shared_scales_ptr,
                shared_zeros_ptr, rows, piece % chunks * COLUMNS, steps, WIDTH, GROUP, FORM,
                piece // chunks < ACTIVE,
            ),
        )  # fmt: skip
    return tiles


@triton.jit
def _gated_tile(ptr, at, WIDTH: tl.constexpr, OUTPUTS: tl.constexpr, COLUMNS: tl.constexpr):
    """A pair's gated numbers at some columns, [1 or OUTPUTS, COLUMNS]. Of so few columns a warp has
    rows of its own, and each thread reads what its weights meet: others' would need barriers.
    """
    if COLUMNS <= WARP_COLUMNS:
        places = tl.zeros([OUTPUTS, 1], tl.int32) + at[None, :]
        return tl.load(ptr + places, places < WIDTH, 0.0)
    else:  # noqa: RET505 - what follows a return is compiled all the same
        return tl.load(ptr + at, at < WIDTH, 0.0)[None, :]


@triton.jit
def _down_product(
    gated_ptr,  # the pair's
    values_ptr, scales_ptr, zeros_ptr, shared_values_ptr, shared_scales_ptr, shared_zeros_ptr,
    tiles, rows, steps, place: tl.constexpr, WIDTH: tl.constexpr, ACTIVE: tl.constexpr,
    GROUP: tl.constexpr, FORM: tl.constexpr, OUTPUTS: tl.constexpr, COLUMNS: tl.constexpr,
    SUMS: tl.constexpr, PACKED: tl.constexpr, AHEAD: tl.constexpr,
):  # fmt: skip
    """What a row's pair at `place` adds to its outputs, [OUTPUTS, SUMS], not scaled by row."""
    chunks: tl.constexpr = (WIDTH + COLUMNS - 1) // COLUMNS
    product = tl.zeros([OUTPUTS, SUMS], tl.float32)
    for chunk in tl.static_range(chunks):
        if FORM == "mxfp4":
            start = chunk * COLUMNS
            even, odd = column_pairs(gated_ptr, tl.zeros([1], tl.int32), start, WIDTH, COLUMNS)
            low, high = number_pairs(values_ptr, scales_ptr, rows, start, WIDTH, COLUMNS, PACKED)
            product += _products_of_pairs(even, odd, low, high)
        else:
            at = chunk * COLUMNS + steps
            gated = _gated_tile(gated_ptr, at, WIDTH, OUTPUTS, COLUMNS)
            if place * chunks + chunk < AHEAD:
                tile = tiles[place * chunks + chunk]
            else:
                tile = _down_tile(
                    values_ptr, scales_ptr, zeros_ptr, shared_values_ptr, shared_scales_ptr,
                    shared_zeros_ptr, rows, chunk * COLUMNS, steps, WIDTH, GROUP, FORM,
                    place < ACTIVE,
                )  # fmt: skip
            product += tile.to(tl.float32) * gated.to(tl.float32)
    return product


@triton.jit
def _down_kernel(
    gated_ptr,  # [pairs, WIDTH]
    experts_ptr,  # int32 [rows, ACTIVE]
    weights_ptr,  # float32 [rows, ACTIVE], the weight of each
    values_ptr,  # the stack [E HIDDEN, WIDTH]
    scales_ptr,  # scales of the stack
    zeros_ptr,  # zero points of the stack
    shared_values_ptr,  # the shared expert's [HIDDEN, WIDTH], in the same form, read if SHARED
    shared_scales_ptr,  # scales of the shared expert
    shared_zeros_ptr,  # zero points of the shared expert
    shared_weights_ptr,  # float32 [rows], its weight, read if GATED; else it is 1
    bias_ptr,  # [E, HIDDEN], read if BIAS
    residual_ptr,  # [rows, HIDDEN]
    out_ptr,  # out: [rows, HIDDEN]
    HIDDEN: tl.constexpr,  # outputs of an expert
    WIDTH: tl.constexpr,  # gates of an expert
    ACTIVE: tl.constexpr,  # experts that a row chooses
    SHARED: tl.constexpr,  # 1 if a row's last pair is the shared expert's, else 0
    GATED: tl.constexpr,
    GROUP: tl.constexpr,  # columns that share a scale
    FORM: tl.constexpr,  # form of the stack
    BIAS: tl.constexpr,
    OUTPUTS: tl.constexpr,  # outputs of a program
    COLUMNS: tl.constexpr,  # columns at a time
    SUMS: tl.constexpr,  # sums of an output, COLUMNS, or half as many of pairs
    PACKED: tl.constexpr,  # whether `number_pairs` makes bfloat16
    AHEAD: tl.constexpr,  # tiles that are requested ahead of the wait
    PDL: tl.constexpr,
):
    """Program (row, tile of outputs)."""
    row = tl.program_id(0).to(tl.int64)
    outputs = tl.program_id(1) * OUTPUTS + tl.arange(0, OUTPUTS)
    steps = tl.arange(0, COLUMNS)
    if FORM == "plain" or FORM == "rows":  # noqa: PLR1714 - no tuples of strings in device code
        # Eight neighbours to a thread, as of what is gated, whatever a weight's width.
        steps = tl.max_contiguous(tl.multiple_of(steps, 8), 8)
    own_rows = tl.minimum(outputs, HIDDEN - 1).to(tl.int64)
    tiles = ()
    if AHEAD > 0:  # a kernel's function returns no empty tuple
        tiles = _down_ahead(
            experts_ptr + row * ACTIVE, values_ptr, scales_ptr, zeros_ptr, shared_values_ptr,
            shared_scales_ptr, shared_zeros_ptr, own_rows, steps, HIDDEN, WIDTH, ACTIVE, GROUP,
            FORM, COLUMNS, AHEAD,
        )  # fmt: skip
    if PDL:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    # Columns are added up at the end: that takes all threads of a program.
    sums = tl.zeros([OUTPUTS, SUMS], tl.float32)
    total = tl.zeros([OUTPUTS], tl.float32)
    for place in tl.static_range(ACTIVE + SHARED):  # unrolled: the next one's loads begin meanwhile
        pair = row * (ACTIVE + SHARED) + place
        rows = own_rows
        weight = 1.0
        if place < ACTIVE:
            rows += tl.load(experts_ptr + row * ACTIVE + place).to(tl.int64) * HIDDEN
            weight = tl.load(weights_ptr + row * ACTIVE + place)
        elif GATED:
            weight = tl.load(shared_weights_ptr + row)
        product = _down_product(
            gated_ptr + pair * WIDTH, values_ptr, scales_ptr, zeros_ptr, shared_values_ptr,
            shared_scales_ptr, shared_zeros_ptr, tiles, rows, steps, place, WIDTH, ACTIVE, GROUP,
            FORM, OUTPUTS, COLUMNS, SUMS, PACKED, AHEAD,
        )  # fmt: skip
        if place < ACTIVE:
            factors = weight * row_scales(scales_ptr, rows, FORM, PACKED)
        else:
            factors = weight * row_scales(shared_scales_ptr, rows, FORM, PACKED)
        if FORM == "rows":
            sums += product * factors[:, None]
        else:
            sums += product * factors
        if BIAS:
            total += tl.load(bias_ptr + rows).to(tl.float32) * weight
    total += tl.sum(sums, 1)
    place = row * HIDDEN + outputs
    total += tl.load(residual_ptr + place, outputs < HIDDEN, 0.0).to(tl.float32)
    tl.store(out_ptr + place, total.to(out_ptr.dtype.element_ty), outputs < HIDDEN)


class SharedExpert(NamedTuple):
    """An expert that all rows go through, of as many gates as the others and in their form: gates
    and ups [2 width, hidden], what is down [hidden, width], and its weight for each row, float32
    [T]; None: 1.
    """

    gate_up: Weight
    down: Weight
    weights: Tensor | None


def takes_shared(gate_up: Weight, down: Weight, shared_up: Weight, shared_down: Weight) -> bool:
    """Whether a shared expert can be one more pair of each row beside stacks."""
    if isinstance(shared_up, DualWeight) or isinstance(shared_down, DualWeight):
        return False
    width = down.shape[1]
    is_as_wide = shared_up.shape[0] == 2 * width and shared_down.shape[1] == width
    pairs = (gate_up, shared_up), (down, shared_down)
    return is_as_wide and all(stored(one)[3:] == stored(other)[3:] for one, other in pairs)


def gate_up(
    x: Tensor,
    stack: Weight,
    bias: Tensor | None,
    routed: Routed,
    width: int,
    activation: Activation,
    tiles: ExpertTiles | None = None,
    shared: SharedExpert | None = None,
) -> Tensor:
    """Gates times ups of each pair, [T K, width]; with `shared`, [T (K + 1), width], each row's
    last the shared expert's.
    """
    active, (values, scales, zeros, form, group) = routed.experts.shape[1], stored(stack)
    has_shared, tiles = shared is not None, tiles or _up_tiles(form, x.shape[1])
    num_pairs = x.shape[0] * (active + has_shared)
    out = x.new_empty(num_pairs, width)
    sizes = StackSizes(x.shape[1], width, active, form, group, bias is not None)
    packed = is_packed(dot_type(x), form, tiles)
    launch = _gate_up_launch(x.device, sizes, activation, has_shared, packed, tiles)
    other = stored(stack if shared is None else shared.gate_up)[:3]
    operands = x, routed.experts, values, scales, zeros, *other, x if bias is None else bias, out
    if num_pairs:
        launch((num_pairs, triton.cdiv(width, tiles.outputs), 1), operands)
    return out


def down(
    gated: Tensor,
    stack: Weight,
    bias: Tensor | None,
    routed: Routed,
    residual: Tensor,
    tiles: ExpertTiles | None = None,
    shared: SharedExpert | None = None,
) -> Tensor:
    """`residual` plus the weighed sums of pairs, [T, hidden].

    It reads experts and their weights before the kernel ahead has ended: that must be `gate_up`, or
    one that begins when all ahead of it has ended.
    """
    num_rows, hidden = residual.shape
    active, (values, scales, zeros, form, group) = routed.experts.shape[1], stored(stack)
    out = torch.empty_like(residual)
    tiles = tiles or _down_tiles(form, gated.shape[1], num_rows)
    tiles = tiles._replace(columns=min(tiles.columns, triton.next_power_of_2(gated.shape[1])))
    factors = None if shared is None else shared.weights
    sizes = StackSizes(hidden, gated.shape[1], active, form, group, bias is not None)
    has_shared, packed = shared is not None, is_packed(dot_type(gated), form, tiles)
    launch = _down_launch(gated.device, sizes, has_shared, factors is not None, packed, tiles)
    operands = (
        gated, *routed[:2], values, scales, zeros,
        *stored(stack if shared is None else shared.down)[:3],
        routed.weights if factors is None else factors, gated if bias is None else bias, residual,
        out,
    )  # fmt: skip
    if num_rows:
        launch((num_rows, triton.cdiv(hidden, tiles.outputs), 1), operands)
    return out


def _sums(tiles: ExpertTiles, form: str) -> int:
    return tiles.columns // 2 if form == "mxfp4" else tiles.columns


def _up_tiles(form: str, hidden: int) -> ExpertTiles:
    tiles = _UP.get(form, _USUAL_UP)
    if not tiles.held:
        return tiles
    columns = min(tiles.columns, triton.next_power_of_2(hidden))
    outputs = max(1, tiles.outputs * _HELD_COLUMNS // triton.next_power_of_2(hidden))
    return tiles._replace(outputs=min(tiles.outputs, outputs), columns=columns)


def _down_tiles(form: str, width: int, num_rows: int) -> ExpertTiles:
    tiles = _DOWN.get(form, _USUAL_DOWN)
    if form == "plain" and width <= _SHALLOW_DOWN.columns:
        tiles = _SHALLOW_DOWN
    return tiles._replace(ahead=max(1, tiles.ahead) if num_rows <= JOINED_ROWS else 0)


@cache
def _gate_up_launch(
    device: torch.device,
    sizes: StackSizes,
    activation: Activation,
    has_shared: bool,
    packed: bool,
    tiles: ExpertTiles,
) -> Launch:
    slope, shift, limit, cubic = activation
    constants = sizes.constants(tiles) | {
        "SHARED": int(has_shared), "SLOPE": slope, "SHIFT": shift, "LIMIT": limit, "CUBIC": cubic,
        "SUMS": _sums(tiles, sizes.form), "PACKED": packed, "HELD": tiles.held,
        "PDL": has_pdl(device),
    }  # fmt: skip
    return Launch(_gate_up_kernel, constants, num_warps=tiles.warps, num_stages=tiles.stages)


@cache
def _down_launch(
    device: torch.device,
    sizes: StackSizes,
    has_shared: bool,
    is_gated: bool,
    packed: bool,
    tiles: ExpertTiles,
) -> Launch:
    pieces = (sizes.active + has_shared) * triton.cdiv(sizes.width, tiles.columns)
    constants = sizes.constants(tiles) | {
        "SHARED": int(has_shared), "GATED": is_gated, "SUMS": _sums(tiles, sizes.form),
        "PACKED": packed, "AHEAD": 0 if sizes.form == "mxfp4" else min(pieces, tiles.ahead),
        "PDL": has_pdl(device),
    }  # fmt: skip
    return Launch(_down_kernel, constants, num_warps=tiles.warps, num_stages=tiles.stages)
