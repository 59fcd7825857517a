"""Latent attention on the card: rows in the absorbed form, long segments in the plain one.

Owns the kernels that write what is cached, that attend for single rows, and that merge rows which
were cut, and their launches. A program of the second serves some heads of one row over a part of
its cached tokens: a latent is read once for all of them, as key and as value. It turns its queries
by itself. Segments that the host knows, and that are long enough, go in the plain form
(`kernels.latent.prompts`); in a captured step, whose segments change at every replay, all rows are
single ones. So they are in an invariant plan, which cuts what a row sees by position alone and
multiplies by a kernel of its own.
"""

from dataclasses import replace
from functools import cache as cached
from typing import Final

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.attention.config import MULTIPROCESSORS
from kernels.attention.device import dot_type, to_cache
from kernels.attention.plan import PagedPlan
from kernels.attention.reference import rope
from kernels.choose import is_card, shared_bytes
from kernels.latent import prompts
from kernels.latent.reference import LATENT_EPS, cached_rows
from kernels.latent.shapes import LatentWeights
from kernels.launch import Launch, scratch

_LOG2_E: Final = 1.4426950408889634
_MOST_PARTS: Final = 64
_HEADS: Final = 32
"""The most heads of a program: its sums are as many rows of float32."""
_LONG: Final = 64
"""Rows from which on a segment goes in the plain form. All heads' keys and values of its whole
context are made for it: 0.3 TFLOP of a layer of GLM-4.7-Flash behind 32k tokens, as much as single
rows compute there for 64.
"""
_PIECE: Final = 512
"""Cached tokens of a part where contexts are cut by position alone: a decode behind 16k tokens
makes 32 programs, and a row of a prompt of 8k tokens leaves 8 parts on average.
"""
_FIXED_NUMBERS: Final = 2**25
"""Numbers of partial results at once there, 134 MB; a step that needs more goes in passes."""
_PRODUCT_TILE: Final = 64
"""Rows, columns and depth of a program's tile of the products with `key_up` and `value_up`."""
_WIDE_TILE_BYTES: Final = 110 * 1024
"""Bytes of shared memory that a program with tiles of 32 tokens takes, for latents of 512."""


