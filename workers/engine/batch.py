"""A step's chunks as flat tensors.

Owns the order of rows and the tensors of one forward pass. Must not know the network.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from kernels.paged_attention import AttentionPlan, Span, plan_attention
from workers.core.plan import Chunk


@dataclass(frozen=True, slots=True)
class Batch:
    """T rows, one per token; chunks lie one after another in the order of `chunks`.

    `token_ids`, `positions` and `slots` are int64 [T]; `last_rows` int64 [S] are the rows whose
    logits are sampled, in the order of the sampling chunks.
    """

    chunks: tuple[Chunk, ...]
    token_ids: Tensor
    positions: Tensor
    slots: Tensor
    last_rows: Tensor
    attention: AttentionPlan

    def sampling(self) -> list[Chunk]:
        """The chunks that sample, in the order of `last_rows`."""
        return [chunk for chunk in self.chunks if chunk.samples]


def make_batch(
    chunks: Sequence[Chunk],
    tokens: Mapping[int, array[int]],
    block_size: int,
    device: torch.device,
) -> Batch:
    """The batch of `chunks`, given all tokens of each sequence.

    Single rows go first, by context: attention gathers neighbours of similar length together.
    Raises `ValueError` for a chunk that reaches past the sequence's tokens or its blocks.
    """
    ordered = tuple(sorted(chunks, key=_row_order))
    num_rows = sum(chunk.length for chunk in ordered)
    rows = np.empty((3, num_rows), np.int64)
    last_rows = []
    row = 0
    for chunk in ordered:
        _fill(rows[:, row : row + chunk.length], chunk, tokens[chunk.seq], block_size)
        row += chunk.length
        if chunk.samples:
            last_rows.append(row - 1)
    spans = [Span(chunk.start, chunk.length, chunk.block_ids) for chunk in ordered]
    token_ids, positions, slots = torch.from_numpy(rows).to(device, non_blocking=True)
    return Batch(
        chunks=ordered,
        token_ids=token_ids,
        positions=positions,
        slots=slots,
        last_rows=torch.tensor(last_rows, dtype=torch.int64, device=device),
        attention=plan_attention(spans, block_size, device),
    )


def _row_order(chunk: Chunk) -> tuple[bool, int]:
    return chunk.length > 1, chunk.start


def _fill(
    rows: np.ndarray[tuple[int, int], np.dtype[np.int64]],
    chunk: Chunk,
    tokens: array[int],
    block_size: int,
) -> None:
    """Write token ids, positions and slots of one chunk to rows [3, length]."""
    end = chunk.start + chunk.length
    if end > len(tokens) or end > len(chunk.block_ids) * block_size:
        raise ValueError(
            f"chunk [{chunk.start}, {end}) of sequence {chunk.seq} with {len(tokens)} tokens and "
            f"{len(chunk.block_ids)} blocks of {block_size}"
        )
    if chunk.length == 1:
        block, offset = divmod(chunk.start, block_size)
        rows[0, 0] = tokens[chunk.start]
        rows[1, 0] = chunk.start
        rows[2, 0] = chunk.block_ids[block] * block_size + offset
        return
    positions = np.arange(chunk.start, end)
    blocks = np.array(chunk.block_ids, np.int64)
    rows[0] = tokens[chunk.start : end]
    rows[1] = positions
    rows[2] = blocks[positions // block_size] * block_size + positions % block_size
