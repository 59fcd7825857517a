"""Triton kernels that take states through rows one by one: rows that were prepared, some of which
may be taken back.

Owns the kernels behind `verified.py`'s first, their tiles and their launches. Must not know how
rows are prepared.

A warp of `_advance_kernel` has some of the [K, V] state's columns, all K rows of them, in
registers, and a program has one warp or more. A thread has 4 columns by K / `lanes` rows. So a sum
over K is K / `lanes` fused multiplications and additions of a thread and a few exchanges within its
warp. What is read for a row is summed beside what is known of its key, so a row has one round of
exchanges. The next rows' keys, queries and values are copied to shared memory meanwhile.

The norm across V is left for the end: what was read replaces the row's values among the prepared
rows, and `_norm_kernel` norms all rows.

In what order numbers of a state are added up depends on `lanes` alone, not on rows or folds.
"""

from functools import cache
from typing import Final, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.choose import has_pdl
from kernels.delta_rule.pieces import LANES_FIRST, gated_rows, spread, stepped
from kernels.delta_rule.shapes import DeltaSizes
from kernels.launch import Launch

_GROUP: Final = 4
"""How many rows are normed at once."""


class RowTiles(NamedTuple):
    """How a step's rows are cut.

    `lanes` threads of a warp share columns of a head's state, of which a warp has 128 / `lanes`: 4,
    16 bytes, for each thread. Registers of a thread; `stages` - 1 rows are on their way. `streams`:
    states leave the card's cache first. `group` rows of a span are prepared at once, by half as
    many warps. Warps of a program that advances states, at most as many as a head has columns for.
    """

    lanes: int = 8
    registers: int = 128
    stages: int = 3
    streams: bool = False
    group: int = 4
    num_warps: int = 1


FEW_ROW_TILES: Final = RowTiles(streams=True, num_warps=2)
MANY_ROW_TILES: Final = RowTiles(num_warps=4)
"""The tiles for more than `_FEW` spans. On an H200 64 spans of 3 rows take 134 us of a layer of the
27B, 8 23.9, and one span of 1, 4 and 16 rows 5.8, 9.1 and 26.4: the best of the sweep or within 4 %
of it (`python -m benchmarks.kernels delta_sweep --case verify`). Both have the same `lanes`:
otherwise a state would depend on how many sequences are in its step."""

_FEW: Final = 8


def row_tiles(num_spans: int) -> RowTiles:
    """The tiles for `num_spans` spans. States are equal to the bit whatever the tiles."""
    return FEW_ROW_TILES if num_spans <= _FEW else MANY_ROW_TILES


class Prepared(NamedTuple):
    """What the rows of a step are, float32: behind T rows of spans the folded ones.

    `mixed` [.., C]: queries and keys of length 1 (queries scaled) and values, behind the
    convolution; `scales` [.., 2 HV]: betas, then which share of the state is kept.
    """

    mixed: Tensor
    scales: Tensor


class Places(NamedTuple):
    """The places of spans, int32, with the meaning of the same fields of `VerifyPlan` and
    `DeltaPlan`.
    """

    starts: Tensor
    folds: Tensor
    firsts: Tensor
    slots: Tensor
    offsets: Tensor


