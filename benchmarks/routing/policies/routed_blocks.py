"""The prefixes that were routed to each worker: an approximate index without engine events.

The approximate prefix tree of SMG, sglang-router and AIBrix, in blocks of the trace instead of
characters: the prompts that were routed to each worker, least recently used tails evicted first. It
does not see the engine's evictions or answers.
"""

from collections import OrderedDict
from collections.abc import Sequence
from typing import NamedTuple

from protocol.ids import BlockDigest


class RoutedMatch(NamedTuple):
    """The longest known prefix and the worker that last received it; None if there is none."""

    num_blocks: int
    worker: int | None


class RoutedBlocks:
    def __init__(self, num_workers: int, max_blocks: int) -> None:
        self._max_blocks = max_blocks
        self._by_worker: list[OrderedDict[BlockDigest, None]] = [
            OrderedDict() for _ in range(num_workers)
        ]
        self._holders: dict[BlockDigest, dict[int, None]] = {}

    def __len__(self) -> int:
        return sum(map(len, self._by_worker))

    def size(self, worker: int) -> int:
        """The assumed number of blocks of the worker."""
        return len(self._by_worker[worker])

    def longest(self, digests: Sequence[BlockDigest]) -> RoutedMatch:
        """The longest prefix that was sent to any worker."""
        num_blocks, worker = 0, None
        for digest in digests:
            holders = self._holders.get(digest)
            if not holders:
                break
            num_blocks, worker = num_blocks + 1, next(reversed(holders))
        return RoutedMatch(num_blocks, worker)

    def matched(self, digests: Sequence[BlockDigest]) -> list[int]:
        """The number of leading blocks that each worker received."""
        counts = [0] * len(self._by_worker)
        alive = list(range(len(counts)))
        for digest in digests:
            holders = self._holders.get(digest, {})
            alive = [worker for worker in alive if worker in holders]
            if not alive:
                break
            for worker in alive:
                counts[worker] += 1
        return counts

    def insert(self, digests: Sequence[BlockDigest], worker: int) -> None:
        """Record that the prompt was sent there."""
        known = self._by_worker[worker]
        for digest in reversed(digests):
            known[digest] = None
            known.move_to_end(digest)
            holders = self._holders.setdefault(digest, {})
            holders.pop(worker, None)
            holders[worker] = None
        while len(known) > self._max_blocks:
            forgotten = known.popitem(last=False)[0]
            holders = self._holders[forgotten]
            del holders[worker]
            if not holders:
                del self._holders[forgotten]
