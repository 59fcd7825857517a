"""A simulated worker's cache with a tier in the host's memory, and caches that see the future.

Owns where evicted blocks go, how long they take to come back over the link, and the reference
orders of eviction. Must not know sequences or policies of routing.
"""

from collections import OrderedDict
from collections.abc import Callable, Sequence
from math import inf
from typing import Final

from benchmarks.routing.cache import BlockCache
from protocol.ids import BlockDigest
from protocol.messages import CacheUse
from workers.scheduler.retention import KeptChain, KeptChains, ReturnExpectation

TOKEN_BYTES: Final = 147_000
"""What a token of an 8B in 16 bits takes."""
LINK_TOKENS_PER_S: Final = 340_000.0
"""50 GB/s."""


class TieredCache(BlockCache):
    """Evicted blocks stay in the host's memory, `num_host` of them, the latest evicted. They are
    found there, and are on the card again when a sequence holds them; `fetch` says when the link
    has brought them. `tells` is False for an engine whose events do not name the tier.
    """

    def __init__(
        self,
        num_blocks: int,
        num_host: int,
        block_size: int,
        kept: KeptChains,
        *,
        tells: bool = True,
    ) -> None:
        super().__init__(num_blocks, kept=kept)
        block_bytes = block_size * TOKEN_BYTES
        self.use = CacheUse(
            num_host * block_bytes,
            num_host * block_bytes,
            block_bytes=block_bytes,
            load_bytes_per_s=LINK_TOKENS_PER_S * TOKEN_BYTES,
        )
        self._tells = tells
        self._num_host = num_host
        self._block_s = block_size / LINK_TOKENS_PER_S
        self._host: OrderedDict[BlockDigest, None] = OrderedDict()
        self._link_free_at = 0.0
        self.loaded = 0

    def fetch(self, digests: Sequence[BlockDigest], now: float) -> float:
        """Begin to load what the host has of these blocks. Returns when it is there."""
        num_blocks = sum(
            digest not in self._held and digest not in self._idle
            for digest in digests[: self.match(digests)[0]]
        )
        if not num_blocks:
            return now
        self._link_free_at = max(now, self._link_free_at) + num_blocks * self._block_s
        return self._link_free_at

    def match(self, digests: Sequence[BlockDigest]) -> tuple[int, int]:
        num_matched = num_idle = 0
        for digest in digests:
            if digest in self._idle or (digest in self._host and digest not in self._held):
                num_idle += 1
            elif digest not in self._held:
                break
            num_matched += 1
        return num_matched, num_idle

    def hold(self, digests: Sequence[BlockDigest]) -> None:
        there = [one for one in digests if one in self._held or one in self._idle]
        super().hold(there)
        coming = [index for index, one in enumerate(digests) if one not in self._held]
        # Held before room is made for them: what makes room goes to the host, which may be full.
        self._held.update(dict.fromkeys([digests[index] for index in coming], 1))
        self.allocate(len(coming))
        self.loaded += len(coming)
        for index in coming:
            if self._tells:
                self._events.stored(digests[index])
            if index:
                self._idle.stored_behind(digests[index - 1])

    def _stored(self, digest: BlockDigest) -> None:
        if self._tells or digest not in self._host:
            super()._stored(digest)

    def _evicted(self, digest: BlockDigest) -> None:
        self._host[digest] = None
        self._host.move_to_end(digest)
        if self._tells:
            self._events.left_card(digest)
        if len(self._host) > self._num_host:
            gone = self._host.popitem(last=False)[0]
            if gone not in self._held and gone not in self._idle:
                super()._evicted(gone)


class OracleChains(KeptChains):
    """Evicts what is used last of all: `next_use` gives the time of the next request behind the
    turn of that name. It knows all pauses, as no cache can (Belady's rule).
    """

    def __init__(self, next_use: Callable[[object], float]) -> None:
        super().__init__()
        self._next_use = next_use

    def _choose(self, now: float) -> KeptChain:  # noqa: ARG002 - the future counts alone
        chains = [one for of_class in self._classes.values() for one in of_class.values()]
        return max(chains, key=lambda one: (self._next_use(one.name), one.order))


class TtlChains(KeptChains):
    """Evicts what is past its time to live the longest: twice the median pause of its tool."""

    def _choose(self, now: float) -> KeptChain:  # noqa: ARG002 - all age alike
        chains = [one for of_class in self._classes.values() for one in of_class.values()]
        return min(chains, key=lambda one: (one.released_at + 2 * one.expected[1], one.order))


class LruChains(KeptChains):
    """Takes no expectations: the order is that of least recent use."""

    def retain(self, name: object, conversation: object, expected: ReturnExpectation) -> bool:  # noqa: ARG002
        return False


NEVER: Final = inf
