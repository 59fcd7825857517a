"""Which rows of a step update which sequence's recurrent state, as words for the card.

A span is consecutive rows of one sequence. Owns the layout of spans in words, and the stops within
a step at which a state is kept. Must not know what a state is, nor where it is kept.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple, TypeAlias

import numpy as np
from torch import Tensor

from kernels.attention import NO_ROW
from kernels.delta_rule import (
    IN_CHUNKS,
    NO_SPAN,
    DeltaPlan,
    RowSpan,
    VerifyPlan,
    chunk_list,
    most_chunks,
    verify_words,
)
from workers.engine.step.batch import aligned
from workers.scheduler import Chunk

Words: TypeAlias = np.ndarray[tuple[int], np.dtype[np.integer]]


class SpanRoom(NamedTuple):
    """Room for the spans of a step: `num_decodes` single rows, then `num_spans` longer spans, cut
    into `num_chunks` chunks, and `most_folds` folded rows. Its words are `starts`, `slots`,
    `offsets` and `chunks` of all spans, then `starts`, `folds` and `firsts` of those that are
    verified. Each part begins at a multiple of 16 bytes.
    """

    num_decodes: int
    num_spans: int
    num_chunks: int
    most_folds: int = 0

    @classmethod
    def holding(
        cls, num_decodes: int, segment_rows: int, num_segments: int, verifies: bool = False
    ) -> "SpanRoom":
        """Room for any `num_segments` segments of `segment_rows` rows together. They are computed
        in chunks, unless the step `verifies`; as many rows can be folded as the step has.
        """
        num_chunks = 0 if verifies else most_chunks(segment_rows, num_segments)
        return cls(num_decodes, num_segments, num_chunks, num_decodes + segment_rows)

    @classmethod
    def of(cls, num_decodes: int, spans: Sequence[RowSpan], most_folds: int = 0) -> "SpanRoom":
        """Room for exactly `num_decodes` decodes and these spans."""
        return cls(num_decodes, len(spans), len(chunk_list(_computed(spans), 0)), most_folds)

    @property
    def num_words(self) -> int:
        """The number of int32 words."""
        return int(self._places()[-1].stop)

    def empty(self, dummy_slot: int) -> Words:
        """Words without spans: all entries belong to the dummy slot."""
        words = np.zeros(self.num_words, np.int32)
        starts, slots, offsets, chunks, verified, *_ = self._places()
        words[starts], words[slots], words[chunks] = NO_ROW, dummy_slot, NO_SPAN
        words[verified] = NO_ROW
        words[offsets][: self.num_decodes] = np.arange(self.num_decodes)
        words[offsets][self.num_decodes :] = self.num_decodes
        return words

    def lay_out(self, decodes: Sequence[Words], spans: Sequence[RowSpan], words: Words) -> None:
        """Write spans into words made by `empty`. `decodes` are the positions, the slots and the
        numbers of folded rows of single rows; the rows of `spans` begin at row `num_decodes`.
        """
        starts, slots, offsets, chunks, *verified = self._places()
        first, end = self.num_decodes, self.num_decodes + len(spans)
        positions, own, folds = decodes
        words[starts][: len(positions)] = positions
        words[slots][: len(own)] = own
        decoded = zip(positions.tolist(), own.tolist(), folds.tolist(), strict=True)
        singles = [RowSpan(start, 1, slot, count) for start, slot, count in decoded]
        own_words = verify_words([*singles, *spans])
        for place, values in zip(verified, own_words, strict=True):
            words[place][: len(singles)] = values[: len(singles)]
            words[place][first:end] = values[len(singles) :]
        words[starts][first:end] = [NO_ROW if s.folds >= 0 else s.start for s in spans]
        words[slots][first:end] = [span.slot for span in spans]
        ends = first + np.cumsum([span.length for span in spans], dtype=np.int32)
        words[offsets][first + 1 : end + 1] = ends
        words[offsets][end + 1 :] = ends[-1] if spans else first
        entries = chunk_list(_computed(spans), first).reshape(-1)
        words[chunks][: len(entries)] = entries

    def plan(self, words: Tensor) -> DeltaPlan:
        """The plan of all spans, as views of words on the card."""
        starts, slots, offsets, chunks = [words[place] for place in self._places()[:4]]
        return DeltaPlan(starts, slots, offsets, self.num_decodes, chunks.view(-1, 2))

    def verified(self, words: Tensor) -> VerifyPlan:
        """The plan of the verified spans, as views of words on the card."""
        starts, folds, firsts = [words[place] for place in self._places()[4:]]
        return VerifyPlan(starts, folds, firsts, self.most_folds)

    def _places(self) -> list[slice]:
        num_spans = self.num_decodes + self.num_spans
        found, begin = [], 0
        sizes = num_spans, num_spans, num_spans + 1, 2 * self.num_chunks, *[num_spans] * 3
        for size in sizes:
            found.append(slice(begin, begin + size))
            begin += aligned(size)
        return found


class Rest(NamedTuple):
    """The part of a chunk after a stop: a `span` whose rows begin at row `first_row`. The state
    before the span is kept in slot `kept`.
    """

    first_row: int
    span: RowSpan
    kept: int


def spans_of(
    chunks: Iterable[Chunk],
    slot_of: Callable[[int], int],
    dummy_slot: int,
    folds_of: Callable[[Chunk], int] = lambda _: IN_CHUNKS,
) -> tuple[list[RowSpan], list[Rest]]:
    """The spans of `chunks`, whose rows are in this order. A chunk's span ends at its first stop.
    The rows after it get a span that updates the dummy slot, and belong to the rests, in order.
    `folds_of` says which spans are verified, and how many rows they fold first.
    """
    spans: list[RowSpan] = []
    rests: list[Rest] = []
    first_row = 0
    for chunk in chunks:
        slot, start, end = slot_of(chunk.seq), chunk.start, chunk.start + chunk.length
        if (folds := folds_of(chunk)) >= 0:
            spans.append(RowSpan(start, chunk.num_rows, slot, folds))
            first_row += chunk.num_rows
            continue
        stops = stops_of(chunk)
        bounds = [*[position for position, _ in stops], end]
        spans.append(RowSpan(start, bounds[0] - start, slot))
        if stops:
            spans.append(RowSpan(NO_ROW, end - bounds[0], dummy_slot))
        for (position, kept), until in zip(stops, bounds[1:], strict=True):
            rest = RowSpan(position, until - position, slot)
            rests.append(Rest(first_row + position - start, rest, kept))
        first_row += chunk.length
    return spans, rests


def stops_of(chunk: Chunk) -> tuple[tuple[int, int], ...]:
    """The positions strictly within a chunk at which a state is kept, with their slots."""
    end = chunk.start + chunk.length
    return tuple([each for each in chunk.saves if chunk.start < each[0] < end])


def _computed(spans: Iterable[RowSpan]) -> list[int]:
    return [0 if span.start < 0 or span.folds >= 0 else span.length for span in spans]
