"""Keys and values of rows that only others attend to: normed, turned and written in all layers at
once.

Owns the kernel. Must not know what made the rows.
"""

from functools import cache

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.attention.device import load_angles, load_pairs, to_cache, turned
from kernels.attention.plan import PagedPlan
from kernels.choose import has_pdl
from kernels.launch import Launch


@triton.jit(do_not_specialize=["table_width", "num_slots"])
def _context_kernel(
    rows_ptr,  # [T, LAYERS, 2 KV, D], keys, then values
    k_norm_ptr,  # [LAYERS, KV, D], weights of the keys' norms
    cos_sin_ptr,  # float32 [positions, D], cosines, then sines
    cache_ptr,  # [LAYERS, 2, blocks, BLOCK_SIZE, KV, D]
    positions_ptr,  # int32 [T]
    table_rows_ptr,  # int32 [T], the table of each row
    tables_ptr,  # int32 [tables, table_width], blocks of each table
    table_width,  # numbers from table to table
    num_slots,  # tokens of the cache
    eps,  # epsilon of the norms
    LAYERS: tl.constexpr,  # layers of the drafter
    KV: tl.constexpr,  # key heads
    KV_2: tl.constexpr,  # the power of two from KV on
    D: tl.constexpr,  # numbers of a head
    BLOCK_SIZE: tl.constexpr,  # tokens of a block
    HALF: tl.constexpr,  # the power of two from D / 2 on
    NORMED: tl.constexpr,  # whether keys are normed
    PDL: tl.constexpr,  # whether it may start while the kernel ahead ends
):
    """All key heads of one row in one layer."""
    if PDL:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()
    row, layer = tl.program_id(0), tl.program_id(1)
    position = tl.load(positions_ptr + row)
    if position < 0:
        return
    table = tl.load(table_rows_ptr + row).to(tl.int64) * table_width
    block = tl.load(tables_ptr + table + position // BLOCK_SIZE).to(tl.int64)
    heads = tl.arange(0, KV_2)[:, None, None]
    angles = load_angles(cos_sin_ptr, position, D, HALF)
    weights = angles
    if NORMED:
        weights = load_pairs(k_norm_ptr + layer * KV * D, heads * D, heads < KV, D, HALF)
    row_ptr = rows_ptr + (row.to(tl.int64) * LAYERS + layer) * (2 * KV * D)
    plain = load_pairs(row_ptr, heads * D, heads < KV, D, HALF)
    values, _ = load_pairs(row_ptr + KV * D, heads * D, heads < KV, D, HALF)
    keys = turned(plain, weights, angles, eps, D, rows_ptr.dtype.element_ty, NORMED)
    half, column = tl.arange(0, 2)[None, :, None], tl.arange(0, HALF)[None, None, :]
    places = heads * D + half * (D // 2) + column
    inside = (heads < KV) & (column < D // 2)
    slot = (block * BLOCK_SIZE + position % BLOCK_SIZE) * (KV * D)
    stride = num_slots.to(tl.int64) * (KV * D)
    key_ptr = cache_ptr + layer * 2 * stride + slot
    tl.store(key_ptr + places, to_cache(keys, cache_ptr.dtype.element_ty), mask=inside)
    tl.store(key_ptr + stride + places, to_cache(values, cache_ptr.dtype.element_ty), mask=inside)


def write_context(
    rows: Tensor, k_norm: Tensor | None, eps: float, cos_sin: Tensor, cache: Tensor, plan: PagedPlan
) -> None:
    """See `kernels.attention.write_context`."""
    layers, _, num_blocks, block_size, num_kv, head_dim = cache.shape
    launch = _launch_of(rows.device, layers, num_kv, head_dim, block_size, eps, k_norm is not None)
    launch(
        (rows.shape[0], layers, 1),
        (
            rows, rows if k_norm is None else k_norm, cos_sin, cache, plan.positions,
            plan.table_rows, plan.block_tables,
        ),
        (plan.block_tables.stride(0), num_blocks * block_size),
    )  # fmt: skip


@cache
def _launch_of(
    device: torch.device,
    layers: int,
    num_kv: int,
    head_dim: int,
    block_size: int,
    eps: float,
    is_normed: bool,
) -> Launch:
    constants = {
        "eps": eps, "LAYERS": layers, "KV": num_kv, "KV_2": triton.next_power_of_2(num_kv),
        "D": head_dim, "BLOCK_SIZE": block_size, "HALF": triton.next_power_of_2(head_dim // 2),
        "NORMED": is_normed, "PDL": has_pdl(device),
    }  # fmt: skip
    return Launch(_context_kernel, constants, num_warps=4)
