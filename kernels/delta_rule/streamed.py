"""One Triton kernel for a single row of each of very many sequences: convolution, one step of the
rule and its norm, while the next state is on its way.

Owns the kernel and its launch. Must not know which rows it serves.

A program has one key head of a span with all its value heads, so it alone reads and moves their
tails. It goes through their states in tiles of [K, `values`]: while one tile is in registers, the
compiler's pipeline copies the next one to shared memory. So the programs of a multiprocessor always
have bytes on their way, which they would not if each loaded, added up and stored by turns.
"""

from functools import cache
from typing import Final, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.choose import has_pdl, is_card, shared_bytes
from kernels.delta_rule.pieces import gated, log_kept, sigmoid, silu, stepped
from kernels.delta_rule.plan import DeltaPlan
from kernels.delta_rule.shapes import DeltaSizes, DeltaState, DeltaWeights
from kernels.launch import Launch
from kernels.linear.parts import prefetch

_OTHER_BYTES: Final = 4096
"""Bytes of shared memory for sums across warps; Triton 3.7 took 1.5 KiB."""
_STAGE_BYTES: Final = 2048
"""Bytes of a stage beside its tile: values, their tails and what they are multiplied with; 1.6 KiB.
"""


class StreamTiles(NamedTuple):
    """Warps of a program, registers of a thread, columns of a tile (all of a head or half of them),
    and `stages`: one tile is added up while `stages` - 1 others are on their way, as far as a
    card's shared memory holds them.
    """

    num_warps: int = 4
    registers: int = 168
    values: int = 64
    stages: int = 4


@triton.jit
def _taps(conv_ptr, columns, inside, WIDTH: tl.constexpr):
    """What a column's rows are multiplied with, float32, oldest first. Four in bfloat16 are one
    word: it is large enough to be on its way beside the next state.
    """
    found = ()
    if WIDTH == 4 and conv_ptr.dtype.element_ty == tl.bfloat16:
        words = tl.load(conv_ptr.to(tl.pointer_type(tl.int64)) + columns, inside, 0)
        for tap in tl.static_range(WIDTH):
            high = (words >> (16 * tap)).to(tl.int32) << 16
            found += (high.to(tl.float32, bitcast=True),)  # type: ignore[assignment]
    else:
        for tap in tl.static_range(WIDTH):
            found += (tl.load(conv_ptr + columns * WIDTH + tap, inside, 0.0).to(tl.float32),)  # type: ignore[assignment]
    return found


@triton.jit
def _asked(
    at, inside, held, rows_ptr, tails_ptr, conv_ptr, C: tl.constexpr, WIDTH: tl.constexpr
):  # fmt: skip
    """A column's rows, oldest first, and what they are multiplied with."""
    taps = _taps(conv_ptr, at, inside, WIDTH)
    rows = ()
    for back in tl.static_range(WIDTH - 1):
        rows += (tl.load(tails_ptr + back * C + at, held, 0.0),)  # type: ignore[assignment]
    rows += (tl.load(rows_ptr + at, inside, 0.0),)  # type: ignore[assignment]
    return rows, taps


@triton.jit
def _convolved(asked, WIDTH: tl.constexpr, dtype: tl.constexpr):
    """A row's convolution and `silu`, rounded as rows are."""
    sums = asked[0][WIDTH - 1].to(tl.float32) * asked[1][WIDTH - 1]
    for back in tl.static_range(WIDTH - 1):
        sums += asked[0][back].to(tl.float32) * asked[1][back]
    return silu(sums, dtype).to(tl.float32)


@triton.jit
def _moved(tail_at, asked, inside, C: tl.constexpr, WIDTH: tl.constexpr):
    """A column's tail, moved on by a row: the oldest one goes, the present one comes."""
    for back in tl.static_range(WIDTH - 1):
        tl.store(tail_at + back * C, asked[0][back + 1], inside)


