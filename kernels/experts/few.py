"""Triton experts for few rows: a program for each pair, or row, and tile of outputs; nothing is
sorted.

Owns both kernels and their launches. Rows that chose one expert read its weights one after the
other, mostly from the cache. Products are taken on the ordinary lanes, in an order that depends on
sizes alone: so a row's result is the same to the bit whatever stands beside it.
"""

from functools import cache
from typing import Final

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.choose import has_pdl
from kernels.experts.shapes import Activation, Routed
from kernels.experts.tiles import (
    ExpertTiles,
    activated,
    column_pairs,
    dot_type,
    is_packed,
    number_pairs,
    row_scales,
    stored,
    weight_tile,
)
from kernels.fp8 import Weight
from kernels.launch import Launch

_UP: Final = {
    "rows": ExpertTiles(outputs=4, columns=512),
    "mxfp4": ExpertTiles(outputs=8, columns=512),
}
_USUAL_UP: Final = ExpertTiles(outputs=8, columns=256)
_DOWN: Final = {"rows": ExpertTiles(outputs=8, columns=1024)}
_USUAL_DOWN: Final = ExpertTiles(outputs=4, columns=1024)
_SHALLOW_DOWN: Final = ExpertTiles(outputs=8, columns=512)
"""By the form of a stack, the best on an H200 at one row (`python -m benchmarks.kernels experts`).
What is down takes all columns at once, in most models, and few outputs, because a row alone has no
more programs than tiles of outputs; the last is for 512 columns and fewer."""


@triton.jit
def _products_of_pairs(even, odd, low, high):
    """Products of x and rows of weights, of even and odd columns together."""
    return low.to(tl.float32) * even.to(tl.float32) + high.to(tl.float32) * odd.to(tl.float32)


