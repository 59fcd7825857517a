"""Plain torch sampling: the CPU path, the definition of a draw and its arguments.

The Gumbel noise of a uniform u is -log(-log(u)), calculated in float64 and rounded to float32:
libraries differ in the last bit of a logarithm, and after the rounding they agree but for one
number in 10**8. A score is float32(logit / temperature) + noise, and the lowest id of equal scores
wins.
"""

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


@dataclass(frozen=True, slots=True)
class Draws:
    """Like `Draw`, in tensors that keep their addresses from step to step; every tensor is [rows].

    seeds int64, temperature float32 (0: greedy), top_k int32, top_p and min_p float32. Without
    `filtered` the filters are not read.
    """

    seeds: Tensor
    temperature: Tensor
    top_k: Tensor
    top_p: Tensor
    min_p: Tensor
    filtered: bool


def greedy(logits: Tensor) -> Tensor:
    """The best token of each row, int64 [rows]; the lowest id of equals."""
    return logits.argmax(dim=-1)


def sample(logits: Tensor, draw: Draw, positions: Tensor) -> Tensor:
    """int64 [rows], drawn as `pick` draws, of logits [rows, vocab] float32."""
    scaled = logits / draw.temperature.unsqueeze(1)
    noise = uniform_noise(draw.seeds, positions, logits.shape[1])
    gumbel = noise.double().log_().neg_().log_().neg_().float()
    if draw.top_k is not None or draw.top_p is not None or draw.min_p is not None:
        ids = logits.argsort(dim=-1, descending=True, stable=True)
        kept = _kept(scaled.gather(1, ids), draw)
        scaled.masked_fill_(~torch.empty_like(kept).scatter_(1, ids, kept), float("-inf"))
    return greedy(gumbel.add_(scaled))


def pick(logits: Tensor, draws: Draws, positions: Tensor) -> Tensor:
    """See `kernels.sample.pick`."""
    logits = logits.float()
    ids = greedy(logits)
    # Noise costs more than all else, so only the rows that use it have it made.
    drawn = draws.temperature.nonzero().squeeze(1)
    if drawn.shape[0]:
        draw = Draw(
            seeds=draws.seeds[drawn],
            temperature=draws.temperature[drawn],
            top_k=draws.top_k[drawn] if draws.filtered else None,
            top_p=draws.top_p[drawn] if draws.filtered else None,
            min_p=draws.min_p[drawn] if draws.filtered else None,
        )
        ids[drawn] = sample(logits[drawn], draw, positions[drawn].long())
    temperature = torch.where(draws.temperature > 0.0, draws.temperature, 1.0)
    chosen = logits.gather(1, ids.unsqueeze(1)).squeeze(1) / temperature
    # Sorting and comparing put NaN and infinity first, so one that is there is the one chosen.
    return torch.where(chosen.isfinite(), ids, -1)


def best_tokens(logits: Tensor) -> tuple[Tensor, Tensor]:
    """See `kernels.sample.best_tokens`."""
    wide = logits.float()
    top, ids = torch.where(wide.isnan(), -torch.inf, wide).max(-1)
    return ids, (top - wide.logsumexp(-1)).exp()


def logprobs(logits: Tensor, ids: Tensor, num_top: int) -> tuple[Tensor, Tensor, Tensor]:
    """See `kernels.sample.logprobs`."""
    scores = logits.log_softmax(dim=-1, dtype=torch.float32)
    own = scores.gather(1, ids.clamp(min=0).unsqueeze(1)).squeeze(1)
    values, top = scores.topk(min(num_top, scores.shape[1]), dim=-1)
    return own, values, top


def _kept(values: Tensor, draw: Draw) -> Tensor:
    """Which of the descending `values` [rows, vocab] survive the filters, bool."""
    kept = torch.ones_like(values, dtype=torch.bool)
    if draw.top_k is not None:
        ranks = torch.arange(values.shape[1], device=values.device)
        limits = torch.where(draw.top_k > 0, draw.top_k, values.shape[1])
        kept &= ranks < limits.unsqueeze(1)
    if draw.top_p is not None:
        # In float64: over a large vocabulary the float32 sum is off by more than a token's share.
        shares = values.double().masked_fill(~kept, float("-inf")).softmax(dim=-1)
        before = shares.cumsum(dim=-1) - shares
        # Rounding can bring the sum of all shares past 1: a row without top_p must keep all.
        top_p = draw.top_p.unsqueeze(1)
        kept &= (before < top_p) | (top_p >= 1.0)
    if draw.min_p is not None:
        kept &= (values - values[:, :1]).exp() >= draw.min_p.unsqueeze(1)
    kept[:, 0] = True
    return kept
