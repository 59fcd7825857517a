"""The Triton sampler draws the very tokens that the reference draws."""

import pytest
import torch

from kernels.philox import uniform_noise
from kernels.sample import Draws, kernel, logprobs, pick, reference


def make_draws(
    num_rows: int, device: torch.device, *, temperature: float | None = None, filtered: bool = False
) -> Draws:
    """Rows of mixed temperatures, a third of them greedy, unless one is given; no filters."""
    generator = torch.Generator().manual_seed(num_rows)
    seeds = torch.randint(-(2**63), 2**63 - 1, (num_rows,), generator=generator)
    rows = torch.arange(num_rows)
    mixed = torch.tensor([0.0, 0.6, 1.7])[rows % 3]
    chosen = mixed if temperature is None else torch.full((num_rows,), temperature)
    return Draws(
        seeds=seeds.to(device),
        temperature=chosen.to(device),
        top_k=torch.zeros(num_rows, dtype=torch.int32, device=device),
        top_p=torch.ones(num_rows, device=device),
        min_p=torch.zeros(num_rows, device=device),
        filtered=filtered,
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize(
    ("num_rows", "vocab_size", "spread"),
    [(1, 1, 1.0), (7, 5, 2.0), (6, 4096, 4.0), (3, 5003, 0.0), (3, 5003, 1.0), (3, 9001, 12.0)],
)
def test_tokens_equal_the_reference(
    num_rows: int, vocab_size: int, spread: float, dtype: torch.dtype, device: torch.device
) -> None:
    """Greedy and drawn rows together, flat and sharp, with many equal logits (16-bit, or all 0)."""
    logits = (torch.randn(num_rows, vocab_size) * spread).to(dtype).to(device)
    draws = make_draws(num_rows, device)
    positions = torch.arange(num_rows, dtype=torch.int32, device=device) * 1000
    ids = kernel.pick(logits, draws, positions)
    assert torch.equal(ids, reference.pick(logits, draws, positions))


def test_the_whole_vocabulary_of_a_real_model(device: torch.device) -> None:
    """151,936 tokens: one drawn row and one greedy."""
    logits = torch.randn(2, 151_936, device=device).bfloat16()
    draws = make_draws(2, device)
    positions = torch.tensor([3, 2**17], device=device)
    ids = kernel.pick(logits, draws, positions, tile=16_384)
    assert torch.equal(ids, reference.pick(logits, draws, positions))


def test_many_seeds_draw_the_same(device: torch.device) -> None:
    """Many draws of one flat row: the noise is the reference's, to the last candidate."""
    num_rows = 60
    logits = torch.randn(67, device=device).expand(num_rows, -1).contiguous()
    draws = make_draws(num_rows, device, temperature=1.3)
    positions = torch.arange(num_rows, device=device)
    ids = kernel.pick(logits, draws, positions, tile=64)
    assert torch.equal(ids, reference.pick(logits, draws, positions))
    assert len(ids.unique()) > 10


def test_tiles_change_nothing(device: torch.device) -> None:
    """The tile is a matter of speed."""
    logits = torch.randn(3, 1000, device=device)
    draws, positions = make_draws(3, device), torch.arange(3, device=device)
    by_tile = [kernel.pick(logits, draws, positions, tile=tile) for tile in (64, 256, 4096)]
    assert torch.equal(by_tile[0], by_tile[1])
    assert torch.equal(by_tile[0], by_tile[2])


@pytest.mark.filterwarnings("ignore:invalid value encountered")
@pytest.mark.parametrize("place", [0, 700, 1499])
def test_rows_that_are_not_numbers_are_told(place: int, device: torch.device) -> None:
    """A NaN or an inf anywhere, or nothing but -inf, gives -1; some -inf is no fault."""
    logits = torch.randn(10, 1500)
    for row in (0, 1):
        logits[row, place] = torch.nan
        logits[row + 2, place] = torch.inf
    logits[4:6] = -torch.inf
    logits[6:8, : place + 1] = -torch.inf
    logits[6:8, place - 1] = 0.0
    draws, positions = make_draws(10, device), torch.arange(10, device=device)
    ids = kernel.pick(logits.to(device), draws, positions, tile=256)
    assert ids[:6].tolist() == [-1] * 6
    assert (ids[6:] >= 0).all()
    assert torch.equal(ids, reference.pick(logits.to(device), draws, positions))


def test_tokens_are_kept_for_the_next_step(device: torch.device) -> None:
    """Each id goes to its table row; rows without one change none."""
    logits = torch.randn(4, 50)
    logits[3] = torch.nan
    draws, positions = make_draws(4, device, temperature=0.0), torch.arange(4, device=device)
    rows = torch.tensor([5, -1, 0, 2], dtype=torch.int32)
    expected = torch.full((6,), 77, dtype=torch.int32)
    best = logits.argmax(dim=1)
    expected[5], expected[0], expected[2] = best[0], best[2], -1
    for choose, where in ((kernel.pick, device), (pick, torch.device("cpu"))):
        if where.type == "cpu":
            draws, positions = make_draws(4, where, temperature=0.0), positions.cpu()
        kept = torch.full((6,), 77, dtype=torch.int32, device=where)
        choose(logits.to(where), draws, positions, kept, rows.to(where))
        assert torch.equal(kept.cpu(), expected)


def test_noise_is_the_documented_one() -> None:
    """The token of a draw is the argmax of logit / temperature + Gumbel noise of the uniforms."""
    logits, draws = torch.randn(50, 300), make_draws(50, torch.device("cpu"), temperature=0.8)
    positions = torch.arange(50)
    uniforms = uniform_noise(draws.seeds, positions, 300).double()
    scores = logits.double() / 0.8 - (-uniforms.log()).log()
    assert torch.equal(pick(logits, draws, positions), scores.argmax(dim=1))


def test_log_probabilities() -> None:
    """Log-probabilities of the chosen token and of the best ones, from raw logits, never more than
    there are tokens.
    """
    logits = torch.tensor([[0.0, 2.0, 1.0], [3.0, 0.0, 0.0]]).bfloat16()
    own, values, ids = logprobs(logits, torch.tensor([2, -1]), 2)
    scores = logits.double().log_softmax(-1).float()
    torch.testing.assert_close(own, torch.stack((scores[0, 2], scores[1, 0])))
    assert ids.tolist() == [[1, 2], [0, 1]]
    torch.testing.assert_close(values, scores.gather(1, ids))
    assert logprobs(logits, torch.tensor([0, 0]), 9)[1].shape == (2, 3)


def test_arguments_that_do_not_fit_are_refused() -> None:
    """Arguments with other numbers of rows, or a memory without its rows, are errors."""
    cpu = torch.device("cpu")
    with pytest.raises(ValueError, match="draws of 2"):
        pick(torch.zeros(3, 5), make_draws(2, cpu), torch.arange(3))
    with pytest.raises(ValueError, match="positions"):
        pick(torch.zeros(3, 5), make_draws(3, cpu), torch.arange(2))
    with pytest.raises(ValueError, match="together"):
        pick(torch.zeros(3, 5), make_draws(3, cpu), torch.arange(3), torch.zeros(3))
