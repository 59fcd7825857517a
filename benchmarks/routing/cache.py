"""The prefix cache of a simulated worker.

Makes the same decisions as the engine's block manager (a test compares them), over names of blocks
instead of token ids: blocks without content are reused first, then the engine's own order of
retention decides. Must not know sequences.
"""

from collections.abc import Sequence
from typing import Final, Protocol

from protocol.ids import BlockDigest
from protocol.messages import BlockEvent, CacheUse
from workers.scheduler.block_events import BlockEvents
from workers.scheduler.retention import KeptChains, ReturnExpectation
from workers.scheduler.saving import PrefixStates


class Cache(Protocol):
    """The interface of a worker's blocks. A sequence holds named blocks and private ones. `states`
    are the saved states of prefixes, if the model has any; `use` what the engine says of its host
    tier, if it has one. The worker sets `now`.
    """

    states: PrefixStates | None
    use: CacheUse | None
    now: float

    @property
    def num_free(self) -> int:
        """Blocks that no sequence holds."""

    def match(self, digests: Sequence[BlockDigest]) -> tuple[int, int]:
        """How many leading blocks are cached, and how many of them no sequence holds."""

    def hold(self, digests: Sequence[BlockDigest]) -> None:
        """Let a sequence hold these cached blocks too."""

    def allocate(self, num_blocks: int) -> None:
        """Give private blocks to a sequence; that many are free."""

    def store(self, digest: BlockDigest, parent: BlockDigest | None = None) -> None:
        """A private block of a sequence is full: its content can be found from now on, behind its
        `parent`.
        """

    def release(
        self, digests: Sequence[BlockDigest], num_private: int, name: object = None
    ) -> None:
        """Release all blocks of a sequence, the named ones in order. `name` is for `retain`."""

    def retain(self, name: object, conversation: object, expected: ReturnExpectation) -> None:
        """Set what is expected of the prefix that was released under `name`."""

    def fetch(self, digests: Sequence[BlockDigest], now: float) -> float:
        """Begin to bring what is found of these blocks to the card. Returns when it is there."""

    def take_events(self) -> tuple[BlockEvent, ...]:
        """The changes since the last call."""


class BlockCache:
    """`num_blocks` blocks with eviction; the states behind them are forgotten with them."""

    def __init__(
        self,
        num_blocks: int,
        states: PrefixStates | None = None,
        kept: KeptChains | None = None,
    ) -> None:
        self.states = states
        self.use: CacheUse | None = None
        self.now = 0.0
        self._blank = num_blocks
        self._held: dict[BlockDigest, int] = {}
        self._idle = KeptChains() if kept is None else kept
        self._events: Final = BlockEvents()
        if states is not None:
            states.pool.events = self._events

    @property
    def num_free(self) -> int:
        return self._blank + len(self._idle)

    def match(self, digests: Sequence[BlockDigest]) -> tuple[int, int]:
        num_matched = num_idle = 0
        for digest in digests:
            if digest in self._idle:
                num_idle += 1
            elif digest not in self._held:
                break
            num_matched += 1
        return num_matched, num_idle

    def hold(self, digests: Sequence[BlockDigest]) -> None:
        for digest in digests:
            holders = self._held.get(digest, 0)
            if not holders:
                self._idle.take((digest,))
            self._held[digest] = holders + 1

    def allocate(self, num_blocks: int) -> None:
        num_blank = min(num_blocks, self._blank)
        self._blank -= num_blank
        for _ in range(num_blocks - num_blank):
            digest = self._idle.pop(self.now)
            self._evicted(digest)
            if self.states is not None:
                self.states.pool.forget(digest)

    def store(self, digest: BlockDigest, parent: BlockDigest | None = None) -> None:
        """A private block of a sequence is full. If it equals a cached one it becomes blank."""
        if digest in self._held or digest in self._idle:
            self.hold((digest,))
            self._blank += 1
        else:
            self._held[digest] = 1
            if parent is not None:
                self._idle.stored_behind(parent)
            self._stored(digest)

    def release(
        self, digests: Sequence[BlockDigest], num_private: int, name: object = None
    ) -> None:
        """Release all blocks of a sequence."""
        self._blank += num_private
        free = []
        for digest in digests:
            holders = self._held[digest] - 1
            if holders:
                self._held[digest] = holders
            else:
                del self._held[digest]
                free.append(digest)
        self._idle.keep(digests, free, name, self.now)

    def retain(self, name: object, conversation: object, expected: ReturnExpectation) -> None:
        """Set what is expected of the prefix that was released under `name`."""
        self._idle.retain(name, conversation, expected)

    def fetch(self, digests: Sequence[BlockDigest], now: float) -> float:  # noqa: ARG002
        """Everything that is found is on the card."""
        return now

    def take_events(self) -> tuple[BlockEvent, ...]:
        return self._events.take()

    def _stored(self, digest: BlockDigest) -> None:
        self._events.stored(digest)

    def _evicted(self, digest: BlockDigest) -> None:
        self._events.dropped(digest)


class EndlessCache:
    """Remembers every block ever stored by any worker that shares `known`, at no cost; only blocks
    that sequences hold count against `num_blocks`. For bounds, not for comparison.
    """

    def __init__(self, num_blocks: int, known: set[BlockDigest]) -> None:
        self.states: PrefixStates | None = None
        self.use: CacheUse | None = None
        self.now = 0.0
        self._known = known
        self._held: dict[BlockDigest, int] = {}
        self._num_free = num_blocks

    @property
    def num_free(self) -> int:
        return self._num_free

    def match(self, digests: Sequence[BlockDigest]) -> tuple[int, int]:
        num_matched = num_idle = 0
        for digest in digests:
            if digest not in self._known:
                break
            num_matched += 1
            num_idle += digest not in self._held
        return num_matched, num_idle

    def hold(self, digests: Sequence[BlockDigest]) -> None:
        for digest in digests:
            holders = self._held.get(digest, 0)
            self._num_free -= not holders
            self._held[digest] = holders + 1

    def allocate(self, num_blocks: int) -> None:
        self._num_free -= num_blocks

    def store(self, digest: BlockDigest, parent: BlockDigest | None = None) -> None:  # noqa: ARG002
        self._known.add(digest)
        self._num_free += 1
        self.hold((digest,))

    def release(
        self,
        digests: Sequence[BlockDigest],
        num_private: int,
        name: object = None,  # noqa: ARG002
    ) -> None:
        self._num_free += num_private
        for digest in digests:
            holders = self._held[digest] - 1
            if holders:
                self._held[digest] = holders
            else:
                del self._held[digest]
                self._num_free += 1

    def retain(self, name: object, conversation: object, expected: ReturnExpectation) -> None:
        """Nothing is ever forgotten."""

    def fetch(self, digests: Sequence[BlockDigest], now: float) -> float:  # noqa: ARG002
        return now

    def take_events(self) -> tuple[BlockEvent, ...]:
        return ()
