"""What the attention kernels share on the card: norm and turn, cached tiles, one softmax step.

Owns device functions only. Heads that are turned lie in registers as [R, 2, HALF]: two halves of
D / 2 columns, each padded to HALF, a power of two. Turning pairs column i with i + D / 2, so every
thread also loads the partners of its columns: cheaper than passing them between threads, and
joining halves would cost the matrix product its wide loads from shared memory.
"""

from typing import Final, NamedTuple

import torch
import triton
import triton.language as tl

from kernels.attention.plan import Scope
from kernels.choose import has_pdl, is_card

_LOG2_E: Final = 1.4426950408889634


class AttentionSizes(NamedTuple):
    """What a kernel that attends to a cache is compiled for, but for its configuration."""

    device: torch.device
    num_heads: int
    num_kv: int
    head_dim: int
    block_size: int
    dtype: torch.dtype
    cache_dtype: torch.dtype
    scope: Scope
    has_sinks: bool

    @property
    def constants(self) -> dict[str, object]:
        """The constants that all of these kernels have."""
        return {
            "scale": _LOG2_E * self.scope.scale, "H": self.num_heads, "KV": self.num_kv,
            "D": self.head_dim, "BLOCK_SIZE": self.block_size,
            "BLOCK_D": triton.next_power_of_2(self.head_dim),
            "DOT": dot_type(self.dtype, self.cache_dtype, self.device),
            "WINDOW": self.scope.window, "SINKS": self.has_sinks, "PDL": has_pdl(self.device),
        }  # fmt: skip


def dot_type(rows: torch.dtype, cache: torch.dtype, device: torch.device) -> tl.dtype:
    """What matrix products are taken in: float16 for a float8 cache, which it holds exactly.

    The interpreter knows bfloat16 as storage only.
    """
    if cache.itemsize == 1:
        return tl.float16
    if rows == torch.bfloat16:
        return tl.bfloat16 if is_card(device) else tl.float32
    return {torch.float16: tl.float16, torch.float32: tl.float32}[rows]


