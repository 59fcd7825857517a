"""Triton kernels of rows that may be taken back, for all spans of a step at once.

Owns the first kernel, its launch and the tensors between it and those of `row_steps.py`, which take
states through the rows. Every size is read on the card, so a captured step serves any spans. A step
of single rows uses the same kernels, with the same results to the bit.

`_prepare_kernel` has a program for each span and head. It computes convolution and gates of the
folded and of the new rows, a few rows at once, because these rows do not depend on each other. Then
it moves tails and rings on: no other program reads these columns. States are read once, while rows
are prepared, and written once, behind the first new row.
"""

from functools import cache

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.choose import has_pdl
from kernels.delta_rule.pieces import head_columns, log_kept, sigmoid, silu, unit_rows
from kernels.delta_rule.plan import DeltaPlan, VerifyPlan
from kernels.delta_rule.prompts import prompts
from kernels.delta_rule.row_steps import Places, Prepared, RowTiles, advance, row_tiles
from kernels.delta_rule.shapes import DeltaRing, DeltaSizes, DeltaState, DeltaWeights
from kernels.launch import Launch


@triton.jit
def _sources(
    at,  # [R], numbers of rows
    columns,  # [BLOCK]
    has_column,  # [BLOCK], which of them there are
    rows_ptr,  # [new rows, ROW], the span's
    ring_ptr,  # [R, C], the slot's
    tail_ptr,  # [TAIL_ROWS, C], the slot's
    num_folds,  # rows that the span folds
    total,  # length with the new rows
    has_tail,  # whether the slot has a tail
    C: tl.constexpr,  # columns of queries, keys and values
    ROW: tl.constexpr,  # numbers from row to row
    TAIL_ROWS: tl.constexpr,  # rows of a tail
):
    """[R, BLOCK], float32: row `at` of a span, counted from the first that is folded; those below 0
    are its tail's.
    """
    inside = has_column[None, :]
    is_old, is_new = (at < 0)[:, None], ((at >= num_folds) & (at < total))[:, None]
    old_at = tail_ptr + (at + TAIL_ROWS)[:, None] * C + columns[None, :]
    is_held = is_old & (at >= -TAIL_ROWS)[:, None] & has_tail
    x = tl.load(old_at, is_held & inside, 0.0).to(tl.float32)
    ring_at = ring_ptr + at[:, None] * C + columns[None, :]
    is_folded = ((at >= 0) & (at < num_folds))[:, None]
    x += tl.load(ring_at, is_folded & inside, 0.0).to(tl.float32)
    row_at = rows_ptr + (at - num_folds).to(tl.int64)[:, None] * ROW + columns[None, :]
    return x + tl.load(row_at, is_new & inside, 0.0).to(tl.float32)


@triton.jit
def _prepare_gates(
    gates_ptr,  # [new rows, 2 HV], the span's
    ring_gates_ptr,  # [R, 2 HV], the slot's
    decay_ptr,  # float32 [HV]
    dt_bias_ptr,  # float32 [HV]
    scales_ptr,  # float32 [rows, 2 HV]: betas, then what is kept
    num_folds,  # rows that the span folds
    total,  # length with the new rows
    folded,  # place of its first folded row
    new,  # place of its first new row, less its folds
    HV: tl.constexpr,  # value heads
    BLOCK_H: tl.constexpr,  # the power of two from HV on
    GROUP: tl.constexpr,  # rows at once
):
    """Betas, and which share of the state is kept. `gates_ptr` is at a span's first row."""
    rows, heads = tl.arange(0, GROUP), tl.arange(0, BLOCK_H)
    has_head = (heads < HV)[None, :]
    decay = tl.load(decay_ptr + heads[None, :], has_head, 0.0)
    dt_bias = tl.load(dt_bias_ptr + heads[None, :], has_head, 0.0)
    gates_at, ring_gates_at = gates_ptr + heads[None, :], ring_gates_ptr + heads[None, :]
    for begin in range(0, total, GROUP):
        at = begin + rows
        is_folded = (at < num_folds)[:, None] & has_head
        is_new = ((at >= num_folds) & (at < total))[:, None] & has_head
        old_at = ring_gates_at + (2 * HV * at)[:, None]
        new_at = gates_at + (2 * HV * (at - num_folds))[:, None]
        b = tl.load(old_at, is_folded, 0.0).to(tl.float32)
        b += tl.load(new_at, is_new, 0.0).to(tl.float32)
        a = tl.load(old_at + HV, is_folded, 0.0).to(tl.float32)
        a += tl.load(new_at + HV, is_new, 0.0).to(tl.float32)
        out = tl.where(at < num_folds, folded + at, new + at).to(tl.int64)
        scale_at = scales_ptr + (2 * HV * out)[:, None] + heads[None, :]
        tl.store(scale_at, sigmoid(b), is_folded | is_new)
        kept = tl.exp(log_kept(a, decay, dt_bias))
        tl.store(scale_at + HV, kept, is_folded | is_new)
    tl.debug_barrier()
    num_kept = total - num_folds - 1
    for begin in range(0, num_kept, GROUP):
        at = begin + rows
        inside = (at < num_kept)[:, None] & has_head
        for half in tl.static_range(2):
            x = tl.load(gates_at + (2 * HV * (1 + at) + half * HV)[:, None], inside, 0.0)
            tl.store(ring_gates_at + (2 * HV * at + half * HV)[:, None], x, inside)


