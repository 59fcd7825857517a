"""Plain torch sampling; the CPU path."""

from dataclasses import dataclass

import torch
from torch import Tensor

from kernels.philox import uniform_noise


@dataclass(frozen=True, slots=True)
class Draw:
    """How each row is drawn; every tensor is [rows].

    seeds int64, temperature float32 > 0. The filters are None if no row uses them: top_k int64
    (0: all), top_p float32 (1: all), min_p float32 (0: all). top_k comes first, top_p counts
    what it kept, min_p is relative to the best token. The best token is always kept.
    """

    seeds: Tensor
    temperature: Tensor
    top_k: Tensor | None = None
    top_p: Tensor | None = None
    min_p: Tensor | None = None


def greedy(logits: Tensor) -> Tensor:
    """The best token of each row, int64 [rows]; the lowest id of equals."""
    return logits.argmax(dim=-1)


def sample(logits: Tensor, draw: Draw, positions: Tensor) -> Tensor:
    """See `kernels.sample.sample`."""
    scaled = logits / draw.temperature.unsqueeze(1)
    noise = uniform_noise(draw.seeds, positions, logits.shape[1])
    gumbel = noise.log_().neg_().log_().neg_()
    if draw.top_k is None and draw.top_p is None and draw.min_p is None:
        return greedy(gumbel.add_(scaled))
    values, ids = scaled.sort(dim=-1, descending=True, stable=True)
    values.masked_fill_(~_kept(values, draw), float("-inf"))
    best = greedy(values.add_(gumbel.gather(1, ids)))
    return ids.gather(1, best.unsqueeze(1)).squeeze(1)


def _kept(values: Tensor, draw: Draw) -> Tensor:
    """Which of the descending `values` [rows, vocab] survive the filters, bool."""
    kept = torch.ones_like(values, dtype=torch.bool)
    if draw.top_k is not None:
        ranks = torch.arange(values.shape[1], device=values.device)
        limits = torch.where(draw.top_k > 0, draw.top_k, values.shape[1])
        kept &= ranks < limits.unsqueeze(1)
    if draw.top_p is not None:
        shares = values.masked_fill(~kept, float("-inf")).softmax(dim=-1)
        before = shares.cumsum(dim=-1) - shares
        # Rounding can bring the sum of all shares past 1: a row without top_p must keep all.
        top_p = draw.top_p.unsqueeze(1)
        kept &= (before < top_p) | (top_p >= 1.0)
    if draw.min_p is not None:
        kept &= (values - values[:, :1]).exp() >= draw.min_p.unsqueeze(1)
    kept[:, 0] = True
    return kept
