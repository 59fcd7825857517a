"""Attention of a step from the projected heads on: norm, turn, write to the cache, attend.

Owns the checked entry and the choice of implementation.
"""

import torch
from torch import Tensor

from kernels.attention import choose, reference
from kernels.attention.config import LIBRARY_GRAIN, SharingCosts
from kernels.attention.cpu import AttentionPlan, Segment, kept_from, plan_attention, plan_windows
from kernels.attention.plan import (
    NO_ROW,
    ExtendSegment,
    PagedPlan,
    PrefillWork,
    Scope,
    SharedRun,
)
from kernels.attention.reference import rope_angles
from kernels.attention.runs import MAX_LEVELS
from kernels.attention.work import SegmentBucket, segment_bucket
from kernels.choose import uses_triton

__all__ = [
    "LIBRARY_GRAIN",
    "MAX_LEVELS",
    "NO_ROW",
    "AttentionPlan",
    "ExtendSegment",
    "PagedPlan",
    "PrefillWork",
    "Segment",
    "SegmentBucket",
    "SharedRun",
    "SharingCosts",
    "attend",
    "blocks_at",
    "bucket_for",
    "kept_from",
    "plan_attention",
    "plan_windows",
    "prepared",
    "rope_angles",
    "sharing_costs",
    "short_contexts",
    "write_context",
]


def prepared(
    plan: PagedPlan,
    num_heads: int,
    key_cache: Tensor,
    dtype: torch.dtype,
    *,
    is_scoped: bool = False,
) -> PagedPlan:
    """`plan` with what the kernels need beside it, once per step, ahead of its first layer.

    `key_cache` is any layer's, `dtype` that of the rows; `is_scoped`: some layer has a window, or a
    scale of its own. Segments are laid out on the host, unless the plan has `work`. Decodes are
    laid out on the card, in the current stream, so a captured step does it again at every replay.
    """
    if not uses_triton(key_cache):
        return plan
    from kernels.attention import paged

    return paged.prepared(plan, num_heads, key_cache, dtype, is_scoped=is_scoped)


def sharing_costs(num_heads: int, key_cache: Tensor, dtype: torch.dtype) -> SharingCosts:
    """The costs of letting decodes of `dtype` attend to common cached tokens together."""
    return choose.sharing_costs(num_heads, key_cache, dtype)


def short_contexts(key_cache: Tensor) -> dict[int, tuple[int, ...]]:
    """By the number of decodes, how many cached tokens each of them may have at most where they
    attend by launches of their own for short contexts (`PagedPlan.longest`), rising.
    """
    num_kv, head_dim = key_cache.shape[2:]
    return choose.short_contexts(num_kv, head_dim, key_cache.dtype)


def bucket_for(
    num_rows: int,
    num_segments: int,
    num_heads: int,
    key_cache: Tensor,
    dtype: torch.dtype,
    *,
    invariant: bool = False,
    is_scoped: bool = False,
    num_sharing: int = 0,
    longest: int | None = None,
) -> SegmentBucket:
    """Room for the work of a captured step, whose segments change at every replay: up to
    `num_segments` segments of `num_rows` rows together, each of at most `longest`, beside up to
    `num_sharing` decodes that share tokens. Raises `ValueError` for segments that are longer than
    our own kernels serve here.
    """
    num_kv = key_cache.shape[2]
    config = choose.prefill_config(
        num_heads, key_cache, dtype, invariant=invariant, is_scoped=is_scoped
    )
    return segment_bucket(num_rows, num_segments, num_heads, num_kv, config, num_sharing, longest)


def attend(
    qkv: Tensor,
    qk_norm: Tensor | None,
    eps: float,
    cos_sin: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    plan: AttentionPlan | PagedPlan,
    *,
    scale: float | None = None,
    window: int = 0,
    sees_ahead: bool = False,
    sinks: Tensor | None = None,
    borrows: bool = False,
) -> Tensor:
    """Causal attention of T rows, [T, H D]; writes their keys and values.

    qkv [T, (H + 2 KV) D] contiguous: queries, keys, values. Every query and key head has its own
    norm weights, qk_norm [H + KV, D] of qkv's dtype or float32, with further KV rows if values are
    normed too; None: they are not normed. If the layer `borrows`, qkv [T, H D] are queries and
    qk_norm [H, D] theirs; another layer of the step has written their keys and values. cos_sin
    [positions, D] float32: the cosines of D / 2 angles, then their sines. Caches [blocks,
    block_size, KV, D], contiguous, of qkv's dtype, or float8_e4m3fn. Scores are products times
    `scale`, 1 / sqrt(D) by default. With a `window` a row sees so many positions, the last of which
    is its own; with `sees_ahead` all rows of its segment, too. `sinks` float32 [H] are a further
    score of each head, which takes weight from its keys' scores and has no value. The plan is
    prepared for each of these. Raises `ValueError` for shapes that do not fit, and for a window
    that sees ahead.
    """
    _check(qkv, qk_norm, cos_sin, key_cache, value_cache, borrows=borrows)
    if sinks is not None:
        _check_sinks(sinks, qkv, key_cache)
    if window and sees_ahead:
        raise ValueError(f"rows with a window of {window} do not see ahead")
    scale = key_cache.shape[3] ** -0.5 if scale is None else scale
    scope = Scope(scale, window, sees_ahead, borrows)
    if plan.positions.shape[0] != qkv.shape[0]:
        raise ValueError(f"{plan.positions.shape[0]} planned rows for qkv {tuple(qkv.shape)}")
    if isinstance(plan, PagedPlan) and uses_triton(qkv):
        from kernels.attention import paged

        return paged.attend(qkv, qk_norm, eps, cos_sin, key_cache, value_cache, plan, scope, sinks)
    return reference.attend(qkv, qk_norm, eps, cos_sin, key_cache, value_cache, plan, scope, sinks)


