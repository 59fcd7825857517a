"""Attention of a step on the card: which kernels run over which rows, in which order.

Owns the sequence of launches. Must not know how a kernel works.
"""

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from kernels.attention import choose, library
from kernels.attention.config import LIBRARY_GRAIN
from kernels.attention.decode import decode
from kernels.attention.plan import ExtendSegment, PagedPlan, PrefillWork, Scope
from kernels.attention.prefill import prefill
from kernels.attention.shares import decode_shares
from kernels.attention.work import prefill_work, to_device
from kernels.attention.write import qk_norm_rope_write


def prepared(
    plan: PagedPlan,
    num_heads: int,
    keys: Tensor,
    dtype: torch.dtype,
    *,
    is_scoped: bool = False,
) -> PagedPlan:
    """See `kernels.attention.prepared`."""
    work = plan.work or plan_prefills(
        plan.prefills,
        plan.num_decodes,
        num_heads,
        keys,
        dtype,
        invariant=plan.invariant,
        is_scoped=is_scoped,
    )
    return replace(plan, work=work, shares=plan_decodes(plan.positions, plan.num_decodes, keys))


def plan_prefills(
    prefills: Sequence[ExtendSegment],
    num_decodes: int,
    num_heads: int,
    keys: Tensor,
    dtype: torch.dtype,
    *,
    invariant: bool = False,
    is_scoped: bool = False,
) -> PrefillWork | None:
    """The segments' work for `PagedPlan.work`, once per step; `keys` is any layer's key cache.

    `dtype` is that of the rows. None if there are no segments.
    """
    if not prefills:
        return None
    num_kv, head_dim = keys.shape[2:]
    config = choose.prefill_config(num_heads, keys, dtype, invariant=invariant, is_scoped=is_scoped)
    if keys.is_meta and any(segment.num_rows >= config.library for segment in prefills):
        library.record_blend(num_heads, head_dim, dtype)
    work = prefill_work(
        prefills,
        num_decodes,
        num_heads,
        num_kv,
        config,
        # Asked, with the first long segments, before it is needed: the library is tried then.
        library=not invariant
        and not is_scoped
        and any(segment.num_rows >= LIBRARY_GRAIN for segment in prefills)
        and library.form(num_heads, num_kv, head_dim, dtype) is not None,
    )
    return to_device(work, keys.device)


def plan_decodes(positions: Tensor, num_decodes: int, keys: Tensor) -> Tensor | None:
    """`PagedPlan.shares` of the rows [0, num_decodes) at `positions`; None if there are none."""
    if not num_decodes:
        return None
    num_kv, head_dim = keys.shape[2:]
    config = choose.decode_config(num_decodes, head_dim, keys.dtype)
    return decode_shares(positions, num_decodes, num_kv, config)


def attend(
    qkv: Tensor,
    qk_norm: Tensor | None,
    eps: float,
    cos_sin: Tensor,
    keys: Tensor,
    values: Tensor,
    plan: PagedPlan,
    scope: Scope | None = None,
) -> Tensor:
    """See `kernels.attention.attend`. Raises `ValueError` for segments without `plan.work`, for
    decodes without `plan.shares`, and for invariant decodes, which must be segments.
    """
    num_kv, head_dim = keys.shape[2:]
    num_heads = qkv.shape[1] // head_dim - 2 * num_kv
    if plan.prefills and plan.work is None:
        raise ValueError("a plan with segments needs `work`, from `plan_prefills`")
    if plan.invariant and plan.num_decodes:
        raise ValueError("the decodes of an invariant plan must be segments of one row")
    out = qkv.new_empty(qkv.shape[0], num_heads * head_dim)
    if plan.num_decodes:
        config = choose.decode_config(plan.num_decodes, head_dim, keys.dtype)
        decode(qkv, qk_norm, eps, cos_sin, keys, values, plan, config, out, scope)
    if plan.work is None:
        return out
    queries = qk_norm_rope_write(
        qkv, qk_norm, eps, cos_sin, keys, values, plan, choose.write_config()
    )
    for work in (plan.work, *plan.work.more):
        if work.items.shape[0]:
            prefill(queries, keys, values, plan, work, work.config, out, scope)
    for segment in plan.work.library:
        form = library.form(num_heads, num_kv, head_dim, qkv.dtype)
        if form is None:
            raise ValueError(f"no library attention for {num_heads}/{num_kv} x {head_dim}")
        mixed = library.attend_segment(form, queries, keys, values, plan, segment).flatten(1)
        if segment.num_rows == out.shape[0]:
            return mixed
        out[segment.first_row : segment.first_row + segment.num_rows] = mixed
    return out
