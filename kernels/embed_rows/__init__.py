"""The start of a decode step: the embeddings of the last tokens, and what changed in block tables.

Owns the layout of a step's packed input and the checked entries. Must not know sequences.
"""

from typing import Final

from torch import Tensor

from kernels.choose import uses_triton
from kernels.embed_rows import reference

__all__ = ["UPDATE_WORDS", "begin_step", "embed_rows", "packed_words"]

UPDATE_WORDS: Final = 3
"""An update of a block table is (table_row, index, block_id); table_row < 0: none."""


def packed_words(num_rows: int, max_updates: int) -> int:
    """The length of a step's packed int32 input.

    It holds positions [num_rows], table rows [num_rows], then `max_updates` updates. Positions
    and table rows are used where they lie: `packed[:num_rows]`, `packed[num_rows:2 * num_rows]`.
    """
    return 2 * num_rows + UPDATE_WORDS * max_updates


def embed_rows(table_rows: Tensor, last_token: Tensor, embedding: Tensor) -> Tensor:
    """`embedding[last_token[table_rows]]`, [rows, hidden] like embedding [vocab, hidden].

    table_rows int32 [rows], last_token int32 [tables]. Numbers out of range are brought into it:
    the rows that they give are nobody's. Raises `ValueError`.
    """
    _check(last_token, embedding)
    if uses_triton(embedding):
        from kernels.embed_rows import kernel

        return kernel.embed_rows(table_rows, last_token, embedding)
    return reference.embed_rows(table_rows, last_token, embedding)


def begin_step(
    packed: Tensor, num_rows: int, last_token: Tensor, embedding: Tensor, block_tables: Tensor
) -> Tensor:
    """Write the packed updates into block_tables; then as `embed_rows` for the packed table rows.

    packed int32 (see `packed_words`), block_tables int32 [tables, max_blocks]; updates outside it
    are left out, and no two may name one place. Updates and embeddings share one launch: nothing
    in it reads block_tables, and whoever does comes after it on its stream. Raises `ValueError`.
    """
    _check(last_token, embedding)
    spare = packed.shape[0] - 2 * num_rows
    if spare < 0 or spare % UPDATE_WORDS:
        raise ValueError(f"{packed.shape[0]} words for {num_rows} rows")
    if block_tables.shape[0] != last_token.shape[0]:
        raise ValueError(f"tables {tuple(block_tables.shape)} for {last_token.shape[0]} tokens")
    if uses_triton(embedding):
        from kernels.embed_rows import kernel

        return kernel.begin_step(packed, num_rows, last_token, embedding, block_tables)
    return reference.begin_step(packed, num_rows, last_token, embedding, block_tables)


def _check(last_token: Tensor, embedding: Tensor) -> None:
    if embedding.dim() != 2 or last_token.dim() != 1:
        raise ValueError(f"embedding {tuple(embedding.shape)}, tokens {tuple(last_token.shape)}")
