"""Which drafts of a step are accepted, on the device.

Owns the checked entry. Must not know sequences, nor where drafts come from.
"""

import torch
from torch import Tensor

from kernels.choose import uses_triton

__all__ = ["accept"]


def accept(
    ids: Tensor,
    drafts: Tensor,
    first_rows: Tensor,
    last_token: Tensor,
    num_accepted: Tensor,
    table_rows: Tensor,
) -> Tensor:
    """The row of each sequence behind its last accepted draft, int64 [S]; waits for nothing.

    ids int64 [R] are sampled, drafts int64 [R] what each is compared with: a negative number in the
    last row of each sequence. first_rows int64 [S], strictly rising, are the sequences' first rows.
    A draft is accepted if it equals the id of its row and all before it are. The id of the row that
    is returned goes to `last_token[table_rows]`, and how many drafts are accepted to
    `num_accepted[table_rows]`, both int32 [tables], table_rows int32 [S]; rows outside them go
    nowhere. Raises `ValueError`.
    """
    if ids.dim() != 1 or ids.shape != drafts.shape:
        raise ValueError(f"ids {tuple(ids.shape)}, drafts {tuple(drafts.shape)}")
    if first_rows.dim() != 1 or first_rows.shape != table_rows.shape:
        raise ValueError(
            f"first_rows {tuple(first_rows.shape)}, table_rows {tuple(table_rows.shape)}"
        )
    if last_token.shape != num_accepted.shape:
        raise ValueError(f"tables of {tuple(last_token.shape)} and {tuple(num_accepted.shape)}")
    if uses_triton(ids):
        from kernels.accept import kernel

        return kernel.accept(ids, drafts, first_rows, last_token, num_accepted, table_rows)
    return _reference(ids, drafts, first_rows, last_token, num_accepted, table_rows)


def _reference(
    ids: Tensor,
    drafts: Tensor,
    first_rows: Tensor,
    last_token: Tensor,
    num_accepted: Tensor,
    table_rows: Tensor,
) -> Tensor:
    """Plain torch; the CPU path, and the definition."""
    num_rows = ids.shape[0]
    rows = torch.arange(num_rows, device=ids.device)
    # The first row at or behind a sequence's first whose token is not the draft.
    ends = torch.where((ids != drafts) | (ids < 0), rows, num_rows)
    found = ends.flip(0).cummin(0).values.flip(0)[first_rows]
    there = (table_rows >= 0) & (table_rows < last_token.shape[0])
    tables = table_rows[there].long()
    last_token[tables] = ids[found[there]].to(last_token.dtype)
    num_accepted[tables] = (found - first_rows)[there].to(num_accepted.dtype)
    return found
