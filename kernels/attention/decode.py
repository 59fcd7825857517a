"""Attention of single rows over the paged cache, from the projected heads to the mixed values.

Owns the decode kernel. One program serves all query heads of one key head over its share of all
rows' tiles (`shares.py`), row after row: K and V are read once. It norms and turns its queries; the
first part of a row also norms, turns and writes the row's own key and value and takes them from
registers, so no program reads what another one of this launch writes. A row that does not end where
it began is merged by the last of its programs, always in the same order: program q keeps its part
of row r in slot q + r, so the slots of a row follow each other and no two parts meet. Cached tokens
that rows share come first in them and are none of this kernel's: it finds partial results of them,
made by `prefill.py` for all rows at once, and merges them too.
"""

from functools import cache
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.attention.config import DecodeConfig
from kernels.attention.device import (
    AttentionSizes,
    attend_tile,
    load_angles,
    load_pairs,
    load_tile,
    merge_more,
    merged,
    to_cache,
    turned,
)
from kernels.attention.plan import PagedPlan, Scope
from kernels.attention.prefill import num_slots, parts_of
from kernels.attention.runs import SHARED_WORDS
from kernels.attention.shares import SHARE_NUMBERS, row_cost, row_parts
from kernels.attention.words import (
    load_num_shared_parts,
    load_share,
    load_shared_end,
    load_shared_parts,
)
from kernels.launch import Launch, scratch

_MERGED_OF_WARP = 1024
"""Numbers that a warp merges at once: 32 registers of a thread."""

_NOT_SHARED = -1

_COUNTERS = 2**17
"""(row, key head) pairs of one launch; half a megabyte per card."""


