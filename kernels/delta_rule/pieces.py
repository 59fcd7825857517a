"""Triton pieces that the kernels of the delta rule share: a row's step, gates, unit vectors, the
gated norm, and the tile of a state whose sums over keys stay within a warp.

Owns how a number is computed where decodes, prompts and drafts must agree. Must not know launches.
Each kernel has a convolution of its own: a row's window lies across threads, in a tuple of columns,
or in runs of rows, and sums of another form would be exchanges between threads.

A tile of a state is [K, V], or dealt to lanes: [K / LANES, V / COLUMNS, LANES, COLUMNS], where
LANES threads of a warp share columns.
"""

from typing import Final

import triton
import triton.language as tl

LANES_FIRST: Final = tuple(map(int, triton.__version__.split(".")[:2])) < (3, 7)
"""Whether LANES are the dealt tile's first dimension and K / LANES its third. Triton deals a tile
whose numbers lie side by side only in the last dimension to threads from the first dimension on, up
to 3.6, and from the last but one, since 3.7. The other way sums would be exchanges of whole tiles.
"""


@triton.jit
def spread(x, FIRST: tl.constexpr):
    """Something of each key, [K / LANES, LANES], along a dealt tile."""
    if FIRST:
        x = tl.trans(x)
    return x[:, None, :, None]


@triton.jit
def summed(x, FIRST: tl.constexpr):
    """A tile's sums over keys, [V] or [V / COLUMNS, COLUMNS]: of a dealt tile within a thread, then
    across LANES.
    """
    if len(x.shape) == 2:
        return tl.sum(x, 0)
    else:  # noqa: RET505 - what follows a return is compiled all the same
        return tl.sum(tl.sum(x, 2 if FIRST else 0), 0 if FIRST else 1)


@triton.jit
def stepped(held, query, key, value, both, beta, kept, FIRST: tl.constexpr):
    """A row's step of the rule: the state behind it, and what it reads; all float32.

    `held` is a tile of the state, with query and key [K] along it; `value`, and what is read, are
    [V] or [V / COLUMNS, COLUMNS]; `both` = query . key; `kept` is the share of the state that is
    kept, exp(g).
    """
    held *= kept
    known, read = summed(held * key, FIRST), summed(held * query, FIRST)
    update = beta * (value - known)
    along = update[None, :] if len(held.shape) == 2 else update[None, :, None, :]
    # S^T q before the update, which adds u (k . q). Not left to the compiler: each row's rounding
    # must be the same.
    return tl.fma(key, along, held), tl.fma(update, both, read)


@triton.jit
def log_kept(a, decay, dt_bias):
    """`-exp(decay) softplus(a + dt_bias)`, float32, none above 0; softplus is linear past 20."""
    x = a + dt_bias
    soft = tl.where(x > 20.0, x, tl.log(1.0 + tl.exp(tl.minimum(x, 20.0))))
    return -tl.exp(decay) * soft


@triton.jit
def sigmoid(x):
    """The sigmoid of float32. A root is one instruction where a division is five, and base 2
    one of four.
    """
    root = tl.rsqrt(1.0 + tl.exp2(x * -1.4426950408889634))
    return root * root


@triton.jit
def silu(x, dtype: tl.constexpr):
    """x sigmoid(x) of float32, rounded to `dtype`: what ends a convolution."""
    return (x * sigmoid(x)).to(dtype)


@triton.jit
def unit_rows(x):
    """Rows [R, K], float32, of length 1: beside the sum of squares stands 1e-6."""
    return x * tl.rsqrt(tl.sum(x * x, 1) + 1e-6)[:, None]


@triton.jit
def gated(read, scale, weight, z, ROUNDS: tl.constexpr, dtype: tl.constexpr):
    """What was read of heads, in any shape, times its norm's `scale` and `weight` and `silu` of z;
    all float32, rounded to `dtype` where the reference rounds. `ROUNDS`: the norm's weights have
    that dtype too.
    """
    weighed = (read * scale).to(dtype).to(tl.float32) * weight
    if ROUNDS:
        weighed = weighed.to(dtype).to(tl.float32)
    return (weighed * z * sigmoid(z)).to(dtype)


@triton.jit
def gated_rows(read, z, weight, eps, V: tl.constexpr, ROUNDS: tl.constexpr, dtype: tl.constexpr):
    """`gated` of rows [R, BLOCK_V], whose columns from V on are 0."""
    read = read.to(dtype).to(tl.float32)
    scale = tl.rsqrt(tl.sum(read * read, 1) / V + eps)[:, None]
    return gated(read, scale, weight, z, ROUNDS, dtype)


@triton.jit
def head_columns(part, HK: tl.constexpr, K: tl.constexpr, V: tl.constexpr, BLOCK: tl.constexpr):
    """Where the columns of a head lie in a row, [BLOCK], which of them there are, and whether it is
    of queries or keys: of 2 HK + HV heads `part` counts queries, then keys, then values.
    """
    is_key, own = part < 2 * HK, tl.arange(0, BLOCK)
    first = tl.where(is_key, part * K, 2 * HK * K + (part - 2 * HK) * V)
    return first + own, own < tl.where(is_key, K, V), is_key
