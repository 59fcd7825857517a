"""Triton pieces that the kernels of the delta rule share: gates, unit vectors, the gated norm, and
the tile of a state whose sums over keys stay within a warp.

Owns how a number is computed where decodes and prompts must agree. Must not know launches.

Such a tile is [K / LANES, V / COLUMNS, LANES, COLUMNS]: LANES threads of a warp share columns.
"""

from typing import Final

import triton
import triton.language as tl

LANES_FIRST: Final = tuple(map(int, triton.__version__.split(".")[:2])) < (3, 7)
"""Whether LANES are the tile's first dimension and K / LANES its third. Triton deals a tile whose
numbers lie side by side only in the last dimension to threads from the first dimension on, up to
3.6, and from the last but one, since 3.7. The other way sums would be exchanges of whole tiles.
"""


@triton.jit
def spread(x, FIRST: tl.constexpr):
    """Something of each key, [K / LANES, LANES], along a state's tile."""
    if FIRST:
        x = tl.trans(x)
    return x[:, None, :, None]


@triton.jit
def summed(x, FIRST: tl.constexpr):
    """A tile's sums over keys, [V / COLUMNS, COLUMNS]: within a thread, then across LANES."""
    return tl.sum(tl.sum(x, 2 if FIRST else 0), 0 if FIRST else 1)


@triton.jit
def log_kept(a, decay, dt_bias):
    """`-exp(decay) softplus(a + dt_bias)`, float32, none above 0; softplus is linear past 20."""
    x = a + dt_bias
    soft = tl.where(x > 20.0, x, tl.log(1.0 + tl.exp(tl.minimum(x, 20.0))))
    return -tl.exp(decay) * soft


@triton.jit
def sigmoid(x):
    """Of float32. A root is one instruction where a division is five, and base 2 one of four."""
    root = tl.rsqrt(1.0 + tl.exp2(x * -1.4426950408889634))
    return root * root


@triton.jit
def unit_rows(x):
    """Rows [R, K], float32, of length 1: beside the sum of squares stands 1e-6."""
    return x * tl.rsqrt(tl.sum(x * x, 1) + 1e-6)[:, None]


@triton.jit
def gated(out, z, weight, eps, V: tl.constexpr, ROUNDS: tl.constexpr, dtype: tl.constexpr):
    """Rows [R, BLOCK_V] normed, weighed and times `silu` of z; all float32, rounded to `dtype`
    where the reference rounds. `ROUNDS`: the norm's weights have that dtype too. Columns from V on
    are 0.
    """
    out = out.to(dtype).to(tl.float32)
    normed = out * tl.rsqrt(tl.sum(out * out, 1) / V + eps)[:, None]
    weighed = normed.to(dtype).to(tl.float32) * weight
    if ROUNDS:
        weighed = weighed.to(dtype).to(tl.float32)
    return (weighed * z * sigmoid(z)).to(dtype)
