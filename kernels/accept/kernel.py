"""Triton acceptance: a program per sequence looks at all of its rows at once.

Owns the launch.
"""

from functools import cache
from typing import Final

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.choose import has_pdl
from kernels.launch import Launch

MAX_ROWS: Final = 64
"""The most rows of one sequence: its drafts and one more."""

_NUM_WARPS: Final = 1


@triton.jit(do_not_specialize=["num_rows"])
def _accept_kernel(
    ids_ptr,  # int64 [T], drawn tokens of rows
    drafts_ptr,  # int64 [T], what each is compared with; below 0 in a last row
    first_rows_ptr,  # int64 [S], first row of each sequence
    last_token_ptr,  # int32 [num_tables], the token behind each sequence
    num_accepted_ptr,  # int32 [num_tables], drafts that were right
    table_rows_ptr,  # int32 [S], place of each sequence in both; others are left out
    last_rows_ptr,  # int64 [S], row of the token behind each sequence
    num_rows,  # T
    num_tables,  # places of sequences
    MAX_ROWS: tl.constexpr,  # rows of a sequence at most, a power of two
    PDL: tl.constexpr,  # whether it may start while the kernel ahead ends
):
    sequence = tl.program_id(0)
    if PDL:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    first = tl.load(first_rows_ptr + sequence).to(tl.int32)
    offsets = tl.arange(0, MAX_ROWS)
    inside = first + offsets < num_rows
    ids = tl.load(ids_ptr + first + offsets, mask=inside, other=-1)
    drafts = tl.load(drafts_ptr + first + offsets, mask=inside, other=-1)
    ends = (ids != drafts) | (ids < 0)
    row = tl.minimum(first + tl.min(tl.where(ends, offsets, MAX_ROWS)), num_rows - 1)
    tl.store(last_rows_ptr + sequence, row.to(tl.int64))
    table_row = tl.load(table_rows_ptr + sequence)
    there = (table_row >= 0) & (table_row < num_tables)
    token = tl.load(ids_ptr + row).to(tl.int32)
    tl.store(last_token_ptr + table_row, token, mask=there)
    tl.store(num_accepted_ptr + table_row, row - first, mask=there)


def accept(
    ids: Tensor,
    drafts: Tensor,
    first_rows: Tensor,
    last_token: Tensor,
    num_accepted: Tensor,
    table_rows: Tensor,
) -> Tensor:
    """See `kernels.accept.accept`."""
    num_sequences = first_rows.shape[0]
    last_rows = torch.empty_like(first_rows)
    launch = _accept_launch(ids.device, last_token.shape[0])
    tensors = ids, drafts, first_rows, last_token, num_accepted, table_rows, last_rows
    launch((num_sequences, 1, 1), tensors, (ids.shape[0],))
    return last_rows


@cache
def _accept_launch(device: torch.device, num_tables: int) -> Launch:
    constants = {"num_tables": num_tables, "MAX_ROWS": MAX_ROWS, "PDL": has_pdl(device)}
    return Launch(_accept_kernel, constants, num_warps=_NUM_WARPS)
