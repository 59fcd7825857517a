"""Triton start of a decode step: one program per row, or per page of updates.

Owns the launches.
"""

from functools import cache

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.choose import has_pdl
from kernels.launch import Launch

_UPDATES = 128
_NUM_WARPS = 4


@triton.jit
def _embed_rows_kernel(
    table_rows_ptr,  # int32 [T], place of each row's sequence
    last_token_ptr,  # int32 [num_tables], the token behind each sequence
    embedding_ptr,  # [vocab_size, width]
    hidden_ptr,  # [T, width], what comes out
    num_tables,  # places of sequences
    vocab_size,  # tokens
    width,  # numbers of a row
    scale,  # what rows are multiplied with, if SCALED
    BLOCK: tl.constexpr,  # the power of two from `width` on
    SCALED: tl.constexpr,  # whether rows are scaled
    PDL: tl.constexpr,  # whether it may start while the kernel ahead ends
):
    row = tl.program_id(0)
    if PDL:
        # The kernel ahead wrote the last tokens.
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    columns = tl.arange(0, BLOCK)
    inside = columns < width
    table_row = tl.load(table_rows_ptr + row)
    table_row = tl.minimum(tl.maximum(table_row, 0), num_tables - 1)
    token = tl.load(last_token_ptr + table_row)
    token = tl.minimum(tl.maximum(token, 0), vocab_size - 1).to(tl.int64)
    values = tl.load(embedding_ptr + token * width + columns, mask=inside)
    if SCALED:
        values = (values.to(tl.float32) * scale).to(hidden_ptr.dtype.element_ty)
    tl.store(hidden_ptr + row.to(tl.int64) * width + columns, values, mask=inside)


# One compilation for every number of updates. A plain launch: see the entry.
@triton.jit(do_not_specialize=["num_updates"])
def _write_tables_kernel(
    updates_ptr,  # int32 [num_updates, 3]: row, index, block
    block_tables_ptr,  # int32 [num_tables, max_blocks]
    num_updates,  # entries; those outside the tables are left out
    num_tables,  # rows of the tables
    max_blocks,  # blocks of a row
    UPDATES: tl.constexpr,  # entries of a program
):
    entries = tl.program_id(0) * UPDATES + tl.arange(0, UPDATES)
    there = entries < num_updates
    rows = tl.load(updates_ptr + 3 * entries, mask=there, other=-1)
    indices = tl.load(updates_ptr + 3 * entries + 1, mask=there, other=-1)
    blocks = tl.load(updates_ptr + 3 * entries + 2, mask=there, other=0)
    good = (rows >= 0) & (rows < num_tables) & (indices >= 0) & (indices < max_blocks)
    tl.store(block_tables_ptr + rows.to(tl.int64) * max_blocks + indices, blocks, mask=good)


def embed_rows(
    table_rows: Tensor, last_token: Tensor, embedding: Tensor, scale: float = 1.0
) -> Tensor:
    """See `kernels.embed_rows.embed_rows`."""
    num_rows = table_rows.shape[0]
    vocab_size, width = embedding.shape
    hidden = embedding.new_empty(num_rows, width)
    launch = _embed_launch(embedding.device, last_token.shape[0], vocab_size, width, scale)
    launch((num_rows, 1, 1), (table_rows, last_token, embedding, hidden))
    return hidden


@cache
def _embed_launch(
    device: torch.device, num_tables: int, vocab_size: int, width: int, scale: float
) -> Launch:
    constants = {
        "num_tables": num_tables, "vocab_size": vocab_size, "width": width,
        "scale": scale, "BLOCK": triton.next_power_of_2(width), "SCALED": scale != 1.0,
        "PDL": has_pdl(device),
    }  # fmt: skip
    return Launch(_embed_rows_kernel, constants, num_warps=_NUM_WARPS)


def write_tables(updates: Tensor, block_tables: Tensor) -> None:
    """See `kernels.embed_rows.write_tables`."""
    num_updates = updates.shape[0] // 3
    if num_updates == 0:
        return
    num_tables, max_blocks = block_tables.shape
    launch = _write_launch(num_tables, max_blocks)
    launch((triton.cdiv(num_updates, _UPDATES), 1, 1), (updates, block_tables), (num_updates,))


@cache
def _write_launch(num_tables: int, max_blocks: int) -> Launch:
    constants = {"num_tables": num_tables, "max_blocks": max_blocks, "UPDATES": _UPDATES}
    return Launch(_write_tables_kernel, constants, num_warps=_NUM_WARPS)
