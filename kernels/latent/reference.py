"""Plain torch latent attention; the CPU path, and what the kernels must agree with.

A decode attends in the absorbed form, a segment in the plain one, some rows at a time, so that
temporary memory is bounded. In an invariant plan all rows attend in the absorbed form, in tiles of
fixed sizes. Caches in float8 saturate at 448.
"""

from typing import Final

import torch
import torch.nn.functional as F  # noqa: N812 - the name that torch's own documentation uses
from torch import Tensor

from kernels.attention import NO_ROW, AttentionPlan, PagedPlan
from kernels.attention.cpu import padded_rows, sequence_rows
from kernels.attention.plan import Scope
from kernels.attention.reference import rope, slots_of, write_slots
from kernels.attention.tiled import QUERY_ROWS, attend_tiled
from kernels.latent.shapes import LatentWeights
from kernels.rms_norm.reference import rms_norm

LATENT_EPS: Final = 1e-6
"""The epsilon of the norms of latents, whatever that of the layers is, as the published models have
it.
"""

_TILE_ROWS: Final = 256
"""Rows of a segment that attend at once: their scores take 256 x context numbers of each head."""


def attend(
    queries: Tensor,
    rows: Tensor,
    weights: LatentWeights,
    cos_sin: Tensor,
    cache: Tensor,
    plan: AttentionPlan | PagedPlan,
    scale: float,
) -> Tensor:
    """See `kernels.latent.attend`; queries [T, H, N + T]."""
    cos, sin = cos_sin[plan.positions.long()].chunk(2, dim=-1)
    write(rows, weights, cos, sin, cache, plan)
    turned = rope(queries[..., weights.key_up.shape[1] :], cos, sin)
    plain = queries[..., : weights.key_up.shape[1]]
    if plan.invariant:
        out = _in_tiles(plain, turned, weights, cache, plan, scale)
    elif isinstance(plan, AttentionPlan):
        out = _by_groups(plain, turned, weights, cache, plan, scale)
    else:
        out = _by_table(plain, turned, weights, cache, plan, scale)
    return out.flatten(1)


def write(
    rows: Tensor,
    weights: LatentWeights,
    cos: Tensor,
    sin: Tensor,
    cache: Tensor,
    plan: AttentionPlan | PagedPlan,
) -> None:
    """Norm latents, turn keys and write both."""
    rank = weights.norm.shape[0]
    latents = rms_norm(rows[:, :rank], weights.norm, LATENT_EPS)
    keys = rope(rows[:, rank:].unsqueeze(1), cos, sin).squeeze(1)
    slots = plan.slots if isinstance(plan, AttentionPlan) else slots_of(plan, cache.shape[1])
    there = plan.positions >= 0
    made = torch.cat((latents, keys), dim=1).unsqueeze(1)
    if not bool(there.all()):
        made, slots = made[there], slots[there]
    write_slots(made, cache, slots)


def plain_form(
    queries: Tensor, cached: Tensor, weights: LatentWeights, start: int, scale: float
) -> Tensor:
    """Queries [rows, H, N + T], turned, at positions start.. over the cached rows [context, R + T]
    of their sequence: [rows, H, V].
    """
    rank = weights.norm.shape[0]
    latents, keys = cached[:, :rank], cached[:, rank:]
    num_heads = queries.shape[1]
    made = torch.einsum("sr,hnr->hsn", latents, weights.key_up)
    keys = torch.cat((made, keys.unsqueeze(0).expand(num_heads, -1, -1)), dim=2)
    values = torch.einsum("sr,hvr->hsv", latents, weights.value_up)
    parts = []
    for at in range(0, queries.shape[0], _TILE_ROWS):
        tile = queries[at : at + _TILE_ROWS].transpose(0, 1)
        end = start + at + tile.shape[1]
        mask = torch.ones(tile.shape[1], end, dtype=torch.bool, device=tile.device)
        mask.tril_(start + at)
        parts.append(
            F.scaled_dot_product_attention(
                tile, keys[:, :end], values[:, :end], attn_mask=mask, scale=scale
            )
        )
    return torch.cat(parts, dim=1).transpose(0, 1)


