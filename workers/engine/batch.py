"""A step's chunks as flat tensors.

Owns the order of rows and what one forward pass is given, on the host and for the card. Must not
know the network.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from kernels.attention import PagedPlan, PrefillSpan
from kernels.paged_attention import AttentionPlan, Span, plan_attention
from workers.core.plan import Chunk
from workers.engine.sequences import SequenceState
from workers.engine.tables import SequenceTables

ON_CARD = -1
"""In place of a token id: the card holds it, sampled by the step before."""


@dataclass(frozen=True, slots=True)
class Batch:
    """T rows, one per token; chunks lie one after another in the order of `chunks`.

    `token_ids` int64 [T]; `last_rows` int64 [S] are the rows whose logits are sampled, in the order
    of `sampling`, and `sampled_positions` int64 [S] where the sampled tokens will stand.
    """

    chunks: tuple[Chunk, ...]
    sampling: tuple[Chunk, ...]
    token_ids: Tensor
    last_rows: Tensor
    sampled_positions: Tensor
    plan: AttentionPlan


@dataclass(frozen=True, slots=True)
class PagedBatch:
    """The same on the card; `table_rows` int64 [S] belong to the sampled rows. A token id may be
    `ON_CARD`."""

    chunks: tuple[Chunk, ...]
    sampling: tuple[Chunk, ...]
    token_ids: Tensor
    last_rows: Tensor
    sampled_positions: Tensor
    table_rows: Tensor
    plan: PagedPlan


def make_batch(chunks: Sequence[Chunk], tokens: Mapping[int, array[int]], block_size: int) -> Batch:
    """The batch of `chunks` on the CPU, given all tokens of each sequence.

    Single rows go first, by context: attention gathers neighbours of similar length together.
    Raises `ValueError` for a chunk that reaches past the sequence's tokens or its blocks.
    """
    ordered = tuple(sorted(chunks, key=_row_order))
    for chunk in ordered:
        _check(chunk, len(tokens[chunk.seq]), block_size)
    ids = np.concatenate([_ids(chunk, tokens[chunk.seq]) for chunk in ordered])
    sampling, last_rows = _sampling(ordered)
    spans = [Span(chunk.start, chunk.length, chunk.block_ids) for chunk in ordered]
    return Batch(
        chunks=ordered,
        sampling=sampling,
        token_ids=torch.from_numpy(ids),
        last_rows=torch.tensor(last_rows, dtype=torch.int64),
        sampled_positions=torch.tensor(_ends(sampling), dtype=torch.int64),
        plan=plan_attention(spans, block_size, torch.device("cpu")),
    )


def make_paged_batch(
    chunks: Sequence[Chunk],
    states: Mapping[int, SequenceState],
    tables: SequenceTables,
    block_size: int,
    prepare: Callable[[PagedPlan], PagedPlan],
) -> PagedBatch:
    """The batch of `chunks` beside `tables`, whose rows are up to date.

    Single rows go first, then spans; `prepare` adds to the plan what the kernels need. One transfer
    carries everything that the host knows; nothing waits for the card. Raises as `make_batch`.
    """
    ordered = tuple(sorted(chunks, key=_is_span))
    ids, positions, table_rows = [], [], []
    spans: list[PrefillSpan] = []
    first_row = 0
    for chunk in ordered:
        tokens, row = states[chunk.seq].tokens, tables.rows[chunk.seq]
        is_on_card = chunk.length == 1 and row.next_position == chunk.start
        _check(chunk, chunk.start + 1 if is_on_card else len(tokens), block_size)
        ids.append(np.array([ON_CARD]) if is_on_card else _ids(chunk, tokens))
        positions.append(np.arange(chunk.start, chunk.start + chunk.length))
        table_rows.append(np.full(chunk.length, row.index))
        if chunk.length > 1:
            spans.append(PrefillSpan(first_row, chunk.length, chunk.start, row.index))
        first_row += chunk.length
    sampling, last_rows = _sampling(ordered)
    rows_of_sampled = [tables.rows[chunk.seq].index for chunk in sampling]
    packed = np.concatenate(
        [*ids, *positions, *table_rows, last_rows, _ends(sampling), rows_of_sampled]
    ).astype(np.int32)
    sizes = [first_row] * 3 + [len(sampling)] * 3
    parts = torch.split(to_device(packed, tables.device), sizes)
    num_decodes = first_row - sum(span.num_rows for span in spans)
    return PagedBatch(
        chunks=ordered,
        sampling=sampling,
        token_ids=parts[0].long(),
        last_rows=parts[3].long(),
        sampled_positions=parts[4],
        table_rows=parts[5].long(),
        plan=prepare(
            PagedPlan(parts[1], parts[2], tables.block_tables, num_decodes, tuple(spans)),
        ),
    )


def to_device(
    values: np.ndarray[tuple[int, ...], np.dtype[np.int32]], device: torch.device
) -> Tensor:
    """Send without waiting: on a card the copy runs behind the steps in flight."""
    source = torch.from_numpy(values)
    return source.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else source


def _row_order(chunk: Chunk) -> tuple[bool, int]:
    return chunk.length > 1, chunk.start


def _is_span(chunk: Chunk) -> bool:
    return chunk.length > 1


def _check(chunk: Chunk, num_tokens: int, block_size: int) -> None:
    end = chunk.start + chunk.length
    if end > num_tokens or end > len(chunk.block_ids) * block_size:
        raise ValueError(
            f"chunk [{chunk.start}, {end}) of sequence {chunk.seq} with {num_tokens} tokens and "
            f"{len(chunk.block_ids)} blocks of {block_size}"
        )


def _ids(chunk: Chunk, tokens: array[int]) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    ids = np.frombuffer(tokens, np.uint32, chunk.length, chunk.start * tokens.itemsize)
    # A copy: an array that is looked at cannot grow.
    return ids.astype(np.int64)


def _sampling(ordered: Sequence[Chunk]) -> tuple[tuple[Chunk, ...], list[int]]:
    """The chunks that sample, and their last rows."""
    last_rows = []
    row = -1
    for chunk in ordered:
        row += chunk.length
        if chunk.samples:
            last_rows.append(row)
    return tuple([chunk for chunk in ordered if chunk.samples]), last_rows


def _ends(chunks: Sequence[Chunk]) -> list[int]:
    return [chunk.start + chunk.length for chunk in chunks]
