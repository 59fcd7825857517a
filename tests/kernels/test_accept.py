"""The leading drafts that equal what is sampled are accepted, and no others."""

import random

import pytest
import torch

from kernels.accept import accept, kernel


def _case(rng: random.Random, num_sequences: int) -> tuple[list[torch.Tensor], list[int]]:
    """Arguments of `accept`, and the rows behind the accepted drafts."""
    ids: list[int] = []
    drafts: list[int] = []
    firsts, ends = [], []
    for _ in range(num_sequences):
        num_drafts = rng.choice((0, 1, 3, 7, 15, 63))
        own = [rng.randrange(3) for _ in range(num_drafts)]
        drawn = [rng.choice((one, one, one, 2, -1)) for one in own]
        same = next((i for i in range(num_drafts) if own[i] != drawn[i]), num_drafts)
        firsts.append(len(ids))
        ends.append(len(ids) + same)
        ids += [*drawn, rng.choice((5, 5, -1))]
        drafts += [*own, -1]
    tables = rng.sample(range(-1, 2 * num_sequences + 1), num_sequences)
    arguments = [
        torch.tensor(ids),
        torch.tensor(drafts),
        torch.tensor(firsts),
        torch.full((2 * num_sequences,), 99, dtype=torch.int32),
        torch.full((2 * num_sequences,), 99, dtype=torch.int32),
        torch.tensor(tables, dtype=torch.int32),
    ]
    return arguments, ends


@pytest.mark.parametrize("num_sequences", [1, 2, 7, 33])
def test_the_kernel_equals_the_reference(num_sequences: int, device: torch.device) -> None:
    """Sequences of any length; one without a row in the table writes nowhere."""
    arguments, ends = _case(random.Random(num_sequences), num_sequences)
    ids, firsts, tables = arguments[0], arguments[2], arguments[5]
    last_token, num_accepted = arguments[3].clone(), arguments[4].clone()
    expected = accept(*arguments[:3], last_token, num_accepted, tables)
    assert expected.tolist() == ends
    for at, first, table_row in zip(ends, firsts.tolist(), tables.tolist(), strict=True):
        if 0 <= table_row < len(last_token):
            assert last_token[table_row] == ids[at]
            assert num_accepted[table_row] == at - first
    num_written = sum(0 <= row < len(last_token) for row in tables.tolist())
    for table in (last_token, num_accepted):
        assert (table == 99).sum() == len(table) - num_written
    there = [tensor.to(device) for tensor in arguments]
    assert torch.equal(kernel.accept(*there).cpu(), expected)
    assert torch.equal(there[3].cpu(), last_token)
    assert torch.equal(there[4].cpu(), num_accepted)


@pytest.mark.parametrize(("num_ids", "num_drafts", "num_tables"), [(3, 2, 1), (3, 3, 2)])
def test_wrong_shapes_are_refused(num_ids: int, num_drafts: int, num_tables: int) -> None:
    """Wrong shapes are refused before a kernel reads past them."""
    tables = torch.zeros(num_tables, dtype=torch.int32)
    with pytest.raises(ValueError, match=r"drafts|table_rows"):
        accept(
            torch.zeros(num_ids).long(),
            torch.zeros(num_drafts).long(),
            torch.zeros(1).long(),
            torch.zeros(4, dtype=torch.int32),
            torch.zeros(4, dtype=torch.int32),
            tables,
        )
