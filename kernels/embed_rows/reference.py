"""Plain torch start of a decode step; the CPU path."""

import torch.nn.functional as F  # noqa: N812 - the name that torch's own documentation uses
from torch import Tensor


def embed_rows(
    table_rows: Tensor, last_token: Tensor, embedding: Tensor, scale: float = 1.0
) -> Tensor:
    """See `kernels.embed_rows.embed_rows`."""
    rows = table_rows.long().clamp(0, last_token.shape[0] - 1)
    hidden = F.embedding(last_token[rows].long().clamp(0, embedding.shape[0] - 1), embedding)
    return hidden if scale == 1.0 else hidden * scale


def write_tables(updates: Tensor, block_tables: Tensor) -> None:
    """See `kernels.embed_rows.write_tables`."""
    tables, max_blocks = block_tables.shape
    rows, indices, blocks = updates.view(-1, 3).long().unbind(1)
    good = (rows >= 0) & (rows < tables) & (indices >= 0) & (indices < max_blocks)
    block_tables[rows[good], indices[good]] = blocks[good].to(block_tables.dtype)