@triton.jit
def _own_keys(BLOCK_K: tl.constexpr, LANES: tl.constexpr, NEAR: tl.constexpr):
    """The keys of each thread that shares columns, [K / LANES, LANES]. A thread has NEAR adjacent
    keys, then its neighbour's keys follow, so a thread reads 16 bytes of a key at once.
    """
    own = tl.arange(0, BLOCK_K // LANES)[:, None]
    return own // NEAR * (LANES * NEAR) + tl.arange(0, LANES)[None, :] * NEAR + own % NEAR


@triton.jit
def _dealt(x, LANES: tl.constexpr, NEAR: tl.constexpr):
    """Numbers by key, [K], in the order of `_own_keys`."""
    far: tl.constexpr = x.shape[0] // (LANES * NEAR)
    x = tl.permute(tl.reshape(x, [far, LANES, NEAR]), (0, 2, 1))
    return tl.reshape(x, [far * NEAR, LANES])


@triton.jit
def _state_at(state_ptr, slots_ptr, span, within, STATE: tl.constexpr):
    """The address of a program's part of a state. The slot is read by a volatile load, once for the
    loads and again for the stores, because addresses kept from the first read would occupy
    registers.
    """
    return state_ptr + tl.load(slots_ptr + span, volatile=True).to(tl.int64) * STATE + within


@triton.jit(do_not_specialize=["num_rows"])
def _advance_kernel(
    mixed_ptr,  # float32 [rows, C]: queries, keys and values, as `Prepared`
    scales_ptr,  # float32 [rows, 2 HV]: betas, then what is kept
    state_ptr,  # float32 [slots, HV, K, V]
    starts_ptr,  # int32 [S], position of each span's first row
    folds_ptr,  # int32 [S], rows that each span folds
    firsts_ptr,  # int32 [S], rows that the spans before it fold
    slots_ptr,  # int32 [S]
    offsets_ptr,  # int32 [S + 1], first row of each span
    num_rows,  # rows of the step
    C: tl.constexpr,  # columns of queries, keys and values
    STATE: tl.constexpr,  # numbers from slot to slot of the states
    HK: tl.constexpr,  # key heads
    HV: tl.constexpr,  # value heads
    K: tl.constexpr,  # numbers of a key
    V: tl.constexpr,  # numbers of a value
    BLOCK_K: tl.constexpr,  # the power of two from K on
    BLOCK_V: tl.constexpr,  # values of a program, a power of two
    SHARES: tl.constexpr,  # programs of a head
    LANES: tl.constexpr,  # threads of a warp that share columns
    COLUMNS: tl.constexpr,  # columns of a warp
    FIRST: tl.constexpr,  # see `LANES_FIRST`
    STAGES: tl.constexpr,  # rows on their way at once
    POLICY: tl.constexpr,  # which numbers leave the card's cache first
    IS_EVEN: tl.constexpr,  # whether no tile is cut off
    PDL: tl.constexpr,  # whether it may start while the kernel ahead ends
):
    head, span = tl.program_id(0) // SHARES, tl.program_id(1)
    # All at once: one behind the other each would be another way to the L2 cache.
    own_ptr = _state_at(state_ptr, slots_ptr, span, head * K * V, STATE)
    start, num_folds = tl.load(starts_ptr + span), tl.load(folds_ptr + span)
    first, behind = tl.load(offsets_ptr + span), tl.load(offsets_ptr + span + 1)
    folded, new = num_rows + tl.load(firsts_ptr + span), first - num_folds
    if start >= 0:
        near: tl.constexpr = min(4, BLOCK_K // LANES)
        in_order, keys = tl.arange(0, BLOCK_K), _own_keys(BLOCK_K, LANES, near)
        values = tl.arange(0, BLOCK_V // COLUMNS)[:, None] * COLUMNS
        values += tl.program_id(0) % SHARES * BLOCK_V + tl.arange(0, COLUMNS)[None, :]
        has_value = values < V
        inside = spread(keys < K, FIRST) & has_value[None, :, None, :]
        within = spread(keys * V, FIRST) + values[None, :, None, :]
        is_begun = start > 0 if IS_EVEN else inside & (start > 0)
        held = tl.load(own_ptr + within, is_begun, 0.0, eviction_policy=POLICY)
        query_at, value_at = head // (HV // HK) * K + in_order, 2 * HK * K + head * V + values
        if PDL:  # the state is on its way while rows are prepared
            tl.extra.cuda.gdc_wait()
            tl.extra.cuda.gdc_launch_dependents()
        for at in tl.range(num_folds + behind - first, num_stages=STAGES):
            is_new = at >= num_folds
            row = tl.where(is_new, new + at, folded + at).to(tl.int64)
            mixed_at, scale_at = mixed_ptr + row * C, scales_ptr + row * 2 * HV + head
            key = tl.load(mixed_at + HK * K + query_at, in_order < K, 0.0)
            query = tl.load(mixed_at + query_at, in_order < K, 0.0)
            value = tl.load(mixed_at + value_at, has_value, 0.0)
            beta, kept = tl.load(scale_at), tl.load(scale_at + HV)
            both = tl.sum(query * key, 0)
            key = spread(_dealt(key, LANES, near), FIRST)
            query = spread(_dealt(query, LANES, near), FIRST)
            held, read = stepped(held, query, key, value, both, beta, kept, FIRST)
            if at == num_folds:
                own_ptr = _state_at(state_ptr, slots_ptr, span, head * K * V, STATE)
                tl.store(
                    own_ptr + within, held, None if IS_EVEN else inside, eviction_policy=POLICY
                )
            if is_new:
                # The value's place: no other program reads it, and this one has.
                tl.store(mixed_at + value_at, read, has_value)


@triton.jit
def _norm_kernel(
    mixed_ptr,  # float32 [rows, C], with what was read where values were
    rows_ptr,  # [T, ROW], a step's rows: queries, keys, values, then z
    norm_ptr,  # [V], weights of the norm
    starts_ptr,  # int32 [S], position of each span's first row
    offsets_ptr,  # int32 [S + 1], first row of each span
    out_ptr,  # [T, HV, V], in the rows' dtype
    eps,  # epsilon of the norm
    C: tl.constexpr,  # columns of queries, keys and values
    ROW: tl.constexpr,  # numbers from row to row
    HV: tl.constexpr,  # value heads
    V: tl.constexpr,  # numbers of a value
    BLOCK: tl.constexpr,  # the power of two from V on
    GROUP: tl.constexpr,  # rows at once
    ROUNDS: tl.constexpr,  # whether the norm's weights have the rows' dtype
    PDL: tl.constexpr,  # whether it may start while the kernel ahead ends
):
    head, span = tl.program_id(0), tl.program_id(1)
    start, first = tl.load(starts_ptr + span), tl.load(offsets_ptr + span)
    num_new = tl.load(offsets_ptr + span + 1) - first
    if PDL:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    if start >= 0:
        dtype: tl.constexpr = out_ptr.dtype.element_ty
        values = tl.arange(0, BLOCK)
        has_value = values < V
        weight = tl.load(norm_ptr + values, has_value, 0.0).to(tl.float32)
        own = head * V + values
        for begin in range(0, num_new, GROUP):
            at = begin + tl.arange(0, GROUP)
            inside = (at < num_new)[:, None] & has_value[None, :]
            row = (first + at).to(tl.int64)[:, None]
            read_at = mixed_ptr + row * C + (C - HV * V + own)[None, :]
            read = tl.load(read_at, inside, 0.0, cache_modifier=".cg")
            z = tl.load(rows_ptr + row * ROW + (C + own)[None, :], inside, 0.0).to(tl.float32)
            out = gated_rows(read, z, weight[None, :], eps, V, ROUNDS, dtype)
            tl.store(out_ptr + row * HV * V + own[None, :], out, inside)


def advance(
    prepared: Prepared,
    rows: Tensor,
    norm: Tensor,
    eps: float,
    matrices: Tensor,
    places: Places,
    sizes: DeltaSizes,
    out: Tensor,
    tiles: RowTiles,
) -> None:
    """Fold rows into the states of all spans that start at 0 or above, and with them the first new
    row; compute all new rows into `out` [T, HV V]. What was prepared is used up. `rows` are the
    step's, for their z, `norm` [V] its weights, `matrices` the layer's states.
    """
    num_spans, num_heads = len(places.slots), sizes.num_value_heads
    strides, rounds = (rows.stride(0), matrices.stride(0)), norm.dtype == rows.dtype
    step, normed, shares = _launches(rows.device, sizes, strides, eps, rounds, tiles)
    step(
        (num_heads * shares, num_spans, 1),  # parts of a slot, which lie side by side
        (*prepared, matrices, *places),
        (len(rows),),
    )
    given = prepared.mixed, rows, norm, places.starts, places.offsets, out
    normed((num_heads, num_spans, 1), given)


@cache
def _launches(
    device: torch.device,
    sizes: DeltaSizes,
    strides: tuple[int, int],
    eps: float,
    rounds: bool,
    tiles: RowTiles,
) -> tuple[Launch, Launch, int]:
    """The launches of a step and of its norm, and how many programs share a head."""
    row, matrix = strides
    pdl = has_pdl(device)
    keys, values = (triton.next_power_of_2(size) for size in (sizes.key_dim, sizes.value_dim))
    lanes, columns = min(tiles.lanes, keys), min(4 * 32 // tiles.lanes, values)
    block = min(tiles.num_warps * columns, values)
    shares = triton.cdiv(sizes.value_dim, block)
    step = {
        "C": sizes.columns, "STATE": matrix, "HK": sizes.num_key_heads,
        "HV": sizes.num_value_heads, "K": sizes.key_dim, "V": sizes.value_dim, "BLOCK_K": keys,
        "BLOCK_V": block, "SHARES": shares, "LANES": lanes, "COLUMNS": columns,
        "FIRST": LANES_FIRST, "STAGES": tiles.stages,
        "POLICY": "evict_first" if tiles.streams else "",
        "IS_EVEN": keys == sizes.key_dim and shares * block == sizes.value_dim, "PDL": pdl,
    }  # fmt: skip
    norms = {
        "eps": eps, "C": sizes.columns, "ROW": row, "HV": sizes.num_value_heads,
        "V": sizes.value_dim, "BLOCK": values, "GROUP": _GROUP, "ROUNDS": rounds, "PDL": pdl,
    }  # fmt: skip
    return (
        Launch(
            _advance_kernel,
            step,
            num_warps=block // columns,
            maxnreg=tiles.registers,
        ),
        Launch(_norm_kernel, norms, num_warps=1),
        shares,
    )
