"""Attention over a paged cache in plain torch: the CPU path.

Owns how the rows of a step attend, decided once per step and used in every layer, and the bounds of
temporary memory. Must not know models.

Decodes gather their keys and values in padded groups; prefills gather once per sequence and run
in tiles of queries, so temporary memory is bounded whatever the context. Grouped heads read one
expanded view of their key head: nothing is copied per query head.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final, NamedTuple, TypeAlias

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812 - the name that torch's own documentation uses
from torch import Tensor

from kernels.attention.plan import Scope
from kernels.attention.tiled import KEY_ROWS, attend_tiled

GATHERED_TOKENS: Final = {"cpu": 2**17, "cuda": 2**19}
"""Padded tokens of keys that one group of decodes may gather per layer, unless one row is longer:
2**17 x 8 heads x 128 x 4 bytes is 512 MiB for a Qwen3-0.6B in float32, and 16 MiB for ours."""

MASK_ENTRIES: Final = {"cpu": 2**22, "cuda": 2**26}
"""Entries of one tile's mask in a prefill behind cached tokens."""

IntArray: TypeAlias = np.ndarray[tuple[int, int], np.dtype[np.int64]]

_MIN_TILE_ROWS: Final = 16
_PADDING_FACTOR: Final = 2
_PADDING_FREE: Final = 256
"""Decodes share a gather if the longest is at most 2 x the shortest + 256 tokens long."""


class Segment(NamedTuple):
    """Consecutive rows of one sequence: positions [start, start + length).

    `block_ids` cover all positions below start + length; more of them are ignored.
    """

    start: int
    length: int
    block_ids: Sequence[int]


@dataclass(frozen=True, slots=True)
class DecodeGroup:
    """One-row segments that attend together, padded to the longest.

    `starts` int64 [rows], each row's position; `blocks` int64 [rows x blocks each]; `mask` bool
    [rows, 1, 1, context], True where a row attends, and `padding` int64, where it does not, as
    indices into the gathered tokens; None if nothing is padded.
    """

    first_row: int
    num_rows: int
    context: int
    starts: Tensor
    blocks: Tensor
    mask: Tensor | None
    padding: Tensor | None


@dataclass(frozen=True, slots=True)
class PrefillSegment:
    """A segment of several rows. `blocks` int64 covers start + num_rows positions."""

    first_row: int
    num_rows: int
    start: int
    tile_rows: int
    blocks: Tensor


@dataclass(frozen=True, slots=True)
class AttentionPlan:
    """What `paged_attention` does with `num_rows` rows.

    `positions` and `slots` int64 [rows]: each row's place in its sequence and in the cache.
    `invariant`: all segments, of one row too, are among `prefills` (`kernels.attention.tiled`).
    `window` is the plan of the same rows for layers that keep only their window.
    """

    num_rows: int
    positions: Tensor
    slots: Tensor
    decodes: tuple[DecodeGroup, ...]
    prefills: tuple[PrefillSegment, ...]
    invariant: bool = False
    window: "AttentionPlan | None" = None


def plan_attention(
    segments: Sequence[Segment],
    block_size: int,
    device: torch.device,
    *,
    invariant: bool = False,
) -> AttentionPlan:
    """The plan for rows laid out in the order of `segments`.

    Segments of one row should come first and by rising start: neighbours then share one gather.
    """
    decodes: list[DecodeGroup] = []
    prefills: list[PrefillSegment] = []
    row = index = 0
    while index < len(segments):
        segment = segments[index]
        if segment.length == 1 and not invariant:
            group = _take_group(segments, index, GATHERED_TOKENS[device.type])
            decodes.append(_decode_group(group, row, block_size, device))
            row, index = row + len(group), index + len(group)
        else:
            tile_entries = MASK_ENTRIES[device.type]
            prefills.append(_prefill_segment(segment, row, block_size, tile_entries, device))
            row, index = row + segment.length, index + 1
    positions, slots = _to(_places(segments, row, block_size), device)
    return AttentionPlan(row, positions, slots, tuple(decodes), tuple(prefills), invariant)


