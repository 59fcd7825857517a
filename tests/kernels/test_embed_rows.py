"""A decode step starts right: embeddings of last tokens, block tables brought up to date."""

import pytest
import torch

from kernels.embed_rows import begin_step, kernel, packed_words, reference

NUM_TABLES, MAX_BLOCKS = 6, 5


def _inputs(device: torch.device) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    embedding = torch.randn(11, 37, device=device)
    last_token = torch.tensor([3, 10, 0, -1, 11, 7], dtype=torch.int32, device=device)
    tables = torch.arange(NUM_TABLES * MAX_BLOCKS, dtype=torch.int32, device=device)
    return last_token, embedding, tables.view(NUM_TABLES, MAX_BLOCKS)


def _packed(table_rows: list[int], updates: list[tuple[int, int, int]]) -> torch.Tensor:
    words = [0] * len(table_rows) + table_rows + [word for update in updates for word in update]
    return torch.tensor(words, dtype=torch.int32)


@pytest.mark.parametrize("num_padding", [0, 300])
def test_updates_land_and_rows_are_embedded(num_padding: int, device: torch.device) -> None:
    """As the reference does it; entries without a table row, or outside the tables, do nothing."""
    rows = [5, 0, 1, 1]
    updates = [(-1, 0, 77), (2, 4, 90), (5, 0, 91), (6, 0, 92), (0, 5, 93), (1, -1, 94)]
    updates += [(-1, 1, 1)] * num_padding + [(3, 3, 95)]
    packed = _packed(rows, updates)
    assert packed.shape[0] == packed_words(len(rows), len(updates))
    last_token, embedding, tables = _inputs(device)
    hidden = kernel.begin_step(packed.to(device), len(rows), last_token, embedding, tables)
    assert torch.equal(hidden.cpu(), embedding.cpu()[[7, 3, 10, 10]])
    expected = torch.arange(NUM_TABLES * MAX_BLOCKS, dtype=torch.int32).view(NUM_TABLES, -1)
    expected[2, 4], expected[5, 0], expected[3, 3] = 90, 91, 95
    assert torch.equal(tables.cpu(), expected)
    last_token, embedding, tables = (tensor.cpu() for tensor in _inputs(torch.device("cpu")))
    begin_step(packed, len(rows), last_token, embedding, tables)
    assert torch.equal(tables, expected)


def test_numbers_out_of_range_do_not_fault(device: torch.device) -> None:
    """They are brought into range, by the kernel as by the reference."""
    last_token, embedding, _ = _inputs(device)
    rows = torch.tensor([3, 4, -2, 99], dtype=torch.int32, device=device)
    hidden = kernel.embed_rows(rows, last_token, embedding)
    assert torch.equal(hidden, embedding[[0, 10, 3, 7]])
    assert torch.equal(hidden, reference.embed_rows(rows, last_token, embedding))


def test_words_that_do_not_fit_are_refused() -> None:
    """Half an update, fewer words than rows, and tables of other sequences are errors."""
    last_token, embedding, tables = _inputs(torch.device("cpu"))
    for words in (7, 9):
        packed = torch.zeros(words, dtype=torch.int32)
        with pytest.raises(ValueError, match="words"):
            begin_step(packed, 4, last_token, embedding, tables)
    with pytest.raises(ValueError, match="tables"):
        begin_step(torch.zeros(8, dtype=torch.int32), 4, last_token, embedding, tables[1:])
