"""Triton experts for many rows: pairs in a list by expert, which is built on the card, and products
of its tiles.

Owns the list, both kernels and their launches. A grid has room for the worst case, an expert for
every tile that could begin; programs beyond the tiles that there are end at once. So a captured
graph serves every choice.
"""

from collections.abc import Mapping
from functools import cache
from typing import Final, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.choose import has_pdl, is_card, shared_bytes
from kernels.experts import widened
from kernels.experts.long_list import list_pairs
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
from kernels.fp8 import Weight
from kernels.launch import Launch
from kernels.mxfp4 import Mxfp4Weight

_FEW_ROWS: Final = 16
_MANY_ROWS: Final = 64
_MOST_ROWS: Final = 128
"""Rows of a tile: the second where an expert has more than 32 pairs on average, the last from as
many on, where shared memory is large enough."""
_UP: Final = {
    ("plain", _FEW_ROWS): ExpertTiles(outputs=32, columns=128, warps=4, stages=4),
    ("rows", _FEW_ROWS): ExpertTiles(outputs=32, columns=128, warps=4, stages=4),
    ("mxfp4", _FEW_ROWS): ExpertTiles(outputs=64, columns=64, warps=4, stages=4),
}
_DOWN: Final = {
    ("rows", _FEW_ROWS): ExpertTiles(outputs=64, columns=128),
    ("mxfp4", _FEW_ROWS): ExpertTiles(outputs=64, columns=128),
}
"""By the form of a stack and the rows of a tile: the best on an H200 at 8 and 64 rows of those that
fit into 99 KiB of shared memory (`python -m benchmarks.kernels experts`)."""
_USUAL: Final = ExpertTiles(outputs=64, columns=64)
_NARROW: Final = ExpertTiles(outputs=64, columns=128)
"""For many rows; the latter of numbers in 8 bits or fewer, as many bytes at a time."""
_ROOMY_UP: Final = {
    ("plain", _MANY_ROWS): ExpertTiles(outputs=128, columns=64, warps=8),
    ("rows", _MANY_ROWS): ExpertTiles(outputs=128, columns=64, warps=8),
    ("blocks", _MANY_ROWS): ExpertTiles(outputs=128, columns=64, warps=8),
    ("plain", _MOST_ROWS): ExpertTiles(outputs=128, columns=64, warps=8),
    ("mxfp4", _MOST_ROWS): ExpertTiles(outputs=128, columns=64, warps=8),
}
_ROOMY_DOWN: Final = {
    ("plain", _MANY_ROWS): ExpertTiles(outputs=128, columns=64),
    ("rows", _MANY_ROWS): ExpertTiles(outputs=128, columns=64),
    ("blocks", _MANY_ROWS): ExpertTiles(outputs=128, columns=64),
    ("mxfp4", _MOST_ROWS): ExpertTiles(outputs=128, columns=64, warps=8),
}
_ROOMY_BYTES: Final = 227 * 1024
"""Where a program may take so much, rows in 16 bits take these tiles, and others, of 128 rows,
`_USUAL` in every form. On an H200 4,096 rows of gpt-oss in 16 bits took 1,071 us instead of 1,410
for gates and ups and 758 instead of 962 for what is down, those of a 30B 607 instead of 705 and 606
instead of 694, in blocks of 8 bits 909 instead of 1,032 and 675 instead of 825; 512 rows of the
latter 299 instead of 343 and 221 instead of 248."""
_DEEP: Final = ExpertTiles(outputs=64, columns=32)
"""For 128 rows in 32 bits."""
_HALF_BYTES: Final = 2
_LISTED: Final = 1024
_LONG_PAIRS: Final = 2 * _LISTED
"""Of more pairs the list is built in two launches: in one each expert's program reads all of them,
65,536 pairs of 128 experts in 200 us on an H200."""

_Known = Mapping[tuple[str, int], ExpertTiles]


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


