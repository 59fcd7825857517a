"""Norm and turn queries and keys of whole segments, and write keys and values to the paged cache.

Owns the kernel that prepares rows which are not decodes (those do it by themselves), and queries of
decodes that share tokens. Must not know segments: a row knows its position and its block table.
"""

from functools import cache

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.attention.config import WriteConfig
from kernels.attention.device import load_angles, load_pairs, normed, to_cache, turned
from kernels.attention.plan import PagedPlan
from kernels.choose import has_pdl
from kernels.launch import Launch


@triton.jit(do_not_specialize=["first_row", "num_decodes", "table_width"])
def _write_kernel(
    qkv_ptr,  # [T, HEADS_OF_ROW, D]
    qk_norm_ptr,  # [NORMED, D], weights of the heads' norms
    cos_sin_ptr,  # float32 [positions, D], cosines, then sines
    keys_ptr,  # [blocks, BLOCK_SIZE, KV, D], the cache
    values_ptr,  # [blocks, BLOCK_SIZE, KV, D], the cache
    positions_ptr,  # int32 [T]
    table_rows_ptr,  # int32 [T], the table of each row
    tables_ptr,  # int32 [tables, table_width], blocks of each table
    queries_ptr,  # [rows, H, D], what comes out
    first_row,  # first row of the step that is prepared
    num_decodes,  # rows that write their own keys and values
    table_width,  # numbers from table to table
    eps,  # epsilon of the norms
    H: tl.constexpr,  # query heads
    KV: tl.constexpr,  # key heads
    D: tl.constexpr,  # numbers of a head
    BLOCK_SIZE: tl.constexpr,  # tokens of a block
    HEADS: tl.constexpr,  # heads of a program
    HALF: tl.constexpr,  # the power of two from D / 2 on
    NORMED: tl.constexpr,  # heads that are normed, of queries, keys, values
    HEADS_OF_ROW: tl.constexpr,  # H + 2 KV, or H if another layer writes
    PDL: tl.constexpr,  # whether it may start while the kernel ahead ends
):
    """HEADS heads of one row: queries to [rows, H, D], keys and values to their slot, unless the
    row is a decode, which writes its own. Where a row has H heads these are queries alone. The
    first NORMED heads are normed.
    """
    if PDL:
        tl.extra.cuda.gdc_launch_dependents()
    out_row = tl.program_id(0)
    row = out_row + first_row
    position = tl.maximum(tl.load(positions_ptr + row), 0)  # padding is prepared in vain
    table = tl.load(table_rows_ptr + row).to(tl.int64) * table_width
    block = tl.load(tables_ptr + table + position // BLOCK_SIZE).to(tl.int64)
    heads = tl.program_id(1) * HEADS + tl.arange(0, HEADS)
    angles = load_angles(cos_sin_ptr, position, D, HALF)
    starts, kind = (heads * D)[:, None, None], heads[:, None, None]
    weights = angles
    if NORMED:
        weights = load_pairs(qk_norm_ptr, starts, kind < NORMED, D, HALF)
    if PDL:
        tl.extra.cuda.gdc_wait()
    row_ptr = qkv_ptr + row.to(tl.int64) * (HEADS_OF_ROW * D)
    plain = load_pairs(row_ptr, starts, kind < HEADS_OF_ROW, D, HALF)
    new = turned(plain, weights, angles, eps, D, queries_ptr.dtype.element_ty, NORMED > 0)
    half, column = tl.arange(0, 2)[None, :, None], tl.arange(0, HALF)[None, None, :]
    places = starts + half * (D // 2) + column
    narrow = column < D // 2
    queries = queries_ptr + out_row.to(tl.int64) * (H * D) + places
    tl.store(queries, new.to(queries_ptr.dtype.element_ty), mask=(kind < H) & narrow)
    if HEADS_OF_ROW == H:
        return
    slot = (block * BLOCK_SIZE + position % BLOCK_SIZE) * (KV * D)
    narrow = narrow & (row >= num_decodes)
    is_key = (kind >= H) & (kind < H + KV) & narrow
    keys = keys_ptr + slot + places - H * D
    tl.store(keys, to_cache(new, keys_ptr.dtype.element_ty), mask=is_key)
    is_value = (kind >= H + KV) & (kind < H + 2 * KV) & narrow
    values = values_ptr + slot + places - (H + KV) * D
    own = plain[0]
    if NORMED > H + KV:
        own = normed(own, weights[0], eps, D, queries_ptr.dtype.element_ty)
    tl.store(values, to_cache(own, values_ptr.dtype.element_ty), mask=is_value)


def qk_norm_rope_write(
    qkv: Tensor,
    qk_norm: Tensor | None,
    eps: float,
    cos_sin: Tensor,
    keys: Tensor,
    values: Tensor,
    plan: PagedPlan,
    config: WriteConfig,
    *,
    borrows: bool = False,
) -> Tensor:
    """Queries [rows, H, D] from `plan.first_prepared` on; keys and values of the rows behind the
    decodes go to the caches, unless the layer `borrows`.
    """
    _, block_size, num_kv, head_dim = keys.shape
    num_heads = qkv.shape[1] // head_dim - (0 if borrows else 2 * num_kv)
    num_rows = qkv.shape[0] - plan.first_prepared
    queries = qkv.new_empty(num_rows, num_heads, head_dim)
    launch, parts = _launch_of(
        config, qkv.device, num_heads, num_kv, head_dim, block_size, eps,
        0 if qk_norm is None else qk_norm.shape[0], borrows,
    )  # fmt: skip
    launch(
        (num_rows, parts, 1),
        (
            qkv, qkv if qk_norm is None else qk_norm, cos_sin, keys, values, plan.positions,
            plan.table_rows, plan.block_tables, queries,
        ),
        (plan.first_prepared, plan.num_decodes, plan.block_tables.stride(0)),
    )  # fmt: skip
    return queries


@cache
def _launch_of(
    config: WriteConfig,
    device: torch.device,
    num_heads: int,
    num_kv: int,
    head_dim: int,
    block_size: int,
    eps: float,
    num_normed: int,
    borrows: bool,
) -> tuple[Launch, int]:
    """The launch, and the number of programs per row."""
    num_all = num_heads + (0 if borrows else 2 * num_kv)
    constants = {
        "eps": eps, "H": num_heads, "KV": num_kv, "D": head_dim, "BLOCK_SIZE": block_size,
        "HEADS": config.heads, "HALF": triton.next_power_of_2(head_dim // 2),
        "NORMED": num_normed, "HEADS_OF_ROW": num_all, "PDL": has_pdl(device),
    }  # fmt: skip
    launch = Launch(_write_kernel, constants, num_warps=config.warps)
    return launch, triton.cdiv(num_all, config.heads)
