"""Plain torch masking; the CPU path, and the definition."""

import torch
from torch import Tensor


def mask_tokens(logits: Tensor, masks: Tensor) -> None:
    """See `kernels.token_mask.mask_tokens`."""
    bits = torch.arange(32, dtype=torch.int32, device=masks.device)
    allowed = (masks.unsqueeze(-1) >> bits) & 1
    allowed = allowed.flatten(1)[:, : logits.shape[1]]
    logits.masked_fill_(allowed == 0, float("-inf"))
