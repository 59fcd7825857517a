"""Triton kernels of spans of rows, in chunks of 64: convolution, systems, scan, norm.

Owns the launches and what travels between them. With G the running sum of a chunk's gates:

    A[i, j] = beta_i (k_i . k_j) exp(G_i - G_j) below the diagonal;  T = (I + A)^-1
    U = T diag(beta) V,  W = T diag(beta exp(G)) K                             `_system_kernel`
    u = U - W S;  o = diag(exp(G)) Q S + tril(Q K^T exp(G_i - G_j)) u
    S = exp(G_last) S + (diag(exp(G_last - G)) K)^T u                            `_scan_kernel`

Every exponent is a difference that is not above 0. T comes by forward substitution, row by row in
float32: doubling would lose digits where keys repeat. All chunks' systems are independent; the scan
goes along a span, a program for each head and a part of V. Products take operands in the rows'
dtype and add up in float32, as does the state between chunks.
"""

from functools import cache
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.delta_rule.pieces import gated, log_kept, sigmoid, unit_rows
from kernels.delta_rule.plan import CHUNK, DeltaPlan
from kernels.delta_rule.shapes import DeltaSizes, DeltaState, DeltaWeights
from kernels.launch import Launch

_COLUMNS = 64
_TAIL_COLUMNS = 512
_SCAN_VALUES = 64
_NORM_ROWS = 16


