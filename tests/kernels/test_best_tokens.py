"""The best token and its probability, at sizes that fit no tile."""

import pytest
import torch

from kernels.sample import best, best_tokens, reference


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize(("rows", "vocab"), [(3, 151), (2, 9001), (1, 4096), (0, 7)])
def test_the_kernel_finds_what_the_reference_finds(
    rows: int, vocab: int, dtype: torch.dtype, device: torch.device
) -> None:
    generator = torch.Generator().manual_seed(vocab)
    logits = (4 * torch.randn(rows, vocab, generator=generator)).to(dtype)
    ids, probabilities = best.best_tokens(logits.to(device))
    wanted = logits.float().softmax(-1).max(-1)
    assert ids.tolist() == logits.float().argmax(-1).tolist()
    torch.testing.assert_close(probabilities.cpu(), wanted.values, atol=1e-5, rtol=1e-4)


def test_equal_and_broken_rows_have_an_id(device: torch.device) -> None:
    """The first of equals; of rows with NaN, infinities or nothing one that is there."""
    logits = torch.zeros(5, 5000)
    logits[0, 4999] = logits[0, 4097] = 1.0
    logits[1, 5] = torch.nan
    logits[2] = -torch.inf
    logits[3, 4500] = torch.inf
    logits[4] = torch.nan
    for found in (best.best_tokens(logits.to(device)), reference.best_tokens(logits)):
        ids, probabilities = found
        assert ids[0] == 4097
        assert ids[3] == 4500
        assert bool(((ids >= 0) & (ids < 5000)).all())
        assert probabilities[[1, 2, 3, 4]].isnan().all()


def test_what_has_no_vocabulary_is_refused() -> None:
    with pytest.raises(ValueError, match="logits"):
        best_tokens(torch.zeros(2, 0))
