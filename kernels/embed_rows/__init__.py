"""The start of a decode step: what changed in block tables, and the embeddings of the last tokens.

Owns the checked entries. Must not know sequences.
"""

from typing import Final

from torch import Tensor

from kernels.choose import uses_triton
from kernels.embed_rows import reference

__all__ = ["UPDATE_WORDS", "embed_rows", "write_tables"]

UPDATE_WORDS: Final = 3
"""An update of a block table is (table_row, index, block_id); table_row < 0: none."""


def embed_rows(
    table_rows: Tensor, last_token: Tensor, embedding: Tensor, scale: float = 1.0
) -> Tensor:
    """`embedding[last_token[table_rows]] * scale`, [rows, hidden] like embedding [vocab, hidden].

    table_rows int32 [rows], last_token int32 [tables]. Numbers out of range are brought into it:
    the rows that they give are undefined. Raises `ValueError`.
    """
    if embedding.dim() != 2 or last_token.dim() != 1:
        raise ValueError(f"embedding {tuple(embedding.shape)}, tokens {tuple(last_token.shape)}")
    if uses_triton(embedding):
        from kernels.embed_rows import kernel

        return kernel.embed_rows(table_rows, last_token, embedding, scale)
    return reference.embed_rows(table_rows, last_token, embedding, scale)


def write_tables(updates: Tensor, block_tables: Tensor) -> None:
    """Write updates, int32 [n * UPDATE_WORDS], into block_tables int32 [tables, max_blocks].

    Updates outside it are left out, and no two may name one place. Launch it before a captured
    graph, not in it: attention reads tables before the kernel ahead of it has ended. Raises
    `ValueError`.
    """
    if updates.dim() != 1 or updates.shape[0] % UPDATE_WORDS or block_tables.dim() != 2:
        raise ValueError(f"{tuple(updates.shape)} words for tables {tuple(block_tables.shape)}")
    if uses_triton(block_tables):
        from kernels.embed_rows import kernel

        kernel.write_tables(updates, block_tables)
    else:
        reference.write_tables(updates, block_tables)