@triton.jit
def _query_and_key(
    at,  # [BLOCK_K], columns of the head's query
    inside,  # [BLOCK_K], which of them there are
    held,  # [BLOCK_K], and which have a tail
    rows_ptr,  # the span's row
    tails_ptr,  # [WIDTH - 1, C], the slot's tail
    conv_ptr,  # [C, WIDTH], weights of the convolution
    C: tl.constexpr,  # columns of queries, keys and values
    WIDTH: tl.constexpr,  # taps of the convolution
    BEHIND: tl.constexpr,  # columns from a query to its key
    K: tl.constexpr,  # numbers of a key
    dtype: tl.constexpr,  # dtype of the rows
):
    """Query and key of a head, [BLOCK_K], of length 1 but for the query's scale, and their product;
    tails move on.
    """
    given = inside, held, rows_ptr, tails_ptr, conv_ptr
    first, second = _asked(at, *given, C, WIDTH), _asked(at + BEHIND, *given, C, WIDTH)
    query, key = _convolved(first, WIDTH, dtype), _convolved(second, WIDTH, dtype)
    query *= tl.rsqrt(tl.sum(query * query, 0) + 1e-6) * (K**-0.5)
    key *= tl.rsqrt(tl.sum(key * key, 0) + 1e-6)
    # All threads have what they read of the tails: sums were added up across them.
    _moved(tails_ptr + at, first, inside, C, WIDTH)
    _moved(tails_ptr + at + BEHIND, second, inside, C, WIDTH)
    return query, key, tl.sum(query * key, 0)


@triton.jit
def _factors(
    first, values, own, is_whole, z_ptr, norm_ptr, V: tl.constexpr, SHARES: tl.constexpr
):  # fmt: skip
    """What numbers of a head are multiplied with behind their norm, of both its parts: weights and
    z. Only where it is whole, but ahead of the sums.
    """
    at = first + values
    inside, has_first = (at < V) & is_whole, (values < V) & is_whole & (SHARES > 1)
    weight = tl.load(norm_ptr + at, inside, 0.0).to(tl.float32)
    z = tl.load(z_ptr + own * V + at, inside, 0.0).to(tl.float32)
    first_weight = tl.load(norm_ptr + values, has_first, 0.0).to(tl.float32)
    first_z = tl.load(z_ptr + own * V + values, has_first, 0.0).to(tl.float32)
    return weight, z, first_weight, first_z


@triton.jit
def _normed(
    before,  # float32 [BLOCK_V], what the tile ahead has read
    read,  # float32 [BLOCK_V], what this tile has read
    factors,  # what `_factors` has returned
    is_whole,  # whether this is a head's last tile
    at,  # [BLOCK_V], values of this tile
    out_ptr,  # [V], the head's
    eps,  # epsilon of the norm
    V: tl.constexpr,  # numbers of a value
    BLOCK_V: tl.constexpr,  # values of a tile
    SHARES: tl.constexpr,  # tiles of a head: 1 or 2
    ROUNDS: tl.constexpr,  # whether the norm's weights have the rows' dtype
):
    """What is read of a head, when all of it is, to `out_ptr`."""
    dtype: tl.constexpr = out_ptr.dtype.element_ty
    if is_whole:
        squares = tl.sum(read * read, 0)
        if SHARES > 1:
            squares += tl.sum(before * before, 0)
        scale = tl.rsqrt(squares / V + eps)
        out = gated(read, scale, factors[0], factors[1], ROUNDS, dtype)
        tl.store(out_ptr + at, out, at < V)
        if SHARES > 1:
            low = at - BLOCK_V
            out = gated(before, scale, factors[2], factors[3], ROUNDS, dtype)
            tl.store(out_ptr + low, out, low < V)


@triton.jit
def _kept_and_beta(gates_ptr, decay_ptr, dt_bias_ptr, own, head, HV: tl.constexpr):
    """What is kept of value head `head`'s state, and its beta. `gates_ptr` is at the first value
    head of the program, of which this is number `own`.
    """
    b = tl.load(gates_ptr + own).to(tl.float32)
    a = tl.load(gates_ptr + HV + own).to(tl.float32)
    kept = log_kept(a, tl.load(decay_ptr + head), tl.load(dt_bias_ptr + head))
    return tl.exp(kept), sigmoid(b)


