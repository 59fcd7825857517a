"""Latent attention on the card: rows in the absorbed form, long segments in the plain one.

Owns the launches of the kernels in `rows.py` and `products.py`. Single rows take three: what they
cache and their queries as latents see them; the attention of their parts; the parts' sum, and the
values of it. Segments that the host knows, and that are long enough, go in the plain form
(`kernels.latent.prompts`); in a captured step, whose segments change at every replay, all rows are
single ones. So they are in an invariant plan, which cuts what a row sees by position alone and
multiplies by a kernel of its own.
"""

from dataclasses import replace
from functools import cache as cached
from typing import Final, NamedTuple

import torch
import triton
from torch import Tensor

from kernels.attention.config import MULTIPROCESSORS
from kernels.attention.device import dot_type
from kernels.attention.plan import PagedPlan
from kernels.attention.reference import rope
from kernels.choose import capability, has_pdl, is_card, shared_bytes
from kernels.latent import prompts
from kernels.latent.products import absorb_kernel, product_kernel, write_kernel
from kernels.latent.reference import LATENT_EPS, cached_rows
from kernels.latent.rows import (
    merge_kernel,
    merge_pieces_kernel,
    merge_values_kernel,
    rows_kernel,
)
from kernels.latent.shapes import LatentWeights
from kernels.launch import Launch, scratch

_LOG2_E: Final = 1.4426950408889634
_MOST_PARTS: Final = 128
_ONE_ROUND: Final = 16
"""With up to this many programs for each part, all programs run at once, one on a multiprocessor.
On an H200 8 rows behind 32k tokens take 141 us in 16 parts and 152 in 32; one row takes 39.9 in 128
parts and 44.8 in 64. With more programs for each part, there are twice as many parts as run at
once, because contexts differ.
"""
_HEADS: Final = 32
"""The most heads of a program: its sums are as many rows of float32."""
_LONG: Final = 64
"""The least rows of a segment that is computed in the plain form. All heads' keys and values of its
whole context are made for it: 0.3 TFLOP of a layer of GLM-4.7-Flash behind 32k tokens, as much as
single rows compute there for 64.
"""
_PIECE: Final = 512
"""Cached tokens of a part where contexts are cut by position alone: a decode behind 16k tokens
makes 32 programs, and a row of a prompt of 8k tokens leaves 8 parts on average.
"""
_FIXED_NUMBERS: Final = 2**25
"""Numbers of partial results at once there, 134 MB; a step that needs more goes in passes."""
_PRODUCT_TILE: Final = 64
"""Rows, columns and depth of a program's tile of the products with `key_up` and `value_up`."""
_AHEAD: Final = 256
"""Numbers of a query that do not turn, of which a program's weights fit into its registers."""
_MERGED_ROWS: Final = 4
"""With more rows than this, parts are merged ahead of the product with `value_up`, which is then
read once, not once for each row.
"""
_VALUES: Final = 32
_AT_ONCE: Final = 16
"""Numbers of a value, and parts, that a program of these rows takes at once."""
_WIDE_TILE_BYTES: Final = 116 * 1024
"""Bytes of shared memory from which on a program takes tiles of 64 tokens: it needs 116 KiB for
latents of 512, and 184 on Hopper, on cards that have 163 and 227. On an H200 8 rows behind 32k
tokens of GLM-4.7-Flash's shape take 141 us with them and four warps.
"""
_TENSOR_MEMORY: Final = (10, 0), (11, 0)
"""From this capability on, up to the other, tensor cores take 64 rows by way of a memory of their
own: such a program would need 377 KiB of shared memory, so tiles have 32 tokens.
"""


class LatentSizes(NamedTuple):
    """What a kernel is compiled for that reads or writes latents in a cache."""

    device: torch.device
    dtype: torch.dtype
    cache_dtype: torch.dtype
    num_heads: int
    plain: int
    rank: int
    turned: int
    block_size: int

    @property
    def cached(self) -> dict[str, object]:
        """The constants of a cached row."""
        return {"RANK": self.rank, "TURNED": self.turned, "BLOCK_SIZE": self.block_size}

    @property
    def attended(self) -> dict[str, object]:
        """The constants of a cached row and of queries that see it."""
        dot = dot_type(self.dtype, self.cache_dtype, self.device)
        own = {"H": self.num_heads, "PLAIN": self.plain, "DOT": dot, "PDL": has_pdl(self.device)}
        return self.cached | own