@triton.jit
def _prepare_head(
    part,  # head: of queries, keys, then values
    rows_ptr,  # [new rows, ROW], the span's
    conv_ptr,  # [C, WIDTH], weights of the convolution
    tail_ptr,  # [WIDTH - 1, C], the slot's
    ring_ptr,  # [R, C], the slot's
    mixed_ptr,  # float32 [rows, C]: what comes out
    num_folds,  # rows that the span folds
    total,  # length with the new rows
    folded,  # place of its first folded row
    new,  # place of its first new row, less its folds
    is_begun,  # whether the slot has a tail
    C: tl.constexpr,  # columns of queries, keys and values
    ROW: tl.constexpr,  # numbers from row to row
    WIDTH: tl.constexpr,  # taps of the convolution
    HK: tl.constexpr,  # key heads
    K: tl.constexpr,  # numbers of a key
    V: tl.constexpr,  # numbers of a value
    BLOCK: tl.constexpr,  # the power of two from a head's columns on
    GROUP: tl.constexpr,  # rows at once
):
    """The columns of one head, behind the convolution. `rows_ptr` is at a span's first row."""
    rows = tl.arange(0, GROUP)
    columns, has_column, is_key = head_columns(part, HK, K, V, BLOCK)
    scale = tl.where(part < HK, K**-0.5, 1.0)
    dtype: tl.constexpr = rows_ptr.dtype.element_ty
    for begin in range(0, total, GROUP):
        at = begin + rows
        sums = tl.zeros([GROUP, BLOCK], tl.float32)
        # The current row first, then the oldest: as decodes add them up.
        for place in tl.static_range(WIDTH):
            tap = (place + WIDTH - 1) % WIDTH
            x = _sources(
                at - (WIDTH - 1 - tap), columns, has_column, rows_ptr, ring_ptr, tail_ptr,
                num_folds, total, is_begun, C, ROW, WIDTH - 1,
            )  # fmt: skip
            weight = tl.load(conv_ptr + columns * WIDTH + tap, has_column, 0.0)
            sums += x * weight.to(tl.float32)[None, :]
        mixed = silu(sums, dtype).to(tl.float32)
        if is_key:
            mixed = unit_rows(mixed) * scale
        out = tl.where(at < num_folds, folded + at, new + at).to(tl.int64)
        inside = (at < total)[:, None] & has_column[None, :]
        tl.store(mixed_ptr + out[:, None] * C + columns[None, :], mixed, inside)
    tail = _sources(
        num_folds + 1 - (WIDTH - 1) + rows, columns, has_column, rows_ptr, ring_ptr, tail_ptr,
        num_folds, total, is_begun, C, ROW, WIDTH - 1,
    )  # fmt: skip
    # All threads have read what some are about to write over.
    tl.debug_barrier()
    is_tail = (rows < WIDTH - 1)[:, None] & has_column[None, :]
    tl.store(tail_ptr + rows[:, None] * C + columns[None, :], tail, is_tail)
    num_kept = total - num_folds - 1
    for begin in range(0, num_kept, GROUP):
        at = begin + rows
        inside = (at < num_kept)[:, None] & has_column[None, :]
        x = tl.load(rows_ptr + (1 + at)[:, None] * ROW + columns[None, :], inside, 0.0)
        tl.store(ring_ptr + at[:, None] * C + columns[None, :], x, inside)


