"""Attention in tiles of fixed sizes, in plain torch: the reference of invariant plans.

Owns the order of its sums. A row's result is bit for bit the same whatever rows are attended with
it: `QUERY_ROWS` rows at a time, the last ones padded, go over tiles of `KEY_ROWS` keys from
position 0 on, so that each product has the same shape, and what a row does not see adds zeros. Must
not know plans.
"""

from typing import Final

import torch
import torch.nn.functional as F  # noqa: N812 - the name that torch's own documentation uses
from torch import Tensor

from kernels.attention.plan import Scope

QUERY_ROWS: Final = 16
KEY_ROWS: Final = 128

_LOWEST: Final = torch.finfo(torch.float32).min


def attend_tiled(
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    start: int,
    table: Tensor,
    scope: Scope,
    sinks: Tensor | None = None,
) -> Tensor:
    """[rows, H, V] of queries [rows, H, D] at positions start.. of the sequence whose blocks
    `table` names.

    Caches [blocks, block size, KV, D], and V of values, hold the rows' own ones; sums are float32.
    """
    num_rows = queries.shape[0]
    context = start + num_rows
    k, v = (_gathered(cache, table, context) for cache in (keys, values))
    tiles = [
        _attend_tile(queries[at : at + QUERY_ROWS].float(), k, v, start + at, context, scope, sinks)
        for at in range(0, num_rows, QUERY_ROWS)
    ]
    return torch.cat(tiles)[:num_rows].to(queries.dtype)


def _attend_tile(
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    start: int,
    context: int,
    scope: Scope,
    sinks: Tensor | None,
) -> Tensor:
    """The result [QUERY_ROWS, H, V] of at most QUERY_ROWS rows of queries. Keys and values are
    [tiles, KV, KEY_ROWS, D or V]; rows that see ahead see the first `context` positions of them.
    """
    num_rows, num_heads, head_dim = queries.shape
    num_kv, group = keys.shape[1], num_heads // keys.shape[1]
    padded = F.pad(queries, (0, 0, 0, 0, 0, QUERY_ROWS - num_rows))
    heads = padded.view(QUERY_ROWS, num_kv, group, head_dim).transpose(0, 1).flatten(1, 2)
    positions = (start + torch.arange(QUERY_ROWS, device=keys.device)).repeat_interleave(group)
    top = heads.new_full((num_kv, QUERY_ROWS * group, 1), -torch.inf)
    total = torch.zeros_like(top)
    mixed = heads.new_zeros(*heads.shape[:2], values.shape[3])
    if sinks is not None:
        top = sinks.view(num_kv, 1, group).repeat(1, QUERY_ROWS, 1).view(top.shape)
        total = torch.ones_like(top)
    if scope.sees_ahead:
        positions.fill_(context - 1)
    for tile in range(-(-(context if scope.sees_ahead else start + num_rows) // KEY_ROWS)):
        places = tile * KEY_ROWS + torch.arange(KEY_ROWS, device=keys.device)
        scores = heads @ keys[tile].mT * scope.scale
        hidden = places > positions[:, None]
        if scope.window:
            hidden |= places <= positions[:, None] - scope.window
        scores = scores.masked_fill(hidden, -torch.inf)
        new_top = torch.maximum(top, scores.amax(-1, keepdim=True))
        ground = new_top.clamp(min=_LOWEST)  # of a row that has seen nothing yet
        weights, fade = (scores - ground).exp(), (top - ground).exp()
        total = total * fade + weights.sum(-1, keepdim=True)
        mixed = mixed * fade + weights @ values[tile]
        top = new_top
    out = (mixed / total).view(num_kv, QUERY_ROWS, group, values.shape[3])
    return out.transpose(0, 1).reshape(QUERY_ROWS, num_heads, values.shape[3])


def _gathered(cache: Tensor, table: Tensor, context: int) -> Tensor:
    """Float32 [tiles, KV, KEY_ROWS, D] of positions [0, context), zeros behind them."""
    blocks = table[: -(-context // cache.shape[1])].long()
    if cache.dtype == torch.float8_e4m3fn:  # torch selects among numbers of 8 bits as bytes only
        found = cache.view(torch.uint8).index_select(0, blocks).view(cache.dtype)
    else:
        found = cache.index_select(0, blocks)
    rows = found.flatten(0, 1)[:context].float()
    rows = F.pad(rows, (0, 0, 0, 0, 0, -context % KEY_ROWS))
    tiles = rows.view(-1, KEY_ROWS, *rows.shape[1:])
    return tiles.transpose(1, 2).contiguous()
