"""One Triton kernel for a single row of each of many sequences: convolution, gates, one step of the
rule and its norm.

Owns the kernel and its launch. Must not know which rows it serves.

A program has one value head and holds its [K, V] state in registers; the state is read and written
once. The columns of a key head go through the convolution in the programs of all its value heads;
the last of these to have read the tail, found by a count, moves the tail on. For few sequences the
product of betas and decays, two rows of a weight for each head, is computed here too: as a kernel
of its own it would take no longer than its launch.
"""

from functools import cache
from typing import Final, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.choose import has_pdl
from kernels.delta_rule.pieces import (
    LANES_FIRST,
    gated,
    log_kept,
    sigmoid,
    silu,
    spread,
    stepped,
    unit_rows,
)
from kernels.delta_rule.plan import DeltaPlan
from kernels.delta_rule.shapes import DeltaSizes, DeltaState, DeltaWeights, GateProduct
from kernels.launch import Launch, scratch

_PART: Final = 1024
"""How many columns of the gates' product are added up at once."""


class FusedTiles(NamedTuple):
    """Warps of a program, and registers of a thread. A warp has `columns` of the state's columns,
    in 16 bytes for each thread: with fewer than all of them sums stay within the warp, otherwise
    all warps add up together. A program has `values` columns of a head; if these are not all, the
    last of the head's programs norms. `lanes_first`: the keys that threads share are a tile's first
    dimension, not its last but one. The other way than Triton deals tiles, a sum over keys has 7
    times as many exchanges, and registers are spilled.
    """

    num_warps: int
    registers: int
    columns: int
    values: int = 128
    lanes_first: bool = LANES_FIRST


@triton.jit
def _mixed(window, conv_at, inside, dtype: tl.constexpr):
    """The output of the convolution, rounded as rows are: [columns] from a window of [taps,
    columns].
    """
    sums = tl.sum(window.to(tl.float32) * tl.load(conv_at, inside, 0.0).to(tl.float32), 0)
    return silu(sums, dtype).to(tl.float32)


@triton.jit
def _gate_rows(
    weight_ptr, input_norm_ptr, head, HV: tl.constexpr, HIDDEN: tl.constexpr, PART: tl.constexpr
):
    """What a head's beta and decay are multiplied with, part by part."""
    at = tl.arange(0, PART)
    found = ()
    for begin in tl.static_range(0, HIDDEN, PART):
        inside = begin + at < HIDDEN
        norm = tl.load(input_norm_ptr + begin + at, inside, 0.0)
        b = tl.load(weight_ptr + head * HIDDEN + begin + at, inside, 0.0)
        a = tl.load(weight_ptr + (HV + head) * HIDDEN + begin + at, inside, 0.0)
        found += ((norm, b, a),)  # type: ignore[assignment]
    return found


