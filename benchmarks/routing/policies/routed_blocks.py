"""Who was sent which prefix: what a router knows that hears nothing from engines.

Owns the approximate prefix tree of SMG, sglang-router and AIBrix, in blocks of the trace instead of
characters: the prompts that were routed to each worker, least recently used tails forgotten first.
Evictions of the engine are invisible to it, and so is what it answered.
"""

from collections import OrderedDict
from collections.abc import Sequence
from typing import NamedTuple

from protocol.ids import BlockDigest


class Match(NamedTuple):
    """The longest known prefix and the worker that was sent it last; None if there is none."""

    num_blocks: int
    worker: int | None


class RoutedBlocks:
    """At most `max_blocks` per worker."""

    def __init__(self, num_workers: int, max_blocks: int) -> None:
        self._max_blocks = max_blocks
        self._by_worker: list[OrderedDict[BlockDigest, None]] = [
            OrderedDict() for _ in range(num_workers)
        ]
        self._holders: dict[BlockDigest, dict[int, None]] = {}

    def __len__(self) -> int:
        return sum(map(len, self._by_worker))

    def size(self, worker: int) -> int:
        """How many blocks the worker is thought to hold."""
        return len(self._by_worker[worker])

    def longest(self, digests: Sequence[BlockDigest]) -> Match:
        """The longest prefix that anybody was sent."""
        num_blocks, worker = 0, None
        for digest in digests:
            holders = self._holders.get(digest)
            if not holders:
                break
            num_blocks, worker = num_blocks + 1, next(reversed(holders))
        return Match(num_blocks, worker)

    def matched(self, digests: Sequence[BlockDigest]) -> list[int]:
        """How many leading blocks each worker was sent."""
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
        """The prompt was sent there."""
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
