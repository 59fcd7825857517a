"""Philox4x32-10 in torch integer operations; the CPU path.

Words are 32-bit values held in int64. The product of two words may pass 2**63: it wraps, and its
two halves are masked out, so they are right all the same.
"""

from typing import Final

import torch
from torch import Tensor

ROUNDS: Final = 10
WORD: Final = 0xFFFFFFFF
MULTIPLIERS: Final = (0xD2511F53, 0xCD9E8D57)
KEY_STEPS: Final = (0x9E3779B9, 0xBB67AE85)

Words4 = tuple[Tensor, Tensor, Tensor, Tensor]


def philox4x32(counter: Words4, key: tuple[Tensor, Tensor]) -> Words4:
    """Four random words for each counter; all int64 tensors of broadcastable shapes."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(ROUNDS):
        product0, product2 = c0 * MULTIPLIERS[0], c2 * MULTIPLIERS[1]
        c0, c2 = _high(product2) ^ c1 ^ k0, _high(product0) ^ c3 ^ k1
        c1, c3 = product2 & WORD, product0 & WORD
        k0, k1 = (k0 + KEY_STEPS[0]) & WORD, (k1 + KEY_STEPS[1]) & WORD
    return c0, c1, c2, c3


def to_uniform(words: Tensor) -> Tensor:
    """float32 in (0, 1), symmetric and exact: 23 bits and a half never round to 0 or 1."""
    return ((words >> 9).float() + 0.5) * 2.0**-23


def uniform_noise(seeds: Tensor, positions: Tensor, num_columns: int) -> Tensor:
    """See `kernels.philox.uniform_noise`."""
    groups = torch.arange((num_columns + 3) // 4, device=seeds.device).unsqueeze(0)
    seeds, zero = seeds.unsqueeze(1), torch.zeros_like(seeds).unsqueeze(1)
    counter = (groups, positions.unsqueeze(1) & WORD, zero, zero)
    words = philox4x32(counter, (seeds & WORD, (seeds >> 32) & WORD))
    return to_uniform(torch.stack(words, dim=-1)).flatten(1)[:, :num_columns]


def _high(product: Tensor) -> Tensor:
    return (product >> 32) & WORD
