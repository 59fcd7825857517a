"""What DFlash 2 adds: convolutions around the branches of a block, and a walk through candidates.

Owns both computations. Must not know caches, nor which positions a block has.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from workers.engine.drafting.description import Convolution


@dataclass(frozen=True, slots=True)
class Conv:
    """A grouped dynamic convolution before and behind a branch: `base` [2, size, hidden],
    `projection` [2 x size x groups, hidden].
    """

    base: Tensor
    projection: Tensor


@dataclass(frozen=True, slots=True)
class PairScores:
    """The candidate selector: vectors [vocabulary, rank] of the token before and of the token, and
    `hidden` [rank, hidden], with which a place weighs them.
    """

    predecessors: Tensor
    successors: Tensor
    hidden: Tensor


class BranchConv:
    """The convolutions of one branch over blocks of `num_rows` rows, for its normed input `x`
    [rows, hidden].
    """

    def __init__(self, shape: Convolution, weights: Conv, x: Tensor, num_rows: int) -> None:
        groups = x.shape[1] // shape.group
        sides = (x @ weights.projection.T).view(-1, num_rows, 2, shape.size, groups)
        self._weights = weights.base + sides.repeat_interleave(shape.group, dim=-1)
        self._num_rows = num_rows

    def before(self, x: Tensor) -> Tensor:
        """The branch's input."""
        return self._apply(0, x)

    def behind(self, x: Tensor) -> Tensor:
        """The branch's output."""
        return self._apply(1, x)

    def _apply(self, side: int, x: Tensor) -> Tensor:
        """The convolution: mixes each channel with its values in earlier rows of the same block."""
        blocks = x.view(-1, self._num_rows, x.shape[1])
        weights = self._weights[:, :, side]
        out = weights[:, :, 0] * blocks
        for step in range(1, min(weights.shape[2], self._num_rows)):
            out[:, step:] += weights[:, step:, step] * blocks[:, :-step]
        return out.view_as(x)


def walk(
    pairs: PairScores, top_k: int, anchors: Tensor, hidden: Tensor, logits: Tensor
) -> tuple[Tensor, Tensor]:
    """The chosen tokens int64 [S, places], from the first place to the last, and their
    probabilities among the candidates, float32.

    anchors int64 [S]; hidden [S, places, hidden], logits [S, places, vocabulary].
    """
    unary, candidates = logits.float().topk(top_k, dim=-1)
    weighed = (hidden @ pairs.hidden.T).float()
    before, ids, confidence = anchors, [], []
    for place in range(hidden.shape[1]):
        query = pairs.predecessors[before].float() * weighed[:, place]
        successors = pairs.successors[candidates[:, place]].float()
        scores = unary[:, place] + torch.einsum("skr,sr->sk", successors, query)
        chosen = scores.softmax(-1).max(-1)
        before = candidates[:, place].gather(1, chosen.indices[:, None])[:, 0]
        ids.append(before)
        confidence.append(chosen.values)
    return torch.stack(ids, 1), torch.stack(confidence, 1)
