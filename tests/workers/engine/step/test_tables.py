"""What of a block table is sent to the card."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from workers.engine.step.tables import SequenceTables, TableRow, no_updates

TABLES = st.lists(st.lists(st.integers(0, 5), max_size=6).map(tuple), max_size=8)


@given(tables=TABLES)
def test_the_card_has_every_table_that_was_named(tables: list[tuple[int, ...]]) -> None:
    """The card has every table that was named, whatever it held before: longer, shorter, or other
    blocks after a preemption.
    """
    held = SequenceTables(3, 6, dummy_block=9, device=torch.device("cpu"))
    held.start([4, 7])
    row = held.rows[7]
    for block_ids in tables:
        updates = no_updates()
        row.change(block_ids, updates)
        held.write(torch.tensor(updates.tolist(), dtype=torch.int32))
        assert tuple(held.block_tables[row.index, : len(block_ids)].tolist()) == block_ids
    others = [index for index in range(4) if index != row.index]
    assert set(held.block_tables[others].flatten().tolist()) == {9}


def test_only_what_is_new_is_sent() -> None:
    """One block more is one update, and what a shorter table left standing is none."""
    row, sent = TableRow(2), []
    for block_ids in ((5,), (5, 6), (5, 6), (5,), (5, 6), (5, 8), (5, 8, 1)):
        updates = no_updates()
        row.change(block_ids, updates)
        sent.append(updates.tolist())
    assert sent == [[2, 0, 5], [2, 1, 6], [], [], [], [2, 1, 8], [2, 2, 1]]