def _absorbed_form(
    plain: Tensor,
    turned: Tensor,
    cached: Tensor,
    mask: Tensor | None,
    weights: LatentWeights,
    scale: float,
) -> Tensor:
    """Rows [S, H, N] and [S, H, T] over the cached rows [S, context, R + T] of theirs."""
    seen = torch.einsum("thn,hnr->thr", plain, weights.key_up)
    queries = torch.cat((seen, turned), dim=2).unsqueeze(1)
    latents = cached[..., : weights.norm.shape[0]]
    mixed = F.scaled_dot_product_attention(
        queries, cached.unsqueeze(1), latents.unsqueeze(1), attn_mask=mask, scale=scale
    )
    return torch.einsum("thr,hvr->thv", mixed.squeeze(1), weights.value_up)


def _by_groups(
    plain: Tensor,
    turned: Tensor,
    weights: LatentWeights,
    cache: Tensor,
    plan: AttentionPlan,
    scale: float,
) -> Tensor:
    parts = []
    for group in plan.decodes:
        own = slice(group.first_row, group.first_row + group.num_rows)
        cached = padded_rows(cache, group, plain.dtype).squeeze(1)
        parts.append(_absorbed_form(plain[own], turned[own], cached, group.mask, weights, scale))
    for segment in plan.prefills:
        own = slice(segment.first_row, segment.first_row + segment.num_rows)
        context = segment.start + segment.num_rows
        cached = sequence_rows(cache, segment.blocks, context, plain.dtype).view(context, -1)
        queries = torch.cat((plain[own], turned[own]), dim=2)
        parts.append(plain_form(queries, cached, weights, segment.start, scale))
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def _by_table(
    plain: Tensor,
    turned: Tensor,
    weights: LatentWeights,
    cache: Tensor,
    plan: PagedPlan,
    scale: float,
) -> Tensor:
    """Rows that pad the step come out as NaN."""
    out = plain.new_full((*plain.shape[:2], weights.value_up.shape[1]), torch.nan)
    positions = plan.positions[: plan.num_decodes].tolist()
    tables = plan.table_rows[: plan.num_decodes].tolist()
    for row, (position, table) in enumerate(zip(positions, tables, strict=True)):
        if position == NO_ROW:
            continue
        cached = cached_rows(cache, plan.block_tables[table], position + 1, plain.dtype)
        own = slice(row, row + 1)
        out[own] = _absorbed_form(
            plain[own], turned[own], cached.unsqueeze(0), None, weights, scale
        )
    for first, count, start, table in plan.prefills:
        own = slice(first, first + count)
        cached = cached_rows(cache, plan.block_tables[table], start + count, plain.dtype)
        queries = torch.cat((plain[own], turned[own]), dim=2)
        out[own] = plain_form(queries, cached, weights, start, scale)
    return out


def _in_tiles(
    plain: Tensor,
    turned: Tensor,
    weights: LatentWeights,
    cache: Tensor,
    plan: AttentionPlan | PagedPlan,
    scale: float,
) -> Tensor:
    """Rows that pad the step come out as NaN."""
    if isinstance(plan, AttentionPlan):
        segments = [(one.first_row, one.num_rows, one.start, one.blocks) for one in plan.prefills]
    else:
        tables = plan.block_tables
        segments = [
            (first, count, start, tables[row]) for first, count, start, row in plan.prefills
        ]
    queries = torch.cat((_product_in_tiles(plain, weights.key_up), turned), dim=2)
    latents = cache[..., : weights.norm.shape[0]]
    mixed = plain.new_full((*plain.shape[:2], latents.shape[3]), torch.nan)
    for first, count, start, table in segments:
        own = slice(first, first + count)
        mixed[own] = attend_tiled(queries[own], cache, latents, start, table, Scope(scale))
    return _product_in_tiles(mixed, weights.value_up.mT)


def _product_in_tiles(x: Tensor, weights: Tensor) -> Tensor:
    """[T, H, C] of x [T, H, K] and a matrix [K, C] for each head, 16 rows at a time, because the
    library chooses the order of a sum by the number of rows.
    """
    padded = F.pad(x, (0, 0, 0, 0, 0, -x.shape[0] % QUERY_ROWS))
    tiles = [
        torch.bmm(padded[at : at + QUERY_ROWS].transpose(0, 1), weights).transpose(0, 1)
        for at in range(0, padded.shape[0], QUERY_ROWS)
    ]
    return torch.cat(tiles)[: x.shape[0]]


def cached_rows(cache: Tensor, table: Tensor, context: int, dtype: torch.dtype) -> Tensor:
    """Positions [0, context) of the sequence whose blocks `table` names, [context, R + T]."""
    blocks = table[: -(-context // cache.shape[1])].long()
    return sequence_rows(cache, blocks, context, dtype).view(context, -1)
