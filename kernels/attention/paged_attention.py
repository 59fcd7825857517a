"""Attention of a flat batch over a paged cache.

Owns the checked entry. A fused kernel for CUDA tensors joins here, beside its reference; the plan
then carries what it needs.
"""

from torch import Tensor

from kernels.attention import reference_paged as reference
from kernels.attention.reference_plan import AttentionPlan, Span, plan_attention

__all__ = ["AttentionPlan", "Span", "paged_attention", "plan_attention"]


def paged_attention(
    queries: Tensor, key_cache: Tensor, value_cache: Tensor, plan: AttentionPlan
) -> Tensor:
    """Causal softmax(q k^T / sqrt(D)) v for every row, [T, H, D] like queries.

    queries [T, H, D]; caches [blocks, block_size, KV, D], contiguous, H a multiple of KV. Keys and
    values of the rows themselves are already in the cache. Rows are laid out as the spans of
    `plan`. Raises `ValueError`.
    """
    if queries.shape[0] != plan.num_rows or queries.shape[1] % key_cache.shape[2]:
        raise ValueError(f"queries {tuple(queries.shape)} for {plan.num_rows} planned rows")
    if key_cache.shape != value_cache.shape or queries.shape[2] != key_cache.shape[3]:
        raise ValueError(f"caches {tuple(key_cache.shape)}, {tuple(value_cache.shape)}")
    return reference.paged_attention(queries, key_cache, value_cache, plan)
