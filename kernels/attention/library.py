"""Long segments by cuDNN, which on Hopper is twice as fast as what Triton makes of the same
formula.

Owns the library call, which form of it works on this card, and the blend of two results. cuDNN's
mask is causal from the first key on, so a segment behind a past takes two calls: all of the past
unmasked, then its own keys; their log-sum-exps weigh the results.
"""

from collections.abc import Callable
from functools import cache

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.attention.plan import ExtendSegment, PagedPlan
from kernels.launch import Launch

Form = Callable[[Tensor, Tensor, Tensor, bool, float], tuple[Tensor, Tensor]]
"""(queries [S, H, D], keys [C, KV, D], values, causal, scale) -> out [S, H, D], lse [H, S] natural.
"""

_HALVES = frozenset({torch.bfloat16, torch.float16})

_PROBE_TOLERANCE = 2e-2

_HEADS = 8
"""Heads of one row that a program blends."""


def grouped(
    queries: Tensor, keys: Tensor, values: Tensor, causal: bool, scale: float
) -> tuple[Tensor, Tensor]:
    """Fewer key heads than query heads, as they are."""
    q, k, v = (x.transpose(0, 1).unsqueeze(0) for x in (queries, keys, values))
    out, lse = _cudnn(q, k, v, causal, scale)
    return out[0].transpose(0, 1), lse.reshape(queries.shape[1], queries.shape[0])


def batched(
    queries: Tensor, keys: Tensor, values: Tensor, causal: bool, scale: float
) -> tuple[Tensor, Tensor]:
    """Key heads as a batch, each one seen by the query heads of its group without a copy."""
    num_rows, num_heads, head_dim = queries.shape
    num_kv = keys.shape[1]
    group = num_heads // num_kv
    heads = queries.view(num_rows, num_kv, group, head_dim).permute(1, 2, 0, 3)
    k, v = (x.transpose(0, 1).unsqueeze(1).expand(-1, group, -1, -1) for x in (keys, values))
    out, lse = _cudnn(heads, k, v, causal, scale)
    flat = out.permute(2, 0, 1, 3).reshape(num_rows, num_heads, head_dim)
    return flat, lse.reshape(num_heads, num_rows)


def repeated(
    queries: Tensor, keys: Tensor, values: Tensor, causal: bool, scale: float
) -> tuple[Tensor, Tensor]:
    """Every key head copied for the query heads of its group."""
    group = queries.shape[1] // keys.shape[1]
    k, v = (x.repeat_interleave(group, dim=1) for x in (keys, values))
    return grouped(queries, k, v, causal, scale)


def flash(
    queries: Tensor, keys: Tensor, values: Tensor, causal: bool, scale: float
) -> tuple[Tensor, Tensor]:
    """Attend by the library's other kernel, which takes heads of 256; it needs as many key
    heads as query heads.
    """
    q, k, v = (x.transpose(0, 1).unsqueeze(0) for x in (queries, keys, values))
    call = torch.ops.aten._scaled_dot_product_flash_attention  # noqa: SLF001 - its only name
    out, lse = call(q, k, v, 0.0, causal, False, scale=scale)[:2]
    return out[0].transpose(0, 1), lse[0]


def _cudnn(
    queries: Tensor, keys: Tensor, values: Tensor, causal: bool, scale: float
) -> tuple[Tensor, Tensor]:
    """[B, H, S, D] each; out like the queries, and the log-sum-exps [B, H, S, 1]."""
    call = torch.ops.aten._scaled_dot_product_cudnn_attention  # noqa: SLF001 - its only name
    out, lse = call(queries, keys, values, None, True, 0.0, causal, False, scale=scale)[:2]
    return out, lse


FORMS: tuple[Form, ...] = (grouped, batched, repeated)
"""The forms of attention by cuDNN."""

EQUAL_FORMS: tuple[Form, ...] = (grouped, flash)
"""The forms for as many key heads as query heads."""


@cache
def form(
    num_heads: int,
    num_kv: int,
    head_dim: int,
    dtype: torch.dtype,
    candidates: tuple[Form, ...] = FORMS,
) -> Form | None:
    """The first of the `candidates` that works here for these heads, tried once; None: use our
    kernel.
    """
    if dtype not in _HALVES:
        return None
    if not torch.cuda.is_available() or not torch.backends.cudnn.is_available():
        return None
    heads = num_heads, num_kv, head_dim
    return next((f for f in candidates if works(f, *heads, dtype) is None), None)


