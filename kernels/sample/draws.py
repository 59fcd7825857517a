"""How rows are drawn.

Owns the arguments of a draw. Must not know how it is made.
"""

from dataclasses import dataclass

from torch import Tensor


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
    """As `Draw`, in tensors that keep their place from step to step; every tensor is [rows].

    seeds int64, temperature float32 (0: greedy), top_k int32, top_p and min_p float32. Without
    `filtered` the filters are not read.
    """

    seeds: Tensor
    temperature: Tensor
    top_k: Tensor
    top_p: Tensor
    min_p: Tensor
    filtered: bool
