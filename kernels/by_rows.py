"""Functions of single numbers in invariant steps on a CPU.

Owns why a row is taken by itself: torch's loops leave the last numbers of a thread's share to code
without vectors, which rounds some of them otherwise (sigmoid, SiLU and GELU of torch 2.11). Which
numbers these are depends on how many rows there are. A card computes all alike.
"""

from collections.abc import Callable

import torch
from torch import Tensor


def by_rows(function: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """`function` of x [T, columns], on a CPU of one row after the other."""
    if x.device.type != "cpu" or not x.shape[0]:
        return function(x)
    return torch.stack([function(row) for row in x])
