"""Draws follow the distribution that the parameters describe."""

import pytest
import torch

from kernels.sample import Draw, greedy
from kernels.sample.reference import sample

NUM_DRAWS = 20_000
LOGITS = torch.tensor([2.0, 1.0, 0.5, 0.0, -1.0, -3.0, 0.7])

# Chi-square, 6 degrees of freedom, p = 1e-5. The noise is fixed, so the outcome is too.
CHI_SQUARE_LIMIT = 34.0


def _draw(
    logits: torch.Tensor, num_draws: int = NUM_DRAWS, *, temperature: float = 1.0, **filters: float
) -> torch.Tensor:
    dtypes = {"top_k": torch.int64}
    rows = {
        name: torch.full((num_draws,), value, dtype=dtypes.get(name, torch.float32))
        for name, value in filters.items()
    }
    draw = Draw(
        seeds=torch.arange(num_draws) * 7919,
        temperature=torch.full((num_draws,), temperature),
        **rows,
    )
    positions = torch.arange(num_draws) % 97
    return sample(logits.expand(num_draws, -1).contiguous(), draw, positions)


def _chi_square(ids: torch.Tensor, expected: torch.Tensor) -> float:
    counts = ids.bincount(minlength=len(expected)).double()
    assert counts[expected == 0].sum() == 0
    wanted = expected[expected > 0].double() * len(ids)
    return float(((counts[expected > 0] - wanted) ** 2 / wanted).sum())


@pytest.mark.parametrize("temperature", [0.6, 1.0, 1.7])
def test_draws_follow_the_softmax(temperature: float) -> None:
    """Frequencies match softmax(logits / temperature) by a chi-square test."""
    ids = _draw(LOGITS, temperature=temperature)
    assert _chi_square(ids, (LOGITS / temperature).softmax(0)) < CHI_SQUARE_LIMIT


@pytest.mark.parametrize(
    ("filters", "kept"),
    [
        ({"top_k": 3}, [0, 1, 6]),
        ({"top_p": 0.7}, [0, 1, 6]),
        ({"min_p": 0.25}, [0, 1, 6]),
        ({"top_k": 4, "top_p": 0.85}, [0, 1, 6]),
        ({"top_k": 0, "top_p": 1.0, "min_p": 0.0}, [0, 1, 2, 3, 4, 5, 6]),
        ({"top_p": 0.0}, [0]),
        ({"top_k": 1}, [0]),
    ],
)
def test_filters_keep_the_best_and_renormalise(filters: dict[str, float], kept: list[int]) -> None:
    """Filtered tokens never come; the kept ones keep their proportions."""
    expected = torch.zeros_like(LOGITS)
    expected[kept] = LOGITS.softmax(0)[kept]
    ids = _draw(LOGITS, **filters)
    assert _chi_square(ids, expected / expected.sum()) < CHI_SQUARE_LIMIT


def test_neutral_filters_change_no_draw() -> None:
    """A row that uses no filter draws the same token beside rows that do."""
    plain = _draw(LOGITS, 500)
    assert torch.equal(plain, _draw(LOGITS, 500, top_k=0, top_p=1.0, min_p=0.0))


def test_a_draw_depends_on_its_own_row_only() -> None:
    """The same seed and position draw the same token alone and in any batch."""
    logits = torch.randn(9, 33, generator=torch.Generator().manual_seed(1))
    seeds, positions = torch.arange(9) + 2**40, torch.arange(9) * 31
    together = sample(logits, Draw(seeds, torch.ones(9)), positions)
    for row in range(9):
        one = slice(row, row + 1)
        alone = sample(logits[one], Draw(seeds[one], torch.ones(1)), positions[one])
        assert alone[0] == together[row]


def test_greedy_takes_the_lowest_of_equals() -> None:
    """Ties are broken the same way everywhere."""
    assert greedy(torch.tensor([[0.0, 3.0, 3.0, 1.0]])).tolist() == [1]
