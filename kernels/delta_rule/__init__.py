"""The gated delta rule (Yang et al., 2025): attention with a state of fixed size, not a cache.

Owns the checked entries: `mix` and `verify` of a layer's rows. The rule by itself is in
`reference.py`.

Per value head the state S is [K, V], float32. A row decays it, corrects what it holds for the row's
key, and reads it:

    S = exp(g) S;  u = beta (v - S^T k);  S = S + k u^T;  o = S^T q

Keys and queries are brought to length 1 first, queries multiplied by K^-0.5. Value head h uses key
head h // (HV / HK). Queries, keys and values went through a causal convolution, column by column,
and `silu`; beta = sigmoid(b), g = -exp(decay) softplus(a + dt_bias).
"""

import torch
from torch import Tensor

from kernels.choose import uses_triton
from kernels.delta_rule import layer
from kernels.delta_rule.plan import (
    CHUNK,
    IN_CHUNKS,
    NO_SPAN,
    DeltaPlan,
    RowSpan,
    VerifyPlan,
    chunk_list,
    most_chunks,
    plan_spans,
    plan_verified,
    verify_words,
)
from kernels.delta_rule.shapes import (
    DeltaRing,
    DeltaSizes,
    DeltaState,
    DeltaWeights,
    GateProduct,
    sizes_of,
)

__all__ = [
    "CHUNK",
    "IN_CHUNKS",
    "NO_SPAN",
    "DeltaPlan",
    "DeltaRing",
    "DeltaSizes",
    "DeltaState",
    "DeltaWeights",
    "GateProduct",
    "RowSpan",
    "VerifyPlan",
    "chunk_list",
    "mix",
    "most_chunks",
    "plan_spans",
    "plan_verified",
    "takes_product",
    "verify",
    "verify_words",
]


def takes_product(rows: Tensor, plan: DeltaPlan) -> bool:
    """Whether `mix` of these rows takes a `GateProduct` in place of gates."""
    if not uses_triton(rows):
        return False
    from kernels.delta_rule import device

    return device.takes_product(len(rows), plan)


def mix(
    rows: Tensor,
    gates: Tensor | GateProduct,
    weights: DeltaWeights,
    eps: float,
    state: DeltaState,
    plan: DeltaPlan,
) -> Tensor:
    """A layer from its first product to before its last one: [T, HV V], like rows. Moves the states
    of all slots in the plan on; those of padding may change too.

    rows [T, C + HV V], contiguous: the queries, keys and values, which go through the convolution,
    then z. gates [T, 2 HV]: b, then a; or a `GateProduct`, where it `takes_product`. The rule's
    output is normed by head with `eps` (plain weights), then multiplied by silu(z). Raises
    `ValueError`.
    """
    sizes = sizes_of(rows, gates, weights, state)
    if uses_triton(rows):
        from kernels.delta_rule import device

        return device.mix(rows, gates, weights, eps, state, plan, sizes)
    if isinstance(gates, GateProduct):
        raise TypeError("the reference takes gates as numbers")
    return layer.mix(rows, gates, weights, eps, state, plan, sizes)


def verify(
    rows: Tensor,
    gates: Tensor,
    weights: DeltaWeights,
    eps: float,
    state: DeltaState,
    ring: DeltaRing,
    taken: VerifyPlan,
    plan: DeltaPlan,
) -> Tensor:
    """`mix` for a step in which the spans of `taken` have rows that may be taken back, up to R of
    each. All other spans are computed as chunks, also those of one row.

    For each span of `taken`: the leading rows of its ring that were accepted (`folds`) are folded
    into its state, one after another, as decodes would have been. So is the first row of this call.
    The rows behind it are computed from that state one after another, but stay in the ring: the
    state does not include them until the next call. A span of one row is a decode, with nothing to
    take back. Raises `ValueError`.
    """
    sizes = sizes_of(rows, gates, weights, state)
    if ring.rows.shape[2] != sizes.columns or ring.gates.shape[2] != gates.shape[1]:
        raise ValueError(f"a ring of {tuple(ring.rows.shape)}, {tuple(ring.gates.shape)}")
    if not taken.starts.shape == taken.folds.shape == taken.firsts.shape == plan.slots.shape:
        raise ValueError(f"{tuple(taken.folds.shape)} spans verified of {len(plan.slots)}")
    if uses_triton(rows):
        from kernels.delta_rule import verified

        return verified.verify(rows, gates, weights, eps, state, ring, taken, plan, sizes)
    return layer.verify(rows, gates, weights, eps, state, ring, taken, plan, sizes)
