"""A decode step starts right: embeddings of last tokens, block tables brought up to date."""

import pytest
import torch

from kernels.embed_rows import kernel, reference, write_tables

NUM_TABLES, MAX_BLOCKS = 6, 5


def _tables(device: torch.device) -> torch.Tensor:
    tables = torch.arange(NUM_TABLES * MAX_BLOCKS, dtype=torch.int32, device=device)
    return tables.view(NUM_TABLES, MAX_BLOCKS)


def _words(updates: list[tuple[int, int, int]]) -> torch.Tensor:
    return torch.tensor([word for update in updates for word in update], dtype=torch.int32)


@pytest.mark.parametrize("num_padding", [0, 300])
def test_updates_land(num_padding: int, device: torch.device) -> None:
    """Updates land as in the reference; entries without a table row, or outside the tables, do
    nothing.
    """
    updates = [(-1, 0, 77), (2, 4, 90), (5, 0, 91), (6, 0, 92), (0, 5, 93), (1, -1, 94)]
    words = _words(updates + [(-1, 1, 1)] * num_padding + [(3, 3, 95)])
    expected = _tables(torch.device("cpu"))
    expected[2, 4], expected[5, 0], expected[3, 3] = 90, 91, 95
    tables = _tables(device)
    kernel.write_tables(words.to(device), tables)
    assert torch.equal(tables.cpu(), expected)
    tables = _tables(torch.device("cpu"))
    write_tables(words, tables)
    assert torch.equal(tables, expected)


def test_no_updates_are_no_launch(device: torch.device) -> None:
    """No updates are no launch."""
    tables = _tables(device)
    kernel.write_tables(torch.empty(0, dtype=torch.int32, device=device), tables)
    assert torch.equal(tables, _tables(device))


def test_numbers_out_of_range_do_not_fault(device: torch.device) -> None:
    """Numbers out of range are brought into range, by the kernel as by the reference."""
    embedding = torch.randn(11, 37, device=device)
    last_token = torch.tensor([3, 10, 0, -1, 11, 7], dtype=torch.int32, device=device)
    rows = torch.tensor([3, 4, -2, 99, 5, 1, 1], dtype=torch.int32, device=device)
    hidden = kernel.embed_rows(rows, last_token, embedding)
    assert torch.equal(hidden, embedding[[0, 10, 3, 7, 7, 10, 10]])
    assert torch.equal(hidden, reference.embed_rows(rows, last_token, embedding))
    scaled = kernel.embed_rows(rows, last_token, embedding, 6.5)
    assert torch.equal(scaled, hidden * 6.5)


def test_words_that_do_not_fit_are_refused() -> None:
    """Half an update is an error."""
    for words in (1, 5):
        with pytest.raises(ValueError, match="words"):
            write_tables(torch.zeros(words, dtype=torch.int32), _tables(torch.device("cpu")))