@triton.jit(do_not_specialize=["num_rows"])
def _prepare_kernel(
    rows_ptr,  # [T, ROW], a step's rows: queries, keys, values, then z
    gates_ptr,  # [T, 2 HV], b of each head, then a
    conv_ptr,  # [C, WIDTH], weights of the convolution
    decay_ptr,  # float32 [HV]
    dt_bias_ptr,  # float32 [HV]
    tails_ptr,  # [slots, WIDTH - 1, C], rows ahead of a span, oldest first
    ring_ptr,  # [slots, R, C], rows that may be taken back
    ring_gates_ptr,  # [slots, R, 2 HV], their gates
    starts_ptr,  # int32 [S], position of each span's first row
    folds_ptr,  # int32 [S], rows that each span folds
    firsts_ptr,  # int32 [S], rows that the spans before it fold
    slots_ptr,  # int32 [S]
    offsets_ptr,  # int32 [S + 1], first row of each span
    mixed_ptr,  # float32 [rows, C]: queries, keys and values, as `Prepared`
    scales_ptr,  # float32 [rows, 2 HV]: betas, then what is kept
    num_rows,  # rows of the step
    C: tl.constexpr,  # columns of queries, keys and values
    ROW: tl.constexpr,  # numbers from row to row
    TAIL: tl.constexpr,  # numbers from slot to slot of the tails
    RING: tl.constexpr,  # numbers from slot to slot of the ring
    RING_GATES: tl.constexpr,  # numbers from slot to slot of its gates
    WIDTH: tl.constexpr,  # taps of the convolution
    HK: tl.constexpr,  # key heads
    HV: tl.constexpr,  # value heads
    K: tl.constexpr,  # numbers of a key
    V: tl.constexpr,  # numbers of a value
    BLOCK: tl.constexpr,  # the power of two from a head's columns on
    BLOCK_H: tl.constexpr,  # the power of two from HV on
    GROUP: tl.constexpr,  # rows at once
    PDL: tl.constexpr,  # whether it may start while the kernel ahead ends
):
    span, part = tl.program_id(0), tl.program_id(1)
    start, num_folds = tl.load(starts_ptr + span), tl.load(folds_ptr + span)
    first = tl.load(offsets_ptr + span).to(tl.int64)
    total = num_folds + (tl.load(offsets_ptr + span + 1) - first).to(tl.int32)
    slot = tl.load(slots_ptr + span).to(tl.int64)
    # The places of the folded rows and of the new rows among the prepared rows.
    folded, new = num_rows + tl.load(firsts_ptr + span), first - num_folds
    if PDL:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    if start >= 0:
        if part < 2 * HK + HV:
            _prepare_head(
                part, rows_ptr + first * ROW, conv_ptr, tails_ptr + slot * TAIL,
                ring_ptr + slot * RING, mixed_ptr, num_folds, total, folded, new, start > 0,
                C, ROW, WIDTH, HK, K, V, BLOCK, GROUP,
            )  # fmt: skip
        else:
            _prepare_gates(
                gates_ptr + first * 2 * HV, ring_gates_ptr + slot * RING_GATES, decay_ptr,
                dt_bias_ptr, scales_ptr, num_folds, total, folded, new, HV, BLOCK_H, GROUP,
            )  # fmt: skip


def verify(
    rows: Tensor,
    gates: Tensor,
    weights: DeltaWeights,
    eps: float,
    state: DeltaState,
    ring: DeltaRing,
    taken: VerifyPlan,
    plan: DeltaPlan,
    sizes: DeltaSizes,
    tiles: RowTiles | None = None,
) -> Tensor:
    """See `kernels.delta_rule.verify`."""
    out = rows.new_empty(len(rows), sizes.value_columns)
    if len(plan.chunks):
        prompts(rows, gates, weights, eps, state, plan, sizes, out)
    tiles = tiles or row_tiles(len(plan.slots))
    places = Places(taken.starts, taken.folds, taken.firsts, plan.slots, plan.offsets)
    prepared = prepare(rows, gates, weights, state, ring, taken, places, sizes, tiles)
    advance(prepared, rows, weights.norm, eps, state.matrices, places, sizes, out, tiles)
    return out


def prepare(
    rows: Tensor,
    gates: Tensor,
    weights: DeltaWeights,
    state: DeltaState,
    ring: DeltaRing,
    taken: VerifyPlan,
    places: Places,
    sizes: DeltaSizes,
    tiles: RowTiles,
) -> Prepared:
    """New and folded rows behind the convolution; moves tails and rings on, not the matrices."""
    num_rows, device = len(rows), rows.device
    size = num_rows + taken.most_folds
    mixed = torch.empty(size, sizes.columns, dtype=torch.float32, device=device)
    scales = torch.empty(size, 2 * sizes.num_value_heads, dtype=torch.float32, device=device)
    strides = rows.stride(0), *[part.stride(0) for part in (state.tails, *ring)]
    num_parts = 2 * sizes.num_key_heads + sizes.num_value_heads + 1
    _launch(device, sizes, strides, weights.conv.shape[1], tiles.group)(
        (len(places.slots), num_parts, 1),
        (
            rows,
            gates,
            weights.conv,
            weights.decay,
            weights.dt_bias,
            state.tails,
            *ring,
            *places,
            mixed,
            scales,
        ),
        (num_rows,),
    )
    return Prepared(mixed, scales)


@cache
def _launch(
    device: torch.device, sizes: DeltaSizes, strides: tuple[int, ...], width: int, group: int
) -> Launch:
    row, tail, ring, ring_gates = strides
    group = max(group, triton.next_power_of_2(width - 1))
    keys, values = (triton.next_power_of_2(size) for size in (sizes.key_dim, sizes.value_dim))
    constants = {
        "C": sizes.columns, "ROW": row, "HK": sizes.num_key_heads, "HV": sizes.num_value_heads,
        "K": sizes.key_dim, "V": sizes.value_dim, "PDL": has_pdl(device),
        "TAIL": tail, "RING": ring, "RING_GATES": ring_gates, "WIDTH": width,
        "BLOCK": max(keys, values), "BLOCK_H": triton.next_power_of_2(sizes.num_value_heads),
        "GROUP": group,
    }  # fmt: skip
    return Launch(_prepare_kernel, constants, num_warps=max(1, group // 2))
