"""The block tables of a step's sequences, brought up to date on the card before the step.

Owns what is sent, and what is sent again if memory runs out. Must not know rows of a step.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence

import numpy as np
from torch import Tensor

from kernels.pinned import to_device
from workers.engine.step.tables import SequenceTables, TableRow, no_updates
from workers.scheduler import Chunk


def bring_up_to_date(tables: SequenceTables, chunks: Sequence[Chunk]) -> list[TableRow]:
    """Send what changed in the block tables of the chunks' sequences; returns their rows."""
    updates = no_updates()
    rows = []
    for chunk in chunks:
        row = tables.rows[chunk.seq]
        if row.block_ids is not chunk.block_ids:
            row.change(chunk.block_ids, updates)
        rows.append(row)
    if updates:
        _send(updates, tables, rows, tables.write)
    if tables.window_tables is not None:
        _bring_windows(tables, chunks, rows)
    return rows


def _bring_windows(
    tables: SequenceTables, chunks: Sequence[Chunk], rows: Sequence[TableRow]
) -> None:
    """Send what changed in the tables of layers that keep only their window."""
    updates = no_updates()
    for chunk, row in zip(chunks, rows, strict=True):
        if row.window_ids is not chunk.window_ids:
            row.change_window(chunk.window_ids, updates)
    if updates:
        _send(updates, tables, rows, tables.write_windows)


def _send(
    updates: array[int],
    tables: SequenceTables,
    rows: Sequence[TableRow],
    write: Callable[[Tensor], None],
) -> None:
    """Write to the tables. If memory runs out their content is unknown, so the repeated step must
    send all of it.
    """
    try:
        write(to_device(np.frombuffer(updates, np.int32), tables.device))
    except (RuntimeError, MemoryError):
        for row in rows:
            row.block_ids = row.window_ids = ()
        raise
