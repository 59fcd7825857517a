"""A step's chunks as flat tensors.

Owns the state of a sequence, the order of rows and the input of one forward pass, on the host and
for the card. Must not know blocks' owners or the network; preemption does not touch the state.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Protocol, TypeAlias, cast

import numpy as np
import torch
from torch import Tensor

from kernels.attention import (
    AttentionPlan,
    ExtendSegment,
    PagedPlan,
    Segment,
    SharedRun,
    plan_attention,
    plan_windows,
)
from kernels.pinned import to_device
from protocol.sampling import SamplingParams
from workers.engine.step.tables import DRAFTED, SequenceTables, TableRow
from workers.scheduler import ON_CARD, Chunk, SequenceStart

Numbers: TypeAlias = np.ndarray[tuple[int], np.dtype[np.int64]]
Rows: TypeAlias = np.ndarray[tuple[int, int], np.dtype[np.int32]]

_ALIGNED_WORDS: Final = 4
"""How many int32 are 16 bytes, the alignment that kernels assume of pointers."""


_DRAFTED_IDS: Final = tuple([DRAFTED - place for place in range(64)])


class Follower(Protocol):
    """The grammar of one sequence, which follows its outputs. `error` says why it cannot be
    followed any more, and is empty before.
    """

    error: str

    @staticmethod
    def fill_all(grammars: Sequence[tuple[int, Any, array[int]]], rows: Rows) -> list[int | None]:
        """Write to `rows` (int32 [n, words]) the bits of the tokens that may come next. `grammars`
        are triples of a row's number, its grammar of this kind and the outputs so far. Returns for
        each the token if only one may come, else None. A row without bits has a grammar with an
        `error`. The outputs may end with drafts; a later call may pass other outputs there.
        """

    def num_allowed(self, outputs: array[int], drafts: Sequence[int]) -> int:
        """How many of the leading `drafts` may come behind the outputs so far."""


class SequenceState:
    """The runner's record of one sequence. `tokens` are the prompt, of `num_prompt` tokens, and all
    outputs. A sequence that `embeds` is never sampled.
    """

    __slots__ = (
        "dimensions",
        "embeds",
        "grammar",
        "num_prompt",
        "num_top",
        "sampling",
        "seed",
        "seq",
        "tokens",
    )

    def __init__(self, start: SequenceStart) -> None:
        self.seq = start.seq
        self.tokens = array("I", start.token_ids)
        self.num_prompt = start.num_prompt
        self.sampling: SamplingParams = start.sampling
        self.seed = start.seed
        self.grammar: Follower | None = cast("Follower | None", start.grammar)
        self.embeds = start.embeds
        self.dimensions = start.dimensions
        self.num_top = start.num_top


@dataclass(frozen=True, slots=True)
class StepBatch:
    """A step on the CPU: T rows, one per token, chunk after chunk in the order of `chunks`.

    `sampling` are the chunks that sample. `token_ids` int64 [T]; `last_rows` int64 [R] are the rows
    whose logits are sampled: for each chunk of `sampling` its last token and each of its drafts.
    `sampled_positions` int64 [R] are the positions of the sampled tokens.
    """

    chunks: tuple[Chunk, ...]
    sampling: tuple[Chunk, ...]
    token_ids: Tensor
    last_rows: Tensor
    sampled_positions: Tensor
    plan: AttentionPlan


@dataclass(frozen=True, slots=True)
class PagedRows:
    """What the host knows of a step on the card: T rows, first `num_decodes` single rows, then
    those of `segments`.

    All arrays are int64. `token_ids` (some of them `ON_CARD` or `DRAFTED`), `positions` and
    `table_rows` (rows of `SequenceTables`) [T]. `last_rows`, `sampled_positions` and
    `sampled_tables` [R] describe the sampled rows, as in `StepBatch`. `runs` are the prefixes that
    decodes attend to together.
    """

    chunks: tuple[Chunk, ...]
    sampling: tuple[Chunk, ...]
    num_decodes: int
    segments: tuple[ExtendSegment, ...]
    token_ids: Numbers
    positions: Numbers
    table_rows: Numbers
    last_rows: Numbers
    sampled_positions: Numbers
    sampled_tables: Numbers
    runs: tuple[SharedRun, ...] = ()


@dataclass(frozen=True, slots=True)
class PagedBatch:
    """`PagedRows` on the card: int64 `last_rows`, all else int32. `table_rows` [R] are those of the
    sampled rows. A token id may be `ON_CARD` or `DRAFTED`.
    """

    chunks: tuple[Chunk, ...]
    sampling: tuple[Chunk, ...]
    token_ids: Tensor
    last_rows: Tensor
    sampled_positions: Tensor
    table_rows: Tensor
    plan: PagedPlan


def make_batch(
    chunks: Sequence[Chunk],
    tokens: Mapping[int, array[int]],
    block_size: int,
    *,
    invariant: bool = False,
    window: int = 0,
) -> StepBatch:
    """The batch of `chunks` on the CPU, given all tokens of each sequence. Some layers keep only
    their `window`, unless that is 0.

    Single rows go first, sorted by context, because attention batches neighbours of similar length.
    Raises `ValueError` for a chunk that reaches past the sequence's tokens or its blocks.
    """
    ordered = tuple(sorted(chunks, key=_row_order))
    for chunk in ordered:
        _check(chunk, len(tokens[chunk.seq]), block_size)
    ids = np.concatenate([_ids(chunk, tokens[chunk.seq]) for chunk in ordered])
    sampling, last_rows = _sampling(ordered)
    segments = [Segment(chunk.start, chunk.num_rows, chunk.block_ids) for chunk in ordered]
    cpu = torch.device("cpu")
    plan = plan_attention(segments, block_size, cpu, invariant=invariant)
    if window:
        seen = [Segment(chunk.start, chunk.num_rows, chunk.window_ids) for chunk in ordered]
        windows = plan_windows(seen, window, block_size, cpu, invariant=invariant)
        plan = replace(plan, window=windows)
    return StepBatch(
        chunks=ordered,
        sampling=sampling,
        token_ids=torch.from_numpy(ids),
        last_rows=torch.tensor(last_rows, dtype=torch.int64),
        sampled_positions=torch.tensor(_ends(sampling), dtype=torch.int64),
        plan=plan,
    )


def paged_rows(
    chunks: Sequence[Chunk],
    states: Mapping[int, SequenceState],
    tables: SequenceTables,
    block_size: int,
    *,
    without_decodes: bool = False,
) -> PagedRows:
    """The rows of `chunks`, whose sequences have up-to-date rows in `tables`. With
    `without_decodes` single rows are segments too. Raises as `make_batch`.
    """
    singles = [chunk for chunk in chunks if chunk.num_rows == 1]
    longer = [chunk for chunk in chunks if chunk.num_rows > 1]
    # Plain numbers: an array for each of hundreds of decodes would be slow.
    known = [_single(chunk, states, tables, block_size) for chunk in singles]
    columns = [[column] for column in np.array(known, np.int64).reshape(-1, 3).T]
    segments = []
    if without_decodes:
        places = [(position, table_row) for _, position, table_row in known]
        segments = [ExtendSegment(row, 1, *place) for row, place in enumerate(places)]
    first_row = len(singles)
    for chunk in longer:
        row = tables.rows[chunk.seq]
        columns[0].append(_long_ids(chunk, states[chunk.seq].tokens, row, block_size))
        segments.append(ExtendSegment(first_row, chunk.num_rows, chunk.start, row.index))
        first_row += chunk.num_rows
    long = [segment[1:] for segment in segments[len(segments) - len(longer) :]]
    counts, starts, table_row = np.array(long, np.int64).reshape(-1, 3).T
    begins = np.repeat(starts - (np.cumsum(counts) - counts), counts)
    columns[1].append(begins + np.arange(len(begins)))
    columns[2].append(np.repeat(table_row, counts))
    token_ids, positions, table_rows = [np.concatenate(column) for column in columns]
    ordered = (*singles, *longer)
    sampling, sampled = _sampling(ordered)
    last_rows = np.array(sampled, np.int64)
    return PagedRows(
        chunks=ordered,
        sampling=sampling,
        num_decodes=0 if without_decodes else len(singles),
        segments=tuple(segments),
        token_ids=token_ids,
        positions=positions,
        table_rows=table_rows,
        last_rows=last_rows,
        sampled_positions=positions[last_rows] + 1,
        sampled_tables=table_rows[last_rows],
    )


def make_paged_batch(
    rows: PagedRows,
    tables: SequenceTables,
    prepare: Callable[[PagedPlan], PagedPlan],
    *,
    invariant: bool = False,
) -> PagedBatch:
    """`rows` on the card, without padding.

    `prepare` adds to the plan what the kernels need. One transfer carries everything that the host
    knows; nothing waits for the card.
    """
    columns = (
        rows.token_ids,
        rows.positions,
        rows.table_rows,
        rows.last_rows,
        rows.sampled_positions,
        rows.sampled_tables,
    )
    parts = _sent(columns, tables.device)
    return PagedBatch(
        chunks=rows.chunks,
        sampling=rows.sampling,
        token_ids=parts[0],
        last_rows=parts[3].long(),
        sampled_positions=parts[4],
        table_rows=parts[5],
        plan=prepare(
            PagedPlan(
                parts[1],
                parts[2],
                tables.block_tables,
                rows.num_decodes,
                rows.segments,
                invariant=invariant,
                runs=rows.runs,
                window_tables=tables.window_tables,
            )
        ),
    )


def _sent(columns: Sequence[Numbers], device: torch.device) -> list[Tensor]:
    """Each column as int32 on `device`, all by one transfer.

    Every column begins at a multiple of 16 bytes. Triton compiles a kernel again for pointers that
    do not (decode attention in 3.5 s), which would happen in the first step with an odd number of
    rows.
    """
    sizes = [aligned(len(column)) for column in columns]
    packed = np.zeros(sum(sizes), np.int32)
    begin = 0
    for column, size in zip(columns, sizes, strict=True):
        packed[begin : begin + len(column)] = column
        begin += size
    parts = torch.split(to_device(packed, device), sizes)
    return [part[: len(column)] for part, column in zip(parts, columns, strict=True)]


def aligned(num_words: int) -> int:
    """`num_words` int32, rounded up to a multiple of 16 bytes."""
    return -(-num_words // _ALIGNED_WORDS) * _ALIGNED_WORDS


def send_into(target: Tensor, values: np.ndarray[tuple[int, ...], np.dtype[np.generic]]) -> None:
    """Copy `values` into `target` without waiting. Steps in flight that read it do so before."""
    source = torch.from_numpy(values)
    target.copy_(source.pin_memory() if target.is_cuda else source, non_blocking=True)


def _row_order(chunk: Chunk) -> tuple[bool, int]:
    return chunk.num_rows > 1, chunk.start


def _single(
    chunk: Chunk, states: Mapping[int, SequenceState], tables: SequenceTables, block_size: int
) -> tuple[int, int, int]:
    """The token id, the position and the table row of a chunk of one row."""
    tokens, row = states[chunk.seq].tokens, tables.rows[chunk.seq]
    is_on_card = row.next_position == chunk.start
    _check(chunk, chunk.start + 1 if is_on_card else len(tokens), block_size)
    return ON_CARD if is_on_card else tokens[chunk.start], chunk.start, row.index


def _check(chunk: Chunk, num_tokens: int, block_size: int) -> None:
    end = chunk.start + chunk.length
    last = end + len(chunk.drafts) + chunk.may_move
    reach = len(chunk.block_ids)
    if chunk.window_ids:
        reach = min(reach, len(chunk.window_ids))
    if end > num_tokens or last > reach * block_size:
        raise ValueError(
            f"chunk [{chunk.start}, {end}) and {len(chunk.drafts)} drafts of sequence {chunk.seq} "
            f"with {num_tokens} tokens and {reach} blocks of {block_size}"
        )


def _ids(chunk: Chunk, tokens: array[int]) -> Numbers:
    """The token ids of a chunk, drafts included, all of which the host knows."""
    ids = np.frombuffer(tokens, np.uint32, chunk.length, chunk.start * tokens.itemsize)
    # A copy, because the array cannot grow while numpy has a view of it.
    return np.concatenate((ids, np.array(chunk.drafts, np.int64)), dtype=np.int64)


def _long_ids(chunk: Chunk, tokens: array[int], row: TableRow, block_size: int) -> Numbers:
    """The token ids of a chunk of several rows; only the card may know some of them."""
    start, length, drafts = chunk.start, chunk.length, chunk.drafts
    is_on_card = length == 1 and row.next_position == start
    _check(chunk, start + 1 if is_on_card else len(tokens), block_size)
    if drafts and drafts[0] == ON_CARD:
        drafts = _DRAFTED_IDS[: len(drafts)]
    if length > 1:
        return _ids(chunk, tokens)
    return np.array((ON_CARD if is_on_card else tokens[start], *drafts), np.int64)


def num_sampled(chunk: Chunk) -> int:
    """Rows of a sampling chunk whose logits are sampled."""
    return 1 + len(chunk.drafts)


def _sampling(ordered: Sequence[Chunk]) -> tuple[tuple[Chunk, ...], list[int]]:
    """The chunks that sample, and their sampled rows."""
    last_rows: list[int] = []
    row = 0
    for chunk in ordered:
        row += chunk.num_rows
        if chunk.drafts:
            last_rows.extend(range(row - num_sampled(chunk), row))
        elif chunk.samples:
            last_rows.append(row - 1)
    return tuple([chunk for chunk in ordered if chunk.samples]), last_rows


def _ends(chunks: Sequence[Chunk]) -> list[int]:
    return [
        chunk.start + chunk.length + offset
        for chunk in chunks
        for offset in range(num_sampled(chunk))
    ]
