"""Plain torch attention of a step; the CPU path, and what the kernels must agree with.

Rounding: queries and keys are normed in float32, rounded, weighted, rounded, turned in float32
and rounded. Caches in float8 saturate at 448.
"""

import torch
from torch import Tensor

from kernels.attention.cpu import AttentionPlan, kept_from, paged_attention
from kernels.attention.plan import NO_ROW, PagedPlan, Scope
from kernels.attention.tiled import attend_tiled
from kernels.rms_norm.reference import rms_norm

_FLOAT8_MAX = 448.0


def attend(
    qkv: Tensor,
    qk_norm: Tensor | None,
    eps: float,
    cos_sin: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    plan: AttentionPlan | PagedPlan,
    scope: Scope | None = None,
    sinks: Tensor | None = None,
) -> Tensor:
    """See `kernels.attention.attend`; `scope` None is the default."""
    scope = scope or Scope(key_cache.shape[3] ** -0.5)
    if scope.borrows:
        queries = _queries(qkv, qk_norm, eps, cos_sin, key_cache.shape[3], plan)
    else:
        queries = prepare(qkv, qk_norm, eps, cos_sin, key_cache, value_cache, plan)
    if isinstance(plan, AttentionPlan):
        return paged_attention(queries, key_cache, value_cache, plan, scope, sinks).flatten(1)
    out = torch.full_like(queries, torch.nan)  # of rows that pad the step
    for first, count, start, row in _segments(plan):
        rows, table = slice(first, first + count), plan.block_tables[row]
        if scope.window:  # what is behind it may not be kept
            begin = kept_from(start, scope.window)
            start, table = start - begin, table[begin // key_cache.shape[1] :]  # noqa: PLW2901
        attended = attend_tiled if plan.invariant else attend_rows
        out[rows] = attended(queries[rows], key_cache, value_cache, start, table, scope, sinks)
    return out.flatten(1)


def prepare(
    qkv: Tensor,
    qk_norm: Tensor | None,
    eps: float,
    cos_sin: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    plan: AttentionPlan | PagedPlan,
) -> Tensor:
    """Queries [T, H, D], normed and turned; keys and values go to the caches."""
    num_kv, head_dim = key_cache.shape[2:]
    heads = qkv.view(qkv.shape[0], -1, head_dim)
    cos, sin = cos_sin[plan.positions.long()].chunk(2, dim=-1)
    query_key, values = heads[:, :-num_kv], heads[:, -num_kv:]
    if qk_norm is not None:
        num_turned = query_key.shape[1]
        if qk_norm.shape[0] > num_turned:
            values = rms_norm(values, qk_norm[num_turned:], eps)
        query_key = rms_norm(query_key, qk_norm[:num_turned], eps)
    query_key = rope(query_key, cos, sin)
    queries, keys = query_key[:, :-num_kv], query_key[:, -num_kv:]
    if isinstance(plan, AttentionPlan) and key_cache.dtype == qkv.dtype:
        kv_write(keys, values, key_cache, value_cache, plan.slots)
    else:
        slots = (
            plan.slots if isinstance(plan, AttentionPlan) else slots_of(plan, key_cache.shape[1])
        )
        write_slots(keys, key_cache, slots)
        write_slots(values, value_cache, slots)
    return queries


def _queries(
    rows: Tensor,
    norm: Tensor | None,
    eps: float,
    cos_sin: Tensor,
    head_dim: int,
    plan: AttentionPlan | PagedPlan,
) -> Tensor:
    """Queries [T, H, D] alone, normed and turned."""
    cos, sin = cos_sin[plan.positions.long()].chunk(2, dim=-1)
    heads = rows.view(rows.shape[0], -1, head_dim)
    return rope(heads if norm is None else rms_norm(heads, norm, eps), cos, sin)


def write_context(
    rows: Tensor,
    k_norm: Tensor | None,
    eps: float,
    cos_sin: Tensor,
    cache: Tensor,
    plan: AttentionPlan | PagedPlan,
) -> None:
    """See `kernels.attention.write_context`."""
    layers, _, _, block_size, num_kv, head_dim = cache.shape
    heads = rows.view(rows.shape[0], layers, 2, num_kv, head_dim)
    slots = plan.slots if isinstance(plan, AttentionPlan) else slots_of(plan, block_size)
    there = (plan.positions >= 0).nonzero()[:, 0]
    heads, slots = heads[there], slots[there]
    cos, sin = cos_sin[plan.positions[there].long()].chunk(2, dim=-1)
    for layer in range(layers):
        keys, values = heads[:, layer].unbind(1)
        if k_norm is not None:
            keys = rms_norm(keys, k_norm[layer], eps)
        write_slots(rope(keys, cos, sin), cache[layer, 0], slots)
        write_slots(values, cache[layer, 1], slots)


def slots_of(plan: PagedPlan, block_size: int) -> Tensor:
    """Where each row's keys and values are, int64 [T]: block x block size + offset."""
    positions = plan.positions.long()
    blocks = plan.block_tables[plan.table_rows.long(), positions // block_size].long()
    return blocks * block_size + positions % block_size


def write_slots(rows: Tensor, cache: Tensor, slots: Tensor) -> None:
    """Write rows [T, KV, D] to slots [T] of a cache of any dtype."""
    if cache.dtype == torch.float8_e4m3fn:
        rows = rows.float().clamp(-_FLOAT8_MAX, _FLOAT8_MAX).to(cache.dtype).view(torch.uint8)
        cache = cache.view(torch.uint8)
    cache.flatten(0, 1)[slots] = rows


def _segments(plan: PagedPlan) -> list[tuple[int, int, int, int]]:
    """(first row, rows, start, table row) of every decode and segment."""
    positions = plan.positions[: plan.num_decodes].tolist()
    tables = plan.table_rows[: plan.num_decodes].tolist()
    decodes = [
        (row, 1, position, table)
        for row, (position, table) in enumerate(zip(positions, tables, strict=True))
        if position != NO_ROW
    ]
    return [*decodes, *plan.prefills]


def attend_rows(
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    start: int,
    table: Tensor,
    scope: Scope,
    sinks: Tensor | None = None,
) -> Tensor:
    """[rows, H, D] of queries at positions start.. of the sequence whose blocks `table` names."""
    num_rows, num_heads, head_dim = queries.shape
    context = start + num_rows
    keys, values = _gather(keys, table, context), _gather(values, table, context)
    grouped = queries.float().view(num_rows, keys.shape[1], -1, head_dim)
    scores = torch.einsum("tkgd,skd->kgts", grouped, keys) * scope.scale
    hidden = torch.ones(num_rows, context, dtype=torch.bool, device=scores.device)
    hidden.triu_(context if scope.sees_ahead else start + 1)
    if scope.window:
        hidden |= torch.ones_like(hidden).tril_(start - scope.window)
    scores.masked_fill_(hidden, -torch.inf)
    if sinks is not None:
        own = sinks.view(*scores.shape[:2], 1, 1).expand(-1, -1, num_rows, 1)
        scores = torch.cat((scores, own), dim=-1)
    weights = scores.softmax(-1)[..., :context]
    out = torch.einsum("kgts,skd->tkgd", weights, values)
    return out.reshape(num_rows, num_heads, head_dim).to(queries.dtype)


def _gather(cache: Tensor, table: Tensor, context: int) -> Tensor:
    """Positions [0, context) of one sequence, float32 [context, KV, D]."""
    blocks = table[: -(-context // cache.shape[1])].long()
    if cache.dtype == torch.float8_e4m3fn:
        raw = cache.view(torch.uint8)[blocks].view(cache.dtype)
        return raw.flatten(0, 1)[:context].float()
    return cache[blocks].flatten(0, 1)[:context].float()


def rope_angles(positions: Tensor, inverse_frequencies: Tensor) -> tuple[Tensor, Tensor]:
    """cos and sin [T, D / 2] float32 of positions [T] times inverse_frequencies [D / 2] float32."""
    angles = positions.float().unsqueeze(1) * inverse_frequencies
    return angles.cos(), angles.sin()


def rope(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate every head by its position's angles (Su et al., 2021; halves, not pairs).

    x [T, H, D] of any float dtype; cos and sin [T, D / 2] float32 from `rope_angles`. Computed
    in float32 and rounded once. Raises `ValueError`.
    """
    if x.dim() != 3 or cos.shape != (x.shape[0], x.shape[2] // 2) or sin.shape != cos.shape:
        raise ValueError(f"x {tuple(x.shape)}, cos {tuple(cos.shape)}, sin {tuple(sin.shape)}")
    first, second = x.float().chunk(2, dim=-1)
    cos, sin = cos.unsqueeze(1), sin.unsqueeze(1)
    turned = (first * cos - second * sin, second * cos + first * sin)
    return torch.cat(turned, dim=-1).to(x.dtype)


def kv_write(
    keys: Tensor, values: Tensor, key_cache: Tensor, value_cache: Tensor, slots: Tensor
) -> None:
    """Write keys and values [T, H, D] to `slots` [T] (int64, distinct) of the caches.

    key_cache and value_cache [blocks, block_size, H, D] are contiguous; a slot is
    block x block_size + offset. Slots out of range are the caller's fault: torch raises on the
    CPU and asserts on CUDA. Raises `ValueError` for shapes that do not fit.
    """
    if keys.shape != values.shape or keys.shape[1:] != key_cache.shape[2:]:
        raise ValueError(f"keys {tuple(keys.shape)} for a cache {tuple(key_cache.shape)}")
    if slots.shape[0] != keys.shape[0]:
        raise ValueError(f"{slots.shape[0]} slots for {keys.shape[0]} tokens")
    slot_shape = (-1, *key_cache.shape[2:])
    key_cache.view(slot_shape).index_copy_(0, slots, keys)
    value_cache.view(slot_shape).index_copy_(0, slots, values)
