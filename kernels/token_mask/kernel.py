"""Triton masking: a program per tile of the vocabulary and row.

Owns the launch.
"""

from functools import cache
from typing import Final

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.choose import has_pdl
from kernels.launch import Launch

TILE: Final = 1024
_NUM_WARPS: Final = 4


@triton.jit
def _mask_tokens_kernel(
    logits_ptr,  # float32 [T, vocab_size], changed in place
    masks_ptr,  # int32 [T, num_words], a bit a token: 0 is forbidden
    vocab_size,  # tokens
    num_words,  # words of a row's mask
    TILE: tl.constexpr,  # tokens of a program
    PDL: tl.constexpr,  # whether it may start while the kernel ahead ends
):
    tile, row = tl.program_id(0), tl.program_id(1).to(tl.int64)
    if PDL:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    tokens = tile * TILE + tl.arange(0, TILE)
    inside = tokens < vocab_size
    # 32 threads read each word: it comes from the cache.
    words = tl.load(masks_ptr + row * num_words + tokens // 32, mask=inside, other=-1)
    forbidden = inside & (((words >> (tokens % 32)) & 1) == 0)
    at = logits_ptr + row * vocab_size + tokens
    tl.store(at, tl.full((TILE,), float("-inf"), tl.float32), mask=forbidden)


def mask_tokens(logits: Tensor, masks: Tensor) -> None:
    """See `kernels.token_mask.mask_tokens`."""
    num_rows, vocab_size = logits.shape
    launch = _mask_launch(logits.device, vocab_size, masks.shape[1])
    launch((triton.cdiv(vocab_size, TILE), num_rows, 1), (logits, masks))


@cache
def _mask_launch(device: torch.device, vocab_size: int, num_words: int) -> Launch:
    pdl = has_pdl(device)
    constants = {"vocab_size": vocab_size, "num_words": num_words, "TILE": TILE, "PDL": pdl}
    return Launch(_mask_tokens_kernel, constants, num_warps=_NUM_WARPS)
