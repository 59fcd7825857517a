"""Plain torch gated delta rule, by rows and in chunks; what kernels must agree with.

All of it is computed in float32. Exponents are sums of gates, none above 0: a product of two
exponentials would overflow where their quotient does not.
"""

from typing import Final

import torch
import torch.nn.functional as F  # noqa: N812 - the name that torch's own documentation uses
from torch import Tensor

from kernels.delta_rule.plan import CHUNK

_EPS: Final = 1e-6
"""Added to the sum of a row's squares, not to their mean."""


def step(
    queries: Tensor, keys: Tensor, values: Tensor, gates: Tensor, betas: Tensor, held: Tensor
) -> tuple[Tensor, Tensor]:
    """A row each of n sequences, whose states are `held` [n, HV, K, V], and their new states. No
    bit of a row depends on the others: products are summed column by column.
    """
    q, k, v = _prepared(queries, keys, values)
    held = held * gates.exp()[:, :, None, None]
    update = betas[:, :, None] * (v - (held * k.unsqueeze(-1)).sum(-2))
    held = held + k.unsqueeze(-1) * update.unsqueeze(-2)
    return (held * q.unsqueeze(-1)).sum(-2).to(values.dtype), held


def chunked(
    queries: Tensor, keys: Tensor, values: Tensor, gates: Tensor, betas: Tensor, state: Tensor
) -> tuple[Tensor, Tensor]:
    """The rule in chunks of `CHUNK` rows: (out [T, HV, V] like values, the state behind them).

    queries and keys [T, HK, K], values [T, HV, V]; gates (logarithms, none above 0) and betas
    float32 [T, HV]; state float32 [HV, K, V], which stays as it is. Equal to `step` after `step`
    but for rounding. The updates u of a chunk depend on each other through a unit lower triangular
    system, which is solved for all of them at once.
    """
    q, k, v = (x.transpose(0, 1) for x in _prepared(queries, keys, values))
    parts = []
    for at in range(0, v.shape[1], CHUNK):
        rows = slice(at, at + CHUNK)
        out, state = _chunk(q[:, rows], k[:, rows], v[:, rows], gates[rows].T, betas[rows].T, state)
        parts.append(out)
    whole = torch.cat(parts, dim=1) if parts else v
    return whole.transpose(0, 1).to(values.dtype), state.clone()


def _chunk(
    q: Tensor, k: Tensor, v: Tensor, gates: Tensor, betas: Tensor, state: Tensor
) -> tuple[Tensor, Tensor]:
    """q and k [HV, C, K], v [HV, C, V], gates and betas [HV, C]."""
    total = gates.cumsum(1)
    before = torch.ones(v.shape[1], v.shape[1], dtype=torch.bool, device=v.device).tril()
    between = (total[:, :, None] - total[:, None, :]).masked_fill(~before, -torch.inf).exp()
    beta = betas[:, :, None]
    system = (beta * (k @ k.mT) * between).tril(-1)
    system.diagonal(dim1=1, dim2=2).fill_(1.0)
    past = k @ state * total.exp()[:, :, None]
    updates = torch.linalg.solve_triangular(
        system, beta * (v - past), upper=False, unitriangular=True
    )
    out = q @ state * total.exp()[:, :, None] + (q @ k.mT * between) @ updates
    left = (total[:, -1:] - total).exp()[:, :, None]
    return out, state * total[:, -1].exp()[:, None, None] + (k * left).mT @ updates


def short_conv(rows: Tensor, weight: Tensor, tail: Tensor) -> tuple[Tensor, Tensor]:
    """`silu` of a causal convolution of each column by itself: (rows [T, C], the new tail).

    rows [T, C]; weight [C, width], its last column meets the current row; tail [width - 1, C], the
    rows ahead of these, oldest first, as they came in.
    """
    whole = torch.cat((tail.to(rows.dtype), rows))
    mixed = F.conv1d(whole.T.unsqueeze(0), weight.unsqueeze(1), groups=weight.shape[0])[0].T
    return F.silu(mixed), whole[rows.shape[0] :].to(tail.dtype)


def _prepared(queries: Tensor, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Float32 [T, HV, ...], contiguous: queries and keys of length 1, queries scaled, as many as
    values. The order in which torch sums depends on strides.
    """
    group = values.shape[1] // keys.shape[1]
    q, k = (_unit(x.float().contiguous()).repeat_interleave(group, 1) for x in (queries, keys))
    return q * keys.shape[2] ** -0.5, k, values.float().contiguous()


def _unit(x: Tensor) -> Tensor:
    return x * (x.square().sum(-1, keepdim=True) + _EPS).rsqrt()