def _sizes_of(x: Tensor, weights: LatentWeights, cos_sin: Tensor, cache: Tensor) -> LatentSizes:
    num_heads, plain, rank = weights.key_up.shape
    turned, block_size = cos_sin.shape[1], cache.shape[1]
    return LatentSizes(x.device, x.dtype, cache.dtype, num_heads, plain, rank, turned, block_size)


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
    if not plan.invariant and not plan.prefills:
        return attend_singles(queries, rows, weights, cos_sin, cache, plan, scale)
    write(rows, weights, cos_sin, cache, plan)
    if plan.invariant:
        return _attend_invariant(queries, weights, cos_sin, cache, plan, scale)
    num_heads, plain, _ = weights.key_up.shape
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


def _head_product(
    x: Tensor, weight: Tensor, strides: tuple[int, int], row_tile: int = _PRODUCT_TILE
) -> Tensor:
    """[T, H, C] of the first numbers of x [T, H, at least K], by a matrix [K, C] for each head,
    whose strides are `strides`.
    """
    num_rows, num_heads, _ = x.shape
    depth, columns = weight.shape[1:] if strides[1] == 1 else weight.shape[:0:-1]
    launch = _product_launch(
        x.device, x.dtype, num_heads, depth, columns, x.stride()[:2], strides, row_tile
    )
    out = x.new_empty(num_rows, num_heads, columns)
    grid = triton.cdiv(columns, _PRODUCT_TILE), num_heads, triton.cdiv(num_rows, row_tile)
    launch(grid, (x, weight, out), (num_rows,))
    return out


def write(
    rows: Tensor, weights: LatentWeights, cos_sin: Tensor, cache: Tensor, plan: PagedPlan
) -> None:
    """Latents and keys of all rows to the cache."""
    launch = _write_launch(_sizes_of(rows, weights, cos_sin, cache))
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
    """The attention over latents of the first rows of the plan, as many rows as queries [rows, H, N
    + T] has: [rows, H, R]. `num_parts`, a power of two, is chosen by the number of rows.
    """
    plain = weights.key_up.shape[1]
    queries = queries.contiguous()
    seen = torch.einsum("thn,hnr->thr", queries[..., :plain], weights.key_up).contiguous()
    made = _parts_of(queries, seen, weights, cos_sin, cache, plan, scale, num_parts)
    return _whole(made, plan)


class _Parts(NamedTuple):
    """The attention of rows over latents: `whole` [rows, H, R] if rows are not cut; else `partial`
    results and their `lse` in scratch memory, in `parts` parts, by tiles of `tile` tokens.
    """

    whole: Tensor
    partial: Tensor
    lse: Tensor
    parts: int
    tile: int


def _parts_of(
    queries: Tensor,
    seen: Tensor,
    weights: LatentWeights,
    cos_sin: Tensor,
    cache: Tensor,
    plan: PagedPlan,
    scale: float,
    num_parts: int | None,
) -> _Parts:
    num_rows, num_heads, _ = queries.shape
    rank = weights.norm.shape[0]
    out = torch.empty_like(seen)
    blocks = triton.cdiv(num_heads, _heads_of(num_heads))
    parts = num_parts or _parts(num_rows * blocks)
    slots = num_rows * parts * num_heads
    partial = scratch(queries.device, slots * (rank + 1)) if parts > 1 else out
    lse = partial[slots * rank :] if parts > 1 else out
    _, launch, tile = _launches_of(queries, weights, cos_sin, cache, parts, scale)
    tables = plan.block_tables
    launch(
        (parts, blocks, num_rows),
        (
            seen, queries, cos_sin, cache, plan.positions, plan.table_rows, tables, out, partial,
            lse,
        ),
        (tables.stride(0),),
    )  # fmt: skip
    return _Parts(out, partial, lse, parts, tile)


