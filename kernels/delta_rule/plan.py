"""Which rows of a step belong to which sequence, for layers that keep a state.

Owns the plan of a step, and how spans are cut into chunks. Must not know kernels, models or
scheduling.
"""

from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np
import torch
from torch import Tensor

CHUNK: Final = 64

NO_SPAN: Final = -1
"""The span's number in an entry of `chunks` that pads a captured step."""

IN_CHUNKS: Final = -1
"""In place of a span's number of folded rows: the span is not verified, so nothing is folded."""

Words = np.ndarray[tuple[int, ...], np.dtype[np.int32]]


class RowSpan(NamedTuple):
    """Consecutive rows of one sequence, at positions [start, start + length), with its slot. If it
    is verified, `folds` rows of its ring are folded into the state first.
    """

    start: int
    length: int
    slot: int
    folds: int = IN_CHUNKS


class DeltaPlan(NamedTuple):
    """S spans of rows: first `num_decodes` of one row each, of which span i is row i, then longer
    ones. All tensors are int32 and may change between the replays of a captured step.

    - `starts` [S]: the position of a span's first row. At 0 its sequence has no state yet, whatever
      its slot holds; below 0 the span pads a step.
    - `slots` [S], all different except those of padding, which share a slot of their own.
    - `offsets` [S + 1]: span s has the rows from offsets[s] to offsets[s + 1]. Rows behind the last
      span are padding, whose output is undefined.
    - `chunks` [N, 2]: the chunks of the spans behind the decodes, in order, each as its span and
      its number in that span; (`NO_SPAN`, 0) is padding. Rows of a span without chunks are padding.
    """

    starts: Tensor
    slots: Tensor
    offsets: Tensor
    num_decodes: int
    chunks: Tensor


class VerifyPlan(NamedTuple):
    """The spans of a `DeltaPlan` that are verified: computed row by row, without chunks. All rows
    of a verified span except the first may be taken back. All tensors are int32 [S].

    `starts` are those of `DeltaPlan`, below 0 for all other spans. `folds`: how many rows of its
    ring are folded into a span's state before its own rows. `firsts`: the sum of `folds` of the
    spans before it. All spans together fold at most `most_folds` rows.
    """

    starts: Tensor
    folds: Tensor
    firsts: Tensor
    most_folds: int


def verify_words(spans: Sequence[RowSpan]) -> Words:
    """`starts`, `folds` and `firsts` of a `VerifyPlan`, [3, S]."""
    folds = np.array([max(0, span.folds) for span in spans], np.int32)
    starts = [span.start if span.folds >= 0 else NO_SPAN for span in spans]
    return np.stack((np.array(starts, np.int32), folds, np.cumsum(folds, dtype=np.int32) - folds))


def plan_verified(spans: Sequence[RowSpan], device: torch.device) -> VerifyPlan:
    """The plan of the spans that are verified, beside `plan_spans` of all."""
    starts, folds, firsts = torch.from_numpy(verify_words(spans)).to(device)
    return VerifyPlan(starts, folds, firsts, sum([max(0, span.folds) for span in spans]))


def plan_spans(spans: Sequence[RowSpan], device: torch.device) -> DeltaPlan:
    """The plan of rows that lie in the order of `spans`. The leading spans of one row are decodes;
    a span of one row behind a longer one is computed as a chunk. Spans behind the decodes that
    start below 0, or that are verified, get no chunks.
    """
    num_decodes = 0
    while num_decodes < len(spans) and spans[num_decodes].length == 1:
        num_decodes += 1
    lengths = [span.length for span in spans]
    begins = [NO_SPAN if span.folds >= 0 else span.start for span in spans]
    longer = zip(begins[num_decodes:], lengths[num_decodes:], strict=True)
    columns = [
        np.array(begins, np.int32),
        np.array([span.slot for span in spans], np.int32),
        np.cumsum([0, *lengths], dtype=np.int32),
        chunk_list([0 if begin < 0 else length for begin, length in longer], num_decodes),
    ]
    starts, slots, offsets, chunks = (torch.from_numpy(each).to(device) for each in columns)
    return DeltaPlan(starts, slots, offsets, num_decodes, chunks)


def chunk_list(lengths: Sequence[int], first_span: int) -> Words:
    """`DeltaPlan.chunks` of spans of these lengths; the first span has the number `first_span`."""
    entries = [
        (first_span + index, number)
        for index, length in enumerate(lengths)
        for number in range(-(-length // CHUNK))
    ]
    return np.array(entries, np.int32).reshape(-1, 2)


def most_chunks(num_rows: int, num_spans: int) -> int:
    """The most chunks that `num_spans` spans of `num_rows` rows together can have, because the last
    chunk of each span may not be full.
    """
    return min(num_rows, num_spans + max(0, num_rows - num_spans) // CHUNK)
