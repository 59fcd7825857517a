"""Latent attention: a cached token is one latent, and one turned key, which all heads share.

Owns the checked entry. Must not know layers. The latent is turned into each head's keys and values
by the weights of the layer: in the plain form, for prompts, before the rows attend, which costs a
product for each cached token; in the absorbed form, for decodes, by products of the queries and of
what is attended, so that a row reads the latents as they lie (DeepSeek-V2, 2024, section 2.1).
"""

from torch import Tensor

from kernels.attention import AttentionPlan, PagedPlan
from kernels.choose import uses_triton
from kernels.latent import reference
from kernels.latent.reference import LATENT_EPS
from kernels.latent.shapes import LatentWeights

__all__ = ["LATENT_EPS", "LatentWeights", "attend"]


def attend(
    queries: Tensor,
    rows: Tensor,
    weights: LatentWeights,
    cos_sin: Tensor,
    cache: Tensor,
    plan: AttentionPlan | PagedPlan,
    *,
    scale: float,
) -> Tensor:
    """Causal attention of T rows, [T, H V]; writes their latents and turned keys.

    queries [T, H (N + T)], each head's unturned dimensions first; rows [T, R + T], latents that are
    not normed yet, then keys that are not turned. cos_sin [positions, T] float32: cosines of T / 2
    angles, then their sines. cache [blocks, block size, 1, R + T] of the rows' dtype, or
    float8_e4m3fn. Raises `ValueError` for shapes that do not fit.
    """
    num_heads, plain, rank = weights.key_up.shape
    turned = cos_sin.shape[1]
    num_rows = plan.positions.shape[0]
    if queries.shape != (num_rows, num_heads * (plain + turned)):
        raise ValueError(f"queries {tuple(queries.shape)} of {num_heads} x {plain} + {turned}")
    if rows.shape != (num_rows, rank + turned) or cache.shape[2:] != (1, rank + turned):
        raise ValueError(f"rows {tuple(rows.shape)} for a cache {tuple(cache.shape)}")
    if weights.value_up.shape[::2] != (num_heads, rank) or weights.norm.shape != (rank,):
        raise ValueError(f"values {tuple(weights.value_up.shape)} of {num_heads} heads")
    heads = queries.view(num_rows, num_heads, plain + turned)
    if isinstance(plan, PagedPlan) and uses_triton(rows):
        from kernels.latent import device

        return device.attend(heads, rows, weights, cos_sin, cache, plan, scale)
    return reference.attend(heads, rows, weights, cos_sin, cache, plan, scale)
