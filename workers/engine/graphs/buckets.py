"""The sizes of the graphs for mixed steps: a few buckets. The smallest bucket that holds a step
serves it.

Owns the list of buckets, and what a step needs. Must not know CUDA, nor what is captured.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from workers.scheduler import Chunk

_SIZES: Final = (
    (0, 32, 1),
    (16, 48, 16),
    (16, 112, 16),
    (64, 64, 16),
    (16, 240, 16),
    (16, 368, 16),
    (64, 192, 16),
    (192, 64, 16),
    (16, 496, 16),
    (256, 256, 16),
    (64, 448, 16),
    (16, 624, 16),
    (64, 576, 16),
    (16, 752, 16),
    (64, 704, 16),
    (256, 512, 16),
    (16, 880, 16),
    (64, 832, 16),
    (16, 1008, 16),
    (64, 960, 16),
    (256, 768, 16),
)
"""Triples in the order of capture: rows of decodes, rows of segments, number of segments. The first
serves the next turn of an agent that is alone on the card, whose latency is this one step; the
second serves such a turn beside a few others, the most frequent step. The last serve prompts beside
a crowd: without a graph 64 decodes and 550 tokens of an 8B in 8 bits take 18.8 ms, of which the
host launches 18.2, and the card needs 13 (one H200, `python -m benchmarks.engine.mixed_steps`).

