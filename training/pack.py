"""Documents -> rows -> batches, as arrays of integers.

Owns the form of the training data: a row holds whole documents, one after another, as uint16 with
two flags beside the token's id; a batch is the input of one training step. Every document has its
own attention and counts its positions from 0, as a conversation in serving. Must not know text,
files or torch.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

TRAINED: Final = 1 << 15
"""The model learns to predict this token."""

START: Final = 1 << 14
"""A document begins with this token."""

_ID_BITS: Final = START - 1
_NUM_OPEN_ROWS: Final = 16

Rows = NDArray[np.uint16]
Integers = NDArray[np.int32]


def document(pieces: Iterable[tuple[list[int], bool]]) -> Rows:
    """One document [length] of pieces of token ids, each trained on or not."""
    flagged = [np.array(ids, np.uint16) | (TRAINED if trained else 0) for ids, trained in pieces]
    joined = np.concatenate(flagged).astype(np.uint16)
    joined[:1] |= START
    return joined


class Packer:
    """Packs documents into rows of `row_length`, each into the fullest row that holds it."""

    def __init__(self, row_length: int, pad_id: int) -> None:
        self._row_length = row_length
        self._pad_id = pad_id
        self._open: list[tuple[int, list[Rows]]] = []
        self.num_documents = 0
        self.num_dropped = 0

    def add(self, tokens: Rows) -> Iterator[Rows]:
        """Add a document. Returns the rows that are now full. Drops a document longer
        than a row.
        """
        self.num_documents += 1
        if len(tokens) > self._row_length:
            self.num_dropped += 1
            return
        fitting = [row for row in self._open if row[0] + len(tokens) <= self._row_length]
        best = max(fitting, key=lambda row: row[0], default=(0, []))
        if fitting:
            self._open.remove(best)
        elif len(self._open) == _NUM_OPEN_ROWS:
            yield self._close(max(self._open, key=lambda row: row[0]))
        self._open.append((best[0] + len(tokens), [*best[1], tokens]))

    def _close(self, row: tuple[int, list[Rows]]) -> Rows:
        """Fill the rest of a row with a document of padding that is not trained on."""
        self._open.remove(row)
        used, documents = row
        padding = np.full(self._row_length - used, self._pad_id, np.uint16)
        padding[:1] |= START
        return np.concatenate([*documents, padding])


class TrainingBatch(NamedTuple):
    """The input of one step; T tokens in R rows of L.

    `tokens`, `positions` [T]; `bounds` [D + 1], the first tokens of the documents in the first S
    tokens, and S, padded with S; `long_bounds` likewise for the other T - S, counted from S, if
    there is a long row at the end (without one S is T); `targets` [N], the tokens to predict, and
    `sources` [N], the positions whose hidden states predict them; padding has target -100.
    """

    tokens: Integers
    positions: Integers
    bounds: Integers
    long_bounds: Integers | None
    sources: Integers
    targets: Integers


@dataclass(frozen=True, slots=True)
class Capacity:
    """Fixed sizes of a batch's arrays, so that compiled code sees one shape."""

    num_bounds: int
    num_targets: int


IGNORED: Final = -100
_BOUNDS_MARGIN: Final = 1.5
_NUM_LONG_BOUNDS: Final = 24
"""Documents of a long row. Few, because kernels start programs for every document at the greatest
length.
"""

_TARGETS_MARGIN: Final = 1.3
_LEAST_GAP: Final = 256


def choose_capacity(sample: Rows, rows_per_batch: int) -> Capacity:
    """Sizes with a margin over the mean of `sample` [rows, L]."""
    scale = rows_per_batch / len(sample)
    starts = np.count_nonzero(sample & START) * scale
    trained = np.count_nonzero(sample & TRAINED) * scale
    return Capacity(
        _round_up(int(starts * _BOUNDS_MARGIN) + 2, 64),
        _round_up(int(trained * _TARGETS_MARGIN) + 1, 1024),
    )


def make_batch(
    rows: Rows, capacity: Capacity, long_row: Rows | None = None
) -> TrainingBatch | None:
    """The batch of `rows` [R, L], and of one longer row behind them. None if it holds more
    documents or targets than fit.
    """
    border = rows.size
    flat = rows.reshape(-1)
    if long_row is not None:
        flat = np.concatenate([flat, long_row])
    starts = np.flatnonzero(flat & START)
    is_target = (flat & TRAINED).astype(bool) & ~(flat & START).astype(bool)
    predicted = np.flatnonzero(is_target)
    is_long = starts >= border
    if (
        np.count_nonzero(~is_long) >= capacity.num_bounds
        or np.count_nonzero(is_long) >= _NUM_LONG_BOUNDS
        or len(predicted) > capacity.num_targets
    ):
        return None
    bounds = _bounds(starts[~is_long], border, capacity.num_bounds)
    long_bounds = None
    if long_row is not None:
        long_bounds = _bounds(starts[is_long] - border, len(long_row), _NUM_LONG_BOUNDS)
    lengths = np.diff(starts, append=len(flat))
    tokens = (flat & _ID_BITS).astype(np.int32)
    sources = np.zeros(capacity.num_targets, np.int32)
    targets = np.full(capacity.num_targets, IGNORED, np.int32)
    sources[: len(predicted)] = predicted - 1
    targets[: len(predicted)] = tokens[predicted]
    positions = np.arange(len(flat), dtype=np.int32) - np.repeat(starts, lengths).astype(np.int32)
    return TrainingBatch(tokens, positions, bounds, long_bounds, sources, targets)


def _bounds(starts: NDArray[np.intp], end: int, size: int) -> Integers:
    bounds = np.full(size, end, np.int32)
    bounds[: len(starts)] = starts
    return bounds


def skip_positions(
    batch: TrainingBatch, random: np.random.Generator, share: float, most: int
) -> TrainingBatch:
    """`batch` with a gap in the positions of about `share` of its documents.

    The gap is somewhere before the trained tokens, so that distances of a long window occur in
    short documents (Zhu and others, 2023, "PoSE"). No position reaches `most`.
    """
    starts = np.flatnonzero(batch.positions == 0)
    lengths = np.diff(starts, append=len(batch.tokens))
    learned = batch.sources[batch.targets != IGNORED]
    places = np.searchsorted(learned, starts)
    first = np.append(learned, len(batch.tokens))[places]
    gaps = np.exp(random.uniform(np.log(_LEAST_GAP), np.log(most), len(starts))).astype(np.int32)
    gaps = np.minimum(gaps, most - lengths)
    gaps[random.random(len(starts)) >= share] = 0
    cuts = random.integers(1, np.clip(first - starts, 1, lengths) + 1)
    is_behind = batch.positions >= np.repeat(cuts, lengths)
    positions = batch.positions + np.where(is_behind, np.repeat(gaps, lengths), 0)
    return batch._replace(positions=positions.astype(np.int32))


def _round_up(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple
