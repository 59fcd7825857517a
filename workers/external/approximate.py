"""An estimate of the blocks that an engine holds if it publishes no cache events.

Owns the estimate: the prompts that were sent to the engine, evicted in LRU order at the engine's
capacity. If the engine reports how many prompt tokens were cached, the report corrects the
estimated capacity: fewer hits than expected lower it, more hits raise it. Must not know text,
sockets or clocks.

A prompt is touched from its tail to its head, so a block is never older than a block that follows
it, and eviction from the old end leaves whole prefixes.
"""

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, final

from protocol.ids import BlockDigest
from protocol.messages import BlockEvent, BlocksSnapshot
from workers.external.changes import BlockChanges

SHARE: Final = 0.9
"""Share of the capacity; the rest holds partial blocks and answers in progress."""
KEPT_AT_LEAST: Final = 1 / 16
"""The part of that share that the estimate keeps even if reports say less: the misses may come from
other clients of the engine.
"""
KEPT_S: Final = 900.0
"""A block that no prompt has used for this long is dropped."""


@dataclass(frozen=True, slots=True)
class CacheExpectation:
    """The number of leading blocks that were expected in the cache when a prompt was sent, and that
    time.
    """

    num_blocks: int
    at: float


@final
class ApproximateBlocks:
    """The estimate for one engine with room for `capacity_blocks` of our size.

    Reports that differ from the estimate by at most `slack_blocks` are ignored: an engine never
    finds a whole prompt, and its own blocks may be larger than ours.
    """

    def __init__(
        self, *, block_size: int, capacity_blocks: int, slack_blocks: int, kept_s: float = KEPT_S
    ) -> None:
        self._block_size = block_size
        self._most = max(1, int(capacity_blocks * SHARE))
        self._least = max(1, int(self._most * KEPT_AT_LEAST))
        self._room = self._most
        self._slack = slack_blocks
        self._kept_s = kept_s
        self._used: OrderedDict[BlockDigest, float] = OrderedDict()
        self._changes = BlockChanges()

    def __len__(self) -> int:
        """The number of blocks in the estimate."""
        return len(self._used)

    def sent(self, digests: Sequence[BlockDigest], now: float) -> CacheExpectation:
        """Note that a prompt was sent; return the expected hits. Its blocks count only after
        `answered`.
        """
        self.expire(now)
        num_blocks = next(
            (depth for depth, digest in enumerate(digests) if digest not in self._used),
            len(digests),
        )
        return CacheExpectation(num_blocks, now)

    def answered(
        self,
        digests: Sequence[BlockDigest],
        expected: CacheExpectation,
        cached_tokens: int | None,
        now: float,
    ) -> None:
        """Add the blocks that the engine has computed. `cached_tokens` is None if the engine does
        not report it.
        """
        self.expire(now)
        if cached_tokens is not None:
            self._learn(digests, expected, min(cached_tokens // self._block_size, len(digests)))
        for digest in reversed(digests[: self._room]):
            if digest not in self._used:
                self._changes.stored(digest)
            self._used[digest] = now
            self._used.move_to_end(digest)
        self._shrink_to(self._room)

    def expire(self, now: float) -> None:
        """Drop blocks that no prompt has used for `kept_s`."""
        while self._used and now - next(iter(self._used.values())) > self._kept_s:
            self._drop_oldest()

    def clear(self) -> None:
        """Forget all blocks, because the engine has restarted, or slept."""
        self._used.clear()
        self._room = self._most
        self._changes.cleared()

    def take(self) -> tuple[BlockEvent | BlocksSnapshot, ...]:
        """The changes since the last call, or one snapshot if `clear` was called since then."""
        return self._changes.take(self._used)

    def snapshot(self) -> BlocksSnapshot:
        """A snapshot of the estimate."""
        return self._changes.snapshot(self._used)

    def _learn(
        self, digests: Sequence[BlockDigest], expected: CacheExpectation, num_cached: int
    ) -> None:
        if num_cached > expected.num_blocks + self._slack:
            self._room = min(self._most, self._room + num_cached - expected.num_blocks)
        elif num_cached < expected.num_blocks - self._slack:
            self._missed(digests[num_cached], expected)

    def _missed(self, digest: BlockDigest, expected: CacheExpectation) -> None:
        """Lower the capacity after a miss of the block `digest`.

        The engine had evicted this block, and so all blocks that are older: the blocks that are
        younger show its capacity. If another prompt has touched the block since `expected.at`, its
        age is lost, and the capacity shrinks by an eighth. If the estimate has dropped the block
        meanwhile, nothing needs correction.
        """
        used_at = self._used.get(digest)
        if used_at is None:
            return
        if used_at >= expected.at:
            room = self._room - self._room // 8
        else:
            while digest in self._used:
                self._drop_oldest()
            room = len(self._used)
        self._room = max(self._least, room)

    def _shrink_to(self, num_blocks: int) -> None:
        while len(self._used) > num_blocks:
            self._drop_oldest()

    def _drop_oldest(self) -> None:
        digest, _ = self._used.popitem(last=False)
        self._changes.dropped(digest)