@triton.jit
def _tile(
    keys_ptr, values_ptr, table_ptr, blocks, tokens, end, kv, KV: tl.constexpr, D: tl.constexpr,
    BLOCK_SIZE: tl.constexpr, BLOCK_D: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """Keys and values [TILE, BLOCK_D] at `tokens` below `end`, and the next tile's blocks."""
    columns = tl.arange(0, BLOCK_D)
    key_columns = columns
    if BLOCK_D != D:  # queries are padded by halves, so the keys' columns follow them
        pair = columns % (BLOCK_D // 2)
        key_columns = tl.where(pair < D // 2, pair + columns // (BLOCK_D // 2) * (D // 2), D)
    keys = load_tile(
        keys_ptr, blocks, tokens, tokens < end, kv, key_columns, KV, D, BLOCK_SIZE, BLOCK_D
    )
    values = load_tile(
        values_ptr, blocks, tokens, tokens < end, kv, columns, KV, D, BLOCK_SIZE, BLOCK_D
    )
    ahead = tokens + TILE
    return keys, values, tl.load(table_ptr + ahead // BLOCK_SIZE, mask=ahead < end, other=0)


@triton.jit
def _own_place(
    table_ptr, position, kv, KV: tl.constexpr, D: tl.constexpr, BLOCK_SIZE: tl.constexpr
):
    """Where a row's own key and value of a key head lie in the cache."""
    slot = tl.load(table_ptr + position // BLOCK_SIZE).to(tl.int64) * BLOCK_SIZE
    return ((slot + position % BLOCK_SIZE) * KV + kv) * D


@triton.jit
def _own_weights(
    qk_norm_ptr, kv, H: tl.constexpr, KV: tl.constexpr, D: tl.constexpr, HALF: tl.constexpr,
    NORMED: tl.constexpr, BORROWS: tl.constexpr,
):  # fmt: skip
    """The norm's weights of a key head, as `load_pairs` has them, and of its values
    [2 HALF]; ones where nothing is normed here.
    """
    ones = tl.full([1, 2, HALF], 1.0, tl.float32)
    own, partner = ones, ones
    of_values = tl.full([2 * HALF], 1.0, tl.float32)
    zero = tl.zeros([1, 1, 1], tl.int32)
    columns = tl.arange(0, 2 * HALF)
    if NORMED > 0 and not BORROWS:
        own, partner = load_pairs(qk_norm_ptr, zero + (H + kv) * D, zero == 0, D, HALF)
    if NORMED > H + KV and not BORROWS:
        at = qk_norm_ptr + (H + KV + kv) * D + columns
        of_values = tl.load(at, mask=columns < D, other=0.0).to(tl.float32)
    return own, partner, of_values


@triton.jit
def _own_token(
    qkv_ptr,  # [H + 2 KV, D], the row's
    weights,  # what `_own_weights` has returned
    angles,  # cosines and sines of the row
    eps,  # epsilon of the norms
    kv,  # key head
    keys_ptr,  # [blocks, BLOCK_SIZE, KV, D], the cache
    values_ptr,  # [blocks, BLOCK_SIZE, KV, D], the cache
    slot,  # where both lie, `_own_place`
    is_first,  # whether this is the row's first part
    H: tl.constexpr,  # query heads
    KV: tl.constexpr,  # key heads
    D: tl.constexpr,  # numbers of a head
    HALF: tl.constexpr,  # half of BLOCK_D
    NORMED: tl.constexpr,  # heads that are normed, of queries, keys, values
    BORROWS: tl.constexpr,  # whether another layer writes keys and values
):
    """Norm and turn the row's key, write it and the value if `is_first`; both as cached, float32.
    If the layer BORROWS, an earlier launch of the step has written both.

    The key [1, 2, HALF], the value [2 HALF].
    """
    columns = tl.arange(0, 2 * HALF)
    half, pair = tl.arange(0, 2)[None, :, None], tl.arange(0, HALF)[None, None, :]
    places = slot + half * (D // 2) + pair
    if BORROWS:  # by way of L2: the tiles may have brought what stood there before
        key = tl.load(keys_ptr + places, mask=pair < D // 2, other=0.0, cache_modifier=".cg")
        value = tl.load(
            values_ptr + slot + columns, mask=columns < D, other=0.0, cache_modifier=".cg"
        )
        return key.to(tl.float32), value.to(tl.float32)
    zero = tl.zeros([1, 1, 1], tl.int32)
    key = load_pairs(qkv_ptr, zero + (H + kv) * D, zero == 0, D, HALF)
    value = tl.load(qkv_ptr + (H + KV + kv) * D + columns, mask=columns < D, other=0.0)
    key = turned(key, weights, angles, eps, D, value.dtype, NORMED > 0)
    key = to_cache(key, keys_ptr.dtype.element_ty)
    wide = value.to(tl.float32)
    if NORMED > H + KV:
        scale = tl.rsqrt(tl.sum(wide * wide, 0) / D + eps)
        wide = ((wide * scale).to(value.dtype).to(tl.float32) * weights[2]).to(value.dtype)
        wide = wide.to(tl.float32)
    value = to_cache(wide, values_ptr.dtype.element_ty)
    tl.store(keys_ptr + places, key, mask=(pair < D // 2) & is_first)
    tl.store(values_ptr + slot + columns, value, mask=(columns < D) & is_first)
    return key.to(tl.float32), value.to(tl.float32)


@triton.jit
def _with_shared(
    top, total, mixed, partial_ptr, lse_ptr, first, count, shared_ptr, run_partial_ptr, run_lse_ptr,
    heads, inside, columns, H: tl.constexpr, KV: tl.constexpr, D: tl.constexpr,
    GROUP: tl.constexpr, NARROW: tl.constexpr, BLOCK_D: tl.constexpr, FAN: tl.constexpr,
):  # fmt: skip
    """Float32 [NARROW, BLOCK_D] of a row with what it shares: of its `count` parts, or of one that
    is not cut and is still in registers.
    """
    real = (tl.arange(0, GROUP) < H // KV) & (count == 1)
    kept = tl.where(real, top, 0.0).reshape(GROUP // NARROW, NARROW)
    few_top = tl.where(inside & (count == 1), tl.sum(kept, 0), -float("inf"))
    few_total = tl.sum(tl.where(real, total, 0.0).reshape(GROUP // NARROW, NARROW), 0)
    kept = tl.where(real[:, None], mixed, 0.0).reshape(GROUP // NARROW, NARROW, BLOCK_D)
    few_mixed = tl.sum(kept, 0)
    few_top, few_total, few_mixed = merge_more(
        partial_ptr, lse_ptr, first, 1, tl.where(count == 1, 0, count), heads, inside, columns,
        few_top, few_total, few_mixed, H, D, FAN,
    )  # fmt: skip
    shared_first, shared_step, num_shared = load_shared_parts(shared_ptr)
    few_top, few_total, few_mixed = merge_more(
        run_partial_ptr, run_lse_ptr, shared_first, shared_step, num_shared, heads, inside,
        columns, few_top, few_total, few_mixed, H, D, FAN,
    )  # fmt: skip
    return few_mixed / tl.where(few_total == 0.0, 1.0, few_total)[:, None]


@triton.jit
def _publish(
    top,  # [GROUP], largest scores
    total,  # [GROUP], sums of weights
    mixed,  # [GROUP, BLOCK_D], sums of values
    out_ptr,  # [H, D], the row's
    partial_ptr,  # float32 [slots, H, D], results of parts
    lse_ptr,  # float32 [slots, H], their log of the sum, of base 2
    counter_ptr,  # int32, the row's for this key head
    kv,  # key head
    slot,  # slot of this part
    first,  # first slot of the row's parts
    count,  # parts of the row
    shared_ptr,  # int32, the row's words
    run_partial_ptr,  # float32 [slots, H, D], results of what rows share
    run_lse_ptr,  # float32 [slots, H], as `lse_ptr`
    H: tl.constexpr,  # query heads
    KV: tl.constexpr,  # key heads
    D: tl.constexpr,  # numbers of a head
    GROUP: tl.constexpr,  # query heads of a program, at least 16
    NARROW: tl.constexpr,  # the power of two from H / KV on
    BLOCK_D: tl.constexpr,  # the power of two from D on
    FAN: tl.constexpr,  # parts that are merged at once
    WINDOW: tl.constexpr,  # tokens that a row sees; 0: all
    SHARED: tl.constexpr,  # whether the row may share tokens
):
    """A row's whole result, or a part of it: the last program to arrive merges the parts, and with
    SHARED the results of what the row shares.
    """
    if WINDOW:  # another part of the row may come before it
        total = tl.where(total == 0.0, 1.0, total)
    result = mixed / total[:, None]
    columns = tl.arange(0, BLOCK_D)
    group = tl.arange(0, GROUP)
    heads = kv * (H // KV) + group
    places = heads[:, None] * D + columns[None, :]
    shown = (group < H // KV)[:, None] & (columns < D)[None, :]
    is_whole = count == 1
    if SHARED:
        is_whole = is_whole & (load_num_shared_parts(shared_ptr) == 0)
    if is_whole:
        tl.store(out_ptr + places, result.to(out_ptr.dtype.element_ty), mask=shown)
    else:
        arrived = 0
        if (SHARED == 0) | (count > 1):
            tl.store(partial_ptr + slot.to(tl.int64) * (H * D) + places, result, mask=shown)
            tl.store(lse_ptr + slot * H + heads, top + tl.log2(total), mask=group < H // KV)
            tl.debug_barrier()  # every thread's part is stored before the count shows it
            arrived = tl.atomic_add(counter_ptr, 1, sem="acq_rel", scope="gpu")
        if arrived == count - 1:
            tl.store(counter_ptr, 0, mask=count > 1)
            few = tl.arange(0, NARROW)
            few_heads, inside = kv * (H // KV) + few, few < H // KV
            if SHARED:
                whole = _with_shared(
                    top, total, mixed, partial_ptr, lse_ptr, first, count, shared_ptr,
                    run_partial_ptr, run_lse_ptr, few_heads, inside, columns, H, KV, D, GROUP,
                    NARROW, BLOCK_D, FAN,
                )  # fmt: skip
            else:
                whole = merged(
                    partial_ptr, lse_ptr, first, 1, count, few_heads, inside, columns, H, D,
                    BLOCK_D, FAN,
                )  # fmt: skip
            few_places = few_heads[:, None] * D + columns[None, :]
            few_shown = inside[:, None] & (columns < D)[None, :]
            tl.store(out_ptr + few_places, whole.to(out_ptr.dtype.element_ty), mask=few_shown)


@triton.jit
def _row(
    qkv_ptr,  # [H + 2 KV, D], the row's
    qk_norm_ptr,  # [NORMED, D], weights of the heads' norms
    cos_sin_ptr,  # float32 [positions, D], cosines, then sines
    keys_ptr,  # [blocks, BLOCK_SIZE, KV, D], the cache
    values_ptr,  # [blocks, BLOCK_SIZE, KV, D], the cache
    table_ptr,  # int32, the row's blocks
    out_ptr,  # [H, D], the row's
    partial_ptr,  # float32 [slots, H, D], results of parts
    lse_ptr,  # float32 [slots, H], their log of the sum, of base 2
    counter_ptr,  # int32, the row's for this key head
    shared_ptr,  # int32, the row's words
    run_partial_ptr,  # float32 [slots, H, D], results of what rows share
    run_lse_ptr,  # float32 [slots, H], as `lse_ptr`
    sinks_ptr,  # [H], scores of no key
    eps,  # epsilon of the norms
    scale,  # scale of the scores, in powers of two
    kv,  # key head
    slot,  # slot of this part
    first_slot,  # first slot of the row's parts
    count,  # parts of the row
    skipped,  # cached tokens that the row shares
    begin,  # first cached token
    end,  # end of the cached tokens
    position,  # position of the row
    H: tl.constexpr,  # query heads
    KV: tl.constexpr,  # key heads
    D: tl.constexpr,  # numbers of a head
    BLOCK_SIZE: tl.constexpr,  # tokens of a block
    GROUP: tl.constexpr,  # query heads of a program, at least 16
    NARROW: tl.constexpr,  # the power of two from H / KV on
    BLOCK_D: tl.constexpr,  # the power of two from D on
    TILE: tl.constexpr,  # tokens at once
    FAN: tl.constexpr,  # parts that are merged at once
    DOT: tl.constexpr,  # dtype of products
    NORMED: tl.constexpr,  # heads that are normed, of queries, keys, values
    BORROWS: tl.constexpr,  # whether another layer writes keys and values
    WINDOW: tl.constexpr,  # tokens that a row sees; 0: all
    SINKS: tl.constexpr,  # whether heads have a score of no key
    SHARED: tl.constexpr,  # whether the row may share tokens
    REACH: tl.constexpr,  # as in `decode_shares`
    PDL: tl.constexpr,  # whether it may start while the kernel ahead ends
):
    """One row, or a part of it: cached tokens [begin, end) in its window, with the row's own if it
    begins it.
    """
    seen_from = begin
    if WINDOW:
        seen_from = tl.maximum(begin, position + 1 - WINDOW)
    # All that does not come from the kernel ahead is loaded before waiting for it.
    tokens = seen_from + tl.arange(0, TILE)
    blocks = tl.load(table_ptr + tokens // BLOCK_SIZE, mask=tokens < end, other=0)
    keys, values, blocks = _tile(
        keys_ptr, values_ptr, table_ptr, blocks, tokens, end, kv, KV, D, BLOCK_SIZE, BLOCK_D, TILE
    )
    group = tl.arange(0, GROUP)
    starts, ours = ((kv * (H // KV) + group) * D)[:, None, None], (group < H // KV)[:, None, None]
    angles = load_angles(cos_sin_ptr, position, D, BLOCK_D // 2)
    weights = angles
    if NORMED:
        weights = load_pairs(qk_norm_ptr, starts, ours, D, BLOCK_D // 2)
    own_weights = _own_weights(qk_norm_ptr, kv, H, KV, D, BLOCK_D // 2, NORMED, BORROWS)
    own_slot = _own_place(table_ptr, position, kv, KV, D, BLOCK_SIZE)
    if PDL:
        tl.extra.cuda.gdc_wait()
    query = load_pairs(qkv_ptr, starts, ours, D, BLOCK_D // 2)
    query = turned(query, weights, angles, eps, D, out_ptr.dtype.element_ty, NORMED > 0)
    is_first = begin == skipped
    own_key, own_value = _own_token(
        qkv_ptr, own_weights, angles, eps, kv, keys_ptr, values_ptr, own_slot, is_first, H, KV, D,
        BLOCK_D // 2, NORMED, BORROWS,
    )  # fmt: skip
    # The row's own token starts the softmax of its first part.
    score = tl.sum(tl.sum(query * own_key, 2), 1)
    top = tl.where(is_first, score * scale, -float("inf"))
    is_own = is_first & (group >= 0)[:, None]
    fading = tl.where((tokens == seen_from)[None, :] & is_own, 1.0, 0.0)
    mixed = tl.where(is_own, own_value[None, :], 0.0)
    if SINKS:  # a score of no key, which belongs to the part that begins with the first one
        sink = tl.load(sinks_ptr + kv * (H // KV) + group, mask=group < H // KV, other=0.0)
        is_ground = begin == (skipped if REACH else 0)
        sink = tl.where(is_ground, sink * 1.4426950408889634, -float("inf"))  # in powers of two
        above = tl.maximum(top, sink)
        ground = tl.where(above == -float("inf"), 0.0, above)
        fade = tl.exp2(top - ground)[:, None]
        sunk = tl.where((tokens == seen_from)[None, :], tl.exp2(sink - ground)[:, None], 0.0)
        top, fading, mixed = above, fading * fade + sunk, mixed * fade
    queries = query.reshape(GROUP, BLOCK_D).to(DOT)
    seen = (tokens < end)[None, :]
    top, fading, mixed = attend_tile(queries, keys, values, seen, scale, top, fading, mixed)
    for start in range(seen_from + TILE, end, TILE):
        tokens = start + tl.arange(0, TILE)
        keys, values, blocks = _tile(
            keys_ptr, values_ptr, table_ptr, blocks, tokens, end, kv, KV, D, BLOCK_SIZE, BLOCK_D,
            TILE,
        )  # fmt: skip
        seen = (tokens < end)[None, :]
        top, fading, mixed = attend_tile(queries, keys, values, seen, scale, top, fading, mixed)
    _publish(
        top, tl.sum(fading, 1), mixed, out_ptr, partial_ptr, lse_ptr, counter_ptr, kv, slot,
        first_slot, count, shared_ptr, run_partial_ptr, run_lse_ptr, H, KV, D, GROUP, NARROW,
        BLOCK_D, FAN, WINDOW, SHARED,
    )  # fmt: skip


@triton.jit(do_not_specialize=["num_rows", "table_width"])
def _decode_kernel(
    qkv_ptr,  # [T, ROW], a step's queries, keys and values by head
    qk_norm_ptr,  # [NORMED, D], weights of the heads' norms
    cos_sin_ptr,  # float32 [positions, D], cosines, then sines
    keys_ptr,  # [blocks, BLOCK_SIZE, KV, D], the cache
    values_ptr,  # [blocks, BLOCK_SIZE, KV, D], the cache
    positions_ptr,  # int32 [T]
    table_rows_ptr,  # int32 [T], the table of each row
    tables_ptr,  # int32 [tables, table_width], blocks of each table
    shares_ptr,  # int32 [programs, NUMBERS], see `decode_shares`
    out_ptr,  # [T, H, D]
    partial_ptr,  # float32 [slots, H, D], results of parts
    lse_ptr,  # float32 [slots, H], their log of the sum, of base 2
    counters_ptr,  # int32 [T, KV], 0 between launches
    shared_ptr,  # int32 [T, SHARED_WORDS], see `PrefillWork`
    run_partial_ptr,  # float32 [slots, H, D], results of what rows share
    run_lse_ptr,  # float32 [slots, H], as `lse_ptr`
    sinks_ptr,  # [H], scores of no key
    num_rows,  # decodes
    table_width,  # numbers from table to table
    eps,  # epsilon of the norms
    scale,  # scale of the scores, in powers of two
    H: tl.constexpr,  # query heads
    KV: tl.constexpr,  # key heads
    D: tl.constexpr,  # numbers of a head
    BLOCK_SIZE: tl.constexpr,  # tokens of a block
    GROUP: tl.constexpr,  # query heads of a program, at least 16
    NARROW: tl.constexpr,  # the power of two from H / KV on
    BLOCK_D: tl.constexpr,  # the power of two from D on
    TILE: tl.constexpr,  # tokens at once
    START: tl.constexpr,  # tiles that beginning a row costs
    SLACK: tl.constexpr,  # tiles that a cut moves by
    FAN: tl.constexpr,  # parts that are merged at once
    DOT: tl.constexpr,  # dtype of products
    NUMBERS: tl.constexpr,  # words of a share
    NORMED: tl.constexpr,  # heads that are normed, of queries, keys, values
    BORROWS: tl.constexpr,  # whether another layer writes keys and values
    ROW: tl.constexpr,  # numbers from row to row
    WINDOW: tl.constexpr,  # tokens that a row sees; 0: all
    SINKS: tl.constexpr,  # whether heads have a score of no key
    SHARED_WORDS: tl.constexpr,  # words of what a row shares; 0: nothing
    REACH: tl.constexpr,  # as in `decode_shares`; not if rows share
    PDL: tl.constexpr,  # whether it may start while the kernel ahead ends
):
    """One share for one key head; GROUP >= 16 rows hold its H / KV query heads.

    A row at position p has p cached tokens, of which it reads those that it does not share, at
    least one tile of them; it costs START tiles more.
    """
    if PDL:
        tl.extra.cuda.gdc_launch_dependents()
    kv, number = tl.program_id(0), tl.program_id(1)
    row, passed, place, num_left, share = load_share(shares_ptr + number * NUMBERS)
    position = tl.load(positions_ptr + row, mask=row < num_rows, other=-1)
    table_row = tl.load(table_rows_ptr + row, mask=row < num_rows, other=0)
    skipped, next_skipped = 0, 0
    if SHARED_WORDS:
        skipped = load_shared_end(shared_ptr + row * SHARED_WORDS, row < num_rows)
    if REACH:
        skipped = tl.maximum(position + 1 - REACH, 0)
    while (num_left > 0) & (row < num_rows):
        # The next row's are here when this one is done: one wait less per row.
        next_position = tl.load(positions_ptr + row + 1, mask=row + 1 < num_rows, other=-1)
        next_table_row = tl.load(table_rows_ptr + row + 1, mask=row + 1 < num_rows, other=0)
        if SHARED_WORDS:
            ahead = shared_ptr + (row + 1) * SHARED_WORDS
            next_skipped = load_shared_end(ahead, row + 1 < num_rows)
        if REACH:
            next_skipped = tl.maximum(next_position + 1 - REACH, 0)
        cost = row_cost(position - skipped, TILE, START)
        taken = tl.minimum(cost - passed, num_left)
        if taken > 0:
            begin = skipped + tl.maximum(passed - START, 0) * TILE
            end = tl.minimum(skipped + (passed + taken - START) * TILE, position)
            first, count = row_parts(place - passed, cost, share, START, SLACK)
            wide_row = row.to(tl.int64)
            _row(
                qkv_ptr + wide_row * ROW, qk_norm_ptr, cos_sin_ptr, keys_ptr,
                values_ptr, tables_ptr + table_row.to(tl.int64) * table_width,
                out_ptr + wide_row * (H * D), partial_ptr, lse_ptr, counters_ptr + row * KV + kv,
                shared_ptr + row * SHARED_WORDS, run_partial_ptr, run_lse_ptr, sinks_ptr, eps,
                scale, kv,
                number + row, first + row, count, skipped, begin, end, position, H, KV, D,
                BLOCK_SIZE, GROUP, NARROW, BLOCK_D, TILE, FAN, DOT, NORMED, BORROWS, WINDOW, SINKS,
                SHARED_WORDS > 0, REACH, PDL,
            )  # fmt: skip
        num_left -= taken
        place += taken
        passed = 0
        row += 1
        position, table_row = next_position, next_table_row
        skipped = next_skipped
    if PDL:  # noqa: SIM102 - a constant
        # If all rows are padding, no row has waited for the previous kernel. This kernel would end
        # before the previous one, and the next kernel would read results that are not complete.
        if number == 0:
            tl.extra.cuda.gdc_wait()


def decode(
    qkv: Tensor,
    qk_norm: Tensor | None,
    eps: float,
    cos_sin: Tensor,
    keys: Tensor,
    values: Tensor,
    plan: PagedPlan,
    config: DecodeConfig,
    out: Tensor,
    scope: Scope | None = None,
    sinks: Tensor | None = None,
) -> None:
    """Attend the plan's decodes, rows [0, num_decodes) of qkv, into the same rows of `out`.
    `prefill` has already attended to the tokens that decodes share.

    Writes their keys and values. Launches on one device share counters: one stream at a time.
    Raises `ValueError` for more rows than counters, and for a plan whose `shares` are not those of
    `config`.
    """
    _, block_size, num_kv, head_dim = keys.shape
    scope = scope or Scope(head_dim**-0.5)
    num_heads = qkv.shape[1] // head_dim - (0 if scope.borrows else 2 * num_kv)
    rows, shares = plan.num_decodes, plan.shares
    if shares is None or shares.shape[0] != config.programs(num_kv):
        raise ValueError("a plan with decodes needs `shares` for this configuration")
    shared, parts, behind = shares, (out, out), _NOT_SHARED  # none of which is read
    if plan.work is not None and plan.work.shared is not None:
        shared = plan.work.shared
        parts = parts_of(qkv.device, num_heads, num_kv, head_dim, plan.work)
        behind = num_slots(num_heads, num_kv, plan.work)
    sizes = AttentionSizes(
        qkv.device, num_heads, num_kv, head_dim, block_size, qkv.dtype, keys.dtype, scope,
        sinks is not None,
    )  # fmt: skip
    num_normed = 0 if qk_norm is None else qk_norm.shape[0]
    ready = _ready(config, rows, sizes, eps, num_normed, behind, plan.reach)
    ready.launch(
        ready.grid,
        (
            qkv, qkv if qk_norm is None else qk_norm, cos_sin, keys, values, plan.positions,
            plan.table_rows, plan.block_tables, shares, out, ready.partial, ready.lse,
            ready.counters, shared, *parts, out if sinks is None else sinks,
        ),
        (rows, plan.block_tables.stride(0)),
    )  # fmt: skip


class _Ready(NamedTuple):
    """A launch with what it needs beside its operands."""

    launch: Launch
    grid: tuple[int, int, int]
    partial: Tensor
    lse: Tensor
    counters: Tensor


@cache
def _ready(
    config: DecodeConfig,
    rows: int,
    sizes: AttentionSizes,
    eps: float,
    num_normed: int,
    behind: int,
    reach: int,
) -> _Ready:
    """`behind` slots of partial results of shared tokens, or `_NOT_SHARED`."""
    num_heads, num_kv, head_dim = sizes.num_heads, sizes.num_kv, sizes.head_dim
    if rows * num_kv > _COUNTERS:
        raise ValueError(f"{rows} rows x {num_kv} key heads in one decode; at most {_COUNTERS}")
    programs = config.programs(num_kv)
    slots = programs + rows
    is_shared, per_slot = behind != _NOT_SHARED, num_heads * (head_dim + 1)
    first = max(0, behind) * per_slot
    parts = scratch(sizes.device, first + slots * per_slot)[first:]
    return _Ready(
        _launch_of(config, sizes, eps, num_normed, reach, is_shared=is_shared),
        (num_kv, programs, 1),
        parts,
        parts[slots * num_heads * head_dim :],
        _counters(sizes.device),
    )


@cache
def _launch_of(
    config: DecodeConfig,
    sizes: AttentionSizes,
    eps: float,
    num_normed: int,
    reach: int,
    *,
    is_shared: bool,
) -> Launch:
    num_heads, num_kv, borrows = sizes.num_heads, sizes.num_kv, sizes.scope.borrows
    narrow, block_d = map(triton.next_power_of_2, (num_heads // num_kv, sizes.head_dim))
    constants = sizes.constants | {
        "eps": eps, "GROUP": max(16, narrow), "NARROW": narrow, "TILE": config.tile,
        "START": config.start, "SLACK": config.slack, "NUMBERS": SHARE_NUMBERS,
        "FAN": min(config.fan, max(1, config.warps * _MERGED_OF_WARP // (narrow * block_d))),
        "NORMED": num_normed, "BORROWS": borrows,
        "ROW": (num_heads if borrows else num_heads + 2 * num_kv) * sizes.head_dim,
        "SHARED_WORDS": SHARED_WORDS if is_shared else 0, "REACH": reach,
    }  # fmt: skip
    return Launch(_decode_kernel, constants, num_warps=config.warps, num_stages=config.stages)


@cache
def _counters(device: torch.device) -> Tensor:
    """Counters of a launch: zeros, which every launch leaves as zeros."""
    return torch.zeros(_COUNTERS, dtype=torch.int32, device=device)