def works(
    candidate: Form, num_heads: int, num_kv: int, head_dim: int, dtype: torch.dtype
) -> str | None:
    """What is wrong with a form on this card: an error, a wrong result; None if nothing is."""
    generator = torch.Generator("cuda").manual_seed(1)
    rows = 128
    shapes = [(rows, heads, head_dim) for heads in (num_heads, num_kv, num_kv)]
    queries, keys, values = (
        torch.randn(shape, generator=generator, device="cuda").to(dtype) for shape in shapes
    )
    try:
        out, lse = candidate(queries, keys, values, True, head_dim**-0.5)
    except RuntimeError as error:
        return str(error).splitlines()[0]
    wide = (
        x.float().repeat_interleave(num_heads // x.shape[1], 1) for x in (queries, keys, values)
    )
    q, k, v = (x.transpose(0, 1) for x in wide)
    scores = (q @ k.mT) * head_dim**-0.5
    scores.masked_fill_(torch.ones_like(scores[0], dtype=torch.bool).triu_(1), -torch.inf)
    for got, want in ((out, (scores.softmax(-1) @ v).transpose(0, 1)), (lse, scores.logsumexp(-1))):
        if got.shape != want.shape:
            return f"shape {tuple(got.shape)}, not {tuple(want.shape)}"
        distance = float((got.float() - want).norm() / want.norm())
        if not distance < _PROBE_TOLERANCE:
            return f"error {distance:.1e}"
    return None


def attend_segment(
    attend: Form,
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    plan: PagedPlan,
    segment: ExtendSegment,
) -> Tensor:
    """Attend one segment of `plan`: [its rows, H, D].

    queries [rows, H, D] of all segments; the segment's keys lie in the caches.
    """
    first = segment.first_row - plan.first_prepared
    rows = queries[first : first + segment.num_rows]
    context = segment.start + segment.num_rows
    blocks = plan.block_tables[segment.table_row, : -(-context // keys.shape[1])]
    k, v = (_gathered(cache, blocks, context, rows.dtype) for cache in (keys, values))
    return attend_behind(attend, rows, k, v, segment.start, rows.shape[2] ** -0.5)


def attend_behind(
    attend: Form, rows: Tensor, keys: Tensor, values: Tensor, start: int, scale: float
) -> Tensor:
    """Rows [S, H, D] at positions start.. over keys and values [start + S, KV, D]: [S, H, D]."""
    own, own_lse = attend(rows, keys[start:], values[start:], True, scale)
    if start == 0:
        return own
    past, past_lse = attend(rows, keys[:start], values[:start], False, scale)
    return blend(past, past_lse, own, own_lse)


def _gathered(cache: Tensor, blocks: Tensor, context: int, dtype: torch.dtype) -> Tensor:
    """[context, KV, D] of the blocks; float8 caches are gathered as bytes."""
    raw = cache.view(torch.uint8) if cache.dtype.itemsize == 1 else cache
    rows = raw.index_select(0, blocks).view(cache.dtype)
    return rows.flatten(0, 1)[:context].to(dtype)


@triton.jit(do_not_specialize=["num_rows"])
def _blend_kernel(
    past_ptr,  # [num_rows, H, D], over the cached keys
    past_lse_ptr,  # float32 [H, num_rows], natural log-sum-exps of their scores
    own_ptr,  # [num_rows, H, D], over the rows' own keys
    own_lse_ptr,  # float32 [H, num_rows]
    out_ptr,  # [num_rows, H, D], over both
    num_rows,  # rows of queries
    H: tl.constexpr,  # heads of queries
    D: tl.constexpr,  # numbers of a head
    HEADS: tl.constexpr,  # heads of a program
    BLOCK_D: tl.constexpr,  # the power of two from D on
):
    row = tl.program_id(0)
    heads = tl.program_id(1) * HEADS + tl.arange(0, HEADS)
    columns = tl.arange(0, BLOCK_D)
    past_lse = tl.load(past_lse_ptr + heads * num_rows + row, mask=heads < H, other=0.0)
    own_lse = tl.load(own_lse_ptr + heads * num_rows + row, mask=heads < H, other=0.0)
    share = tl.sigmoid(own_lse - past_lse)[:, None]
    places = row.to(tl.int64) * (H * D) + heads[:, None] * D + columns[None, :]
    inside = (heads < H)[:, None] & (columns < D)[None, :]
    past = tl.load(past_ptr + places, mask=inside, other=0.0).to(tl.float32)
    own = tl.load(own_ptr + places, mask=inside, other=0.0).to(tl.float32)
    mixed = past + (own - past) * share
    tl.store(out_ptr + places, mixed.to(out_ptr.dtype.element_ty), mask=inside)


def blend(past: Tensor, past_lse: Tensor, own: Tensor, own_lse: Tensor) -> Tensor:
    """Two attentions of the same rows over different keys, [S, H, D], as one over both.

    Log-sum-exps [H, S], natural.
    """
    num_rows, num_heads, head_dim = own.shape
    out = own.new_empty(own.shape)
    parts = [part.contiguous() for part in (past, past_lse, own, own_lse)]
    grid = num_rows, triton.cdiv(num_heads, _HEADS), 1
    _blend_launch(num_heads, head_dim)(grid, (*parts, out), (num_rows,))
    return out


def record_blend(num_heads: int, head_dim: int, dtype: torch.dtype) -> None:
    """Launch it over tensors without memory, if the library may serve such rows: without a card no
    form can be tried.
    """
    if dtype not in _HALVES:
        return
    rows = torch.empty(1, num_heads, head_dim, dtype=dtype, device="meta")
    sums = torch.empty(num_heads, 1, device="meta")
    blend(rows, sums, rows, sums)


@cache
def _blend_launch(num_heads: int, head_dim: int) -> Launch:
    block_d = triton.next_power_of_2(head_dim)
    constants = {"H": num_heads, "D": head_dim, "HEADS": _HEADS, "BLOCK_D": block_d}
    return Launch(_blend_kernel, constants, num_warps=4)