@triton.jit
def _gate_up_kernel(
    x_ptr,  # [rows, HIDDEN], normed
    experts_ptr,  # int32 [pairs], the expert of each
    values_ptr,  # the stack of gates and ups [E 2 WIDTH, HIDDEN]; `weight_tile` has the forms
    scales_ptr,  # its scales
    zeros_ptr,  # its zero points
    bias_ptr,  # [E, 2 WIDTH], read if BIAS
    out_ptr,  # out: [pairs, WIDTH]
    HIDDEN: tl.constexpr,  # columns of x
    WIDTH: tl.constexpr,  # gates of an expert
    ACTIVE: tl.constexpr,  # pairs of a row
    GROUP: tl.constexpr,  # columns that share a scale
    FORM: tl.constexpr,  # of the stack
    SLOPE: tl.constexpr,  # these four are `Activation`
    SHIFT: tl.constexpr,
    LIMIT: tl.constexpr,
    CUBIC: tl.constexpr,
    BIAS: tl.constexpr,
    OUTPUTS: tl.constexpr,  # gates of a program
    COLUMNS: tl.constexpr,  # columns at a time
    SUMS: tl.constexpr,  # sums of an output, COLUMNS, or half as many of pairs
    PACKED: tl.constexpr,  # of `number_pairs`
    PDL: tl.constexpr,
):
    """Program (pair, tile of gates)."""
    if PDL:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    pair = tl.program_id(0)
    expert = tl.load(experts_ptr + pair).to(tl.int64)
    gates = tl.program_id(1) * OUTPUTS + tl.arange(0, OUTPUTS)
    # Those past the end repeat the last: loads need no mask, and they are not stored.
    rows = expert * (2 * WIDTH) + tl.minimum(gates, WIDTH - 1)
    steps = tl.arange(0, COLUMNS)
    x_ptr += (pair // ACTIVE).to(tl.int64) * HIDDEN
    # Columns are added up at the end: that takes all threads of a program.
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
            tile = weight_tile(values_ptr, scales_ptr, zeros_ptr, rows, at, HIDDEN, GROUP, FORM)
            gate += tile.to(tl.float32) * x
            tile = weight_tile(
                values_ptr, scales_ptr, zeros_ptr, rows + WIDTH, at, HIDDEN, GROUP, FORM
            )
            up += tile.to(tl.float32) * x
    gates_sum = tl.sum(gate, 1) * row_scales(scales_ptr, rows, FORM, PACKED)
    ups_sum = tl.sum(up, 1) * row_scales(scales_ptr, rows + WIDTH, FORM, PACKED)
    if BIAS:
        gates_sum += tl.load(bias_ptr + rows).to(tl.float32)
        ups_sum += tl.load(bias_ptr + rows + WIDTH).to(tl.float32)
    out = activated(gates_sum, ups_sum, SLOPE, SHIFT, LIMIT, CUBIC).to(out_ptr.dtype.element_ty)
    tl.store(out_ptr + pair.to(tl.int64) * WIDTH + gates, out, gates < WIDTH)


@triton.jit
def _down_kernel(
    gated_ptr,  # [pairs, WIDTH]
    experts_ptr,  # int32 [pairs]
    weights_ptr,  # float32 [pairs], the weight of each
    values_ptr,  # the stack [E HIDDEN, WIDTH]
    scales_ptr,  # its scales
    zeros_ptr,  # its zero points
    bias_ptr,  # [E, HIDDEN], read if BIAS
    residual_ptr,  # [rows, HIDDEN]
    out_ptr,  # out: [rows, HIDDEN]
    HIDDEN: tl.constexpr,  # outputs of an expert
    WIDTH: tl.constexpr,  # gates of an expert
    ACTIVE: tl.constexpr,  # pairs of a row
    GROUP: tl.constexpr,  # columns that share a scale
    FORM: tl.constexpr,  # of the stack
    BIAS: tl.constexpr,
    OUTPUTS: tl.constexpr,  # outputs of a program
    COLUMNS: tl.constexpr,  # columns at a time
    SUMS: tl.constexpr,  # sums of an output, COLUMNS, or half as many of pairs
    PACKED: tl.constexpr,  # of `number_pairs`
    PDL: tl.constexpr,
):
    """Program (row, tile of outputs)."""
    if PDL:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    row = tl.program_id(0).to(tl.int64)
    outputs = tl.program_id(1) * OUTPUTS + tl.arange(0, OUTPUTS)
    steps = tl.arange(0, COLUMNS)
    # Columns are added up at the end: that takes all threads of a program.
    sums = tl.zeros([OUTPUTS, SUMS], tl.float32)
    total = tl.zeros([OUTPUTS], tl.float32)
    for place in tl.static_range(ACTIVE):  # unrolled: the next one's loads begin meanwhile
        pair = row * ACTIVE + place
        expert = tl.load(experts_ptr + pair).to(tl.int64)
        rows = expert * HIDDEN + tl.minimum(outputs, HIDDEN - 1)
        product = tl.zeros([OUTPUTS, SUMS], tl.float32)
        for start in range(0, WIDTH, COLUMNS):
            if FORM == "mxfp4":
                own_ptr = gated_ptr + pair * WIDTH
                even, odd = column_pairs(own_ptr, tl.zeros([1], tl.int32), start, WIDTH, COLUMNS)
                low, high = number_pairs(
                    values_ptr, scales_ptr, rows, start, WIDTH, COLUMNS, PACKED
                )
                product += _products_of_pairs(even, odd, low, high)
            else:
                at = start + steps
                gated = tl.load(gated_ptr + pair * WIDTH + at, at < WIDTH, 0.0)
                tile = weight_tile(values_ptr, scales_ptr, zeros_ptr, rows, at, WIDTH, GROUP, FORM)
                product += tile.to(tl.float32) * gated.to(tl.float32)[None, :]
        weight = tl.load(weights_ptr + pair)
        factors = weight * row_scales(scales_ptr, rows, FORM, PACKED)
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


def gate_up(
    x: Tensor,
    stack: Weight,
    bias: Tensor | None,
    routed: Routed,
    width: int,
    activation: Activation,
    tiles: ExpertTiles | None = None,
) -> Tensor:
    """Gates times ups of each pair, [T K, width]."""
    active, (values, scales, zeros, form, group) = routed.experts.shape[1], stored(stack)
    num_pairs, tiles = routed.experts.numel(), tiles or _UP.get(form, _USUAL_UP)
    out = x.new_empty(num_pairs, width)
    launch = _gate_up_launch(
        x.device, x.shape[1], width, active, form, group, activation, bias is not None,
        is_packed(dot_type(x), form, tiles), tiles,
    )  # fmt: skip
    operands = x, routed.experts, values, scales, zeros, x if bias is None else bias, out
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
) -> Tensor:
    """`residual` plus the weighed sums of pairs, [T, hidden]."""
    num_rows, hidden = residual.shape
    active, (values, scales, zeros, form, group) = routed.experts.shape[1], stored(stack)
    out = torch.empty_like(residual)
    tiles = tiles or _down_tiles(form, gated.shape[1])
    tiles = tiles._replace(columns=min(tiles.columns, triton.next_power_of_2(gated.shape[1])))
    launch = _down_launch(
        gated.device, hidden, gated.shape[1], active, form, group, bias is not None,
        is_packed(dot_type(gated), form, tiles), tiles,
    )  # fmt: skip
    other = gated if bias is None else bias
    operands = gated, *routed[:2], values, scales, zeros, other, residual, out
    if num_rows:
        launch((num_rows, triton.cdiv(hidden, tiles.outputs), 1), operands)
    return out


