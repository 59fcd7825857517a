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
from kernels.experts.tiles import activated, row_scales, stored, weight_tile
from kernels.fp8 import Weight
from kernels.launch import Launch

_OUTPUTS: Final = 8
_COLUMNS: Final = 256
_FEW_OUTPUTS: Final = 4
_WIDEST: Final = 1024
"""Columns at a time of what is down: all of them, in most models, and fewer outputs, because a row
alone has no more programs than tiles of outputs."""


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
    SLOPE: tl.constexpr,  # these three are `Activation`
    SHIFT: tl.constexpr,
    LIMIT: tl.constexpr,
    BIAS: tl.constexpr,
    OUTPUTS: tl.constexpr,  # gates of a program
    COLUMNS: tl.constexpr,  # columns at a time
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
    gate = tl.zeros([OUTPUTS], tl.float32)
    up = tl.zeros([OUTPUTS], tl.float32)
    for start in range(0, HIDDEN, COLUMNS):
        at = start + steps
        x = tl.load(x_ptr + at, at < HIDDEN, 0.0).to(tl.float32)[None, :]
        tile = weight_tile(values_ptr, scales_ptr, zeros_ptr, rows, at, HIDDEN, GROUP, FORM)
        gate += tl.sum(tile.to(tl.float32) * x, 1)
        tile = weight_tile(values_ptr, scales_ptr, zeros_ptr, rows + WIDTH, at, HIDDEN, GROUP, FORM)
        up += tl.sum(tile.to(tl.float32) * x, 1)
    gate *= row_scales(scales_ptr, rows, FORM)
    up *= row_scales(scales_ptr, rows + WIDTH, FORM)
    if BIAS:
        gate += tl.load(bias_ptr + rows).to(tl.float32)
        up += tl.load(bias_ptr + rows + WIDTH).to(tl.float32)
    out = activated(gate, up, SLOPE, SHIFT, LIMIT).to(out_ptr.dtype.element_ty)
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
    PDL: tl.constexpr,
):
    """Program (row, tile of outputs)."""
    if PDL:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    row = tl.program_id(0).to(tl.int64)
    outputs = tl.program_id(1) * OUTPUTS + tl.arange(0, OUTPUTS)
    steps = tl.arange(0, COLUMNS)
    total = tl.zeros([OUTPUTS], tl.float32)
    for place in tl.static_range(ACTIVE):  # unrolled: the next one's loads begin meanwhile
        pair = row * ACTIVE + place
        expert = tl.load(experts_ptr + pair).to(tl.int64)
        rows = expert * HIDDEN + tl.minimum(outputs, HIDDEN - 1)
        product = tl.zeros([OUTPUTS], tl.float32)
        for start in range(0, WIDTH, COLUMNS):
            at = start + steps
            gated = tl.load(gated_ptr + pair * WIDTH + at, at < WIDTH, 0.0).to(tl.float32)[None, :]
            tile = weight_tile(values_ptr, scales_ptr, zeros_ptr, rows, at, WIDTH, GROUP, FORM)
            product += tl.sum(tile.to(tl.float32) * gated, 1)
        product *= row_scales(scales_ptr, rows, FORM)
        if BIAS:
            product += tl.load(bias_ptr + rows).to(tl.float32)
        total += product * tl.load(weights_ptr + pair)
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
) -> Tensor:
    """Gates times ups of each pair, [T K, width]."""
    active, (values, scales, zeros, form, group) = routed.experts.shape[1], stored(stack)
    num_pairs = routed.experts.numel()
    out = x.new_empty(num_pairs, width)
    launch = _gate_up_launch(
        x.device, x.shape[1], width, active, form, group, activation, bias is not None
    )
    operands = x, routed.experts, values, scales, zeros, x if bias is None else bias, out
    if num_pairs:
        launch((num_pairs, triton.cdiv(width, _OUTPUTS), 1), operands)
    return out


def down(
    gated: Tensor, stack: Weight, bias: Tensor | None, routed: Routed, residual: Tensor
) -> Tensor:
    """`residual` plus the weighed sums of pairs, [T, hidden]."""
    num_rows, hidden = residual.shape
    active, (values, scales, zeros, form, group) = routed.experts.shape[1], stored(stack)
    out = torch.empty_like(residual)
    launch = _down_launch(
        gated.device, hidden, gated.shape[1], active, form, group, bias is not None
    )
    other = gated if bias is None else bias
    operands = gated, *routed[:2], values, scales, zeros, other, residual, out
    if num_rows:
        launch((num_rows, triton.cdiv(hidden, _FEW_OUTPUTS), 1), operands)
    return out


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
) -> Launch:
    slope, shift, limit = activation
    constants = {
        "HIDDEN": hidden, "WIDTH": width, "ACTIVE": active, "GROUP": group, "FORM": form,
        "SLOPE": slope, "SHIFT": shift, "LIMIT": limit, "BIAS": has_bias, "OUTPUTS": _OUTPUTS,
        "COLUMNS": _COLUMNS, "PDL": has_pdl(device),
    }  # fmt: skip
    pdl = has_pdl(device)
    return Launch(_gate_up_kernel, constants, num_warps=4, num_stages=3, launch_pdl=pdl)


@cache
def _down_launch(
    device: torch.device,
    hidden: int,
    width: int,
    active: int,
    form: str,
    group: int,
    has_bias: bool,
) -> Launch:
    constants = {
        "HIDDEN": hidden, "WIDTH": width, "ACTIVE": active, "GROUP": group, "FORM": form,
        "BIAS": has_bias, "OUTPUTS": _FEW_OUTPUTS,
        "COLUMNS": min(_WIDEST, triton.next_power_of_2(width)), "PDL": has_pdl(device),
    }  # fmt: skip
    pdl = has_pdl(device)
    return Launch(_down_kernel, constants, num_warps=4, num_stages=3, launch_pdl=pdl)
