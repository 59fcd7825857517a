"""What a mixed step sends to the card."""

from array import array

import numpy as np
import pytest
import torch

from protocol.sampling import SamplingParams
from workers.engine.step.batch import ON_CARD, SequenceState, make_paged_batch, paged_rows
from workers.engine.step.draws import DrawTable
from workers.engine.step.tables import SequenceTables
from workers.scheduler.plan import Chunk, SequenceStart

CPU = torch.device("cpu")


@pytest.mark.parametrize("max_rows", [1, 5, 6, 8])
def test_no_number_of_sequences_compiles_a_kernel_anew(max_rows: int) -> None:
    """What a draw and its filters read lies at multiples of 16 bytes, whatever its row."""
    draws = DrawTable(50, max_rows, CPU).rows(1, filtered=True)
    for column in (draws.seeds, draws.temperature, draws.top_k, draws.top_p, draws.min_p):
        assert column.data_ptr() % 16 == 0


@pytest.mark.parametrize("length", [2, 3, 4, 5])
def test_no_number_of_rows_compiles_a_kernel_anew(length: int) -> None:
    """Triton tells pointers at multiples of 16 bytes from others: all are."""
    tables = SequenceTables(4, 4, dummy_block=9, device=CPU)
    tables.start([1, 2])
    starts = [SequenceStart(seq, array("I", range(20)), 20, SamplingParams(8), 0) for seq in (1, 2)]
    states = {start.seq: SequenceState(start) for start in starts}
    chunks = [Chunk(1, 3, length, (0, 1), samples=True), Chunk(2, 19, 1, (2, 3), samples=True)]
    rows = paged_rows(chunks, states, tables, block_size=16)
    batch = make_paged_batch(rows, tables, lambda plan: plan)
    sent = {
        "token_ids": (batch.token_ids, rows.token_ids),
        "positions": (batch.plan.positions, rows.positions),
        "table_rows": (batch.plan.table_rows, rows.table_rows),
        "last_rows": (batch.last_rows, rows.last_rows),
        "sampled_positions": (batch.sampled_positions, rows.sampled_positions),
        "sampled_tables": (batch.table_rows, rows.sampled_tables),
    }
    for name, (there, here) in sent.items():
        assert there.data_ptr() % 16 == 0, name
        assert np.array_equal(there.numpy(), here), name


@pytest.mark.parametrize(
    "chunk",
    [
        Chunk(1, 15, 6, (0, 1), samples=True),
        Chunk(1, 20, 1, (0, 1), samples=True),
        Chunk(1, 8, 12, (0,), samples=True),
        Chunk(1, 16, 1, (0,), samples=True),
    ],
    ids=["tokens", "token", "blocks", "block"],
)
def test_a_chunk_past_what_there_is_is_refused(chunk: Chunk) -> None:
    """Past the sequence's tokens or its blocks: the card would read what is not its own."""
    tables = SequenceTables(4, 4, dummy_block=9, device=CPU)
    tables.start([1])
    state = SequenceState(SequenceStart(1, array("I", range(20)), 20, SamplingParams(8), 0))
    with pytest.raises(ValueError, match="of sequence 1 with 20 tokens"):
        paged_rows([chunk], {1: state}, tables, block_size=16)


def test_a_token_on_the_card_needs_a_block_too() -> None:
    """A token that is still on the card counts as one of the sequence's and needs a place in a
    block.
    """
    tables = SequenceTables(4, 4, dummy_block=9, device=CPU)
    tables.start([1])
    state = SequenceState(SequenceStart(1, array("I", range(16)), 16, SamplingParams(8), 0))
    tables.rows[1].next_position = 16
    rows = paged_rows([Chunk(1, 16, 1, (0, 1), samples=True)], {1: state}, tables, block_size=16)
    assert rows.token_ids.tolist() == [ON_CARD]
    with pytest.raises(ValueError, match="1 blocks of 16"):
        paged_rows([Chunk(1, 16, 1, (0,), samples=True)], {1: state}, tables, block_size=16)
