"""The gated delta rule (Yang et al., 2025): attention with a state of fixed size, not a cache.

Owns the checked entries. There are plain-torch references only: no kernel yet, and no network that
uses them.

Per value head the state S is [K, V], float32. A row decays it, corrects what it holds for the row's
key, and reads it:

    S = exp(g) S;  u = beta (v - S^T k);  S = S + k u^T;  o = S^T q

Keys and queries are brought to length 1 first, queries multiplied by K^-0.5. Value head h uses key
head h // (HV / HK).
"""

import torch
from torch import Tensor

from kernels.delta_rule import reference

__all__ = ["CHUNK", "chunked", "recurrent", "short_conv"]

CHUNK = reference.CHUNK


def recurrent(
    queries: Tensor, keys: Tensor, values: Tensor, gates: Tensor, betas: Tensor, state: Tensor
) -> tuple[Tensor, Tensor]:
    """Row by row: (out [T, HV, V] like values, the state behind them).

    queries and keys [T, HK, K], values [T, HV, V]; gates (logarithms, none above 0) and betas
    float32 [T, HV]; state float32 [HV, K, V], which stays as it is. Raises `ValueError`.
    """
    _check(queries, keys, values, gates, betas, state)
    return reference.recurrent(queries, keys, values, gates, betas, state)


def chunked(
    queries: Tensor, keys: Tensor, values: Tensor, gates: Tensor, betas: Tensor, state: Tensor
) -> tuple[Tensor, Tensor]:
    """The same in chunks of `CHUNK` rows, each a few matrix products: equal but for rounding."""
    _check(queries, keys, values, gates, betas, state)
    return reference.chunked(queries, keys, values, gates, betas, state)


def short_conv(rows: Tensor, weight: Tensor, tail: Tensor) -> tuple[Tensor, Tensor]:
    """`silu` of a causal convolution of each column by itself: (rows [T, C], the new tail).

    rows [T, C]; weight [C, width], its last column meets the current row; tail [width - 1, C], the
    rows ahead of these, oldest first, as they came in. Raises `ValueError`.
    """
    width = weight.shape[1]
    if weight.shape[0] != rows.shape[1] or tail.shape != (width - 1, rows.shape[1]):
        raise ValueError(
            f"rows {tuple(rows.shape)}, weight {tuple(weight.shape)}, tail {tuple(tail.shape)}"
        )
    return reference.short_conv(rows, weight, tail)


def _check(
    queries: Tensor, keys: Tensor, values: Tensor, gates: Tensor, betas: Tensor, state: Tensor
) -> None:
    num_rows, num_heads, width = values.shape
    if queries.shape != keys.shape or keys.shape[0] != num_rows or num_heads % keys.shape[1]:
        raise ValueError(
            f"queries {tuple(queries.shape)}, keys {tuple(keys.shape)} for {num_heads}"
        )
    if gates.shape != (num_rows, num_heads) or betas.shape != gates.shape:
        raise ValueError(f"gates {tuple(gates.shape)}, betas {tuple(betas.shape)}")
    if state.shape != (num_heads, keys.shape[2], width) or state.dtype != torch.float32:
        raise ValueError(f"state {tuple(state.shape)} {state.dtype}")