@triton.jit
def _gates(
    gates_at, hidden_at, parts, input_eps, dtype: tl.constexpr, HV: tl.constexpr,
    HIDDEN: tl.constexpr, PART: tl.constexpr,
):  # fmt: skip
    """b and a of a head: as they are, or of the normed row, rounded as a product's."""
    if HIDDEN == 0:
        return tl.load(gates_at).to(tl.float32), tl.load(gates_at + HV).to(tl.float32)
    else:  # noqa: RET505 - what follows a return is compiled all the same
        at = tl.arange(0, PART)
        squares = tl.zeros([PART], tl.float32)
        b, a = tl.zeros([PART], tl.float32), tl.zeros([PART], tl.float32)
        for begin in tl.static_range(0, HIDDEN, PART):
            x = tl.load(hidden_at + begin + at, begin + at < HIDDEN, 0.0).to(tl.float32)
            part = parts[begin // PART]
            squares += x * x
            x *= part[0].to(tl.float32)
            b += x * part[1].to(tl.float32)
            a += x * part[2].to(tl.float32)
        scale = tl.rsqrt(tl.sum(squares, 0) / HIDDEN + input_eps)
        b, a = tl.sum(b, 0) * scale, tl.sum(a, 0) * scale
        return b.to(dtype).to(tl.float32), a.to(dtype).to(tl.float32)


@triton.jit
def _unit(x, LANES: tl.constexpr):
    """x scaled to length 1, [K / LANES, LANES]."""
    return tl.reshape(unit_rows(x[None, :]), [x.shape[0] // LANES, LANES])


@triton.jit
def _normed(read, z, weight, eps, V: tl.constexpr, ROUNDS: tl.constexpr, dtype: tl.constexpr):
    """`gated` of one head's numbers, [rows, columns] in any order; `read` is rounded already."""
    scale = tl.rsqrt(tl.sum(tl.sum(read * read, 1), 0) / V + eps)
    return gated(read, scale, weight, z, ROUNDS, dtype)


@triton.jit
def _blocked(SIZE: tl.constexpr, INNER: tl.constexpr):
    """0 to SIZE - 1, [SIZE / INNER, INNER]. A warp has LANES keys by COLUMNS values at once."""
    return tl.arange(0, SIZE // INNER)[:, None] * INNER + tl.arange(0, INNER)[None, :]


@triton.jit
def _columns(
    head, first, taps, WIDTH: tl.constexpr, SIZE: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    """The columns of a head from `first` on, [1, BLOCK], and which there are for each tap."""
    own = first + tl.arange(0, BLOCK)[None, :]
    return head * SIZE + own, (taps < WIDTH) & (own < SIZE)


@triton.jit
def _olds(tail_at, columns, inside, taps, WIDTH: tl.constexpr):
    """The rows ahead of this one, oldest first, [taps, columns]."""
    return tl.load(tail_at + columns, inside & (taps < WIDTH - 1), 0.0)


@triton.jit
def _window(olds, row_at, columns, inside, taps, WIDTH: tl.constexpr):
    """`olds` with this row behind them, [taps, columns]."""
    is_row = taps == WIDTH - 1
    return tl.where(is_row, tl.load(row_at + columns + 0 * taps, inside & is_row, 0.0), olds)


@triton.jit
def _norm_last(
    head,  # value head
    z_at,  # [HV, V], the span's z
    norm_ptr,  # [V], weights of the norm
    count_at,  # [HV + HK], the span's counts
    reads_at,  # float32 [HV, V], what the span's programs have read
    out_at,  # [HV, V], the span's
    eps,  # epsilon of the norm
    V: tl.constexpr,  # numbers of a value
    BLOCK_V: tl.constexpr,  # values of a program, a power of two
    SHARES: tl.constexpr,  # programs of a head
    ROUNDS: tl.constexpr,  # whether the norm's weights have the rows' dtype
):
    """A head, of which each of its programs has read a part, by the last of them."""
    tl.debug_barrier()
    if tl.atomic_add(count_at + head, 1, sem="acq_rel") == SHARES - 1:
        values = tl.arange(0, BLOCK_V * SHARES)[None, :]
        has_value, own_at = values < V, head * V + values
        read = tl.load(reads_at + own_at, has_value, 0.0, cache_modifier=".cg")
        z = tl.load(z_at + own_at, has_value, 0.0).to(tl.float32)
        weight = tl.load(norm_ptr + values, has_value, 0.0).to(tl.float32)
        out = _normed(read, z, weight, eps, V, ROUNDS, out_at.dtype.element_ty)
        tl.store(out_at + own_at, out, has_value)
        tl.store(count_at + head, 0)


@triton.jit
def _advance(  # noqa: PLR0915 - device code is not cut to a length
    start,  # position of the span's first row
    head,  # value head
    first,  # first value of this program
    rows_at,  # the span's row
    gates_at,  # the span's gates
    hidden_at,  # the span's row of `hidden`
    input_norm_ptr,  # [HIDDEN], the norm ahead of that product
    weight_ptr,  # [2 HV, HIDDEN], the weight of that product
    conv_ptr,  # [C, WIDTH], weights of the convolution
    decay_ptr,  # float32 [HV]
    dt_bias_ptr,  # float32 [HV]
    norm_ptr,  # [V], weights of the norm
    state_at,  # [K, V], this head's state
    tails_at,  # [WIDTH - 1, C], the span's tail
    count_at,  # [HV + HK], the span's counts
    reads_at,  # [HV, V], the span's
    out_at,  # [HV, V], the span's
    eps,  # epsilon of the norm
    input_eps,  # epsilon of the norm ahead of the gates' product
    C: tl.constexpr,  # columns of queries, keys and values
    WIDTH: tl.constexpr,  # taps of the convolution
    TAPS: tl.constexpr,  # the power of two from WIDTH on
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
    HIDDEN: tl.constexpr,  # columns of the gates' product; 0: the gates are there
    PART: tl.constexpr,  # columns of that product at once
    ROUNDS: tl.constexpr,  # whether the norm's weights have the rows' dtype
    PDL: tl.constexpr,  # whether it may start while the kernel ahead ends
):
    """The values of a head from `first` on. Pointers to rows, gates, output and the like point to
    the span's first row.
    """
    dtype: tl.constexpr = out_at.dtype.element_ty
    keys, values = _blocked(BLOCK_K, LANES), _blocked(BLOCK_V, COLUMNS) + first
    has_value, taps = values < V, tl.arange(0, TAPS)[:, None]
    state_at += spread(keys, FIRST) * V + values[None, :, None, :]
    inside = spread(keys < K, FIRST) & has_value[None, :, None, :]
    # All that no kernel just ahead writes is asked for at once.
    held = tl.load(state_at, inside & (start > 0), 0.0)
    query_at, has_keys = _columns(head // (HV // HK), 0, taps, WIDTH, K, BLOCK_K)
    value_at, has_values = _columns(head, first, taps, WIDTH, V, BLOCK_V)
    key_at, value_at, tails_at = query_at + HK * K, value_at + 2 * HK * K, tails_at + taps * C
    queries = _olds(tails_at, query_at, has_keys & (start > 0), taps, WIDTH)
    keyed = _olds(tails_at, key_at, has_keys & (start > 0), taps, WIDTH)
    valued = _olds(tails_at, value_at, has_values & (start > 0), taps, WIDTH)
    decays = (tl.load(decay_ptr + head), tl.load(dt_bias_ptr + head))
    weight = tl.load(norm_ptr + values, has_value, 0.0).to(tl.float32)
    parts = _gate_rows(weight_ptr, input_norm_ptr, head, HV, HIDDEN, PART)
    if PDL:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    queries = _window(queries, rows_at, query_at, has_keys, taps, WIDTH)
    keyed = _window(keyed, rows_at, key_at, has_keys, taps, WIDTH)
    valued = _window(valued, rows_at, value_at, has_values, taps, WIDTH)
    z = tl.load(rows_at + C + head * V + values, has_value, 0.0).to(tl.float32)
    b, a = _gates(gates_at + head, hidden_at, parts, input_eps, dtype, HV, HIDDEN, PART)
    conv_at = conv_ptr + taps
    query = _unit(_mixed(queries, conv_at + query_at * WIDTH, has_keys, dtype), LANES) * (K**-0.5)
    key = _unit(_mixed(keyed, conv_at + key_at * WIDTH, has_keys, dtype), LANES)
    value = _mixed(valued, conv_at + value_at * WIDTH, has_values, dtype)
    value = value.reshape(BLOCK_V // COLUMNS, COLUMNS)
    # All threads have what they read of tails: sums of it were added up across them.
    tl.debug_barrier()
    key_count_at = count_at + HV + head // (HV // HK)
    arrived = tl.atomic_add(key_count_at, 1, sem="acq_rel")
    moves = (taps > 0) & (taps < WIDTH)  # to the place of the row before
    tl.store(tails_at - C + value_at, valued, has_values & moves)
    beta, kept = sigmoid(b), tl.exp(log_kept(a, *decays))
    both = tl.sum(tl.sum(query * key, 1), 0)
    along = spread(query, FIRST), spread(key, FIRST)
    held, read = stepped(held, *along, value, both, beta, kept, FIRST)
    read = read.to(dtype).to(tl.float32)
    tl.store(state_at, held, inside)
    if SHARES == 1:
        out = _normed(read, z, weight, eps, V, ROUNDS, dtype)
        tl.store(out_at + head * V + values, out, has_value)
    else:
        tl.store(reads_at + head * V + values, read, has_value)
        given = (head, rows_at + C, norm_ptr, count_at, reads_at, out_at, eps)
        _norm_last(*given, V, BLOCK_V, SHARES, ROUNDS)
    if arrived == HV // HK * SHARES - 1:
        tl.store(tails_at - C + query_at, queries, has_keys & moves)
        tl.store(tails_at - C + key_at, keyed, has_keys & moves)
        tl.store(key_count_at, 0)


@triton.jit
def _fused_kernel(
    rows_ptr,  # [T, ROW], a step's rows: queries, keys, values, then z
    gates_ptr,  # [T, 2 HV], b of each head, then a
    hidden_ptr,  # [T, HIDDEN], of which the gates are a product; unused without HIDDEN
    input_norm_ptr,  # [HIDDEN], the norm ahead of that product
    weight_ptr,  # [2 HV, HIDDEN], the weight of that product
    conv_ptr,  # [C, WIDTH], weights of the convolution
    decay_ptr,  # float32 [HV]
    dt_bias_ptr,  # float32 [HV]
    norm_ptr,  # [V], weights of the norm
    state_ptr,  # float32 [slots, HV, K, V], STATE from slot to slot
    tails_ptr,  # [slots, WIDTH - 1, C], TAIL from slot to slot
    starts_ptr,  # int32 [S], position of each span's first row
    slots_ptr,  # int32 [S]
    counts_ptr,  # int32 [S, HV + HK], 0 between launches
    reads_ptr,  # float32 [S, HV, V], what is read of heads and not normed yet
    out_ptr,  # [T, HV, V], in the rows' dtype
    eps,  # epsilon of the norm
    input_eps,  # epsilon of the norm ahead of the gates' product
    C: tl.constexpr,  # columns of queries, keys and values
    ROW: tl.constexpr,  # numbers from row to row
    STATE: tl.constexpr,  # numbers from slot to slot of the states
    TAIL: tl.constexpr,  # numbers from slot to slot of the tails
    WIDTH: tl.constexpr,  # taps of the convolution
    TAPS: tl.constexpr,  # the power of two from WIDTH on
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
    HIDDEN: tl.constexpr,  # columns of the gates' product; 0: the gates are there
    PART: tl.constexpr,  # columns of that product at once
    ROUNDS: tl.constexpr,  # whether the norm's weights have the rows' dtype
    PDL: tl.constexpr,  # whether it may start while the kernel ahead ends
):
    span, head = tl.program_id(0).to(tl.int64), tl.program_id(1) // SHARES
    first = tl.program_id(1) % SHARES * BLOCK_V
    out_at = out_ptr + span * HV * V
    start = tl.load(starts_ptr + span)
    if start < 0:  # padding: nothing moves
        if PDL:
            tl.extra.cuda.gdc_wait()
        values = first + tl.arange(0, BLOCK_V)
        nothing = tl.zeros([BLOCK_V], out_ptr.dtype.element_ty)
        tl.store(out_at + head * V + values, nothing, values < V)
    else:
        slot = tl.load(slots_ptr + span).to(tl.int64)
        _advance(
            start, head, first, rows_ptr + span * ROW, gates_ptr + span * 2 * HV,
            hidden_ptr + span * HIDDEN, input_norm_ptr, weight_ptr, conv_ptr, decay_ptr,
            dt_bias_ptr, norm_ptr, state_ptr + slot * STATE + head * K * V,
            tails_ptr + slot * TAIL, counts_ptr + span * (HK + HV), reads_ptr + span * HV * V,
            out_at, eps, input_eps, C, WIDTH, TAPS, HK, HV, K, V, BLOCK_K, BLOCK_V, SHARES, LANES,
            COLUMNS, FIRST, HIDDEN, PART, ROUNDS, PDL,
        )  # fmt: skip


def fused(
    rows: Tensor,
    gates: Tensor | GateProduct,
    weights: DeltaWeights,
    eps: float,
    state: DeltaState,
    plan: DeltaPlan,
    sizes: DeltaSizes,
    out: Tensor,
    tiles: FusedTiles,
) -> None:
    """Compute the first `plan.num_decodes` rows of a step into `out` [T, HV V], and move their
    states on. Rows of padding become 0, and their slots stay as they are.
    """
    num_decodes, device = plan.num_decodes, rows.device
    hidden = input_norm = weight = rows
    width, input_eps = 0, 0.0
    if isinstance(gates, GateProduct):
        hidden, input_norm, input_eps, weight = gates
        width, gates = hidden.shape[1], rows
    strides = rows.stride(0), state.tails.stride(0), state.matrices.stride(0)
    rounds = weights.norm.dtype == rows.dtype
    given = weights.conv.shape[1], eps, rounds, width, input_eps
    launch, shares = _launch(device, sizes, strides, *given, tiles)
    num_counts = num_decodes * (sizes.num_key_heads + sizes.num_value_heads)
    launch(
        (num_decodes, sizes.num_value_heads * shares, 1),
        (
            rows,
            gates,
            hidden,
            input_norm,
            weight,
            weights.conv,
            weights.decay,
            weights.dt_bias,
            weights.norm,
            state.matrices,
            state.tails,
            plan.starts,
            plan.slots,
            counts(device, num_counts.bit_length()),
            scratch(device, out.numel()),
            out,
        ),
    )


@cache
def _launch(
    device: torch.device,
    sizes: DeltaSizes,
    strides: tuple[int, int, int],
    conv_width: int,
    eps: float,
    rounds: bool,
    hidden_width: int,
    input_eps: float,
    tiles: FusedTiles,
) -> tuple[Launch, int]:
    """The launch, and how many programs share a head."""
    row, tail, matrix = strides
    keys, values = (triton.next_power_of_2(size) for size in (sizes.key_dim, sizes.value_dim))
    block = min(tiles.values, values)
    columns = min(tiles.columns, block)
    num_warps = max(1, min(tiles.num_warps, keys * block // 512))
    constants = {
        "eps": eps, "input_eps": input_eps, "C": sizes.columns, "ROW": row, "STATE": matrix,
        "TAIL": tail, "WIDTH": conv_width, "TAPS": triton.next_power_of_2(conv_width),
        "HK": sizes.num_key_heads, "HV": sizes.num_value_heads, "K": sizes.key_dim,
        "V": sizes.value_dim, "BLOCK_K": keys, "BLOCK_V": block, "SHARES": values // block,
        "LANES": max(1, min(keys, 128 // columns)), "COLUMNS": columns,
        "FIRST": tiles.lanes_first, "HIDDEN": hidden_width,
        "PART": _PART, "ROUNDS": rounds, "PDL": has_pdl(device),
    }  # fmt: skip
    launch = Launch(_fused_kernel, constants, num_warps=num_warps, maxnreg=tiles.registers)
    return launch, values // block


@cache
def counts(device: torch.device, bits: int) -> Tensor:
    """int32 [1 << bits], all 0 between launches. One stream per device: none runs beside another,
    so all kernels share them.
    """
    return torch.zeros(1 << bits, dtype=torch.int32, device=device)
