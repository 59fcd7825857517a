"""Which requests belong to one conversation.

Owns the recognition of conversations that bring no session key, their last worker and the
prefixes that they share. All memories are bounded; forgetting one costs a cache hit, never an
answer. Must not know costs.
"""

from collections import OrderedDict
from collections.abc import Hashable, Sequence
from typing import Final, TypeVar

from gateway.core.chain_tree import ChainTree
from gateway.core.chains import common_prefix
from protocol.ids import BlockDigest, WorkerId

MAX_CONVERSATIONS: Final = 4096
MAX_RECENT: Final = 64
"""Conversations whose whole prompt is remembered: 0.2 MB each at 100k tokens."""

RECENT_S: Final = 300.0

_STRIDE: Final = 32
"""The end of a prompt is found by the last block before it whose number divides by this: a look at
every block of 100k tokens takes 150 us, at every 32nd 5 us."""

_K = TypeVar("_K", bound=Hashable)
_V = TypeVar("_V")
_Chain = Sequence[BlockDigest]


class Conversations:
    """The conversations of one model."""

    def __init__(self) -> None:
        self._recent: OrderedDict[str, tuple[_Chain, float]] = OrderedDict()
        self._recent_tree = ChainTree()
        self._tails: OrderedDict[str, tuple[BlockDigest, BlockDigest]] = OrderedDict()
        self._by_tail: dict[BlockDigest, dict[BlockDigest, str]] = {}
        self._homes: OrderedDict[str, WorkerId] = OrderedDict()

    def recognise(self, key: str, session: str | None, digests: _Chain, ticket: int) -> str:
        """The name of the conversation, unique over keys.

        Without a session key it is the one whose last prompt this prompt continues: a next turn
        holds all blocks of the one before and at least one more. Otherwise it is new, named by
        its first block that no recent conversation has.
        """
        if session:
            return f"{key}/{session}"
        if not digests:
            return f"{key}/"
        earlier = self._continued(digests)
        if earlier is not None and earlier.startswith(f"{key}/"):
            return earlier
        divergent = digests[min(self._recent_tree.depth(digests), len(digests) - 1)]
        return f"{key}/{divergent.hex()}#{ticket}"

    def record(self, name: str, digests: _Chain, worker_id: WorkerId, now: float) -> None:
        """This conversation was given a place."""
        _put(self._homes, name, worker_id, MAX_CONVERSATIONS)
        if digests:
            self._remember_chain(name, digests, now)
            self._remember_tail(name, digests)

    def home(self, name: str) -> WorkerId | None:
        """The worker that served the conversation last."""
        return self._homes.get(name)

    def sharing(self, name: str, digests: _Chain, now: float) -> list[tuple[int, int]]:
        """Along the prompt: (end in blocks, how many other recent conversations share the blocks
        up to there).
        """
        self._forget_old(now)
        own = common_prefix(digests, self._recent[name][0]) if name in self._recent else 0
        spans: list[tuple[int, int]] = []
        for end, num_chains in self._recent_tree.spans(digests):
            num_others = num_chains - (end <= own)
            if not num_others:
                break
            spans.append((end, num_others))
        return spans

    def _continued(self, digests: _Chain) -> str | None:
        """The conversation whose last prompt is the longest that these blocks go beyond."""
        last = len(digests) - 2
        for anchor in range(last - last % _STRIDE, -1, -_STRIDE):
            tails = self._by_tail.get(digests[anchor])
            if tails is None:
                continue
            for index in range(min(anchor + _STRIDE - 1, last), anchor - 1, -1):
                if (name := tails.get(digests[index])) is not None:
                    return name
        return None

    def _remember_chain(self, name: str, digests: _Chain, now: float) -> None:
        old = self._recent.pop(name, None)
        if old is not None:
            self._recent_tree.leave(old[0])
        self._recent[name] = digests, now
        self._recent_tree.enter(digests)
        if len(self._recent) > MAX_RECENT:
            self._forget_eldest()

    def _forget_old(self, now: float) -> None:
        while self._recent and now - next(iter(self._recent.values()))[1] > RECENT_S:
            self._forget_eldest()

    def _forget_eldest(self) -> None:
        _, (chain, _) = self._recent.popitem(last=False)
        self._recent_tree.leave(chain)

    def _remember_tail(self, name: str, digests: _Chain) -> None:
        last = len(digests) - 1
        self._forget_tail(name)
        anchor, tail = digests[last - last % _STRIDE], digests[last]
        self._tails[name] = anchor, tail
        self._by_tail.setdefault(anchor, {})[tail] = name
        if len(self._tails) > MAX_CONVERSATIONS:
            self._forget_tail(next(iter(self._tails)))

    def _forget_tail(self, name: str) -> None:
        if name not in self._tails:
            return
        anchor, tail = self._tails.pop(name)
        names = self._by_tail.get(anchor, {})
        if names.get(tail) == name:
            del names[tail]
            if not names:
                del self._by_tail[anchor]


def _put(memory: OrderedDict[_K, _V], key: _K, value: _V, limit: int) -> None:
    memory[key] = value
    memory.move_to_end(key)
    if len(memory) > limit:
        memory.popitem(last=False)
