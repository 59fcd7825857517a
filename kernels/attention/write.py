"""Norm and turn queries and keys of whole spans, and write keys and values to the paged cache.

Owns the kernel that prepares rows which are not decodes (those do it by themselves). Must not know
spans: a row knows its position and its block table.
"""

import triton
import triton.language as tl
from torch import Tensor

from kernels.attention.choose import WriteConfig
from kernels.attention.device import load_halves, to_cache, turned
from kernels.attention.plan import PagedPlan
from kernels.choose import has_pdl


@triton.jit(do_not_specialize=["first_row", "table_width"])
def _write_kernel(
    qkv_ptr, qk_norm_ptr, cos_sin_ptr, keys_ptr, values_ptr, positions_ptr, table_rows_ptr,
    tables_ptr, queries_ptr, eps, first_row, table_width, H: tl.constexpr, KV: tl.constexpr,
    D: tl.constexpr, BLOCK_SIZE: tl.constexpr, HEADS: tl.constexpr, HALF: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    """HEADS heads of one row: queries to [rows, H, D], keys and values to their slot."""
    if PDL:
        tl.extra.cuda.gdc_launch_dependents()
    out_row = tl.program_id(0)
    row = out_row + first_row
    position = tl.load(positions_ptr + row)
    table = tl.load(table_rows_ptr + row).to(tl.int64) * table_width
    block = tl.load(tables_ptr + table + position // BLOCK_SIZE).to(tl.int64)
    heads = tl.program_id(1) * HEADS + tl.arange(0, HEADS)
    half = tl.arange(0, HALF)
    columns = half[None, :], half[None, :] + D // 2
    narrow = (half < D // 2)[None, :]
    angles = load_halves(cos_sin_ptr, position.to(tl.int64) * D, columns, narrow)
    is_turned = (heads < H + KV)[:, None]
    weights = load_halves(qk_norm_ptr, heads[:, None] * D, columns, is_turned & narrow)
    if PDL:
        tl.extra.cuda.gdc_wait()
    starts = row.to(tl.int64) * ((H + 2 * KV) * D) + heads[:, None] * D
    plain = load_halves(qkv_ptr, starts, columns, (heads < H + 2 * KV)[:, None] & narrow)
    new = turned(plain, weights, angles, eps, D, queries_ptr.dtype.element_ty)
    is_query = (heads < H)[:, None] & narrow
    queries = queries_ptr + out_row.to(tl.int64) * (H * D) + heads[:, None] * D
    tl.store(queries + columns[0], new[0].to(queries_ptr.dtype.element_ty), mask=is_query)
    tl.store(queries + columns[1], new[1].to(queries_ptr.dtype.element_ty), mask=is_query)
    slot = (block * BLOCK_SIZE + position % BLOCK_SIZE) * (KV * D)
    is_key = (heads >= H)[:, None] & is_turned & narrow
    keys = keys_ptr + slot + (heads - H)[:, None] * D
    tl.store(keys + columns[0], to_cache(new[0], keys_ptr.dtype.element_ty), mask=is_key)
    tl.store(keys + columns[1], to_cache(new[1], keys_ptr.dtype.element_ty), mask=is_key)
    is_value = ((heads >= H + KV) & (heads < H + 2 * KV))[:, None] & narrow
    values = values_ptr + slot + (heads - H - KV)[:, None] * D
    tl.store(values + columns[0], to_cache(plain[0], keys_ptr.dtype.element_ty), mask=is_value)
    tl.store(values + columns[1], to_cache(plain[1], keys_ptr.dtype.element_ty), mask=is_value)


def qk_norm_rope_write(
    qkv: Tensor,
    qk_norm: Tensor,
    eps: float,
    cos_sin: Tensor,
    keys: Tensor,
    values: Tensor,
    plan: PagedPlan,
    config: WriteConfig,
) -> Tensor:
    """Queries [rows, H, D] of the rows behind the decodes; keys and values go to the caches."""
    block_size, num_kv, head_dim = keys.shape[1:]
    num_heads = qk_norm.shape[0] - num_kv
    num_rows = qkv.shape[0] - plan.num_decodes
    queries = qkv.new_empty(num_rows, num_heads, head_dim)
    pdl = has_pdl(qkv.device)
    _write_kernel[(num_rows, triton.cdiv(num_heads + 2 * num_kv, config.heads))](
        qkv,
        qk_norm,
        cos_sin,
        keys,
        values,
        plan.positions,
        plan.table_rows,
        plan.block_tables,
        queries,
        eps,
        plan.num_decodes,
        plan.block_tables.stride(0),
        H=num_heads,
        KV=num_kv,
        D=head_dim,
        BLOCK_SIZE=block_size,
        HEADS=config.heads,
        HALF=triton.next_power_of_2(head_dim // 2),
        PDL=pdl,
        launch_pdl=pdl,
        num_warps=config.warps,
    )
    return queries