@triton.jit
def _conv_kernel(
    rows_ptr, conv_ptr, tails_ptr, starts_ptr, slots_ptr, offsets_ptr, chunks_ptr, mixed_ptr,
    C: tl.constexpr, ROW: tl.constexpr, TAIL: tl.constexpr, WIDTH: tl.constexpr,
    CHUNK: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    span = tl.load(chunks_ptr + 2 * tl.program_id(0))
    if span >= 0:
        number = tl.load(chunks_ptr + 2 * tl.program_id(0) + 1)
        offset = tl.load(offsets_ptr + span).to(tl.int64)
        length = tl.load(offsets_ptr + span + 1) - offset
        is_begun = tl.load(starts_ptr + span) > 0
        tail_ptr = tails_ptr + tl.load(slots_ptr + span).to(tl.int64) * TAIL
        columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
        inside = columns < C
        at = number * CHUNK + tl.arange(0, CHUNK)
        sums = tl.zeros([CHUNK, BLOCK], tl.float32)
        for back in tl.static_range(WIDTH):
            source = at - (WIDTH - 1 - back)
            is_row = (source >= 0) & (source < length)
            x_at = (offset + source)[:, None] * ROW + columns[None, :]
            x = tl.load(rows_ptr + x_at, is_row[:, None] & inside[None, :], 0.0).to(tl.float32)
            is_old = (source < 0) & is_begun
            old_at = (source + WIDTH - 1)[:, None] * C + columns[None, :]
            x += tl.load(tail_ptr + old_at, is_old[:, None] & inside[None, :], 0.0).to(tl.float32)
            weight = tl.load(conv_ptr + columns * WIDTH + back, inside, 0.0).to(tl.float32)
            sums += x * weight[None, :]
        out_at = (offset + at)[:, None] * C + columns[None, :]
        is_row = (at < length)[:, None] & inside[None, :]
        tl.store(mixed_ptr + out_at, sums * sigmoid(sums), is_row)


@triton.jit(do_not_specialize=["first"])
def _tails_kernel(
    rows_ptr, tails_ptr, starts_ptr, slots_ptr, offsets_ptr, first,
    C: tl.constexpr, ROW: tl.constexpr, TAIL: tl.constexpr,
    WIDTH: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """The last rows of each span, after all chunks have read those of before."""
    span = first + tl.program_id(0)
    offset = tl.load(offsets_ptr + span).to(tl.int64)
    length = tl.load(offsets_ptr + span + 1) - offset
    start = tl.load(starts_ptr + span)
    if (length > 0) & (start >= 0):
        columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
        inside = columns < C
        held = inside & (start > 0)
        tail_ptr = tails_ptr + tl.load(slots_ptr + span).to(tl.int64) * TAIL + columns
        for place in tl.static_range(WIDTH - 1):
            source = length - (WIDTH - 1) + place
            x = tl.load(rows_ptr + (offset + source) * ROW + columns, inside & (source >= 0), 0.0)
            old = tl.load(tail_ptr + (length + place) * C, held & (source < 0), 0.0)
            tl.store(tail_ptr + place * C, tl.where(source >= 0, x, old), inside)


@triton.jit
def _system_kernel(
    mixed_ptr, gates_ptr, decay_ptr, dt_bias_ptr, offsets_ptr, chunks_ptr, u_ptr, w_ptr, sums_ptr,
    C: tl.constexpr, HK: tl.constexpr, HV: tl.constexpr, K: tl.constexpr, V: tl.constexpr,
    CHUNK: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_V: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    span, head = tl.load(chunks_ptr + 2 * tl.program_id(0)), tl.program_id(1)
    if span >= 0:
        first = tl.load(offsets_ptr + span).to(tl.int64)
        first += tl.load(chunks_ptr + 2 * tl.program_id(0) + 1) * CHUNK
        places = tl.arange(0, CHUNK)
        rows = first + places
        is_row = rows < tl.load(offsets_ptr + span + 1)
        keys, values = tl.arange(0, BLOCK_K), tl.arange(0, BLOCK_V)
        key_at = rows[:, None] * C + HK * K + head // (HV // HK) * K + keys[None, :]
        k = tl.load(mixed_ptr + key_at, is_row[:, None] & (keys < K)[None, :], 0.0)
        k = unit_rows(k.to(tl.float32))
        value_at = rows[:, None] * C + 2 * HK * K + head * V + values[None, :]
        v = tl.load(mixed_ptr + value_at, is_row[:, None] & (values < V)[None, :], 0.0)
        gate_at = rows * 2 * HV + head
        b = tl.load(gates_ptr + gate_at, is_row, 0.0).to(tl.float32)
        a = tl.load(gates_ptr + gate_at + HV, is_row, 0.0).to(tl.float32)
        beta = tl.where(is_row, sigmoid(b), 0.0)
        kept = log_kept(a, tl.load(decay_ptr + head), tl.load(dt_bias_ptr + head))
        total = tl.cumsum(tl.where(is_row, kept, 0.0), 0)
        is_before = places[:, None] > places[None, :]
        between = tl.exp(tl.where(is_before, total[:, None] - total[None, :], float("-inf")))
        dtype: tl.constexpr = u_ptr.dtype.element_ty
        low = k.to(dtype)
        products = tl.dot(low, tl.trans(low), input_precision=PRECISION)
        solved = -beta[:, None] * products * between
        for row in range(1, CHUNK):
            own = tl.sum(tl.where(places[:, None] == row, solved, 0.0), 0)
            own += tl.sum(own[:, None] * solved, 0)
            solved = tl.where(places[:, None] == row, own[None, :], solved)
        solved += tl.where(places[:, None] == places[None, :], 1.0, 0.0)
        solved = solved.to(dtype)
        u = tl.dot(solved, (beta[:, None] * v.to(tl.float32)).to(dtype), input_precision=PRECISION)
        scaled = ((beta * tl.exp(total))[:, None] * k).to(dtype)
        w = tl.dot(solved, scaled, input_precision=PRECISION)
        out_at = rows[:, None] * HV + head
        tl.store(u_ptr + out_at * V + values[None, :], u, is_row[:, None] & (values < V)[None, :])
        tl.store(w_ptr + out_at * K + keys[None, :], w, is_row[:, None] & (keys < K)[None, :])
        tl.store(sums_ptr + rows * HV + head, total, is_row)


@triton.jit(do_not_specialize=["num_decodes"])
def _scan_kernel(
    mixed_ptr, u_ptr, w_ptr, sums_ptr, state_ptr, starts_ptr, slots_ptr, offsets_ptr, read_ptr,
    num_decodes,
    C: tl.constexpr, STATE: tl.constexpr, HK: tl.constexpr, HV: tl.constexpr,
    K: tl.constexpr, V: tl.constexpr, CHUNK: tl.constexpr, BLOCK_K: tl.constexpr,
    BLOCK_V: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    span, head = num_decodes + tl.program_id(0), tl.program_id(1)
    first = tl.load(offsets_ptr + span).to(tl.int64)
    begun_at = tl.load(starts_ptr + span)
    # Rows of a span that is left out have no systems.
    end = tl.where(begun_at < 0, first, tl.load(offsets_ptr + span + 1))
    keys = tl.arange(0, BLOCK_K)
    values = tl.program_id(2) * BLOCK_V + tl.arange(0, BLOCK_V)
    has_key, has_value = (keys < K)[None, :], (values < V)[None, :]
    state_at = state_ptr + tl.load(slots_ptr + span).to(tl.int64) * STATE + head * K * V
    state_at += keys[:, None] * V + values[None, :]
    inside = (keys < K)[:, None] & has_value & (end > first)
    held = tl.load(state_at, inside & (begun_at > 0), 0.0)
    places = tl.arange(0, CHUNK)
    is_before = places[:, None] >= places[None, :]
    dtype: tl.constexpr = u_ptr.dtype.element_ty
    for start in tl.range(first, end, CHUNK):
        rows = start + places
        is_row = (rows < end)[:, None]
        key_at = rows[:, None] * C + head // (HV // HK) * K + keys[None, :]
        q = unit_rows(tl.load(mixed_ptr + key_at, is_row & has_key, 0.0).to(tl.float32))
        q = (q * (K**-0.5)).to(dtype)
        k = unit_rows(tl.load(mixed_ptr + key_at + HK * K, is_row & has_key, 0.0).to(tl.float32))
        own_at = rows[:, None] * HV + head
        w = tl.load(w_ptr + own_at * K + keys[None, :], is_row & has_key, 0.0)
        u = tl.load(u_ptr + own_at * V + values[None, :], is_row & has_value, 0.0)
        total = tl.load(sums_ptr + rows * HV + head, rows < end, 0.0)
        last = tl.load(sums_ptr + (tl.minimum(start + CHUNK, end) - 1) * HV + head)
        low = held.to(dtype)
        update = u.to(tl.float32) - tl.dot(w, low, input_precision=PRECISION)
        # Rows behind the last have no sum, which is above all others.
        between = tl.where(is_before & is_row, total[:, None] - total[None, :], float("-inf"))
        scores = tl.dot(q, tl.trans(k).to(dtype), input_precision=PRECISION) * tl.exp(between)
        update = update.to(dtype)
        read = tl.dot(q, low, input_precision=PRECISION) * tl.exp(total)[:, None]
        read += tl.dot(scores.to(dtype), update, input_precision=PRECISION)
        tl.store(read_ptr + own_at * V + values[None, :], read, is_row & has_value)
        left = (k * tl.exp(last - total)[:, None]).to(dtype)
        held = held * tl.exp(last) + tl.dot(tl.trans(left), update, input_precision=PRECISION)
    tl.store(state_at, held, inside)


@triton.jit(do_not_specialize=["num_rows", "first"])
def _norm_kernel(
    read_ptr, rows_ptr, norm_ptr, out_ptr, num_rows, first,
    eps, C: tl.constexpr, ROW: tl.constexpr, HV: tl.constexpr,
    V: tl.constexpr, ROWS: tl.constexpr, BLOCK_V: tl.constexpr, ROUNDS: tl.constexpr,
):  # fmt: skip
    rows = first + tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    values = tl.arange(0, BLOCK_V)
    inside = (rows < num_rows)[:, None] & (values < V)[None, :]
    columns = tl.program_id(1) * V + values[None, :]
    at = rows[:, None] * HV * V + columns
    read = tl.load(read_ptr + at, inside, 0.0).to(tl.float32)
    z = tl.load(rows_ptr + rows[:, None] * ROW + C + columns, inside, 0.0).to(tl.float32)
    weight = tl.load(norm_ptr + values, values < V, 0.0).to(tl.float32)
    dtype: tl.constexpr = out_ptr.dtype.element_ty
    tl.store(out_ptr + at, gated(read, z, weight[None, :], eps, V, ROUNDS, dtype), inside)


def prompts(
    rows: Tensor,
    gates: Tensor,
    weights: DeltaWeights,
    eps: float,
    state: DeltaState,
    plan: DeltaPlan,
    sizes: DeltaSizes,
    out: Tensor,
) -> None:
    """The spans behind the decodes, into `out` [T, HV V]; moves their states on."""
    num_rows, heads = len(rows), sizes.num_value_heads
    num_spans, num_chunks = len(plan.starts) - plan.num_decodes, len(plan.chunks)
    strides = rows.stride(0), state.tails.stride(0), state.matrices.stride(0)
    rounds = weights.norm.dtype == rows.dtype
    launches = _launches(
        rows.device,
        sizes,
        strides,
        weights.conv.shape[1],
        eps,
        rounds,
    )
    mixed = rows.new_empty(num_rows, sizes.columns)
    u, read = (rows.new_empty(num_rows, heads, sizes.value_dim) for _ in range(2))
    w = rows.new_empty(num_rows, heads, sizes.key_dim)
    sums = torch.empty(num_rows, heads, dtype=torch.float32, device=rows.device)
    starts, slots, offsets, chunks = plan.starts, plan.slots, plan.offsets, plan.chunks
    launches.conv(
        (num_chunks, triton.cdiv(sizes.columns, _COLUMNS), 1),
        (rows, weights.conv, state.tails, starts, slots, offsets, chunks, mixed),
    )
    launches.tails(
        (num_spans, triton.cdiv(sizes.columns, _TAIL_COLUMNS), 1),
        (rows, state.tails, starts, slots, offsets),
        (plan.num_decodes,),
    )
    launches.system(
        (num_chunks, heads, 1),
        (mixed, gates, weights.decay, weights.dt_bias, offsets, chunks, u, w, sums),
    )
    launches.scan(
        (num_spans, heads, triton.cdiv(sizes.value_dim, launches.scan_values)),
        (mixed, u, w, sums, state.matrices, starts, slots, offsets, read),
        (plan.num_decodes,),
    )
    launches.norm(
        (triton.cdiv(num_rows - plan.num_decodes, _NORM_ROWS), heads, 1),
        (read, rows, weights.norm, out),
        (num_rows, plan.num_decodes),
    )


class _Launches(NamedTuple):
    conv: Launch
    tails: Launch
    system: Launch
    scan: Launch
    norm: Launch
    scan_values: int


@cache
def _launches(
    device: torch.device,  # noqa: ARG001 - a launch belongs to one
    sizes: DeltaSizes,
    strides: tuple[int, int, int],
    width: int,
    eps: float,
    rounds: bool,
) -> _Launches:
    row, tail, matrix = strides
    keys, values = (
        max(16, triton.next_power_of_2(size)) for size in (sizes.key_dim, sizes.value_dim)
    )
    scan_values = min(_SCAN_VALUES, values)
    heads = {"HK": sizes.num_key_heads, "HV": sizes.num_value_heads, "K": sizes.key_dim}
    heads |= {"V": sizes.value_dim, "C": sizes.columns}
    conv = {"C": sizes.columns, "ROW": row, "TAIL": tail, "WIDTH": width}
    norm = {"eps": eps, "C": sizes.columns, "ROW": row, "V": sizes.value_dim}
    norm |= {"HV": sizes.num_value_heads, "ROWS": _NORM_ROWS, "BLOCK_V": values, "ROUNDS": rounds}
    blocks = {"CHUNK": CHUNK, "BLOCK_K": keys, "PRECISION": "ieee"}
    return _Launches(
        conv=Launch(_conv_kernel, {**conv, "CHUNK": CHUNK, "BLOCK": _COLUMNS}, num_warps=4),
        tails=Launch(_tails_kernel, {**conv, "BLOCK": _TAIL_COLUMNS}, num_warps=4),
        system=Launch(_system_kernel, heads | blocks | {"BLOCK_V": values}, num_warps=4),
        scan=Launch(
            _scan_kernel,
            heads | blocks | {"STATE": matrix, "BLOCK_V": scan_values},
            num_warps=4,
            num_stages=2,
        ),
        norm=Launch(_norm_kernel, norm, num_warps=4),
        scan_values=scan_values,
    )
