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
"""In place of a span's number: an entry of `chunks` that pads a captured step."""

Words = np.ndarray[tuple[int, ...], np.dtype[np.int32]]


class Span(NamedTuple):
    """Consecutive rows of one sequence, at positions [start, start + length), with its slot."""

    start: int
    length: int
    slot: int


class DeltaPlan(NamedTuple):
    """S spans of rows: first `num_decodes` of one row each, of which span i is row i, then longer
    ones. All tensors are int32 and may change between the replays of a captured step.

    `starts` [S], the position of a span's first row: at 0 its sequence has no state yet, whatever
    its slot holds; below 0 the span pads a step. `slots` [S], no two alike but those of padding,
    which have a slot of their own. `offsets` [S + 1]: span s has the rows from offsets[s] to
    offsets[s + 1]; rows behind the last are padding, whose output is undefined. `chunks` [N, 2] of
    the spans behind the decodes: its span, and its number in it, in order; (`NO_SPAN`, 0) is none.
    Rows of a span without chunks are padding, too.
    """

    starts: Tensor
    slots: Tensor
    offsets: Tensor
    num_decodes: int
    chunks: Tensor


def plan_spans(spans: Sequence[Span], device: torch.device) -> DeltaPlan:
    """The plan of rows that lie in the order of `spans`, of which those of one row come first.

    Spans of one row behind a longer one are no decodes, and computed as chunks. Rows of longer
    spans that start below 0 are left out.
    """
    num_decodes = 0
    while num_decodes < len(spans) and spans[num_decodes].length == 1:
        num_decodes += 1
    lengths = [span.length for span in spans]
    columns = [
        np.array([span.start for span in spans], np.int32),
        np.array([span.slot for span in spans], np.int32),
        np.cumsum([0, *lengths], dtype=np.int32),
        chunk_list([0 if s.start < 0 else s.length for s in spans[num_decodes:]], num_decodes),
    ]
    starts, slots, offsets, chunks = (torch.from_numpy(each).to(device) for each in columns)
    return DeltaPlan(starts, slots, offsets, num_decodes, chunks)


def chunk_list(lengths: Sequence[int], first_span: int) -> Words:
    """`DeltaPlan.chunks` of spans of these lengths, the first of which has the number given."""
    entries = [
        (first_span + index, number)
        for index, length in enumerate(lengths)
        for number in range(-(-length // CHUNK))
    ]
    return np.array(entries, np.int32).reshape(-1, 2)


def most_chunks(num_rows: int, num_spans: int) -> int:
    """As many chunks as `num_spans` spans of `num_rows` rows in all can have: each may end in one
    that is not full.
    """
    return min(num_rows, num_spans + max(0, num_rows - num_spans) // CHUNK)