def _sums(tiles: ExpertTiles, form: str) -> int:
    return tiles.columns // 2 if form == "mxfp4" else tiles.columns


def _down_tiles(form: str, width: int) -> ExpertTiles:
    if form == "plain" and width <= _SHALLOW_DOWN.columns:
        return _SHALLOW_DOWN
    return _DOWN.get(form, _USUAL_DOWN)


@cache
def _gate_up_launch(
    device: torch.device,
    hidden: int,
    width: int,
    active: int,
    form: str,
    group: int,
    activation: Activation,
    has_bias: bool,
    packed: bool,
    tiles: ExpertTiles,
) -> Launch:
    slope, shift, limit, cubic = activation
    constants = {
        "HIDDEN": hidden, "WIDTH": width, "ACTIVE": active, "GROUP": group, "FORM": form,
        "SLOPE": slope, "SHIFT": shift, "LIMIT": limit, "CUBIC": cubic, "BIAS": has_bias,
        "OUTPUTS": tiles.outputs, "COLUMNS": tiles.columns,
        "SUMS": _sums(tiles, form), "PACKED": packed,
        "PDL": has_pdl(device),
    }  # fmt: skip
    pdl = has_pdl(device)
    options = {"num_warps": tiles.warps, "num_stages": tiles.stages, "launch_pdl": pdl}
    return Launch(_gate_up_kernel, constants, **options)


@cache
def _down_launch(
    device: torch.device,
    hidden: int,
    width: int,
    active: int,
    form: str,
    group: int,
    has_bias: bool,
    packed: bool,
    tiles: ExpertTiles,
) -> Launch:
    constants = {
        "HIDDEN": hidden, "WIDTH": width, "ACTIVE": active, "GROUP": group, "FORM": form,
        "BIAS": has_bias, "OUTPUTS": tiles.outputs, "COLUMNS": tiles.columns,
        "SUMS": _sums(tiles, form), "PACKED": packed, "PDL": has_pdl(device),
    }  # fmt: skip
    pdl = has_pdl(device)
    options = {"num_warps": tiles.warps, "num_stages": tiles.stages, "launch_pdl": pdl}
    return Launch(_down_kernel, constants, **options)
