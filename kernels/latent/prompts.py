"""Latent attention of long segments in the plain form, by the library where that serves them.

Owns the keys and values that all heads make of the latents, and the choice of who attends. Must not
know the paged cache, nor single rows.
"""

import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from kernels.attention import library
from kernels.latent.reference import plain_form
from kernels.latent.shapes import LatentWeights


def attend_segment(
    queries: Tensor, cached: Tensor, weights: LatentWeights, start: int, scale: float
) -> Tensor:
    """Queries [rows, H, N + T], turned, at positions start.. over the cached rows [context, R + T]
    of their sequence: [rows, H, V].
    """
    num_heads, dtype = queries.shape[1], queries.dtype
    width = max(queries.shape[2], weights.value_up.shape[1])
    if queries.is_meta:
        library.record_blend(num_heads, width, dtype)
    form = library.form(num_heads, num_heads, width, dtype, library.EQUAL_FORMS)
    if form is None:
        return plain_form(queries, cached, weights, start, scale)
    return attend_by(form, queries, cached, weights, start, scale)


def attend_by(
    form: library.Form,
    queries: Tensor,
    cached: Tensor,
    weights: LatentWeights,
    start: int,
    scale: float,
) -> Tensor:
    """Like `attend_segment`, in the given `form`. If the keys and values of a head differ in size,
    the smaller is padded with zeros, because the library needs equal sizes.
    """
    num_heads, num_values, rank = weights.value_up.shape
    latents, turned = cached[:, :rank], cached[:, rank:]
    plain, depth = weights.key_up.shape[1], queries.shape[2]
    width = max(depth, num_values)
    keys = cached.new_zeros(cached.shape[0], num_heads, width)
    keys[..., :plain] = F.linear(latents, weights.key_up.flatten(0, 1)).unflatten(
        1, (num_heads, -1)
    )
    keys[..., plain:depth] = turned.unsqueeze(1)
    values = F.linear(latents, weights.value_up.flatten(0, 1)).unflatten(1, (num_heads, -1))
    queries = F.pad(queries, (0, width - depth))
    values = F.pad(values, (0, width - num_values))
    return library.attend_behind(form, queries, keys, values, start, scale)[..., :num_values]