@triton.jit
def load_pairs(ptr, starts, inside, D: tl.constexpr, HALF: tl.constexpr):
    """Float32 heads [R, 2, HALF] that begin at `starts` [R, 1, 1], and those with halves swapped.

    `inside` [R, 1, 1] says which heads there are; the others are 0.
    """
    half = tl.arange(0, 2)[None, :, None]
    column = tl.arange(0, HALF)[None, None, :]
    mask = inside & (column < D // 2)
    heads = tl.load(ptr + starts + half * (D // 2) + column, mask=mask, other=0.0)
    partners = tl.load(ptr + starts + (1 - half) * (D // 2) + column, mask=mask, other=0.0)
    return heads.to(tl.float32), partners.to(tl.float32)


@triton.jit
def load_angles(ptr, position, D: tl.constexpr, HALF: tl.constexpr):
    """Cosines [1, 1, HALF] of a position, and sines [1, 2, HALF], negative for the first half."""
    half = tl.arange(0, 2)[None, :, None]
    column = tl.arange(0, HALF)[None, None, :]
    ptr += position.to(tl.int64) * D
    cos = tl.load(ptr + column, mask=column < D // 2, other=0.0)
    sin = tl.load(ptr + D // 2 + column, mask=column < D // 2, other=0.0)
    return cos, tl.where(half == 0, -sin, sin)


@triton.jit
def turned(heads, weights, angles, eps, D: tl.constexpr, DTYPE: tl.constexpr, NORMED: tl.constexpr):
    """Norm and turn heads and partners of `load_pairs`: float32 [R, 2, HALF], rounded to DTYPE.

    Rounds where the reference does: after the norm, after its weight, after the turn. Without
    NORMED `weights` are not read.
    """
    if not NORMED:
        return (heads[0] * angles[0] + heads[1] * angles[1]).to(DTYPE).to(tl.float32)
    squares = tl.sum(tl.sum(heads[0] * heads[0], 2), 1)
    scale = tl.rsqrt(squares / D + eps)[:, None, None]
    own = (heads[0] * scale).to(DTYPE).to(tl.float32) * weights[0]
    partner = (heads[1] * scale).to(DTYPE).to(tl.float32) * weights[1]
    own, partner = own.to(DTYPE).to(tl.float32), partner.to(DTYPE).to(tl.float32)
    return (own * angles[0] + partner * angles[1]).to(DTYPE).to(tl.float32)


@triton.jit
def normed(heads, weights, eps, D: tl.constexpr, DTYPE: tl.constexpr):
    """Norm heads [R, 2, HALF] that do not turn, as values: float32, rounded to DTYPE where `turned`
    rounds.
    """
    squares = tl.sum(tl.sum(heads * heads, 2), 1)
    scale = tl.rsqrt(squares / D + eps)[:, None, None]
    return ((heads * scale).to(DTYPE).to(tl.float32) * weights).to(DTYPE).to(tl.float32)


@triton.jit
def to_cache(x, CACHE_DTYPE: tl.constexpr):
    """Float32 as the cache stores it; float8 saturates and keeps NaN."""
    if CACHE_DTYPE == tl.float8e4nv:  # noqa: SIM300
        x = tl.clamp(x, -448.0, 448.0, propagate_nan=tl.PropagateNan.ALL)
    return x.to(CACHE_DTYPE)


@triton.jit
def load_tile(
    cache_ptr, blocks, positions, valid, head, columns, KV: tl.constexpr, D: tl.constexpr,
    BLOCK_SIZE: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """[TILE, BLOCK_D] of one head at `positions`, whose blocks are `blocks`; 0 where not valid.

    What is not valid is never read: other sequences' leavings may be NaN, and 0 x NaN is NaN.
    """
    slots = blocks.to(tl.int64) * BLOCK_SIZE + positions % BLOCK_SIZE
    pointers = cache_ptr + (slots * KV + head)[:, None] * D + columns[None, :]
    inside = valid[:, None]
    if BLOCK_D != D:
        inside = inside & (columns < D)[None, :]
    return tl.load(pointers, mask=inside, other=0.0)


@triton.jit
def attend_tile(query, keys, values, seen, scale, top, fading, mixed):
    """One step of online softmax: the new (top, fading, mixed).

    query [M, BLOCK_D], keys and values [TILE, BLOCK_D], `seen` bool, broadcasts to [M, TILE].
    Scores are powers of two: `scale` holds log2(e). `fading` [M, TILE] are the sums of weights by
    column, added up only once at the end; mixed [M, BLOCK_D].
    """
    keys, values = keys.to(query.dtype), values.to(query.dtype)
    scores = tl.dot(query, tl.trans(keys), input_precision="ieee") * scale
    scores = tl.where(seen, scores, -float("inf"))
    new_top = tl.maximum(top, tl.max(scores, 1))
    # A row that has seen nothing yet stays at -inf; its weights must be 0, not NaN.
    ground = tl.where(new_top == -float("inf"), 0.0, new_top)
    weights = tl.exp2(scores - ground[:, None])
    fade = tl.exp2(top - ground)[:, None]
    mixed = tl.dot(weights.to(query.dtype), values, mixed * fade, input_precision="ieee")
    return new_top, fading * fade + weights, mixed


@triton.jit
def merged(
    partial_ptr, lse_ptr, first, stride, count, heads, inside, columns, H: tl.constexpr,
    D: tl.constexpr, BLOCK_D: tl.constexpr, FAN: tl.constexpr,
):  # fmt: skip
    """Float32 [heads, BLOCK_D]: `count` partial results at slots first, first + stride, ..."""
    zeros = tl.zeros([heads.shape[0], BLOCK_D], tl.float32)
    top, total, mixed = tl.max(zeros, 1) - float("inf"), tl.max(zeros, 1), zeros
    top, total, mixed = merge_more(
        partial_ptr, lse_ptr, first, stride, count, heads, inside, columns, top, total, mixed, H, D,
        FAN,
    )  # fmt: skip
    return mixed / tl.where(total == 0.0, 1.0, total)[:, None]


@triton.jit
def merge_more(
    partial_ptr, lse_ptr, first, stride, count, heads, inside, columns, top, total, mixed,
    H: tl.constexpr, D: tl.constexpr, FAN: tl.constexpr,
):  # fmt: skip
    """(top, total, mixed) with `count` more partial results at slots first, first + stride, ...

    partial [slots, H, D] float32, lse [slots, H] in powers of two. Always in the same order. The
    loads pass by L1, which may hold what stood there before. FAN parts are asked for at once, each
    a tile of its own: as one tile, whose parts other threads hold, they took a layer of one row 3
    to 14 us more on an H200.
    """
    for start in tl.range(0, count, FAN, num_stages=1):
        lses = ()
        parts = ()
        for number in tl.static_range(FAN):
            index = start + number
            place = (first + index * stride).to(tl.int64) * H + heads
            ours = inside & (index < count)
            lses += (
                tl.load(lse_ptr + place, mask=ours, other=-float("inf"), cache_modifier=".cg"),
            )  # type: ignore[assignment]
            parts += (
                tl.load(
                    partial_ptr + place[:, None] * D + columns[None, :],
                    mask=ours[:, None] & (columns < D)[None, :],
                    other=0.0,
                    cache_modifier=".cg",
                ),
            )  # type: ignore[assignment]
        new_top = top
        for number in tl.static_range(FAN):
            new_top = tl.maximum(new_top, lses[number])
        ground = tl.where(new_top == -float("inf"), 0.0, new_top)
        fade = tl.exp2(top - ground)
        total *= fade
        mixed *= fade[:, None]
        for number in tl.static_range(FAN):
            weights = tl.exp2(lses[number] - ground)
            total += weights
            mixed += weights[:, None] * parts[number]
        top = new_top
    return top, total, mixed