def _whole(made: _Parts, plan: PagedPlan) -> Tensor:
    """The rows' results [rows, H, R] of their parts."""
    out, (num_rows, num_heads, rank) = made.whole, made.whole.shape
    if made.parts > 1:
        merge = _merge_parts_launch(out.device, num_heads, rank, made.parts, made.tile)
        merge((num_heads, num_rows, 1), (made.partial, made.lse, plan.positions, out))
    return out


def attend_singles(
    queries: Tensor,
    rows: Tensor,
    weights: LatentWeights,
    cos_sin: Tensor,
    cache: Tensor,
    plan: PagedPlan,
    scale: float,
    num_parts: int | None = None,
) -> Tensor:
    """`attend` of a plan without segments, [T, H V], in three launches for few rows and in four for
    many; see `attend_rows`.
    """
    num_rows, num_heads, _ = queries.shape
    queries = queries.contiguous()
    seen = _absorbed(queries, rows, weights, cos_sin, cache, plan)
    made = _parts_of(queries, seen, weights, cos_sin, cache, plan, scale, num_parts)
    if num_rows > _MERGED_ROWS or made.parts == 1:
        whole, rank = _whole(made, plan), weights.norm.shape[0]
        return _head_product(whole, weights.value_up, (1, rank), _row_tile(num_rows)).flatten(1)
    value, rank = weights.value_up.shape[1:]
    out = queries.new_empty(num_rows, num_heads, value)
    launch = _values_launch(out.device, num_heads, rank, value, made.parts, made.tile)
    launch(
        (triton.cdiv(value, _VALUES), num_heads, num_rows),
        (made.partial, made.lse, plan.positions, weights.value_up, out),
    )
    return out.flatten(1)


def _absorbed(
    queries: Tensor,
    rows: Tensor,
    weights: LatentWeights,
    cos_sin: Tensor,
    cache: Tensor,
    plan: PagedPlan,
) -> Tensor:
    """Queries as latents see them, [T, H, R]; writes what the rows cache."""
    (num_rows, num_heads, _), rank = queries.shape, weights.key_up.shape[2]
    row_tile = _row_tile(num_rows)
    launch = _absorb_launch(_sizes_of(queries, weights, cos_sin, cache), row_tile)
    seen, tables = queries.new_empty(num_rows, num_heads, rank), plan.block_tables
    tiles = triton.cdiv(rank, _PRODUCT_TILE) + 1, num_heads, triton.cdiv(num_rows, row_tile)
    launch(
        tiles,
        (
            queries, weights.key_up, seen, rows, weights.norm, cos_sin, cache, plan.positions,
            plan.table_rows, tables,
        ),
        (num_rows, rows.stride(0), tables.stride(0)),
    )  # fmt: skip
    return seen


def _row_tile(num_rows: int) -> int:
    """Rows of a product at once, of which tensor cores take 16."""
    return 16 if num_rows <= 16 else _PRODUCT_TILE


def _parts(programs: int) -> int:
    """Into how many parts rows are cut that have `programs` programs if they are not cut."""
    rounds = 1 if programs <= _ONE_ROUND else 2
    wanted = min(_MOST_PARTS, rounds * MULTIPROCESSORS // max(1, programs))
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
) -> tuple[int, Launch, int]:
    """How many blocks of heads there are, the launch of rows, and its tokens at once."""
    sizes = _sizes_of(queries, weights, cos_sin, cache)
    rows, tile = _launches(sizes, parts, piece, scale)
    return triton.cdiv(sizes.num_heads, _heads_of(sizes.num_heads)), rows, tile


@cached
def _merge_launch(
    device: torch.device,  # noqa: ARG001 - a launch belongs to one
    num_heads: int,
    rank: int,
) -> Launch:
    pad = max(16, triton.next_power_of_2(rank))
    constants = {"H": num_heads, "RANK": rank, "RANK_PAD": pad, "PIECE": _PIECE}
    return Launch(merge_pieces_kernel, constants, num_warps=4)


