"""What an engine that reports no cache events probably holds.

Owns a guess: the prompts that went there, least recently used out first, within the engine's
capacity. Where answers say how many prompt tokens came from the cache, the guess is held against
it: blocks that should have been there and were not show that the engine keeps less than thought,
blocks that were there unexpectedly that it keeps more. Must not know text, sockets or clocks.

A prompt is touched from its tail to its head, so a block is never older than one that follows it:
whatever is dropped from the old end leaves whole prefixes.
"""

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, final

from protocol.ids import BlockDigest
from protocol.messages import BlockEvent, BlocksSnapshot
from workers.external.changes import Changes

SHARE: Final = 0.9
"""Share of the capacity; the rest holds partial blocks and answers in progress."""
KEPT_AT_LEAST: Final = 1 / 16
"""Part of that share that is kept whatever the answers report: others may use the engine too."""
KEPT_S: Final = 900.0
"""A block that no prompt used for so long is dropped."""


@dataclass(frozen=True, slots=True)
class Expectation:
    """How many leading blocks were expected to be held when a prompt was sent, and its time."""

    num_blocks: int
    at: float


@final
class ApproximateBlocks:
    """The guess for one engine with room for `capacity_blocks` of our size.

    `slack_blocks` is by how much an engine's report may differ without meaning anything: it never
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
        self._changes = Changes()
        self.misses = 0
        self.surprises = 0

    def __len__(self) -> int:
        """How many blocks are thought to be held."""
        return len(self._used)

    @property
    def room(self) -> int:
        """How many blocks it is thought to keep."""
        return self._room

    def sent(self, digests: Sequence[BlockDigest], now: float) -> Expectation:
        """A prompt goes to the engine. Nothing is computed yet, so nothing is held for it."""
        self.expire(now)
        num_blocks = next(
            (depth for depth, digest in enumerate(digests) if digest not in self._used),
            len(digests),
        )
        return Expectation(num_blocks, now)

    def answered(
        self,
        digests: Sequence[BlockDigest],
        expected: Expectation,
        cached_tokens: int | None,
        now: float,
    ) -> None:
        """The engine has computed these blocks; `cached_tokens` as it reports them, None if not."""
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
        """The engine was started again."""
        self._used.clear()
        self._room = self._most
        self._changes.cleared()

    def take(self) -> tuple[BlockEvent | BlocksSnapshot, ...]:
        """The changes since the last call; after `clear` one snapshot in place of them."""
        return self._changes.take(self._used)

    def snapshot(self) -> BlocksSnapshot:
        """A snapshot of all that is thought to be held."""
        return self._changes.snapshot(self._used)

    def _learn(
        self, digests: Sequence[BlockDigest], expected: Expectation, num_cached: int
    ) -> None:
        if num_cached > expected.num_blocks + self._slack:
            self.surprises += 1
            self._room = min(self._most, self._room + num_cached - expected.num_blocks)
        elif num_cached < expected.num_blocks - self._slack:
            self._missed(digests[num_cached], expected)

    def _missed(self, digest: BlockDigest, expected: Expectation) -> None:
        """The engine had dropped this block, hence all that was used before it: what is younger is
        what it has room for. If another prompt brought the block back since, its age is lost, and
        an eighth less is a guess. If we dropped it too in the meantime, we guess right already.
        """
        used_at = self._used.get(digest)
        if used_at is None:
            return
        self.misses += 1
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