def plan_windows(
    segments: Sequence[Segment],
    window: int,
    block_size: int,
    device: torch.device,
    *,
    invariant: bool = False,
) -> AttentionPlan:
    """The plan of the same rows for layers that keep only their `window`. The `block_ids` of
    `segments` name their blocks; those of tokens that no row sees are not looked at, so a segment
    begins with the first token that is kept.
    """
    firsts = [kept_from(start, window) for start, _, _ in segments]
    seen = [
        Segment(start - first, length, block_ids[first // block_size :])
        for (start, length, block_ids), first in zip(segments, firsts, strict=True)
    ]
    plan = plan_attention(seen, block_size, device, invariant=invariant)
    before = np.repeat(np.array(firsts, np.int64), [segment.length for segment in segments])
    return replace(plan, positions=plan.positions + _to(before, device))


def kept_from(start: int, window: int) -> int:
    """The first position that is kept for rows from `start` on, of which each sees `window`
    positions: a multiple of `KEY_ROWS`, by which kernels read.
    """
    return max(0, start + 1 - window) // KEY_ROWS * KEY_ROWS


def _places(segments: Sequence[Segment], num_rows: int, block_size: int) -> IntArray:
    """Positions and slots of all rows, [2, rows]."""
    places = np.empty((2, num_rows), np.int64)
    row = 0
    for start, length, block_ids in segments:
        if length == 1:
            block, offset = divmod(start, block_size)
            places[:, row] = start, block_ids[block] * block_size + offset
        else:
            positions = np.arange(start, start + length)
            blocks = np.array(block_ids, np.int64)[positions // block_size]
            places[0, row : row + length] = positions
            places[1, row : row + length] = blocks * block_size + positions % block_size
        row += length
    return places


def _take_group(segments: Sequence[Segment], first: int, max_tokens: int) -> Sequence[Segment]:
    longest = segments[first].start + 1
    bound = longest * _PADDING_FACTOR + _PADDING_FREE
    end = first + 1
    while end < len(segments) and segments[end].length == 1:
        longest = max(longest, segments[end].start + 1)
        if longest > bound or longest * (end + 1 - first) > max_tokens:
            break
        end += 1
    return segments[first:end]


def _decode_group(
    segments: Sequence[Segment], first_row: int, block_size: int, device: torch.device
) -> DecodeGroup:
    lengths = np.array([segment.start + 1 for segment in segments])
    context = int(lengths.max())
    num_blocks = -(-context // block_size)
    blocks = np.empty((len(segments), num_blocks), np.int64)
    for row, segment in enumerate(segments):
        used = -(-(segment.start + 1) // block_size)
        blocks[row, :used] = segment.block_ids[:used]
        # Any block of its own: padding is masked, but must not read another sequence's NaN.
        blocks[row, used:] = segment.block_ids[0]
    if int(lengths.min()) == context:
        mask = padding = None
    else:
        attends = np.arange(context) < lengths[:, None]
        mask = _to(attends.reshape(len(segments), 1, 1, context), device)
        rows, offsets = np.nonzero(~attends)
        padding = _to(rows * num_blocks * block_size + offsets, device)
    flat = _to(blocks.reshape(-1), device)
    starts = _to(lengths - 1, device)
    return DecodeGroup(first_row, len(segments), context, starts, flat, mask, padding)


def _prefill_segment(
    segment: Segment, first_row: int, block_size: int, tile_entries: int, device: torch.device
) -> PrefillSegment:
    context = segment.start + segment.length
    blocks = np.array(segment.block_ids[: -(-context // block_size)], np.int64)
    tile_rows = max(_MIN_TILE_ROWS, tile_entries // context) if segment.start else segment.length
    return PrefillSegment(first_row, segment.length, segment.start, tile_rows, _to(blocks, device))


def _to(values: np.ndarray[tuple[int, ...], np.dtype[np.generic]], device: torch.device) -> Tensor:
    return torch.from_numpy(values).to(device, non_blocking=True)


def paged_attention(
    queries: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    plan: AttentionPlan,
    scope: Scope | None = None,
    sinks: Tensor | None = None,
) -> Tensor:
    """Causal softmax(q k^T scale) v for every row, [T, H, D] like queries. `scope` None sees all
    positions, with a scale of 1 / sqrt(D). `sinks` [H] are further scores without a value.

    queries [T, H, D]; caches [blocks, block_size, KV, D], contiguous, H a multiple of KV. Keys and
    values of the rows themselves are already in the cache. Rows are laid out as the segments of
    `plan`. Raises `ValueError`.
    """
    if queries.shape[0] != plan.num_rows or queries.shape[1] % key_cache.shape[2]:
        raise ValueError(f"queries {tuple(queries.shape)} for {plan.num_rows} planned rows")
    if key_cache.shape != value_cache.shape or queries.shape[2] != key_cache.shape[3]:
        raise ValueError(f"caches {tuple(key_cache.shape)}, {tuple(value_cache.shape)}")
    scope = scope or Scope(key_cache.shape[3] ** -0.5)
    given = queries, key_cache, value_cache
    parts = [_decode(*given, group, scope, sinks) for group in plan.decodes]
    prefill = _tiled if plan.invariant else _prefill
    parts += [prefill(*given, segment, scope, sinks) for segment in plan.prefills]
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def _decode(
    queries: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    group: DecodeGroup,
    scope: Scope,
    sinks: Tensor | None,
) -> Tensor:
    """[rows, H, D] of one group."""
    num_kv, head_dim = key_cache.shape[2:]
    rows = queries[group.first_row : group.first_row + group.num_rows]
    grouped = rows.reshape(group.num_rows, num_kv, -1, head_dim)
    keys, values = (padded_rows(cache, group, rows.dtype) for cache in (key_cache, value_cache))
    mask = group.mask
    if scope.window and group.context > scope.window:
        ends = group.starts.view(-1, 1, 1, 1)
        positions = torch.arange(group.context, device=ends.device)
        mask = (positions <= ends) & (positions > ends - scope.window)
    own = None if sinks is None else sinks.view(1, num_kv, -1, 1)
    return _mixed(grouped, keys, values, mask, scope, own).reshape(group.num_rows, -1, head_dim)


def _mixed(
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    mask: Tensor | None,
    scope: Scope,
    sinks: Tensor | None,
) -> Tensor:
    """Softmax attention with a `mask` of what is seen. A sink, whose shape broadcasts to scores, is
    a last key of zeros with a score of its own.
    """
    if sinks is None:
        return F.scaled_dot_product_attention(
            queries, keys, values, attn_mask=mask, scale=scope.scale
        )
    shape = *torch.broadcast_shapes(queries.shape[:-2], keys.shape[:-2]), queries.shape[-2]
    scores = queries.new_zeros(*shape, keys.shape[-2] + 1)
    if mask is not None:
        scores[..., :-1].masked_fill_(~mask, -torch.inf)
    scores[..., -1:] = sinks
    keys, values = (F.pad(each, (0, 0, 0, 1)) for each in (keys, values))
    return F.scaled_dot_product_attention(
        queries, keys, values, attn_mask=scores, scale=scope.scale
    )


def padded_rows(cache: Tensor, group: DecodeGroup, dtype: torch.dtype) -> Tensor:
    """The cached vectors of a group, [rows, KV, context, D], zeros where a row has none.

    A masked score weighs its value with 0, but 0 x NaN is NaN: what other sequences left in a
    block must not be read at all.
    """
    gathered = _blocks(cache, group.blocks, dtype).flatten(0, 1)
    if group.padding is not None:
        gathered.index_fill_(0, group.padding, 0.0)
    rows = gathered.view(group.num_rows, -1, *cache.shape[2:])
    return rows[:, : group.context].transpose(1, 2)


def _prefill(
    queries: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    segment: PrefillSegment,
    scope: Scope,
    sinks: Tensor | None,
) -> Tensor:
    """[rows, H, D] of one segment."""
    num_kv, head_dim = key_cache.shape[2:]
    context = segment.start + segment.num_rows
    rows = queries[segment.first_row : segment.first_row + segment.num_rows]
    # [rows, H, D] -> [KV, H / KV, rows, D]: a batch of key heads, each with its query heads.
    grouped = rows.view(segment.num_rows, num_kv, -1, head_dim).permute(1, 2, 0, 3)
    shape = (num_kv, grouped.shape[1], context, head_dim)
    keys = sequence_rows(key_cache, segment.blocks, context, rows.dtype).expand(shape)
    values = sequence_rows(value_cache, segment.blocks, context, rows.dtype).expand(shape)
    own, size = None, segment.tile_rows
    if sinks is not None:  # they make a mask of each head
        own, size = sinks.view(num_kv, -1, 1, 1), max(1, size // sinks.shape[0])
    tiles = [
        _tile(grouped[:, :, at : at + size], keys, values, segment.start + at, scope, own)
        for at in range(0, segment.num_rows, size)
    ]
    out = tiles[0] if len(tiles) == 1 else torch.cat(tiles, dim=2)
    return out.permute(2, 0, 1, 3).reshape(segment.num_rows, -1, head_dim)


def _tiled(
    queries: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    segment: PrefillSegment,
    scope: Scope,
    sinks: Tensor | None,
) -> Tensor:
    rows = queries[segment.first_row : segment.first_row + segment.num_rows]
    return attend_tiled(rows, key_cache, value_cache, segment.start, segment.blocks, scope, sinks)


def sequence_rows(cache: Tensor, blocks: Tensor, context: int, dtype: torch.dtype) -> Tensor:
    """The cached vectors of one sequence, [KV, 1, context, D]."""
    gathered = _blocks(cache, blocks, dtype).flatten(0, 1)[:context]
    return gathered.transpose(0, 1).unsqueeze(1)


def _blocks(cache: Tensor, blocks: Tensor, dtype: torch.dtype) -> Tensor:
    """A copy of the cache's blocks; torch selects among numbers of 8 bits as bytes only."""
    if cache.dtype == torch.float8_e4m3fn:
        return cache.view(torch.uint8).index_select(0, blocks).view(cache.dtype).to(dtype)
    return cache.index_select(0, blocks)


def _tile(
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    start: int,
    scope: Scope,
    sinks: Tensor | None,
) -> Tensor:
    """Queries [KV, G, rows, D] at positions start.. against the keys up to their own."""
    window = scope.window
    num_rows = queries.shape[2]
    if scope.sees_ahead:
        return _mixed(queries, keys, values, None, scope, sinks)
    end = start + num_rows
    keys, values = keys[:, :, :end], values[:, :, :end]
    if start == 0 and not 0 < window < end and sinks is None:
        return F.scaled_dot_product_attention(
            queries, keys, values, is_causal=True, scale=scope.scale
        )
    mask = torch.ones(num_rows, end, dtype=torch.bool, device=queries.device).tril_(start)
    if window:
        mask.triu_(start - window + 1)
    return _mixed(queries, keys, values, mask, scope, sinks)