@cached
def _product_launch(
    device: torch.device,
    dtype: torch.dtype,
    num_heads: int,
    depth: int,
    columns: int,
    x_strides: tuple[int, ...],
    strides: tuple[int, int],
    row_tile: int,
) -> Launch:
    constants = {
        "ROW_STRIDE": x_strides[0], "HEAD_STRIDE": x_strides[1], "H": num_heads,
        "DEPTH": depth, "COLUMNS": columns, "DEPTH_STRIDE": strides[0],
        "COLUMN_STRIDE": strides[1], "ROWS": row_tile, "TILE": _PRODUCT_TILE,
        "DOT": dot_type(dtype, dtype, device), "PDL": has_pdl(device),
    }  # fmt: skip
    return Launch(product_kernel, constants, num_warps=4, num_stages=2)


@cached
def _absorb_launch(sizes: LatentSizes, row_tile: int) -> Launch:
    constants = sizes.attended | {
        "eps": LATENT_EPS, "RANK_PAD": triton.next_power_of_2(sizes.rank),
        "HALF": triton.next_power_of_2(sizes.turned // 2), "ROWS": row_tile,
        "TILE": _PRODUCT_TILE, "AHEAD": sizes.plain <= _AHEAD and sizes.dtype != torch.float32,
        "DOT": dot_type(sizes.dtype, sizes.dtype, sizes.device),
    }  # fmt: skip
    return Launch(absorb_kernel, constants, num_warps=4, num_stages=2)


@cached
def _merge_parts_launch(
    device: torch.device, num_heads: int, rank: int, parts: int, tile: int
) -> Launch:
    pad = max(16, triton.next_power_of_2(rank))
    constants = {
        "H": num_heads, "RANK": rank, "RANK_PAD": pad, "PARTS": parts, "TILE": tile,
        "AT_ONCE": min(parts, _AT_ONCE), "PDL": has_pdl(device),
    }  # fmt: skip
    return Launch(merge_kernel, constants, num_warps=4)


@cached
def _values_launch(
    device: torch.device, num_heads: int, rank: int, value: int, parts: int, tile: int
) -> Launch:
    pad = max(16, triton.next_power_of_2(rank))
    constants = {
        "H": num_heads, "RANK": rank, "VALUE": value, "RANK_PAD": pad, "PARTS": parts,
        "TILE": tile, "AT_ONCE": min(parts, _AT_ONCE), "VALUES": _VALUES, "PDL": has_pdl(device),
    }  # fmt: skip
    return Launch(merge_values_kernel, constants, num_warps=4)


@cached
def _write_launch(sizes: LatentSizes) -> Launch:
    constants = sizes.cached | {
        "eps": LATENT_EPS, "RANK_PAD": triton.next_power_of_2(sizes.rank),
        "HALF": triton.next_power_of_2(sizes.turned // 2),
    }  # fmt: skip
    return Launch(write_kernel, constants, num_warps=2)


def _tile(device: torch.device, dtype: torch.dtype) -> int:
    """Tokens that a program takes at once."""
    if dtype == torch.float32 or (is_card(device) and shared_bytes(device) < _WIDE_TILE_BYTES):
        return 16
    first, behind = _TENSOR_MEMORY
    return 32 if is_card(device) and first <= capability(device) < behind else 64


@cached
def _launches(sizes: LatentSizes, parts: int, piece: int, scale: float) -> tuple[Launch, int]:
    tile = _tile(sizes.device, sizes.dtype)
    constants = sizes.attended | {
        "scale": _LOG2_E * scale, "HEADS": _heads_of(sizes.num_heads),
        "RANK_PAD": max(16, triton.next_power_of_2(sizes.rank)),
        "HALF": max(16, triton.next_power_of_2(sizes.turned // 2)), "TILE": tile, "PARTS": parts,
        "PIECE": piece,
    }  # fmt: skip
    return Launch(rows_kernel, constants, num_warps=4, num_stages=2), tile
