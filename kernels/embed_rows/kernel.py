"""Triton start of a decode step: one program per row, and more of them for the updates.

Owns the launches. Every program waits for the kernel ahead before its first read or write: the
last tokens are what that one wrote, and the step before may still read the block tables.
"""

import triton
import triton.language as tl
from torch import Tensor

from kernels.choose import has_pdl

_UPDATES = 128
_NUM_WARPS = 4


# One compilation for every number of rows and updates.
@triton.jit(do_not_specialize=["num_rows", "num_updates"])
def _begin_step_kernel(
    table_rows_ptr,
    updates_ptr,
    last_token_ptr,
    embedding_ptr,
    block_tables_ptr,
    hidden_ptr,
    num_rows,
    num_updates,
    num_tables,
    max_blocks,
    vocab_size,
    width,
    BLOCK: tl.constexpr,
    UPDATES: tl.constexpr,
    PDL: tl.constexpr,
):
    program = tl.program_id(0)
    if PDL:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    if program < num_rows:
        columns = tl.arange(0, BLOCK)
        inside = columns < width
        table_row = tl.load(table_rows_ptr + program)
        table_row = tl.minimum(tl.maximum(table_row, 0), num_tables - 1)
        token = tl.load(last_token_ptr + table_row)
        token = tl.minimum(tl.maximum(token, 0), vocab_size - 1).to(tl.int64)
        values = tl.load(embedding_ptr + token * width + columns, mask=inside)
        tl.store(hidden_ptr + program.to(tl.int64) * width + columns, values, mask=inside)
    else:
        entries = (program - num_rows) * UPDATES + tl.arange(0, UPDATES)
        there = entries < num_updates
        rows = tl.load(updates_ptr + 3 * entries, mask=there, other=-1)
        indices = tl.load(updates_ptr + 3 * entries + 1, mask=there, other=-1)
        blocks = tl.load(updates_ptr + 3 * entries + 2, mask=there, other=0)
        good = (rows >= 0) & (rows < num_tables) & (indices >= 0) & (indices < max_blocks)
        tl.store(block_tables_ptr + rows.to(tl.int64) * max_blocks + indices, blocks, mask=good)


def embed_rows(table_rows: Tensor, last_token: Tensor, embedding: Tensor) -> Tensor:
    """See `kernels.embed_rows.embed_rows`."""
    return _launch(table_rows, table_rows[:0], last_token, embedding, None)


def begin_step(
    packed: Tensor, num_rows: int, last_token: Tensor, embedding: Tensor, block_tables: Tensor
) -> Tensor:
    """See `kernels.embed_rows.begin_step`."""
    table_rows, updates = packed[num_rows : 2 * num_rows], packed[2 * num_rows :]
    return _launch(table_rows, updates, last_token, embedding, block_tables)


def _launch(
    table_rows: Tensor,
    updates: Tensor,
    last_token: Tensor,
    embedding: Tensor,
    block_tables: Tensor | None,
) -> Tensor:
    num_rows, num_updates = table_rows.shape[0], updates.shape[0] // 3
    vocab_size, width = embedding.shape
    hidden = embedding.new_empty(num_rows, width)
    num_programs = num_rows + triton.cdiv(num_updates, _UPDATES)
    if not num_programs:
        return hidden
    pdl = has_pdl(embedding.device)
    _begin_step_kernel[(num_programs,)](
        table_rows,
        updates,
        last_token,
        embedding,
        # Without updates no program reads the place of the tables.
        last_token if block_tables is None else block_tables,
        hidden,
        num_rows,
        num_updates,
        last_token.shape[0],
        0 if block_tables is None else block_tables.shape[1],
        vocab_size,
        width,
        BLOCK=triton.next_power_of_2(width),
        UPDATES=_UPDATES,
        PDL=pdl,
        num_warps=_NUM_WARPS,
        launch_pdl=pdl,
    )
    return hidden
