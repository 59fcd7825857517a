"""The attention work of a captured step, once for each kind of heads of the network.

Owns the order of the kinds' words. Must not know rows, chunks, nor what is captured.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple, TypeAlias

import numpy as np
from torch import Tensor

from kernels.attention import ExtendSegment, PrefillWork, SegmentBucket, SharedRun
from workers.engine.step.batch import aligned

Words: TypeAlias = np.ndarray[tuple[int], np.dtype[np.int32]]


class HeadBuckets(NamedTuple):
    """A bucket for each kind, whose words follow each other, each at a multiple of 16 bytes. Latent
    attention takes rows one by one, so there is no kind.
    """

    kinds: tuple[SegmentBucket, ...]

    @property
    def num_words(self) -> int:
        """How many int32 hold the work of all kinds."""
        return sum([aligned(bucket.num_words) for bucket in self.kinds])

    def holds(self, segments: Sequence[ExtendSegment]) -> bool:
        """Whether segments that fit by their rows also fit by their pieces."""
        return all(bucket.holds(segments) for bucket in self.kinds)

    def lay_out(
        self,
        segments: Sequence[ExtendSegment],
        num_decodes: int,
        words: Words,
        runs: Sequence[SharedRun],
    ) -> None:
        """See `SegmentBucket.lay_out`."""
        for bucket, part in self._parts():
            bucket.lay_out(segments, num_decodes, words[part], runs)

    def follow(self, words: Words, owners: Words, moves: Words) -> None:
        """See `SegmentBucket.follow`."""
        for bucket, part in self._parts():
            bucket.follow(words[part], owners, moves[part])

    def works(self, words: Tensor) -> list[PrefillWork | None]:
        """Views of the words on the card, for each kind; a single None without kinds."""
        return [bucket.work(words[part]) for bucket, part in self._parts()] or [None]

    def _parts(self) -> Iterator[tuple[SegmentBucket, slice]]:
        begin = 0
        for bucket in self.kinds:
            yield bucket, slice(begin, begin + bucket.num_words)
            begin += aligned(bucket.num_words)
