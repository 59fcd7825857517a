"""Attention of whole segments over the paged cache, in tiles of query rows.

Owns the kernel, the merge of segments whose keys were cut, and the launches. One program serves
some tokens of a segment for all query heads of one key head, over all keys that they see or a piece
of them: one item of `kernels.attention.work`. Queries are ready and the segments' keys lie in the
cache.
"""

from functools import cache, lru_cache

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.attention import extend_attention
from kernels.attention.config import MULTIPROCESSORS, PrefillConfig
from kernels.attention.device import AttentionSizes, load_tile, merged
from kernels.attention.plan import PagedPlan, PrefillWork, Scope
from kernels.attention.words import (
    load_item_keys,
    load_item_rows,
    load_merge,
    load_merge_counts,
)
from kernels.attention.work import HostWork
from kernels.choose import has_pdl
from kernels.launch import Launch, scratch

_MERGED_PARTS = 16
"""Parts of one head that a warp merges at once: 64 registers of each of its lanes, for D = 128. A
warp for a head waits for no other, and asks for all it needs at once."""

_MERGED_ROWS = 16
_MERGING = 16 * MULTIPROCESSORS
"""The most rows of a merging program, and a number of programs that suffices. Each program takes
1.5 ns to begin: one for each row and head took 48 us of 1,024 rows of which none was cut, as long
as attention itself."""


