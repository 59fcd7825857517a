"""Attention of a step on the card: which kernels run over which rows, in which order.

Owns the sequence of launches. Must not know how a kernel works.
"""

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from kernels.attention import choose, library
from kernels.attention.config import LIBRARY_GRAIN, DecodeConfig
from kernels.attention.decode import decode
from kernels.attention.plan import ExtendSegment, PagedPlan, PrefillWork, Scope, SharedRun
from kernels.attention.prefill import prefill
from kernels.attention.shares import decode_shares
from kernels.attention.work import prefill_work, to_device
from kernels.attention.write import qk_norm_rope_write


def prepared(
    plan: PagedPlan, num_heads: int, keys: Tensor, dtype: torch.dtype, *, is_scoped: bool = False
) -> PagedPlan:
    """See `kernels.attention.prepared`."""
    work = plan.work or plan_prefills(
        plan.prefills,
        plan.num_decodes,
        num_heads,
        keys,
        dtype,
        runs=plan.runs,
        invariant=plan.invariant,
        is_scoped=is_scoped,
    )
    shared = None if work is None else work.shared
    shares = plan_decodes(plan.positions, plan.num_decodes, keys, shared, plan.longest, plan.reach)
    return replace(plan, work=work, shares=shares)


def plan_prefills(
    prefills: Sequence[ExtendSegment],
    num_decodes: int,
    num_heads: int,
    keys: Tensor,
    dtype: torch.dtype,
    *,
    runs: Sequence[SharedRun] = (),
    invariant: bool = False,
    is_scoped: bool = False,
) -> PrefillWork | None:
    """The work of segments, and of what decodes share, for `PagedPlan.work`, once per step; `keys`
    is any layer's key cache.

    `dtype` is that of the rows. None if there are no segments and nothing is shared.
    """
    if not prefills and not runs:
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
        runs=runs or None,
    )
    return to_device(work, keys.device)


def plan_decodes(
    positions: Tensor,
    num_decodes: int,
    keys: Tensor,
    shared: Tensor | None = None,
    longest: int = 0,
    reach: int = 0,
) -> Tensor | None:
    """`PagedPlan.shares` of the rows [0, num_decodes) at `positions`, of which `shared` says what
    they share, with up to `longest` cached tokens, of which they see `reach`; None if there are
    none.
    """
    if not num_decodes:
        return None
    num_kv = keys.shape[2]
    config = _decode_config(num_decodes, keys, longest, reach)
    return decode_shares(positions, num_decodes, num_kv, config, shared, reach)


def attend(
    qkv: Tensor,
    qk_norm: Tensor | None,
    eps: float,
    cos_sin: Tensor,
    keys: Tensor,
    values: Tensor,
    plan: PagedPlan,
    scope: Scope | None = None,
    sinks: Tensor | None = None,
) -> Tensor:
    """See `kernels.attention.attend`. Raises `ValueError` for segments without `plan.work`, for
    decodes without `plan.shares`, and for invariant decodes, which must be segments.
    """
    num_kv, head_dim = keys.shape[2:]
    borrows = scope is not None and scope.borrows
    num_heads = qkv.shape[1] // head_dim - (0 if borrows else 2 * num_kv)
    if plan.prefills and plan.work is None:
        raise ValueError("a plan with segments needs `work`, from `plan_prefills`")
    if plan.invariant and plan.num_decodes:
        raise ValueError("the decodes of an invariant plan must be segments of one row")
    out = qkv.new_empty(qkv.shape[0], num_heads * head_dim)
    operands = qkv, qk_norm, eps, cos_sin, keys, values, plan
    if plan.work is None or plan.work.shared is None:
        _decode(operands, out, scope, sinks)
    if plan.work is None:
        return out
    queries = qk_norm_rope_write(*operands, choose.write_config(), borrows=borrows)
    for work in (plan.work, *plan.work.more):
        if scope is not None and scope.sees_ahead:
            if work.ahead is None:
                raise ValueError("a plan whose rows see ahead needs `work.ahead`")
            work = work._replace(items=work.ahead)  # noqa: PLW2901 - the same, for such layers
        if work.items.shape[0]:
            prefill(queries, keys, values, plan, work, work.config, out, scope, sinks)
    if plan.work.shared is not None:
        _decode(operands, out, scope, sinks)  # which merges what is shared
    return _by_library(plan.work.library, queries, keys, values, plan, out)


def _by_library(
    segments: Sequence[ExtendSegment],
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    plan: PagedPlan,
    out: Tensor,
) -> Tensor:
    """`out` with these segments, or the only segment alone."""
    heads = queries.shape[1], *keys.shape[2:]
    for segment in segments:
        form = library.form(*heads, queries.dtype)
        if form is None:
            raise ValueError(f"no library attention for {heads[0]}/{heads[1]} x {heads[2]}")
        mixed = library.attend_segment(form, queries, keys, values, plan, segment).flatten(1)
        if segment.num_rows == out.shape[0]:
            return mixed
        out[segment.first_row : segment.first_row + segment.num_rows] = mixed
    return out


def _decode(
    operands: tuple[Tensor, Tensor | None, float, Tensor, Tensor, Tensor, PagedPlan],
    out: Tensor,
    scope: Scope | None,
    sinks: Tensor | None,
) -> None:
    keys, plan = operands[4], operands[-1]
    if plan.num_decodes:
        config = _decode_config(plan.num_decodes, keys, plan.longest, plan.reach)
        decode(*operands, config, out, scope, sinks)


def _decode_config(num_rows: int, keys: Tensor, longest: int, reach: int) -> DecodeConfig:
    """The launches for decodes that read up to `longest` cached tokens and see up to `reach`."""
    num_kv, head_dim = keys.shape[2:]
    read = min([most for most in (longest, reach) if most], default=0)
    return choose.decode_config(num_rows, num_kv, head_dim, keys.dtype, read)