@triton.jit(do_not_specialize=["num_pairs", "first_expert", "num_held"])
def _gate_up_kernel(
    x_ptr,  # [rows, HIDDEN], normed
    pairs_ptr,  # int32 [tiles, ROWS], those from `num_pairs` on fill a tile
    experts_ptr,  # int32 [tiles]
    num_tiles_ptr,  # int32 [1]
    values_ptr,  # the stack of gates and ups [E 2 WIDTH, HIDDEN]; `weight_tile` has the forms
    scales_ptr,  # its scales
    zeros_ptr,  # its zero points
    bias_ptr,  # [E, 2 WIDTH], read if BIAS
    out_ptr,  # out: [num_pairs, WIDTH]
    num_pairs,
    first_expert,  # of those in the stack
    num_held,  # experts in the stack: another's tiles are left alone
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
    ROWS: tl.constexpr,  # pairs of a tile
    OUTPUTS: tl.constexpr,  # gates of a program
    COLUMNS: tl.constexpr,  # columns at a time
    DOT: tl.constexpr,  # what products are taken in
    PACKED: tl.constexpr,  # of `number_pairs`
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
            own = weight_tile(
                values_ptr, scales_ptr, zeros_ptr, rows, start, steps, HIDDEN, GROUP, FORM
            )
            gate = tl.dot(x, tl.trans(own.to(DOT)), gate, input_precision="ieee")
            own = weight_tile(
                values_ptr, scales_ptr, zeros_ptr, rows + WIDTH, start, steps, HIDDEN, GROUP, FORM
            )
            up = tl.dot(x, tl.trans(own.to(DOT)), up, input_precision="ieee")
    gate *= row_scales(scales_ptr, rows[None, :], FORM, PACKED)
    up *= row_scales(scales_ptr, rows[None, :] + WIDTH, FORM, PACKED)
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
    pairs_ptr,  # int32 [tiles, ROWS], those from `num_pairs` on fill a tile
    experts_ptr,  # int32 [tiles]
    num_tiles_ptr,  # int32 [1]
    weights_ptr,  # float32 [num_pairs], the weight of each
    values_ptr,  # the stack [E HIDDEN, WIDTH]
    scales_ptr,  # its scales
    zeros_ptr,  # its zero points
    bias_ptr,  # [E, HIDDEN], read if BIAS
    residual_ptr,  # [rows, HIDDEN]
    products_ptr,  # [num_pairs, HIDDEN], scratch
    arrived_ptr,  # int32 [rows, tiles of outputs], zeros, which are zeros again behind the launch
    out_ptr,  # out: [rows, HIDDEN]
    num_pairs,
    first_expert,  # of those in the stack
    num_held,  # experts in the stack: another's tiles are left alone
    HIDDEN: tl.constexpr,  # outputs of an expert
    WIDTH: tl.constexpr,  # gates of an expert
    ACTIVE: tl.constexpr,  # pairs of a row
    GROUP: tl.constexpr,  # columns that share a scale
    FORM: tl.constexpr,  # of the stack
    BIAS: tl.constexpr,
    ROWS: tl.constexpr,  # pairs of a tile
    OUTPUTS: tl.constexpr,  # outputs of a program
    COLUMNS: tl.constexpr,  # columns at a time
    DOT: tl.constexpr,  # what products are taken in
    PACKED: tl.constexpr,  # of `number_pairs`
    PDL: tl.constexpr,
):
    """Program (tile of outputs, tile of pairs). That which adds the last of a row's products sums
    them, in the order of its experts: no sum depends on which came last.
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
            own = weight_tile(
                values_ptr, scales_ptr, zeros_ptr, rows, start, steps, WIDTH, GROUP, FORM
            )
            product = tl.dot(gated, tl.trans(own.to(DOT)), product, input_precision="ieee")
    product *= row_scales(scales_ptr, rows[None, :], FORM, PACKED)
    if BIAS:
        biases_ptr = bias_ptr + first_expert * HIDDEN + rows
        product += tl.load(biases_ptr).to(tl.float32)[None, :]
    dtype = products_ptr.dtype.element_ty
    place = wide_pairs * HIDDEN + outputs[None, :]
    tl.store(products_ptr + place, product.to(dtype), is_pair[:, None] & is_output)
    tl.debug_barrier()  # every thread's products are stored before the count shows it
    row = pairs // ACTIVE
    count_ptrs = arrived_ptr + row * tl.num_programs(0) + tl.program_id(0)
    arrived = tl.atomic_add(count_ptrs, 1, mask=is_pair, sem="acq_rel", scope="gpu")
    tl.debug_barrier()
    is_last = is_pair & (arrived == ACTIVE - 1)
    tl.store(count_ptrs, 0, is_last)
    shown = is_last[:, None] & is_output
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


def _tiles(known: _Known, roomy: _Known, form: str, rows: int, x: Tensor) -> ExpertTiles:
    """The tiles of a product: where they fit and x is in 16 bits, `roomy` goes first."""
    if rows == _MOST_ROWS and x.element_size() > _HALF_BYTES:
        return _DEEP
    if _is_roomy(x.device) and x.element_size() == _HALF_BYTES:
        found = roomy.get((form, rows))
        if found is not None or rows == _MOST_ROWS:
            return found or _USUAL
    is_narrow = rows != _FEW_ROWS and form in {"rows", "mxfp4"}
    return known.get((form, rows), _NARROW if is_narrow else _USUAL)


def _is_roomy(device: torch.device) -> bool:
    return not is_card(device) or shared_bytes(device) >= _ROOMY_BYTES


def list_rows(num_pairs: int, num_experts: int, device: torch.device) -> int:
    """Rows of the tiles of a list that do well."""
    if num_pairs >= _MOST_ROWS * num_experts and _is_roomy(device):
        return _MOST_ROWS
    return _MANY_ROWS if num_pairs > 32 * num_experts else _FEW_ROWS


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
) -> Tensor:
    """Gates times ups of each pair, [T K, width]; of a part of all experts those of its pairs are
    written to `out`.
    """
    weight, *held = _experts_of(stack, 2 * width)
    values, scales, zeros, form, group = stored(weight)
    tiles = tiles or _tiles(_UP, _ROOMY_UP, form, listed.rows, x)
    out = x.new_empty(num_pairs, width) if out is None else out
    active = num_pairs // x.shape[0]
    sizes = StackSizes(x.shape[1], width, active, form, group, bias is not None)
    launch = _gate_up_launch(x.device, sizes, activation, listed.rows, dot_type(x), tiles)
    other = x if bias is None else bias
    operands = x, *listed[:3], values, scales, zeros, other, out
    grid = triton.cdiv(width, tiles.outputs), listed.experts.shape[0], 1
    launch(grid, operands, (num_pairs, *held))
    return out


def down(
    gated: Tensor,
    stack: Weight | HeldExperts,
    bias: Tensor | None,
    listed: PairList,
    routed: Routed,
    residual: Tensor,
    tiles: ExpertTiles | None = None,
    into: tuple[Tensor, Tensor] | None = None,
) -> Tensor:
    """`residual` plus the weighed sums of pairs, [T, hidden]. Launches on one device must be
    ordered, and the first of a size not inside a capture. Parts of all experts share `into`, the
    products of all pairs and the result, which is whole behind the last of them.
    """
    (num_pairs, width), hidden = gated.shape, residual.shape[1]
    weight, *held = _experts_of(stack, hidden)
    values, scales, zeros, form, group = stored(weight)
    active = routed.experts.shape[1]
    products, out = into or (gated.new_empty(num_pairs, hidden), torch.empty_like(residual))
    tiles = tiles or _tiles(_DOWN, _ROOMY_DOWN, form, listed.rows, gated)
    sizes = StackSizes(hidden, width, active, form, group, bias is not None)
    launch = _down_launch(gated.device, sizes, listed.rows, dot_type(gated), tiles)
    across = triton.cdiv(hidden, tiles.outputs)
    operands = (
        gated, *listed[:3], routed.weights, values, scales, zeros, gated if bias is None else bias,
        residual, products,
        _counters(gated.device, (residual.shape[0] * across - 1).bit_length()), out,
    )  # fmt: skip
    launch((across, listed.experts.shape[0], 1), operands, (num_pairs, *held))
    return out


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
    into = x.new_empty(num_pairs, hidden), torch.empty_like(residual)
    for part in widened.parts(down_stack, num_experts):
        down(gated, part, weights.down_bias, listed, routed, residual, into=into)
    return into[1]


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
    tiles: ExpertTiles,
) -> Launch:
    slope, shift, limit, cubic = activation
    constants = sizes.constants(tiles) | {
        "SLOPE": slope, "SHIFT": shift, "LIMIT": limit, "CUBIC": cubic, "ROWS": rows, "DOT": dot,
        "PACKED": is_packed(dot, sizes.form, tiles), "PDL": has_pdl(device),
    }  # fmt: skip
    return Launch(_gate_up_kernel, constants, num_warps=tiles.warps, num_stages=tiles.stages)


@cache
def _down_launch(
    device: torch.device, sizes: StackSizes, rows: int, dot: tl.dtype, tiles: ExpertTiles
) -> Launch:
    constants = sizes.constants(tiles) | {
        "ROWS": rows, "DOT": dot, "PACKED": is_packed(dot, sizes.form, tiles),
        "PDL": has_pdl(device),
    }  # fmt: skip
    return Launch(_down_kernel, constants, num_warps=tiles.warps, num_stages=tiles.stages)


@cache
def _counters(device: torch.device, bits: int) -> Tensor:
    """Counters of a launch: zeros, which every launch leaves as zeros."""
    return torch.zeros(1 << bits, dtype=torch.int32, device=device)
