"""Masks on the card take out what the definition takes out, and nothing else."""

import pytest
import torch

from kernels.token_mask import kernel, mask_tokens, num_words

INF = float("inf")


def _masks(num_rows: int, vocab_size: int) -> torch.Tensor:
    """Random bits; the first row allows all, the second nothing, bits past the end included."""
    masks = torch.randint(-(2**31), 2**31, (num_rows, num_words(vocab_size)), dtype=torch.int64)
    masks[0] = -1
    if num_rows > 1:
        masks[1] = 0
    return masks.int()


@pytest.mark.parametrize(
    ("num_rows", "vocab_size"), [(1, 1), (2, 31), (3, 32), (3, 33), (4, 1000), (2, 4099)]
)
def test_the_kernel_equals_the_reference(
    num_rows: int, vocab_size: int, device: torch.device
) -> None:
    """Over tiles and words that do not fit; what is allowed keeps every bit, NaN too."""
    logits = torch.randn(num_rows, vocab_size)
    logits[0, 0] = float("nan")
    masks = _masks(num_rows, vocab_size)
    expected = logits.clone()
    mask_tokens(expected, masks)
    there = logits.to(device)
    kernel.mask_tokens(there, masks.to(device))
    assert torch.equal(there.cpu().view(torch.int32), expected.view(torch.int32))


def test_each_bit_is_its_token() -> None:
    """Bit i % 32 of word i // 32, the sign bit among them."""
    for token_id in (0, 1, 31, 32, 63, 69):
        masks = torch.zeros(1, 3, dtype=torch.int64)
        masks[0, token_id // 32] = 1 << (token_id % 32)
        logits = torch.zeros(1, 70)
        mask_tokens(logits, torch.where(masks >= 2**31, masks - 2**32, masks).int())
        assert (logits[0] == 0.0).nonzero().flatten().tolist() == [token_id]
        assert (logits == -INF).sum() == 69


@pytest.mark.parametrize(
    ("logits", "masks"),
    [
        (torch.zeros(2, 70), torch.zeros(2, 2, dtype=torch.int32)),
        (torch.zeros(2, 70), torch.zeros(1, 3, dtype=torch.int32)),
        (torch.zeros(2, 70), torch.zeros(2, 3, dtype=torch.int64)),
        (torch.zeros(2, 70, dtype=torch.float16), torch.zeros(2, 3, dtype=torch.int32)),
    ],
)
def test_wrong_shapes_are_refused(logits: torch.Tensor, masks: torch.Tensor) -> None:
    """Wrong shapes are refused before a kernel reads past them."""
    with pytest.raises(ValueError, match=r"masks|logits"):
        mask_tokens(logits, masks)