@triton.jit
def _ask(
    state_ptr, keys, is_begun, K: tl.constexpr, V: tl.constexpr, WIDTH: tl.constexpr
):  # fmt: skip
    """Ask for a head's state while the kernel ahead ends, which takes 8 us for a small product."""
    row_ptrs = state_ptr + tl.minimum(keys, K - 1) * V
    prefetch(row_ptrs, 0, tl.where(is_begun, V, 0), (WIDTH + 15) // 16 * 64)


@triton.jit
def _blank(out_ptr, head, values, GROUP: tl.constexpr, V: tl.constexpr, BLOCK_V: tl.constexpr):
    """Zeros of the GROUP value heads from `head` on: what a row of padding puts out."""
    for first in tl.static_range(0, GROUP * V, BLOCK_V):
        nothing = tl.zeros([BLOCK_V], out_ptr.dtype.element_ty)
        tl.store(out_ptr + head * V + first + values, nothing, first + values < GROUP * V)


@triton.jit
def _streamed_kernel(
    rows_ptr,  # [T, ROW], a step's rows: queries, keys, values, then z
    gates_ptr,  # [T, 2 HV], b of each head, then a
    conv_ptr,  # [C, WIDTH], weights of the convolution
    decay_ptr,  # float32 [HV]
    dt_bias_ptr,  # float32 [HV]
    norm_ptr,  # [V], weights of the norm
    state_ptr,  # float32 [slots, HV, K, V]
    tails_ptr,  # [slots, WIDTH - 1, C], rows ahead of a span, oldest first
    starts_ptr,  # int32 [S], position of each span's first row
    slots_ptr,  # int32 [S]
    out_ptr,  # [T, HV, V], in the rows' dtype
    eps,  # epsilon of the norm
    C: tl.constexpr,  # columns of queries, keys and values
    ROW: tl.constexpr,  # numbers from row to row
    STATE: tl.constexpr,  # numbers from slot to slot of the states
    TAIL: tl.constexpr,  # numbers from slot to slot of the tails
    WIDTH: tl.constexpr,  # taps of the convolution
    HK: tl.constexpr,  # key heads
    HV: tl.constexpr,  # value heads
    K: tl.constexpr,  # numbers of a key
    V: tl.constexpr,  # numbers of a value
    BLOCK_K: tl.constexpr,  # the power of two from K on
    BLOCK_V: tl.constexpr,  # values of a tile, all of a head or half of them
    SHARES: tl.constexpr,  # tiles of a head
    ROUNDS: tl.constexpr,  # whether the norm's weights have the rows' dtype
    STAGES: tl.constexpr,  # tiles of states on their way at once
    IS_EVEN: tl.constexpr,  # whether no tile is cut off
    PDL: tl.constexpr,  # whether it may start while the kernel ahead ends
):
    group: tl.constexpr = HV // HK
    key_head, span = tl.program_id(0), tl.program_id(1).to(tl.int64)
    dtype: tl.constexpr = out_ptr.dtype.element_ty
    start, slot = tl.load(starts_ptr + span), tl.load(slots_ptr + span).to(tl.int64)
    # The slot again, for the compiler: addresses that wait for the store would take registers.
    stored_ptr = state_ptr + tl.load(slots_ptr + span, volatile=True).to(tl.int64) * STATE
    keys, values = tl.arange(0, BLOCK_K), tl.arange(0, BLOCK_V)
    has_key, is_begun = (keys < K) & (start >= 0), start > 0
    head, query_at = key_head * group, key_head * K + keys
    rows_ptr, out_ptr = rows_ptr + span * ROW, out_ptr + span * HV * V
    tails_ptr, gates_ptr = tails_ptr + slot * TAIL, gates_ptr + span * 2 * HV + head
    state_ptr, stored_ptr = state_ptr + slot * STATE + head * K * V, stored_ptr + head * K * V
    if PDL:
        _ask(state_ptr, keys, is_begun, K, V, BLOCK_V * SHARES)
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    within = keys[:, None] * V + values[None, :]
    state_ptr, stored_ptr = state_ptr + within, stored_ptr + within
    given = has_key, has_key & is_begun, rows_ptr, tails_ptr, conv_ptr
    query, key, both = _query_and_key(query_at, *given, C, WIDTH, HK * K, K, dtype)
    before = tl.zeros([BLOCK_V], tl.float32)
    # Padding has no parts: nothing moves.
    for part in tl.range(0, tl.where(start >= 0, group * SHARES, 0), num_stages=STAGES):
        own, first = part // SHARES, part % SHARES * BLOCK_V
        has_value, part_at = first + values < V, own * K * V + first
        inside = has_key[:, None] & has_value[None, :]
        held = tl.load(state_ptr + part_at, is_begun if IS_EVEN else inside & is_begun, 0.0)
        is_whole = first + BLOCK_V >= V
        factors = _factors(first, values, head + own, is_whole, rows_ptr + C, norm_ptr, V, SHARES)
        value_at = 2 * HK * K + (head + own) * V + first + values
        goes_on = has_value & is_begun
        asked = _asked(value_at, has_value, goes_on, *given[2:], C, WIDTH)
        value = _convolved(asked, WIDTH, dtype)
        kept, beta = _kept_and_beta(gates_ptr, decay_ptr, dt_bias_ptr, own, head + own, HV)
        along = query[:, None], key[:, None]
        held, read = stepped(held, *along, value, both, beta, kept, False)
        tl.store(stored_ptr + part_at, held, None if IS_EVEN else inside)
        read = read.to(dtype).to(tl.float32)
        # Sums across the warps are behind all that was read of the tail. A barrier of its own would
        # keep the compiler from having the next state on its way.
        _moved(tails_ptr + value_at, asked, has_value, C, WIDTH)
        own_ptr, at = out_ptr + (head + own) * V, first + values
        _normed(before, read, factors, is_whole, at, own_ptr, eps, V, BLOCK_V, SHARES, ROUNDS)
        before = read
    if start < 0:
        _blank(out_ptr, head, values, group, V, BLOCK_V)


def streamed(
    rows: Tensor,
    gates: Tensor,
    weights: DeltaWeights,
    eps: float,
    state: DeltaState,
    plan: DeltaPlan,
    sizes: DeltaSizes,
    out: Tensor,
    tiles: StreamTiles,
) -> None:
    """Compute the first `plan.num_decodes` rows of a step into `out` [T, HV V], and move their
    states on. Rows of padding become 0, and their slots stay as they are.
    """
    strides = rows.stride(0), state.matrices.stride(0), state.tails.stride(0)
    rounds = weights.norm.dtype == rows.dtype
    launch = _launch(rows.device, sizes, strides, weights.conv.shape[1], eps, rounds, tiles)
    launch(
        (sizes.num_key_heads, plan.num_decodes, 1),  # heads of a slot, which lie side by side
        (
            rows,
            gates,
            weights.conv,
            weights.decay,
            weights.dt_bias,
            weights.norm,
            state.matrices,
            state.tails,
            plan.starts,
            plan.slots,
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
    tiles: StreamTiles,
) -> Launch:
    row, matrix, tail = strides
    keys, values = (triton.next_power_of_2(size) for size in (sizes.key_dim, sizes.value_dim))
    block = max(min(tiles.values, values), values // 2)
    constants = {
        "eps": eps, "C": sizes.columns, "ROW": row, "STATE": matrix, "TAIL": tail,
        "WIDTH": conv_width, "HK": sizes.num_key_heads, "HV": sizes.num_value_heads,
        "K": sizes.key_dim, "V": sizes.value_dim, "BLOCK_K": keys, "BLOCK_V": block,
        "SHARES": values // block, "ROUNDS": rounds,
        "STAGES": _stages(device, 4 * keys * block, tiles.stages),
        "IS_EVEN": (keys, values) == (sizes.key_dim, sizes.value_dim), "PDL": has_pdl(device),
    }  # fmt: skip
    num_warps = max(1, min(tiles.num_warps, keys * block // 512))
    return Launch(_streamed_kernel, constants, num_warps=num_warps, maxnreg=tiles.registers)


def _stages(device: torch.device, tile_bytes: int, most: int) -> int:
    """How many stages the card's shared memory has room for, at most `most`."""
    if not is_card(device):
        return most
    return fitting_stages(shared_bytes(device), tile_bytes, most)


def fitting_stages(card_bytes: int, tile_bytes: int, most: int) -> int:
    """The number of stages that fit, from 1 to `most`; all but one hold a tile of `tile_bytes`."""
    held = (card_bytes - _OTHER_BYTES) // (tile_bytes + _STAGE_BYTES)
    return max(1, min(most, 1 + held))
