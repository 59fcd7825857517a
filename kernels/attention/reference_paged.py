"""Plain torch paged attention; the CPU path.

Decodes gather their keys and values in padded groups; prefills gather once per sequence and run
in tiles of queries, so temporary memory is bounded whatever the context. Grouped heads read one
expanded view of their key head: nothing is copied per query head.
"""

import torch
import torch.nn.functional as F  # noqa: N812 - the name that torch's own documentation uses
from torch import Tensor

from kernels.attention.reference_plan import AttentionPlan, DecodeGroup, PrefillSpan


def paged_attention(
    queries: Tensor, key_cache: Tensor, value_cache: Tensor, plan: AttentionPlan
) -> Tensor:
    """See `kernels.attention.paged_attention.paged_attention`."""
    parts = [_decode(queries, key_cache, value_cache, group) for group in plan.decodes]
    parts += [_prefill(queries, key_cache, value_cache, span) for span in plan.prefills]
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def _decode(queries: Tensor, key_cache: Tensor, value_cache: Tensor, group: DecodeGroup) -> Tensor:
    """[rows, H, D] of one group."""
    num_kv, head_dim = key_cache.shape[2:]
    rows = queries[group.first_row : group.first_row + group.num_rows]
    grouped = rows.reshape(group.num_rows, num_kv, -1, head_dim)
    keys, values = (_padded(cache, group, rows.dtype) for cache in (key_cache, value_cache))
    out = F.scaled_dot_product_attention(grouped, keys, values, attn_mask=group.mask)
    return out.reshape(group.num_rows, -1, head_dim)


def _padded(cache: Tensor, group: DecodeGroup, dtype: torch.dtype) -> Tensor:
    """The cached vectors of a group, [rows, KV, context, D], zeros where a row has none.

    A masked score weighs its value with 0, but 0 x NaN is NaN: what other sequences left in a
    block must not be read at all.
    """
    gathered = _blocks(cache, group.blocks, dtype).flatten(0, 1)
    if group.padding is not None:
        gathered.index_fill_(0, group.padding, 0.0)
    rows = gathered.view(group.num_rows, -1, *cache.shape[2:])
    return rows[:, : group.context].transpose(1, 2)


def _prefill(queries: Tensor, key_cache: Tensor, value_cache: Tensor, span: PrefillSpan) -> Tensor:
    """[rows, H, D] of one span."""
    num_kv, head_dim = key_cache.shape[2:]
    context = span.start + span.num_rows
    rows = queries[span.first_row : span.first_row + span.num_rows]
    # [rows, H, D] -> [KV, H / KV, rows, D]: a batch of key heads, each with its query heads.
    grouped = rows.view(span.num_rows, num_kv, -1, head_dim).permute(1, 2, 0, 3)
    shape = (num_kv, grouped.shape[1], context, head_dim)
    keys = _sequence(key_cache, span.blocks, context, rows.dtype).expand(shape)
    values = _sequence(value_cache, span.blocks, context, rows.dtype).expand(shape)
    tiles = [
        _tile(grouped[:, :, at : at + span.tile_rows], keys, values, span.start + at)
        for at in range(0, span.num_rows, span.tile_rows)
    ]
    out = tiles[0] if len(tiles) == 1 else torch.cat(tiles, dim=2)
    return out.permute(2, 0, 1, 3).reshape(span.num_rows, -1, head_dim)


def _sequence(cache: Tensor, blocks: Tensor, context: int, dtype: torch.dtype) -> Tensor:
    """The cached vectors of one sequence, [KV, 1, context, D]."""
    gathered = _blocks(cache, blocks, dtype).flatten(0, 1)[:context]
    return gathered.transpose(0, 1).unsqueeze(1)


def _blocks(cache: Tensor, blocks: Tensor, dtype: torch.dtype) -> Tensor:
    """A copy of the cache's blocks; torch selects among numbers of 8 bits as bytes only."""
    if cache.dtype == torch.float8_e4m3fn:
        return cache.view(torch.uint8).index_select(0, blocks).view(cache.dtype).to(dtype)
    return cache.index_select(0, blocks)


def _tile(queries: Tensor, keys: Tensor, values: Tensor, start: int) -> Tensor:
    """Queries [KV, G, rows, D] at positions start.. against the keys up to their own."""
    num_rows = queries.shape[2]
    end = start + num_rows
    keys, values = keys[:, :, :end], values[:, :, :end]
    if start == 0:
        return F.scaled_dot_product_attention(queries, keys, values, is_causal=True)
    mask = torch.ones(num_rows, end, dtype=torch.bool, device=queries.device).tril_(start)
    return F.scaled_dot_product_attention(queries, keys, values, attn_mask=mask)