From 512 rows on a step's time is that of its rows, no longer that of its weights or launches: 128
rows of gpt-oss-20b take 0.77 of 12 ms. So there, beside up to 64 decodes, no step is padded by more
than a quarter of its rows. Beside a crowd that would need two graphs more; a graph takes 4 to 10
MiB of the card and is captured in some tenths of a second, while the engine is idle."""

_LAUNCHED_WEIGHTS: Final = 7.5e10
"""The rows times weights of a layer that a card multiplies while the host launches the layer: nine
launches take 0.25 ms (36 layers take 7.8 to 9.9 ms on hosts of an H200, 12 to 20 ms on a shared
host), in which the card does 600 TFLOP/s. In a larger bucket the padding could cost a step more
than the graph saves."""

_FP8_SHARE: Final = 3
"""Three weights in 8 bits count as one in 16 bits. The card multiplies them twice as fast, but
their rows are quantised in additional launches: 36 layers take the host 25 ms and the card 8 ms
(550 rows of an 8B, one H200)."""

_MIXTURE_SHARE: Final = 2
"""Two weights of a mixture count as one. The host launches 14 kernels a layer instead of nine, and
the card multiplies tiles of experts that are half full: 553 rows of gpt-oss-20b took 23 ms without
a graph, of which the card needs 11 (one H200)."""

_GRAIN: Final = 16
"""If a small token budget limits a bucket's rows of segments, they are rounded up to a multiple of
16, which kernels multiply at once."""


_VERIFIED_ROWS: Final = (
    2, 4, 8, 12, 16, 24, 32, 48, 64, 80, 96, 128, 160, 192, 256,
    320, 384, 512, 640, 768, 896, 1008, 1024,
)  # fmt: skip
"""Rows of the graphs in which any row may verify a draft. Sizes lie where products become notably
slower. The policy chooses how many rows a step has, so it drafts no rows that a size would pad."""

_MOST_PADDING: Final = 16
"""In a graph beyond `_LAUNCHED_WEIGHTS` padding costs more than launches do, and so does the head
for rows that are not sampled. Such a graph serves only steps in which at most one row in this many
is padding or not sampled. 32 and 64 sequences of 16 rows each fill theirs. They are worth a graph,
because a shared host takes 12 to 20 ms to launch what an H200 computes in 12.
"""

_MOST_VERIFIED: Final = 64
"""The most sampled rows of one sequence (`kernels.accept`)."""

_LONG_ROWS: Final = 1024
"""Rows from which on the library may attend to a segment (`kernels.attention`)."""


class GraphBucket(NamedTuple):
    """What a graph holds, or what a step needs: rows of decodes, rows of segments, and segments.

    A graph that `verifies` may sample any of its rows. A large one serves only steps that sample at
    least `least_sampled` rows; in what a step needs, this is the number that it samples.
    """

    num_decodes: int
    segment_rows: int
    num_segments: int
    verifies: bool = False
    least_sampled: int = 0

    @property
    def num_rows(self) -> int:
        """Rows of the forward pass."""
        return self.num_decodes + self.segment_rows

    @property
    def num_sampled(self) -> int:
        """Rows whose logits are computed: one of each sequence, or all if it `verifies`."""
        return self.num_rows if self.verifies else self.num_decodes + self.num_segments

    @property
    def longest_segment(self) -> int:
        """The most rows of one segment: in a graph with `least_sampled`, the rows that need not be
        sampled, and the sampled ones of one sequence.
        """
        if not self.least_sampled:
            return self.segment_rows
        return self.num_rows - self.least_sampled + _MOST_VERIFIED

    def holds(self, need: GraphBucket) -> bool:
        """Whether a step with this need fits."""
        if self.verifies != need.verifies or self.least_sampled > need.least_sampled:
            return False
        return all(has >= wanted for has, wanted in zip(self[:3], need[:3], strict=True))


def buckets_of(
    max_seqs: int,
    token_budget: int,
    layer_weights: int,
    *,
    is_fp8: bool,
    is_mixture: bool,
    verifies: bool,
    invariant_sizes: Iterable[int] | None,
) -> tuple[GraphBucket, ...]:
    """The buckets of mixed steps, and if it `verifies` those of steps that verify. `layer_weights`:
    the weights of a layer. `invariant_sizes`: with `invariant`, rows of the buckets for decodes,
    which are segments there.
    """
    share = (_FP8_SHARE if is_fp8 else 1) * (_MIXTURE_SHARE if is_mixture else 1)
    limits = max_seqs, token_budget, layer_weights // share
    if invariant_sizes is None:
        held = graph_buckets(*limits)
    else:
        held = invariant_buckets(invariant_sizes, *limits)
    return held + verify_buckets(*limits) if verifies else held


def graph_buckets(max_seqs: int, token_budget: int, layer_weights: int) -> tuple[GraphBucket, ...]:
    """The buckets for steps of up to `max_seqs` sequences and `token_budget` tokens, in the order
    of capture, for a model with `layer_weights` in a layer. Each holds a step that those before it
    do not hold.
    """
    max_segment_rows = -(-token_budget // _GRAIN) * _GRAIN
    found: list[GraphBucket] = []
    for num_decodes, segment_rows, num_segments in _SIZES:
        bucket = GraphBucket(
            min(num_decodes, max_seqs, token_budget),
            min(segment_rows, max_segment_rows),
            min(num_segments, max_seqs, token_budget // 2),
        )
        is_worth_it = bucket.num_rows * layer_weights <= _LAUNCHED_WEIGHTS
        if is_worth_it and _is_needed(bucket, found, max_seqs, token_budget):
            found.append(bucket)
    return tuple(found)


def _is_needed(
    bucket: GraphBucket, others: Sequence[GraphBucket], max_seqs: int, token_budget: int
) -> bool:
    """Whether some step fits into the bucket and into none of `others`. More decodes leave less
    room for segments, so it is enough to try, for each other bucket, one decode more than it holds,
    and none.
    """
    firsts = {0, *(other.num_decodes + 1 for other in others)}
    steps = [
        _largest_step(bucket, num_decodes, max_seqs, token_budget)
        for num_decodes in firsts
        if num_decodes <= bucket.num_decodes
    ]
    return any(
        step.num_rows > 0 and not any(other.holds(step) for other in others) for step in steps
    )


def _largest_step(
    bucket: GraphBucket, num_decodes: int, max_seqs: int, token_budget: int
) -> GraphBucket:
    """The largest step with `num_decodes` decodes that fits into the bucket."""
    segment_rows = min(bucket.segment_rows, token_budget - num_decodes)
    num_segments = min(bucket.num_segments, max_seqs - num_decodes, segment_rows // 2)
    return GraphBucket(num_decodes, segment_rows if num_segments else 0, num_segments)


def invariant_buckets(
    sizes: Iterable[int], max_seqs: int, token_budget: int, layer_weights: int
) -> tuple[GraphBucket, ...]:
    """The buckets with `invariant`, where all rows are those of segments: for as many decodes as
    `sizes` name, which are segments of one row, and for mixed steps.
    """
    max_rows = -(-token_budget // _GRAIN) * _GRAIN
    found = [GraphBucket(0, size, size) for size in sizes]
    for num_decodes, segment_rows, num_segments in _SIZES:
        num_rows = min(num_decodes + segment_rows, max_rows)
        if num_rows * layer_weights <= _LAUNCHED_WEIGHTS:
            segments = min(num_decodes + num_segments, max_seqs, num_rows)
            found.append(GraphBucket(0, num_rows, segments))
    return tuple(dict.fromkeys(found))


def verify_buckets(max_seqs: int, token_budget: int, layer_weights: int) -> tuple[GraphBucket, ...]:
    """The buckets for steps that verify drafts, whose rows are all those of segments."""
    found = []
    for num_rows in _VERIFIED_ROWS:
        if num_rows <= token_budget:
            is_large = num_rows * layer_weights > _LAUNCHED_WEIGHTS or num_rows >= _LONG_ROWS
            least = num_rows - num_rows // _MOST_PADDING if is_large else 0
            segments = min(num_rows, max_seqs)
            found.append(GraphBucket(0, num_rows, segments, verifies=True, least_sampled=least))
    return tuple(found)


def need_of(
    chunks: Iterable[Chunk], *, invariant: bool = False, verifies: bool = False
) -> GraphBucket:
    """The smallest bucket for these chunks. Their single rows are decodes; with `invariant` or if
    the step `verifies` they are segments.
    """
    if verifies:
        chunks = list(chunks)
        sampled = [1 + len(chunk.drafts) for chunk in chunks if chunk.samples]
        return GraphBucket(0, sum([c.num_rows for c in chunks]), len(chunks), True, sum(sampled))
    if invariant:
        lengths = [chunk.num_rows for chunk in chunks]
        return GraphBucket(0, sum(lengths), len(lengths))
    segments = [chunk.num_rows for chunk in chunks if chunk.num_rows > 1]
    num_decodes = sum([chunk.num_rows == 1 for chunk in chunks])
    return GraphBucket(num_decodes, sum(segments), len(segments))
