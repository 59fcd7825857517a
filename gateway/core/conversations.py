"""Which requests belong to one conversation.

Owns the recognition of conversations that bring no session key, their last worker and the
prefixes that they share. All memories are bounded; forgetting one costs a cache hit, never an
answer. Must not know costs.
"""

from collections import OrderedDict
from collections.abc import Hashable, Sequence
from typing import Final, TypeVar

from gateway.core.chains import common_prefix
from protocol.ids import BlockDigest, WorkerId

MAX_CONVERSATIONS: Final = 4096
MAX_RECENT: Final = 32
"""Chains that are compared at each decision, 1.5 us each for 100k tokens."""

RECENT_S: Final = 300.0

_K = TypeVar("_K", bound=Hashable)
_V = TypeVar("_V")


class Conversations:
    """The conversations of one model."""

    def __init__(self) -> None:
        self._recent: OrderedDict[str, tuple[Sequence[BlockDigest], float]] = OrderedDict()
        self._by_tail: OrderedDict[BlockDigest, str] = OrderedDict()
        self._tails: OrderedDict[str, BlockDigest] = OrderedDict()
        self._homes: OrderedDict[str, WorkerId] = OrderedDict()

    def recognise(
        self, key: str, session: str | None, digests: Sequence[BlockDigest], ticket: int
    ) -> str:
        """The name of the conversation, unique over keys.

        Without a session key it is the one whose last prompt this prompt continues: a next turn
        holds all blocks of the one before and at least one more. Otherwise it is new, named by
        its first block that no recent conversation has.
        """
        if session:
            return f"{key}/{session}"
        earlier = reversed(digests[:-1])
        tail = next(filter(self._by_tail.__contains__, earlier), None)
        if tail is not None and self._by_tail[tail].startswith(f"{key}/"):
            return self._by_tail[tail]
        if not digests:
            return f"{key}/"
        shared = max(
            (common_prefix(digests, chain) for chain, _ in self._recent.values()), default=0
        )
        divergent = digests[min(shared, len(digests) - 1)]
        return f"{key}/{divergent.hex()}#{ticket}"

    def record(
        self, name: str, digests: Sequence[BlockDigest], worker_id: WorkerId, now: float
    ) -> None:
        """This conversation was given a place."""
        _put(self._homes, name, worker_id, MAX_CONVERSATIONS)
        if not digests:
            return
        _put(self._recent, name, (digests, now), MAX_RECENT)
        old_tail = self._tails.get(name)
        if old_tail is not None and self._by_tail.get(old_tail) == name:
            del self._by_tail[old_tail]
        _put(self._tails, name, digests[-1], MAX_CONVERSATIONS)
        _put(self._by_tail, digests[-1], name, MAX_CONVERSATIONS)

    def home(self, name: str) -> WorkerId | None:
        """The worker that served the conversation last."""
        return self._homes.get(name)

    def shared_prefixes(self, name: str, digests: Sequence[BlockDigest], now: float) -> list[int]:
        """How many leading blocks each other recent conversation shares; ascending, no zeros."""
        lengths = [
            common_prefix(digests, chain)
            for other, (chain, seen_at) in self._recent.items()
            if other != name and now - seen_at <= RECENT_S
        ]
        return sorted(length for length in lengths if length)


def _put(memory: OrderedDict[_K, _V], key: _K, value: _V, limit: int) -> None:
    memory[key] = value
    memory.move_to_end(key)
    if len(memory) > limit:
        memory.popitem(last=False)
