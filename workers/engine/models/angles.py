"""Cosines and sines of every position, as the attention kernels read them, and scales of queries.

Owns the formulas of the rotations. Must not know config.json, nor layers.

A rotation of some of a head's dimensions pairs i with i + dim / 2, the kernels pair i with
i + D / 2. So the rows of queries and keys are put in another order once, at load (`turned_order`):
the pairs come first in both halves of a head, and the rest is turned by nothing. Scores are sums
over a head's dimensions and do not change.
"""

import math

import torch
from torch import Tensor

from kernels.attention import rope_angles
from workers.engine.models.description import Rope, RopeKind


def cos_sin(rope: Rope, head_dim: int, window: int) -> Tensor:
    """float32 [window, head_dim]: the cosines of head_dim / 2 angles, then their sines."""
    cos, sin = rope_angles(torch.arange(window), inverse_frequencies(rope, window))
    rest = (head_dim - rope.dim) // 2
    cos = torch.nn.functional.pad(cos * rope.magnitude, (0, rest), value=1.0)
    sin = torch.nn.functional.pad(sin * rope.magnitude, (0, rest))
    return torch.cat((cos, sin), dim=1)


def query_scales(rope: Rope, window: int) -> Tensor | None:
    """float32 [window, 1]: what the queries of each position are multiplied by; None for a rotation
    whose queries stay as they are.
    """
    if not rope.growth:
        return None
    windows = torch.arange(window).div(rope.original, rounding_mode="floor")
    return (1 + rope.growth * torch.log1p(windows.float())).unsqueeze(1)


def turned_order(rope: Rope, head_dim: int) -> Tensor | None:
    """The order of a head's rows, int64 [head_dim], as `cos_sin` expects it; None: as it is."""
    if rope.dim == head_dim:
        return None
    half, rest = rope.dim // 2, (head_dim - rope.dim) // 2
    rows = torch.arange(head_dim)
    first, second, third, fourth = torch.split(rows, [half, half, rest, rest])
    return torch.cat((first, third, second, fourth))


def inverse_frequencies(rope: Rope, window: int) -> Tensor:
    """float32 [dim / 2] of an engine whose sequences have up to `window` tokens."""
    steps = torch.arange(0, rope.dim, 2, dtype=torch.int64).float() / rope.dim
    powers = rope.theta**steps
    if rope.kind is RopeKind.PROPORTIONAL:
        inverse = 1.0 / powers / rope.factor
        inverse[rope.pairs :] = 0.0
        return inverse
    if rope.kind is RopeKind.LONG:
        # One set for all, because cached keys are turned once.
        divisors = rope.long_divisors if window > rope.original else rope.divisors
        return 1.0 / (torch.tensor(divisors) * powers)
    inverse = 1.0 / powers
    if rope.kind is RopeKind.LINEAR:
        return inverse / rope.factor
    if rope.kind is RopeKind.LLAMA3:
        return _llama3(rope, inverse)
    if rope.kind is RopeKind.YARN:
        return _yarn(rope, powers)
    return inverse


def _llama3(rope: Rope, inverse: Tensor) -> Tensor:
    """Long waves are stretched, short ones stay; between them both are blended (Llama 3.1)."""
    turns = rope.original * inverse / (2 * math.pi)
    share = ((turns - rope.low) / (rope.high - rope.low)).clamp(0.0, 1.0)
    return (1 - share) * inverse / rope.factor + share * inverse


def _yarn(rope: Rope, powers: Tensor) -> Tensor:
    """Between the pairs that turn `high` and `low` times in the original window, a ramp leads from
    frequencies as they are to those divided by the factor (Peng et al., 2023).
    """
    first, last = _pair_of(rope, rope.high), _pair_of(rope, rope.low)
    if rope.truncate:
        first, last = math.floor(first), math.ceil(last)
    first, last = max(first, 0), min(last, rope.dim - 1)
    if first == last:
        last += 0.001  # no division by zero
    ramp = (torch.arange(rope.dim // 2).float() - first) / (last - first)
    kept = 1 - ramp.clamp(0.0, 1.0)
    return 1.0 / (rope.factor * powers) * (1 - kept) + 1.0 / powers * kept


def _pair_of(rope: Rope, turns: float) -> float:
    """The pair, as a number, that turns so often in the original window."""
    waves = rope.original / (turns * 2 * math.pi)
    return rope.dim * math.log(waves) / (2 * math.log(rope.theta))
