"""The prefix cache of a simulated worker.

Owns the same decisions as the engine's block manager (a test holds one against the other), over
names of blocks instead of token ids: blocks without content are reused first, then the least
recently released; a chain is released tail first. Must not know time or sequences.
"""

from collections import OrderedDict
from collections.abc import Sequence
from typing import Final, Protocol

from protocol.ids import BlockDigest
from workers.scheduler.block_events import BlockEvent, BlockEvents


class Cache(Protocol):
    """What a worker needs of its blocks. A sequence holds named blocks and private ones."""

    @property
    def num_free(self) -> int:
        """Blocks that no sequence holds."""

    def match(self, digests: Sequence[BlockDigest]) -> tuple[int, int]:
        """How many leading blocks are cached, and how many of them no sequence holds."""

    def hold(self, digests: Sequence[BlockDigest]) -> None:
        """A sequence holds these cached blocks too."""

    def allocate(self, num_blocks: int) -> None:
        """A sequence takes private blocks; there are as many free."""

    def store(self, digest: BlockDigest) -> None:
        """A private block of a sequence is full: its content can be found from now on."""

    def release(self, digests: Sequence[BlockDigest], num_private: int) -> None:
        """A sequence gives back all its blocks, the named ones in order."""

    def take_events(self) -> tuple[BlockEvent, ...]:
        """What changed since the last call."""


class BlockCache:
    """`num_blocks` blocks, reused when they are needed."""

    def __init__(self, num_blocks: int) -> None:
        self._blank = num_blocks
        self._held: dict[BlockDigest, int] = {}
        self._idle: OrderedDict[BlockDigest, None] = OrderedDict()
        self._events: Final = BlockEvents()

    @property
    def num_free(self) -> int:
        """Blocks that no sequence holds."""
        return self._blank + len(self._idle)

    def match(self, digests: Sequence[BlockDigest]) -> tuple[int, int]:
        """How many leading blocks are cached, and how many of them no sequence holds."""
        num_matched = num_idle = 0
        for digest in digests:
            if digest in self._idle:
                num_idle += 1
            elif digest not in self._held:
                break
            num_matched += 1
        return num_matched, num_idle

    def hold(self, digests: Sequence[BlockDigest]) -> None:
        """A sequence holds these cached blocks too."""
        for digest in digests:
            holders = self._held.get(digest, 0)
            if not holders:
                del self._idle[digest]
            self._held[digest] = holders + 1

    def allocate(self, num_blocks: int) -> None:
        """A sequence takes private blocks; there are as many free."""
        num_blank = min(num_blocks, self._blank)
        self._blank -= num_blank
        for _ in range(num_blocks - num_blank):
            self._events.dropped(self._idle.popitem(last=False)[0])

    def store(self, digest: BlockDigest) -> None:
        """A private block of a sequence is full; if it equals a cached one it becomes blank."""
        if digest in self._held or digest in self._idle:
            self.hold((digest,))
            self._blank += 1
        else:
            self._held[digest] = 1
            self._events.stored(digest)

    def release(self, digests: Sequence[BlockDigest], num_private: int) -> None:
        """A sequence gives back all its blocks, tail first."""
        self._blank += num_private
        for digest in reversed(digests):
            holders = self._held[digest] - 1
            if holders:
                self._held[digest] = holders
            else:
                del self._held[digest]
                self._idle[digest] = None

    def take_events(self) -> tuple[BlockEvent, ...]:
        """What changed since the last call."""
        return self._events.take()


class EndlessCache:
    """Remembers every block ever stored, by any worker that shares `known`, at no cost; only what
    sequences hold counts against `num_blocks`. For bounds, not for comparison.
    """

    def __init__(self, num_blocks: int, known: set[BlockDigest]) -> None:
        self._known = known
        self._held: dict[BlockDigest, int] = {}
        self._num_free = num_blocks

    @property
    def num_free(self) -> int:
        """Blocks that no sequence holds."""
        return self._num_free

    def match(self, digests: Sequence[BlockDigest]) -> tuple[int, int]:
        """How many leading blocks are known, and how many of them no sequence holds here."""
        num_matched = num_idle = 0
        for digest in digests:
            if digest not in self._known:
                break
            num_matched += 1
            num_idle += digest not in self._held
        return num_matched, num_idle

    def hold(self, digests: Sequence[BlockDigest]) -> None:
        """A sequence holds these known blocks too."""
        for digest in digests:
            holders = self._held.get(digest, 0)
            self._num_free -= not holders
            self._held[digest] = holders + 1

    def allocate(self, num_blocks: int) -> None:
        """A sequence takes private blocks; there are as many free."""
        self._num_free -= num_blocks

    def store(self, digest: BlockDigest) -> None:
        """A private block of a sequence is full."""
        self._known.add(digest)
        self._num_free += 1
        self.hold((digest,))

    def release(self, digests: Sequence[BlockDigest], num_private: int) -> None:
        """A sequence gives back all its blocks."""
        self._num_free += num_private
        for digest in digests:
            holders = self._held[digest] - 1
            if holders:
                self._held[digest] = holders
            else:
                del self._held[digest]
                self._num_free += 1

    def take_events(self) -> tuple[BlockEvent, ...]:
        """Nobody needs to be told."""
        return ()
