"""Tokens that a grammar forbids, taken out of rows of logits.

Owns the checked entry. Must not know grammars.
"""

import torch
from torch import Tensor

from kernels.choose import uses_triton
from kernels.token_mask import reference

__all__ = ["WORD_BITS", "mask_tokens", "num_words"]

WORD_BITS = 32


def num_words(vocab_size: int) -> int:
    """Words of int32 for a bit of each token; token i is bit i % 32 of word i // 32."""
    return -(-vocab_size // WORD_BITS)


def mask_tokens(logits: Tensor, masks: Tensor) -> None:
    """Set to -inf, in place, the logits of tokens whose bits are 0.

    logits float32 [rows, vocab], masks int32 [rows, num_words(vocab)], both contiguous. Bits past
    the vocabulary are not read. Raises `ValueError`.
    """
    if logits.dim() != 2 or logits.dtype != torch.float32:
        raise ValueError(f"logits {tuple(logits.shape)} {logits.dtype}")
    wanted = logits.shape[0], num_words(logits.shape[1])
    if masks.shape != wanted or masks.dtype != torch.int32:
        raise ValueError(f"masks {tuple(masks.shape)} {masks.dtype}, not {wanted} of int32")
    if not logits.shape[0]:
        return
    if uses_triton(logits):
        from kernels.token_mask import kernel

        kernel.mask_tokens(logits, masks)
    else:
        reference.mask_tokens(logits, masks)