@triton.jit
def _attend(
    query,  # [M, BLOCK_D]
    keys_ptr,  # [blocks, BLOCK_SIZE, KV, D], the cache
    values_ptr,  # [blocks, BLOCK_SIZE, KV, D], the cache
    table_ptr,  # int32, the item's blocks
    kv,  # key head
    begin,  # first key
    end,  # end of the keys
    last_seen,  # int32 [M], the last key that each row sees
    scale,  # scale of the scores, in powers of two
    top,  # [M], largest scores
    total,  # [M], sums of weights
    mixed,  # [M, BLOCK_D], sums of values
    KV: tl.constexpr,  # key heads
    D: tl.constexpr,  # numbers of a head
    BLOCK_SIZE: tl.constexpr,  # tokens of a block
    BLOCK_D: tl.constexpr,  # the power of two from D on
    TILE: tl.constexpr,  # tokens at once
    MASKED: tl.constexpr,  # whether rows may not see all keys
    WINDOW: tl.constexpr,  # tokens that a row sees; 0: all
):
    """Online softmax over keys [begin, end), all seen unless MASKED; (top, total, mixed)."""
    steps = tl.arange(0, TILE)
    columns = tl.arange(0, BLOCK_D)
    tokens = begin + steps
    blocks = tl.load(table_ptr + tokens // BLOCK_SIZE, mask=tokens < end, other=0)
    for start in range(begin, end, TILE):
        tokens = start + steps
        keys = load_tile(
            keys_ptr, blocks, tokens, tokens < end, kv, columns, KV, D, BLOCK_SIZE, BLOCK_D
        )
        values = load_tile(
            values_ptr, blocks, tokens, tokens < end, kv, columns, KV, D, BLOCK_SIZE, BLOCK_D
        )
        ahead = tokens + TILE
        blocks = tl.load(table_ptr + ahead // BLOCK_SIZE, mask=ahead < end, other=0)
        scores = tl.dot(query, tl.trans(keys.to(query.dtype)), input_precision="ieee")
        if MASKED:
            seen = (tokens[None, :] <= last_seen[:, None]) & (tokens < end)[None, :]
            if WINDOW:
                seen = seen & (tokens[None, :] > last_seen[:, None] - WINDOW)
            scores = tl.where(seen, scores, -float("inf"))
        new_top = tl.maximum(top, tl.max(scores, 1) * scale)
        ground = new_top
        if MASKED:  # rows that have seen nothing yet
            ground = tl.where(new_top == -float("inf"), 0.0, new_top)
        weights = tl.exp2(scores * scale - ground[:, None])
        fade = tl.exp2(top - ground)
        total = total * fade + tl.sum(weights, 1)
        mixed = tl.dot(
            weights.to(query.dtype),
            values.to(query.dtype),
            mixed * fade[:, None],
            input_precision="ieee",
        )
        top = new_top
    return top, total, mixed


@triton.jit(do_not_specialize=["table_width", "first_row"])
def _prefill_kernel(
    queries_ptr,  # [rows, H, D], normed and turned
    keys_ptr,  # [blocks, BLOCK_SIZE, KV, D], the cache
    values_ptr,  # [blocks, BLOCK_SIZE, KV, D], the cache
    tables_ptr,  # int32 [tables, table_width], blocks of each table
    items_ptr,  # int32 [items, 8], see `HostWork`
    out_ptr,  # [T, H, D]
    partial_ptr,  # float32 [slots, H, D], results of parts
    lse_ptr,  # float32 [slots, H], their log of the sum, of base 2
    sinks_ptr,  # [H], scores of no key
    table_width,  # numbers from table to table
    first_row,  # first row of the step, to which items count
    scale,  # scale of the scores, in powers of two
    H: tl.constexpr,  # query heads
    KV: tl.constexpr,  # key heads
    D: tl.constexpr,  # numbers of a head
    BLOCK_SIZE: tl.constexpr,  # tokens of a block
    M: tl.constexpr,  # rows of a program: tokens times H / KV
    BLOCK_D: tl.constexpr,  # the power of two from D on
    TILE: tl.constexpr,  # tokens at once
    DOT: tl.constexpr,  # dtype of products
    UNMASKED: tl.constexpr,  # whether tiles that all rows see need no mask
    WINDOW: tl.constexpr,  # tokens that a row sees; 0: all
    SINKS: tl.constexpr,  # whether heads have a score of no key
    PDL: tl.constexpr,  # whether it may start while the kernel ahead ends
):
    """One item for one key head. Row m is token m // G, head m % G of its group of G.

    An item of no rows and no keys, which fills a bucket of fixed size, neither reads nor writes.
    """
    if PDL:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()
    kv = tl.program_id(0)
    row, num_rows, position, table_row = load_item_rows(items_ptr, tl.program_id(1))
    table_ptr = tables_ptr + table_row.to(tl.int64) * table_width
    begin, end, slot = load_item_keys(items_ptr, tl.program_id(1))
    columns = tl.arange(0, BLOCK_D)
    token = tl.arange(0, M) // (H // KV)
    head = kv * (H // KV) + tl.arange(0, M) % (H // KV)
    inside = (token < num_rows)[:, None] & (columns < D)[None, :]
    places = token.to(tl.int64)[:, None] * (H * D) + head[:, None] * D + columns[None, :]
    queries = queries_ptr + row.to(tl.int64) * (H * D)
    query = tl.load(queries + places, mask=inside, other=0.0).to(DOT)
    last_seen = position + token
    top = tl.full([M], -float("inf"), tl.float32)
    total = tl.zeros([M], tl.float32)
    mixed = tl.zeros([M, BLOCK_D], tl.float32)
    if SINKS:  # a score of no key, which belongs to the piece that begins at position 0
        sink = tl.load(sinks_ptr + head) * 1.4426950408889634  # in powers of two
        top = tl.where(begin == 0, sink, top)
        total = tl.where(begin == 0, 1.0, total)
    # Without UNMASKED all are computed by one code, for results that are equal to the bit.
    if WINDOW:
        begin = tl.maximum(begin, tl.maximum(position + 1 - WINDOW, 0) // TILE * TILE)
    elif UNMASKED:
        # Whole tiles that every row sees, ahead of those that cross the diagonal or the end.
        whole = tl.maximum(tl.minimum(end, position + 1) - begin, 0) // TILE * TILE
        top, total, mixed = _attend(
            query, keys_ptr, values_ptr, table_ptr, kv, begin, begin + whole, last_seen, scale, top,
            total, mixed, KV, D, BLOCK_SIZE, BLOCK_D, TILE, False, WINDOW,
        )  # fmt: skip
        begin += whole
    top, total, mixed = _attend(
        query, keys_ptr, values_ptr, table_ptr, kv, begin, end, last_seen, scale, top, total, mixed,
        KV, D, BLOCK_SIZE, BLOCK_D, TILE, True, WINDOW,
    )  # fmt: skip
    total = tl.where(total == 0.0, 1.0, total)  # a row that sees none of this piece's keys
    mixed = mixed / total[:, None]
    if slot < 0:
        out = out_ptr + (first_row + row).to(tl.int64) * (H * D)
        tl.store(out + places, mixed.to(out_ptr.dtype.element_ty), mask=inside)
    else:
        tl.store(partial_ptr + slot.to(tl.int64) * (H * D) + places, mixed, mask=inside)
        lse = top + tl.log2(total)
        tl.store(lse_ptr + (slot + token) * H + head, lse, mask=token < num_rows)


@triton.jit(do_not_specialize=["first_row", "num_merges"])
def _merge_kernel(
    partial_ptr,  # float32 [slots, H, D], results of parts
    lse_ptr,  # float32 [slots, H], their log of the sum, of base 2
    merges_ptr,  # int32 [rows, 4], see `HostWork`
    out_ptr,  # [T, H, D]
    first_row,  # first row of the step, to which merges count
    num_merges,  # rows
    H: tl.constexpr,  # query heads
    D: tl.constexpr,  # numbers of a head
    BLOCK_D: tl.constexpr,  # the power of two from D on
    ROWS: tl.constexpr,  # the most rows of a program
    FAN: tl.constexpr,  # parts that are merged at once
    PDL: tl.constexpr,  # whether it may start while the kernel ahead ends
):
    """Merge the pieces of one head of up to ROWS rows, as far apart as there are programs. A row
    that was not cut into pieces is left alone.
    """
    if PDL:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()
    begin, step = tl.program_id(0), tl.num_programs(0)
    numbers = begin + tl.arange(0, ROWS) * step
    counts = load_merge_counts(merges_ptr, numbers, numbers < num_merges)
    # Where a captured step finds short pasts nothing was cut, and all counts are 0.
    if tl.max(counts, 0) > 0:
        head = tl.program_id(1) + tl.arange(0, 1)
        columns = tl.arange(0, BLOCK_D)
        for number in range(begin, num_merges, step):
            row, first, count, stride = load_merge(merges_ptr, number)
            result = merged(
                partial_ptr, lse_ptr, first, stride, count, head, head < H, columns, H, D, BLOCK_D,
                FAN,
            )  # fmt: skip
            out = out_ptr + (first_row + row).to(tl.int64) * (H * D)
            result = result.to(out_ptr.dtype.element_ty)
            there = (count > 0) & (columns < D)[None, :]
            tl.store(out + head[:, None] * D + columns[None, :], result, mask=there)


def prefill(
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    plan: PagedPlan,
    work: PrefillWork,
    config: PrefillConfig,
    out: Tensor,
    scope: Scope | None = None,
    sinks: Tensor | None = None,
) -> None:
    """Attend the items of `work`, made for `config`: segments into their rows of `out`, tokens that
    decodes share into partial results, which `decode` merges (`parts_of`).

    queries [rows, H, D] from `plan.first_prepared` on, normed and turned; out [T, H D].
    """
    _, block_size, num_kv, head_dim = keys.shape
    num_heads, device = queries.shape[1], queries.device
    partial, lse = parts_of(device, num_heads, num_kv, head_dim, work)
    tables, first_row = plan.block_tables, plan.first_prepared
    if config.cuda:
        extend_attention.attend(
            queries, keys, values, tables, work.items, first_row, out, partial, lse
        )
    else:
        sizes = AttentionSizes(
            device, num_heads, num_kv, head_dim, block_size, queries.dtype, keys.dtype,
            scope or Scope(head_dim**-0.5), sinks is not None,
        )  # fmt: skip
        _items_launch(config, sizes)(
            (num_kv, work.items.shape[0], 1),
            (
                queries,
                keys,
                values,
                tables,
                work.items,
                out,
                partial,
                lse,
                lse if sinks is None else sinks,
            ),
            (tables.stride(0), first_row),
        )
    if work.merges.shape[0]:
        merge = _merge_launch(device, num_heads, head_dim)
        num_merges = work.merges.shape[0]
        grid = merge_programs(num_merges, num_heads), num_heads, 1
        merge(grid, (partial, lse, work.merges, out), (first_row, num_merges))


def merge_programs(num_merges: int, num_heads: int) -> int:
    """The programs for each head that merge the partial results of `num_merges` rows."""
    return max(-(-num_merges // _MERGED_ROWS), min(num_merges, _MERGING // num_heads))


@cache
def _items_launch(config: PrefillConfig, sizes: AttentionSizes) -> Launch:
    constants = sizes.constants | {
        "M": config.rows, "TILE": config.tile, "UNMASKED": not config.fixed
    }  # fmt: skip
    return Launch(_prefill_kernel, constants, num_warps=config.warps, num_stages=config.stages)


@cache
def _merge_launch(device: torch.device, num_heads: int, head_dim: int) -> Launch:
    block_d = triton.next_power_of_2(head_dim)
    constants = {
        "H": num_heads, "D": head_dim, "BLOCK_D": block_d, "ROWS": _MERGED_ROWS,
        "FAN": _MERGED_PARTS, "PDL": has_pdl(device),
    }  # fmt: skip
    num_warps = max(1, block_d // 128)
    return Launch(_merge_kernel, constants, num_warps=num_warps)


def parts_of(
    device: torch.device,
    num_heads: int,
    num_kv: int,
    head_dim: int,
    work: HostWork | PrefillWork,
) -> tuple[Tensor, Tensor]:
    """Partial results and their log-sum-exps, each at a multiple of 16 bytes.

    A step that needs less than pieces of one length would gets as much: then nearly all steps share
    one scratch, and a start that measures some of them knows of it. When each asked for its own an
    engine took 16 and 32 MiB more after minutes.
    """
    return _parts(device, num_heads, head_dim, num_slots(num_heads, num_kv, work))


def num_slots(num_heads: int, num_kv: int, work: HostWork | PrefillWork) -> int:
    """Rows of partial results in `parts_of`."""
    needed = max(work.num_partials, work.config.cut_slots(num_heads, num_kv))
    return -(-needed // 4) * 4


@lru_cache(maxsize=16)  # every layer of a step asks for the same
def _parts(
    device: torch.device, num_heads: int, head_dim: int, num_slots: int
) -> tuple[Tensor, Tensor]:
    numbers = num_slots * num_heads * head_dim
    parts = scratch(device, numbers + num_slots * num_heads)
    return parts, parts[numbers:]
