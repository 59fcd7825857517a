"""How the rows of a step attend, decided once per step and used in every layer.

Owns the layout of spans and the bounds of temporary memory. Must not know models.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, TypeAlias

import numpy as np
import torch
from torch import Tensor

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


class Span(NamedTuple):
    """Consecutive rows of one sequence: positions [start, start + length).

    `block_ids` cover all positions below start + length; more of them are ignored.
    """

    start: int
    length: int
    block_ids: Sequence[int]


@dataclass(frozen=True, slots=True)
class DecodeGroup:
    """One-row spans that attend together, padded to the longest.

    `blocks` int64 [rows x blocks each]; `mask` bool [rows, 1, 1, context], True where a row
    attends, and `padding` int64, where it does not, as indices into the gathered tokens; None if
    nothing is padded.
    """

    first_row: int
    num_rows: int
    context: int
    blocks: Tensor
    mask: Tensor | None
    padding: Tensor | None


@dataclass(frozen=True, slots=True)
class PrefillSpan:
    """A span of several rows. `blocks` int64 covers start + num_rows positions."""

    first_row: int
    num_rows: int
    start: int
    tile_rows: int
    blocks: Tensor


@dataclass(frozen=True, slots=True)
class AttentionPlan:
    """What `paged_attention` does with `num_rows` rows.

    `positions` and `slots` int64 [rows]: each row's place in its sequence and in the cache.
    """

    num_rows: int
    positions: Tensor
    slots: Tensor
    decodes: tuple[DecodeGroup, ...]
    prefills: tuple[PrefillSpan, ...]


def plan_attention(spans: Sequence[Span], block_size: int, device: torch.device) -> AttentionPlan:
    """The plan for rows laid out in the order of `spans`.

    Spans of one row should come first and by rising start: neighbours then share one gather.
    """
    decodes: list[DecodeGroup] = []
    prefills: list[PrefillSpan] = []
    row = index = 0
    while index < len(spans):
        span = spans[index]
        if span.length == 1:
            group = _take_group(spans, index, GATHERED_TOKENS[device.type])
            decodes.append(_decode_group(group, row, block_size, device))
            row, index = row + len(group), index + len(group)
        else:
            tile_entries = MASK_ENTRIES[device.type]
            prefills.append(_prefill_span(span, row, block_size, tile_entries, device))
            row, index = row + span.length, index + 1
    positions, slots = _to(_places(spans, row, block_size), device)
    return AttentionPlan(row, positions, slots, tuple(decodes), tuple(prefills))


def _places(spans: Sequence[Span], num_rows: int, block_size: int) -> IntArray:
    """Positions and slots of all rows, [2, rows]."""
    places = np.empty((2, num_rows), np.int64)
    row = 0
    for start, length, block_ids in spans:
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


def _take_group(spans: Sequence[Span], first: int, max_tokens: int) -> Sequence[Span]:
    longest = spans[first].start + 1
    bound = longest * _PADDING_FACTOR + _PADDING_FREE
    end = first + 1
    while end < len(spans) and spans[end].length == 1:
        longest = max(longest, spans[end].start + 1)
        if longest > bound or longest * (end + 1 - first) > max_tokens:
            break
        end += 1
    return spans[first:end]


def _decode_group(
    spans: Sequence[Span], first_row: int, block_size: int, device: torch.device
) -> DecodeGroup:
    lengths = np.array([span.start + 1 for span in spans])
    context = int(lengths.max())
    num_blocks = -(-context // block_size)
    blocks = np.empty((len(spans), num_blocks), np.int64)
    for row, span in enumerate(spans):
        used = -(-(span.start + 1) // block_size)
        blocks[row, :used] = span.block_ids[:used]
        # Any block of its own: padding is masked, but must not read another sequence's NaN.
        blocks[row, used:] = span.block_ids[0]
    if int(lengths.min()) == context:
        mask = padding = None
    else:
        attends = np.arange(context) < lengths[:, None]
        mask = _to(attends.reshape(len(spans), 1, 1, context), device)
        rows, offsets = np.nonzero(~attends)
        padding = _to(rows * num_blocks * block_size + offsets, device)
    flat = _to(blocks.reshape(-1), device)
    return DecodeGroup(first_row, len(spans), context, flat, mask, padding)


def _prefill_span(
    span: Span, first_row: int, block_size: int, tile_entries: int, device: torch.device
) -> PrefillSpan:
    context = span.start + span.length
    blocks = np.array(span.block_ids[: -(-context // block_size)], np.int64)
    tile_rows = max(_MIN_TILE_ROWS, tile_entries // context) if span.start else span.length
    return PrefillSpan(first_row, span.length, span.start, tile_rows, _to(blocks, device))


def _to(values: np.ndarray[tuple[int, ...], np.dtype[np.generic]], device: torch.device) -> Tensor:
    return torch.from_numpy(values).to(device, non_blocking=True)
