"""The state of sequences that stays on the card, one table row per sequence.

Owns the row of each sequence, the last sampled token and the block table of each row, and the
entries of a table that change before a step. Must not know the order of chunks, sampling or the
network.

The last row is a dummy: the padding of a captured graph reads and writes there, in a block that no
sequence ever holds.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from typing import Final, final

import numpy as np
import torch
from torch import Tensor

from kernels.embed_rows import UPDATE_WORDS, write_tables
from workers.scheduler import ON_CARD

DRAFTED: Final = -2
"""Stands for the id of a sequence's first draft on the card; `DRAFTED` - 1 stands for the second,
and so on. `ON_CARD` stands for the token that the step before sampled."""

HELD_LAST: Final = -2
"""The value of `TableRow.next_position` while the host does not know the position, because the
step in flight has drafts. The card holds the last token; the result of that step tells its
position.
"""

_WORD: Final = "i"
"""int32."""


def no_updates() -> array[int]:
    """An empty list of updates, filled by `TableRow.change`."""
    return array(_WORD)


@final
class TableRow:
    """A sequence's row. `block_ids` are the leading entries of its table on the card, and
    `window_ids` those of its table for layers that keep only their window.
    `next_position` is the position of the token that the card holds and no step has computed yet;
    -1 if there is none, or `HELD_LAST`.
    """

    __slots__ = ("block_ids", "index", "next_position", "window_ids")

    def __init__(self, index: int) -> None:
        self.index = index
        self.block_ids: tuple[int, ...] = ()
        self.window_ids: tuple[int, ...] = ()
        self.next_position = -1

    def change(self, block_ids: tuple[int, ...], updates: array[int]) -> None:
        """Append to `updates` what turns the card's table into `block_ids`."""
        self.block_ids = self._changed(self.block_ids, block_ids, updates)

    def change_window(self, window_ids: tuple[int, ...], updates: array[int]) -> None:
        """Like `change`, for the table of layers that keep only their window."""
        self.window_ids = self._changed(self.window_ids, window_ids, updates)

    def _changed(
        self, old: tuple[int, ...], new: tuple[int, ...], updates: array[int]
    ) -> tuple[int, ...]:
        """Append what turns the table `old` into `new`. Returns the table that the card has then:
        a longer one stays true, because the sequence still holds those blocks.
        """
        known = len(old)
        if new[:known] == old[: len(new)]:
            if len(new) == known + 1:  # usual for a decode: one more block
                updates.extend((self.index, known, new[known]))
            else:
                updates.frombytes(self._from(known, new))
            return old if known > len(new) else new
        for index, block_id in enumerate(new):
            if index >= known or old[index] != block_id:
                updates.extend((self.index, index, block_id))
        return new

    def _from(self, known: int, block_ids: tuple[int, ...]) -> bytes:
        """Updates of all blocks from index `known` on. For a thousand blocks a loop would take
        three times as long.
        """
        count = max(0, len(block_ids) - known)
        updates = np.empty((count, UPDATE_WORDS), np.int32)
        updates[:, 0] = self.index
        updates[:, 1] = np.arange(known, known + count)
        updates[:, 2] = array(_WORD, block_ids[known:])
        return updates.tobytes()


@final
class SequenceTables:
    """Rows for `num_rows` sequences of up to `max_blocks` blocks each.

    - `last_token` int32 [num_rows + 1]
    - `num_accepted` int32 [num_rows + 1]: how many drafts the sequence's last step with drafts
      accepted; 0 in the dummy row
    - `block_tables` int32 [num_rows + 1, max_blocks]
    - `window_tables`, the same of layers that keep only their window; None without such
    - `drafts` int32 [num_rows + 1, max_drafts]: the drafts made behind the last token
    """

    def __init__(
        self,
        num_rows: int,
        max_blocks: int,
        dummy_block: int,
        device: torch.device,
        max_drafts: int = 0,
        dummy_window_block: int | None = None,
    ) -> None:
        """`dummy_window_block` None: no layers keep only their window."""
        self.device = device
        self.dummy_row = num_rows
        self.last_token = torch.zeros(num_rows + 1, dtype=torch.int32, device=device)
        self.num_accepted = torch.zeros_like(self.last_token)
        self.block_tables = torch.full(
            (num_rows + 1, max_blocks), dummy_block, dtype=torch.int32, device=device
        )
        self.window_tables: Tensor | None = None
        if dummy_window_block is not None:
            self.window_tables = torch.full_like(self.block_tables, dummy_window_block)
        self.drafts = torch.zeros((num_rows + 1, max_drafts), dtype=torch.int32, device=device)
        self.rows: dict[int, TableRow] = {}
        self._free = list(range(num_rows - 1, -1, -1))

    def start(self, seqs: Iterable[int]) -> None:
        """Give each sequence a row. Raises `IndexError` if more run than were planned for."""
        for seq in seqs:
            self.rows[seq] = TableRow(self._free.pop())

    def end(self, seqs: Iterable[int]) -> None:
        """Free the rows of sequences. Steps in flight may still read them: steps run in order, so
        the next owners write later.
        """
        for seq in seqs:
            row = self.rows.pop(seq, None)
            if row is not None:
                self._free.append(row.index)

    def write(self, updates: Tensor) -> None:
        """Apply flat int32 updates [n * UPDATE_WORDS] on the card."""
        write_tables(updates, self.block_tables)

    def write_windows(self, updates: Tensor) -> None:
        """Like `write`, for the tables of layers that keep only their window."""
        assert self.window_tables is not None
        write_tables(updates, self.window_tables)

    def known(self, token_ids: Tensor, table_rows: Tensor) -> Tensor:
        """`token_ids` int32 [T] with `ON_CARD` and `DRAFTED` replaced by the ids that the card
        holds in `table_rows` [T].
        """
        rows = table_rows.long()
        tokens = torch.where(token_ids == ON_CARD, self.last_token[rows], token_ids)
        if self.drafts.shape[1]:
            indices = (DRAFTED - token_ids).clamp(0, self.drafts.shape[1] - 1).long()
            tokens = torch.where(token_ids <= DRAFTED, self.drafts[rows, indices], tokens)
        # A sequence whose logits were not numbers holds -1; as an index it would fail all others.
        return tokens.clamp_(min=0)
