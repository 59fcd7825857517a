"""Blocks go to rows and back word for word, with the sums of what was copied."""

import pytest
import torch

from kernels.page_rows import copy_rows, kernel, num_sums, reference

PLANES, BLOCKS = 3, 7
IDS = [5, 0, 2, 6]


def _drawn(shape: tuple[int, ...]) -> torch.Tensor:
    """Words that use all bits, so that products run over."""
    return torch.randint(-(2**63), 2**63 - 1, shape, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("size", [8, 1024, 1300])
@pytest.mark.parametrize("is_load", [False, True])
def test_copies(size: int, is_load: bool, device: torch.device) -> None:
    """Each block's words lie plane after plane in its row; what is beside them stays; the sums of a
    row are together the sum of words times weights.
    """
    words, rows = _drawn((PLANES, BLOCKS, size)), _drawn((len(IDS), PLANES * size + 16))
    weights = _drawn((PLANES * size + 2,))
    sums = torch.zeros(len(IDS), num_sums(words), dtype=torch.int64)
    ids = torch.tensor(IDS, dtype=torch.int32)
    expected_words, expected_rows = words.clone(), rows.clone()
    for row, block in enumerate(IDS):
        own = expected_rows[row, : PLANES * size].view(PLANES, size)
        if is_load:
            expected_words[:, block] = own
        else:
            own.copy_(words[:, block])
    products = expected_rows[:, : PLANES * size] * weights[: PLANES * size]
    for copy in (kernel.copy_rows, reference.copy_rows):
        if copy is reference.copy_rows and device.type != "cpu":
            continue
        given = [each.clone().to(device) for each in (words, ids, rows, weights, sums)]
        copy(*given, is_load=is_load)
        found = [each.cpu() for each in given]
        assert torch.equal(found[0], expected_words)
        assert torch.equal(found[2], expected_rows)
        assert torch.equal(found[4].sum(1), products.sum(1))


def test_rows_may_be_parts_of_wider_ones(device: torch.device) -> None:
    """A second cache lies behind the first in each row, and in the sums."""
    words = _drawn((PLANES, BLOCKS, 8)).to(device)
    rows = torch.zeros(2, 10 + PLANES * 8, dtype=torch.int64, device=device)
    sums = torch.zeros(2, 5 + num_sums(words), dtype=torch.int64, device=device)
    weights = torch.ones(PLANES * 8, dtype=torch.int64, device=device)
    ids = torch.tensor([4, 1], dtype=torch.int32, device=device)
    kernel.copy_rows(words, ids, rows[:, 10:], weights, sums[:, 5:], is_load=False)
    assert torch.equal(rows[:, 10:].reshape(2, PLANES, 8), words[:, [4, 1]].transpose(0, 1))
    assert not rows[:, :10].any()
    assert not sums[:, :5].any()
    assert torch.equal(sums.sum(1), rows.sum(1))


def test_shapes_that_do_not_fit_are_refused() -> None:
    """The entries check what a kernel would read or write outside."""
    words, ids = _drawn((PLANES, BLOCKS, 8)), torch.zeros(2, dtype=torch.int32)
    weights, sums = _drawn((PLANES * 8,)), torch.zeros(2, num_sums(words), dtype=torch.int64)
    for rows in (_drawn((2, PLANES * 8 - 1)), _drawn((1, PLANES * 8))):
        with pytest.raises(ValueError, match="fit"):
            copy_rows(words, ids, rows, weights, sums, is_load=True)
    with pytest.raises(ValueError, match="strides"):
        copy_rows(words, ids, _drawn((PLANES * 8, 2)).T, weights, sums, is_load=True)