def write_context(
    rows: Tensor,
    k_norm: Tensor | None,
    eps: float,
    cos_sin: Tensor,
    cache: Tensor,
    plan: AttentionPlan | PagedPlan,
) -> None:
    """Norm and turn the keys of T rows, and write keys and values to the slots of `plan`'s rows in
    all layers. The rows themselves attend to nothing.

    rows [T, layers x 2 x KV x D] contiguous: each layer's keys, then its values. k_norm
    [layers, KV, D] or None; cache [layers, 2, blocks, block_size, KV, D]; the rest as in `attend`.
    Rows at `NO_ROW` are not written. Raises `ValueError`.
    """
    layers, sides, _, _, num_kv, head_dim = cache.shape
    if rows.shape != (plan.positions.shape[0], layers * sides * num_kv * head_dim):
        raise ValueError(f"rows {tuple(rows.shape)} for a cache {tuple(cache.shape)}")
    if k_norm is not None and k_norm.shape != (layers, num_kv, head_dim):
        raise ValueError(f"norm weights {tuple(k_norm.shape)} for a cache {tuple(cache.shape)}")
    if isinstance(plan, PagedPlan) and uses_triton(rows):
        from kernels.attention import context_write

        context_write.write_context(rows, k_norm, eps, cos_sin, cache, plan)
    else:
        reference.write_context(rows, k_norm, eps, cos_sin, cache, plan)


def blocks_at(
    positions: Tensor,
    table_rows: Tensor,
    block_tables: Tensor,
    num_rows: int,
    num_heads: int,
    key_cache: Tensor,
    dtype: torch.dtype,
    *,
    is_scoped: bool = False,
) -> PagedPlan:
    """The prepared plan of blocks of `num_rows` rows each, one after another. It also serves layers
    whose rows see ahead.

    `positions` int32 [blocks] has the position of each block's first row, which the host need not
    know; `NO_ROW` marks padding. `table_rows` int32 [blocks]; for padding a row that nothing reads.
    The other arguments are those of `prepared`.
    """
    steps = torch.arange(num_rows, dtype=torch.int32, device=positions.device)
    there = positions.unsqueeze(1) >= 0
    of_rows = torch.where(there, positions.unsqueeze(1) + steps, NO_ROW).flatten()
    tables = table_rows.repeat_interleave(num_rows)
    if uses_triton(key_cache):
        from kernels.attention.block_work import block_work

        config = choose.prefill_config(num_heads, key_cache, dtype, is_scoped=is_scoped)
        heads = num_heads, key_cache.shape[2]
        work = block_work(positions, table_rows, num_rows, heads, config)
        return PagedPlan(of_rows, tables, block_tables, 0, work=work)
    places = zip(positions.tolist(), table_rows.tolist(), strict=True)
    segments = [
        ExtendSegment(number * num_rows, num_rows, position, table_row)
        for number, (position, table_row) in enumerate(places)
        if position != NO_ROW
    ]
    return PagedPlan(of_rows, tables, block_tables, 0, tuple(segments))


def _check(
    qkv: Tensor,
    qk_norm: Tensor | None,
    cos_sin: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    *,
    borrows: bool,
) -> None:
    """Check the tensors of a step. The check runs at every layer of every step, so it reads
    each tensor's shape once.
    """
    cache_shape, qkv_shape = key_cache.shape, qkv.shape
    if len(cache_shape) != 4 or cache_shape != value_cache.shape:
        raise ValueError(f"caches {tuple(cache_shape)} and {tuple(value_cache.shape)}")
    _, _, num_kv, head_dim = cache_shape
    num_heads = qkv_shape[1] // head_dim - (0 if borrows else 2 * num_kv)
    if num_heads <= 0 or num_heads % num_kv or qkv_shape[1] % head_dim:
        raise ValueError(f"qkv {tuple(qkv_shape)} for {num_kv} x {head_dim} keys")
    normed = [num_heads] if borrows else [num_heads + num_kv, num_heads + 2 * num_kv]
    if qk_norm is not None and (qk_norm.shape[1] != head_dim or qk_norm.shape[0] not in normed):
        raise ValueError(f"norm weights {tuple(qk_norm.shape)} for {num_heads} + {num_kv} heads")
    if cos_sin.shape[1:] != (head_dim,):
        raise ValueError(f"angles {tuple(cos_sin.shape)} for heads of {head_dim}")


def _check_sinks(sinks: Tensor, qkv: Tensor, key_cache: Tensor) -> None:
    _, _, num_kv, head_dim = key_cache.shape
    num_heads = qkv.shape[1] // head_dim - 2 * num_kv
    if sinks.shape != (num_heads,) or sinks.dtype != torch.float32:
        raise ValueError(f"sinks {tuple(sinks.shape)} {sinks.dtype} of {num_heads} heads")
