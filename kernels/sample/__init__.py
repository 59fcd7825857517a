"""Drawing the next token from logits.

Owns the checked entry and the arguments of a draw. A fused kernel for CUDA tensors joins here.
"""

from torch import Tensor

from kernels.sample import reference
from kernels.sample.reference import Draw, greedy

__all__ = ["Draw", "greedy", "sample"]


def sample(logits: Tensor, draw: Draw, positions: Tensor) -> Tensor:
    """One token id per row, int64 [rows], of logits [rows, vocab] float32.

    Gumbel-max over the kept part of softmax(logits / temperature): exact sampling from one
    uniform per (seed, position, token), so a row's token depends on nothing but its own row.
    positions [rows] int64 are those of the sampled tokens. Raises `ValueError`.
    """
    if logits.dim() != 2 or positions.shape != logits.shape[:1]:
        raise ValueError(f"logits {tuple(logits.shape)}, positions {tuple(positions.shape)}")
    if draw.temperature.shape != positions.shape or draw.seeds.shape != positions.shape:
        raise ValueError(f"draw of {draw.seeds.shape[0]} rows for {logits.shape[0]}")
    return reference.sample(logits, draw, positions)