@triton.jit(do_not_specialize=["table_width", "row_stride"])
def _write_kernel(
    rows_ptr,  # [T, row_stride], latents and the keys that turn
    norm_ptr,  # [RANK], weights of the latents' norm
    cos_sin_ptr,  # float32 [positions, TURNED], cosines, then sines
    cache_ptr,  # [blocks, BLOCK_SIZE, RANK + TURNED]
    positions_ptr,  # int32 [T]
    table_rows_ptr,  # int32 [T], the table of each row
    tables_ptr,  # int32 [tables, table_width]
    table_width,  # numbers from table to table
    row_stride,  # numbers from row to row
    eps,  # of the norm
    RANK: tl.constexpr,  # numbers of a latent
    TURNED: tl.constexpr,  # numbers of a key that turn
    BLOCK_SIZE: tl.constexpr,  # tokens of a block
    RANK_PAD: tl.constexpr,  # the power of two from RANK on
    HALF: tl.constexpr,  # the power of two from TURNED / 2 on
):
    """One row's latent, normed, and its key, turned, to their slot."""
    row = tl.program_id(0)
    position = tl.load(positions_ptr + row)
    if position < 0:
        return
    table = tl.load(table_rows_ptr + row).to(tl.int64) * table_width
    block = tl.load(tables_ptr + table + position // BLOCK_SIZE).to(tl.int64)
    out = cache_ptr + (block * BLOCK_SIZE + position % BLOCK_SIZE) * (RANK + TURNED)
    rows_ptr += row.to(tl.int64) * row_stride
    dtype = rows_ptr.dtype.element_ty
    columns = tl.arange(0, RANK_PAD)
    latent = tl.load(rows_ptr + columns, mask=columns < RANK, other=0.0).to(tl.float32)
    scale = tl.rsqrt(tl.sum(latent * latent, 0) / RANK + eps)
    weight = tl.load(norm_ptr + columns, mask=columns < RANK, other=0.0).to(tl.float32)
    latent = ((latent * scale).to(dtype).to(tl.float32) * weight).to(dtype).to(tl.float32)
    tl.store(out + columns, to_cache(latent, cache_ptr.dtype.element_ty), mask=columns < RANK)
    pairs = tl.arange(0, HALF)
    inside = pairs < TURNED // 2
    first = tl.load(rows_ptr + RANK + pairs, mask=inside, other=0.0).to(tl.float32)
    second = tl.load(rows_ptr + RANK + TURNED // 2 + pairs, mask=inside, other=0.0).to(tl.float32)
    angles = cos_sin_ptr + position.to(tl.int64) * TURNED
    cos = tl.load(angles + pairs, mask=inside, other=0.0)
    sin = tl.load(angles + TURNED // 2 + pairs, mask=inside, other=0.0)
    low = (first * cos - second * sin).to(dtype).to(tl.float32)
    high = (second * cos + first * sin).to(dtype).to(tl.float32)
    out += RANK
    tl.store(out + pairs, to_cache(low, cache_ptr.dtype.element_ty), mask=inside)
    tl.store(out + TURNED // 2 + pairs, to_cache(high, cache_ptr.dtype.element_ty), mask=inside)


@triton.jit
def _cached(ptr, slots, valid, columns, inside, WIDTH: tl.constexpr, DOT: tl.constexpr):
    """[TILE, columns] of cached rows; what is not valid is never read: it may be NaN.

    Triton 3.6.0 takes rows of consecutive slots for multiples of 16 numbers, whatever WIDTH is, and
    copies by 16 bytes: "misaligned address" on an H200 for rows of 184 bytes. The hint says which
    multiple a row really is.
    """
    at = tl.multiple_of(slots[:, None] * WIDTH, (1, WIDTH & -WIDTH)) + columns[None, :]
    return tl.load(ptr + at, mask=valid[:, None] & inside[None, :], other=0.0).to(DOT)


@triton.jit
def _turned(at, angles, pairs, own, inside, TURNED: tl.constexpr):
    """Both halves of what turns of some heads' queries, as rounded as the rows."""
    both = own[:, None] & inside[None, :]
    own_low = tl.load(at, mask=both, other=0.0)
    own_high = tl.load(at + TURNED // 2, mask=both, other=0.0)
    first, second = own_low.to(tl.float32), own_high.to(tl.float32)
    cos = tl.load(angles + pairs, mask=inside, other=0.0)[None, :]
    sin = tl.load(angles + TURNED // 2 + pairs, mask=inside, other=0.0)[None, :]
    low = (first * cos - second * sin).to(own_low.dtype)
    return low, (second * cos + first * sin).to(own_low.dtype)


@triton.jit(do_not_specialize=["table_width"])
def _rows_kernel(
    seen_ptr,  # [T, H, RANK], queries as latents see them
    queries_ptr,  # [T, H, PLAIN + TURNED]
    cos_sin_ptr,  # float32 [positions, TURNED], cosines, then sines
    cache_ptr,  # [blocks, BLOCK_SIZE, RANK + TURNED]
    positions_ptr,  # int32 [T]
    table_rows_ptr,  # int32 [T], the table of each row
    tables_ptr,  # int32 [tables, table_width]
    out_ptr,  # [T, H, RANK]
    partial_ptr,  # float32 [T, parts, H, RANK], results of parts
    lse_ptr,  # float32 [T, parts, H], their log of the sum, of base 2
    table_width,  # numbers from table to table
    scale,  # of scores, in powers of two
    H: tl.constexpr,  # heads
    PLAIN: tl.constexpr,  # numbers of a query that do not turn
    RANK: tl.constexpr,  # numbers of a latent
    TURNED: tl.constexpr,  # numbers of a key that turn
    BLOCK_SIZE: tl.constexpr,  # tokens of a block
    HEADS: tl.constexpr,  # heads of a program
    RANK_PAD: tl.constexpr,  # the power of two from RANK on
    HALF: tl.constexpr,  # the power of two from TURNED / 2 on
    TILE: tl.constexpr,  # tokens at once
    PARTS: tl.constexpr,  # parts of a row
    PIECE: tl.constexpr,  # tokens of a part; 0: as many as make PARTS
    DOT: tl.constexpr,  # dtype of products
):
    """Program (part of the cached tokens, block of heads, row). Scores are powers of two. Parts are
    as long as `PIECE`, 0: as long as makes `PARTS` of them.
    """
    part, row = tl.program_id(0), tl.program_id(2).to(tl.int64)
    position = tl.load(positions_ptr + row)
    if position < 0:
        return
    heads = tl.program_id(1) * HEADS + tl.arange(0, HEADS)
    own, columns, pairs = heads < H, tl.arange(0, RANK_PAD), tl.arange(0, HALF)
    there, inside = columns < RANK, pairs < TURNED // 2
    count = position + 1
    share = tl.cdiv(tl.cdiv(count, PARTS), TILE) * TILE
    if PIECE:
        share = PIECE
        if part * PIECE >= count:
            return
    begin, end = part * share, tl.minimum((part + 1) * share, count)
    seen = tl.load(
        seen_ptr + (row * H + heads)[:, None] * RANK + columns[None, :],
        mask=own[:, None] & there[None, :], other=0.0,
    ).to(DOT)  # fmt: skip
    at = queries_ptr + (row * H + heads)[:, None] * (PLAIN + TURNED) + PLAIN + pairs[None, :]
    angles = cos_sin_ptr + position.to(tl.int64) * TURNED
    low, high = _turned(at, angles, pairs, own, inside, TURNED)
    low, high = low.to(DOT), high.to(DOT)
    top = tl.full([HEADS], -float("inf"), tl.float32)
    total = tl.zeros([HEADS], tl.float32)
    mixed = tl.zeros([HEADS, RANK_PAD], tl.float32)
    table_ptr = tables_ptr + tl.load(table_rows_ptr + row).to(tl.int64) * table_width
    for start in range(begin, end, TILE):
        tokens = start + tl.arange(0, TILE)
        valid = tokens < end
        blocks = tl.load(table_ptr + tokens // BLOCK_SIZE, mask=valid, other=0).to(tl.int64)
        slots = blocks * BLOCK_SIZE + tokens % BLOCK_SIZE
        latents = _cached(cache_ptr, slots, valid, columns, there, RANK + TURNED, DOT)
        k_low = _cached(cache_ptr + RANK, slots, valid, pairs, inside, RANK + TURNED, DOT)
        k_high = _cached(
            cache_ptr + RANK + TURNED // 2, slots, valid, pairs, inside, RANK + TURNED, DOT
        )
        scores = tl.dot(seen, tl.trans(latents), input_precision="ieee")
        scores = tl.dot(low, tl.trans(k_low), scores, input_precision="ieee")
        scores = tl.dot(high, tl.trans(k_high), scores, input_precision="ieee") * scale
        scores = tl.where(valid[None, :], scores, -float("inf"))
        new_top = tl.maximum(top, tl.max(scores, 1))
        weights = tl.exp2(scores - new_top[:, None])
        fade = tl.exp2(top - new_top)
        total = total * fade + tl.sum(weights, 1)
        mixed = tl.dot(weights.to(DOT), latents, mixed * fade[:, None], input_precision="ieee")
        top = new_top
    whole = own[:, None] & there[None, :]
    if PARTS == 1 and not PIECE:
        place = out_ptr + (row * H + heads)[:, None] * RANK + columns[None, :]
        tl.store(place, (mixed / total[:, None]).to(out_ptr.dtype.element_ty), mask=whole)
    else:
        slot = (row * tl.num_programs(0) + part) * H + heads
        safe = tl.where(total == 0.0, 1.0, total)  # a part without tokens
        result = mixed / safe[:, None]
        tl.store(partial_ptr + slot[:, None] * RANK + columns[None, :], result, mask=whole)
        tl.store(lse_ptr + slot, top + tl.log2(safe), mask=own)


@triton.jit
def _merge_kernel(
    partial_ptr, lse_ptr, positions_ptr, out_ptr, H: tl.constexpr, RANK: tl.constexpr,
    RANK_PAD: tl.constexpr, PARTS: tl.constexpr,
):  # fmt: skip
    """One head of one row: its parts, always in the same order."""
    head, row = tl.program_id(0), tl.program_id(1).to(tl.int64)
    if tl.load(positions_ptr + row) < 0:
        return
    parts, columns = tl.arange(0, PARTS), tl.arange(0, RANK_PAD)
    slots = (row * PARTS + parts) * H + head
    lse = tl.load(lse_ptr + slots)
    weights = tl.exp2(lse - tl.max(lse, 0))
    whole = tl.zeros([RANK_PAD], tl.float32)
    total = tl.sum(weights, 0)
    for part in range(PARTS):
        slot = (row * PARTS + part) * H + head
        weight = tl.sum(tl.where(parts == part, weights, 0.0), 0)
        found = tl.load(partial_ptr + slot * RANK + columns, mask=columns < RANK, other=0.0)
        whole += weight * found
    place = out_ptr + (row * H + head) * RANK + columns
    tl.store(place, (whole / total).to(out_ptr.dtype.element_ty), mask=columns < RANK)


@triton.jit(do_not_specialize=["num_parts"])
def _merge_pieces_kernel(
    partial_ptr,  # float32 [T, parts, H, RANK], results of parts
    lse_ptr,  # float32 [T, parts, H], their log of the sum, of base 2
    positions_ptr,  # int32 [T]
    out_ptr,  # [T, H, RANK]
    num_parts,  # the most parts of a row
    H: tl.constexpr,  # heads
    RANK: tl.constexpr,  # numbers of a latent
    RANK_PAD: tl.constexpr,  # the power of two from RANK on
    PIECE: tl.constexpr,  # tokens of a part; 0: as many as make PARTS
):
    """As `_merge_kernel`, of as many parts as the row's position says."""
    head, row = tl.program_id(0), tl.program_id(1).to(tl.int64)
    position = tl.load(positions_ptr + row)
    if position < 0:
        return
    columns = tl.arange(0, RANK_PAD)
    count = position // PIECE + 1
    slots = row * num_parts * H + head
    top = tl.load(lse_ptr + slots)
    for part in range(1, count):
        top = tl.maximum(top, tl.load(lse_ptr + slots + part * H))
    whole = tl.zeros([RANK_PAD], tl.float32)
    total = 0.0
    for part in range(count):
        slot = slots + part * H
        weight = tl.exp2(tl.load(lse_ptr + slot) - top)
        found = tl.load(partial_ptr + slot * RANK + columns, mask=columns < RANK, other=0.0)
        whole += weight * found
        total += weight
    place = out_ptr + (row * H + head) * RANK + columns
    tl.store(place, (whole / total).to(out_ptr.dtype.element_ty), mask=columns < RANK)


@triton.jit(do_not_specialize=["num_rows", "row_stride", "head_stride"])
def _product_kernel(
    x_ptr,  # rows of x by head: DEPTH numbers side by side
    weight_ptr,  # [H, DEPTH, COLUMNS], strides as below
    out_ptr,  # [rows, H, COLUMNS]
    num_rows,  # rows
    row_stride,  # numbers of x from row to row
    head_stride,  # numbers of x from head to head
    H: tl.constexpr,  # heads
    DEPTH: tl.constexpr,  # rows of a head's matrix
    COLUMNS: tl.constexpr,  # columns of a head's matrix
    DEPTH_STRIDE: tl.constexpr,  # numbers of the weight from row to row
    COLUMN_STRIDE: tl.constexpr,  # numbers of the weight from column to column
    TILE: tl.constexpr,  # rows, and columns, at once
    DOT: tl.constexpr,  # dtype of products
):
    """Program (tile of columns, head, tile of rows): rows of one head by its matrix. Sums are added
    up in the same order for any number of rows.
    """
    head = tl.program_id(1)
    dtype = out_ptr.dtype.element_ty
    rows = tl.program_id(2).to(tl.int64) * TILE + tl.arange(0, TILE)
    columns = tl.program_id(0) * TILE + tl.arange(0, TILE)
    there, inside = rows < num_rows, columns < COLUMNS
    x_ptr += head * head_stride
    weight_ptr += head.to(tl.int64) * DEPTH * COLUMNS
    sums = tl.zeros([TILE, TILE], tl.float32)
    for first in range(0, DEPTH, TILE):
        depth = first + tl.arange(0, TILE)
        deep = depth < DEPTH
        x = tl.load(
            x_ptr + rows[:, None] * row_stride + depth[None, :],
            mask=there[:, None] & deep[None, :], other=0.0,
        )  # fmt: skip
        weight = tl.load(
            weight_ptr + depth[:, None] * DEPTH_STRIDE + columns[None, :] * COLUMN_STRIDE,
            mask=deep[:, None] & inside[None, :], other=0.0,
        )  # fmt: skip
        sums = tl.dot(x.to(DOT), weight.to(DOT), sums, input_precision="ieee")
    place = out_ptr + (rows[:, None] * H + head) * COLUMNS + columns[None, :]
    tl.store(place, sums.to(dtype), mask=there[:, None] & inside[None, :])


def attend(
    queries: Tensor,
    rows: Tensor,
    weights: LatentWeights,
    cos_sin: Tensor,
    cache: Tensor,
    plan: PagedPlan,
    scale: float,
) -> Tensor:
    """See `kernels.latent.attend`; queries [T, H, N + T]."""
    write(rows, weights, cos_sin, cache, plan)
    if plan.invariant:
        return _attend_invariant(queries, weights, cos_sin, cache, plan, scale)
    num_heads, plain, _ = weights.key_up.shape
    if not plan.prefills:
        mixed = attend_rows(queries, weights, cos_sin, cache, plan, scale)
        return torch.einsum("thr,hvr->thv", mixed, weights.value_up).flatten(1)
    out = queries.new_empty(queries.shape[0], num_heads, weights.value_up.shape[1])
    count = plan.num_decodes
    if count:
        mixed = attend_rows(queries[:count], weights, cos_sin, cache, plan, scale)
        out[:count] = torch.einsum("thr,hvr->thv", mixed, weights.value_up)
    cos, sin = cos_sin[plan.positions.long()].chunk(2, dim=-1)
    for first, size, start, table in plan.prefills:
        own = slice(first, first + size)
        if size < _LONG:
            short = replace(
                plan, positions=plan.positions[own], table_rows=plan.table_rows[own], prefills=()
            )
            mixed = attend_rows(queries[own], weights, cos_sin, cache, short, scale)
            out[own] = torch.einsum("thr,hvr->thv", mixed, weights.value_up)
            continue
        turned = rope(queries[own, :, plain:], cos[own], sin[own])
        both = torch.cat((queries[own, :, :plain], turned), dim=2)
        found = cached_rows(cache, plan.block_tables[table], start + size, queries.dtype)
        out[own] = prompts.attend_segment(both, found, weights, start, scale)
    return out.flatten(1)


def _attend_invariant(
    queries: Tensor,
    weights: LatentWeights,
    cos_sin: Tensor,
    cache: Tensor,
    plan: PagedPlan,
    scale: float,
) -> Tensor:
    """All rows as single ones; what one row gets depends on its own position alone."""
    num_rows, num_heads, _ = queries.shape
    rank = weights.norm.shape[0]
    queries = queries.contiguous()
    seen = _head_product(queries, weights.key_up, (rank, 1))
    # A captured step knows no positions: the most that a table has.
    longest = plan.block_tables.shape[1] * cache.shape[1]
    if plan.prefills:
        longest = max([start + size for _, size, start, _ in plan.prefills])
    parts = triton.cdiv(longest, _PIECE)
    size = max(1, min(num_rows, _FIXED_NUMBERS // (parts * num_heads * (rank + 1))))
    size = triton.cdiv(size, 16) * 16  # addresses of all passes are as aligned as the first one's
    blocks, launch, _ = _launches_of(queries, weights, cos_sin, cache, 1, scale, _PIECE)
    merge = _merge_launch(queries.device, num_heads, rank)
    partial = scratch(queries.device, min(size, num_rows) * parts * num_heads * (rank + 1))
    lse = partial[min(size, num_rows) * parts * num_heads * rank :]
    # Only a captured step is padded; what is multiplied there must be numbers.
    out = torch.empty_like(seen) if plan.prefills else torch.zeros_like(seen)
    tables = plan.block_tables
    for first in range(0, num_rows, size):
        own = slice(first, first + size)
        count = min(size, num_rows - first)
        positions = plan.positions[own]
        launch(
            (parts, blocks, count),
            (
                seen[own], queries[own], cos_sin, cache, positions, plan.table_rows[own], tables,
                out[own], partial, lse,
            ),
            (tables.stride(0),),
        )  # fmt: skip
        merge((num_heads, count, 1), (partial, lse, positions, out[own]), (parts,))
    return _head_product(out, weights.value_up, (1, rank)).flatten(1)


def _head_product(x: Tensor, weight: Tensor, strides: tuple[int, int]) -> Tensor:
    """[T, H, C] of the first numbers of x [T, H, at least K], by a matrix [K, C] for each head,
    whose strides are `strides`.
    """
    num_rows, num_heads, _ = x.shape
    depth, columns = weight.shape[1:] if strides[1] == 1 else weight.shape[:0:-1]
    launch = _product_launch(x.device, x.dtype, num_heads, depth, columns, strides)
    out = x.new_empty(num_rows, num_heads, columns)
    grid = triton.cdiv(columns, _PRODUCT_TILE), num_heads, triton.cdiv(num_rows, _PRODUCT_TILE)
    launch(grid, (x, weight, out), (num_rows, x.stride(0), x.stride(1)))
    return out


def write(
    rows: Tensor, weights: LatentWeights, cos_sin: Tensor, cache: Tensor, plan: PagedPlan
) -> None:
    """Latents and keys of all rows to the cache."""
    launch = _write_launch(
        rows.device, weights.norm.shape[0], cos_sin.shape[1], cache.shape[1], LATENT_EPS
    )
    tables = plan.block_tables
    launch(
        (rows.shape[0], 1, 1),
        (rows, weights.norm, cos_sin, cache, plan.positions, plan.table_rows, tables),
        (tables.stride(0), rows.stride(0)),
    )


def attend_rows(
    queries: Tensor,
    weights: LatentWeights,
    cos_sin: Tensor,
    cache: Tensor,
    plan: PagedPlan,
    scale: float,
    num_parts: int | None = None,
) -> Tensor:
    """What the first rows of the plan, as many as queries [rows, H, N + T], make of the latents:
    [rows, H, R]. `num_parts`, a power of two, is chosen by the number of rows.
    """
    num_rows, num_heads, _ = queries.shape
    plain, rank = weights.key_up.shape[1:]
    queries = queries.contiguous()
    seen = torch.einsum("thn,hnr->thr", queries[..., :plain], weights.key_up).contiguous()
    out = torch.empty_like(seen)
    blocks = triton.cdiv(num_heads, _heads_of(num_heads))
    parts = num_parts or _parts(num_rows * blocks)
    slots = num_rows * parts * num_heads
    partial = scratch(queries.device, slots * (rank + 1)) if parts > 1 else out
    lse = partial[slots * rank :] if parts > 1 else out
    _, launch, merge = _launches_of(queries, weights, cos_sin, cache, parts, scale)
    tables = plan.block_tables
    launch(
        (parts, blocks, num_rows),
        (
            seen, queries, cos_sin, cache, plan.positions, plan.table_rows, tables, out, partial,
            lse,
        ),
        (tables.stride(0),),
    )  # fmt: skip
    if parts > 1:
        merge((num_heads, num_rows, 1), (partial, lse, plan.positions, out))
    return out


def _parts(programs: int) -> int:
    """Into how many parts rows are cut, so that about twice as many programs run as fit at once."""
    wanted = min(_MOST_PARTS, 2 * MULTIPROCESSORS // max(1, programs))
    return 1 << max(0, wanted.bit_length() - 1)


def _heads_of(num_heads: int) -> int:
    """How many heads a program takes."""
    return int(max(16, min(_HEADS, triton.next_power_of_2(num_heads))))


def _launches_of(
    queries: Tensor,
    weights: LatentWeights,
    cos_sin: Tensor,
    cache: Tensor,
    parts: int,
    scale: float,
    piece: int = 0,
) -> tuple[int, Launch, Launch]:
    """How many blocks of heads there are, and the launches of rows and of what merges them."""
    num_heads, plain, rank = weights.key_up.shape
    heads = _heads_of(num_heads)
    rows, merge = _launches(
        queries.device, queries.dtype, cache.dtype, num_heads, plain, rank, cos_sin.shape[1],
        cache.shape[1], heads, parts, piece, scale,
    )  # fmt: skip
    return triton.cdiv(num_heads, heads), rows, merge


@cached
def _merge_launch(
    device: torch.device,  # noqa: ARG001 - a launch belongs to one
    num_heads: int,
    rank: int,
) -> Launch:
    pad = max(16, triton.next_power_of_2(rank))
    constants = {"H": num_heads, "RANK": rank, "RANK_PAD": pad, "PIECE": _PIECE}
    return Launch(_merge_pieces_kernel, constants, num_warps=4)


@cached
def _product_launch(
    device: torch.device,
    dtype: torch.dtype,
    num_heads: int,
    depth: int,
    columns: int,
    strides: tuple[int, int],
) -> Launch:
    constants = {
        "H": num_heads, "DEPTH": depth, "COLUMNS": columns, "DEPTH_STRIDE": strides[0],
        "COLUMN_STRIDE": strides[1], "TILE": _PRODUCT_TILE, "DOT": dot_type(dtype, dtype, device),
    }  # fmt: skip
    return Launch(_product_kernel, constants, num_warps=4, num_stages=2)


@cached
def _write_launch(
    device: torch.device,  # noqa: ARG001 - a launch belongs to one
    rank: int,
    turned: int,
    block_size: int,
    eps: float,
) -> Launch:
    constants = {
        "eps": eps, "RANK": rank, "TURNED": turned, "BLOCK_SIZE": block_size,
        "RANK_PAD": triton.next_power_of_2(rank), "HALF": triton.next_power_of_2(turned // 2),
    }  # fmt: skip
    return Launch(_write_kernel, constants, num_warps=2)


@cached
def _launches(
    device: torch.device,
    dtype: torch.dtype,
    cache_dtype: torch.dtype,
    num_heads: int,
    plain: int,
    rank: int,
    turned: int,
    block_size: int,
    heads: int,
    parts: int,
    piece: int,
    scale: float,
) -> tuple[Launch, Launch]:
    is_wide = is_card(device) and shared_bytes(device) < _WIDE_TILE_BYTES
    tile = 16 if is_wide or dtype == torch.float32 else 32
    pad = max(16, triton.next_power_of_2(rank))
    constants = {
        "scale": _LOG2_E * scale, "H": num_heads, "PLAIN": plain, "RANK": rank, "TURNED": turned,
        "BLOCK_SIZE": block_size, "HEADS": heads, "RANK_PAD": pad,
        "HALF": max(16, triton.next_power_of_2(turned // 2)), "TILE": tile, "PARTS": parts,
        "PIECE": piece, "DOT": dot_type(dtype, cache_dtype, device),
    }  # fmt: skip
    merging = {"H": num_heads, "RANK": rank, "RANK_PAD": pad, "PARTS": parts}
    rows = Launch(_rows_kernel, constants, num_warps=8, num_stages=2)
    return rows, Launch(_merge_kernel, merging, num_warps=4)
