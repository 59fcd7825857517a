"""Conversations: which requests belong together.

Owns the recognition of conversations without a session name, the last worker of each, and the
prefixes that they share. All tables are bounded; forgetting an entry costs at most a cache hit.
Must not know costs.
"""

from collections import OrderedDict, deque
from collections.abc import Sequence
from typing import Final

from gateway.routing.chain_tree import ChainTree
from protocol.ids import BlockDigest, WorkerId

MAX_CONVERSATIONS: Final = 4096
MAX_RECENT: Final = 64
"""Conversations whose whole prompt is kept: 0.2 MB each at 100k tokens."""

RECENT_S: Final = 300.0

_STRIDE: Final = 32
"""The last block of a prompt is filed under the nearest block before it whose index is a multiple
of this. Looking up every block of 100k tokens takes 150 us, every 32nd 5 us.
"""

_Chain = Sequence[BlockDigest]


class ConversationHomes:
    """The conversations of one model. `homes` has the last worker of each, by conversation name."""

    def __init__(self) -> None:
        self._recent: OrderedDict[str, tuple[_Chain, float]] = OrderedDict()
        self._none_before = float("-inf")
        self._forgotten: deque[_Chain] = deque(maxlen=MAX_RECENT)
        self._recent_tree = ChainTree()
        self._walked: tuple[_Chain, list[tuple[int, int]]] = (), []
        self._tails: OrderedDict[str, tuple[BlockDigest, BlockDigest]] = OrderedDict()
        self._by_tail: dict[BlockDigest, dict[BlockDigest, str]] = {}
        self.homes: OrderedDict[str, WorkerId] = OrderedDict()

    def recognise(self, key: str, session: str | None, digests: _Chain, ticket: int) -> str:
        """The name of the request's conversation, unique over keys.

        Without a session name it is the conversation whose last prompt this prompt continues: the
        next turn holds all blocks of the previous one and at least one more. Otherwise it is a new
        one, named by its first block that no recent conversation has.
        """
        if session:
            return f"{key}/{session}"
        if not digests:
            return f"{key}/"
        earlier = self._continued(digests)
        if earlier is not None and earlier.startswith(f"{key}/"):
            return earlier
        spans = self._walk(digests)
        depth = spans[-1][0] if spans else 0
        divergent = digests[depth] if depth < len(digests) else digests[-1]
        return f"{key}/{divergent.hex()}#{ticket}"

    def record(self, name: str, digests: _Chain, worker_id: WorkerId, now: float) -> None:
        """A request of the conversation was placed on the worker."""
        homes = self.homes
        if name in homes:
            homes.move_to_end(name)
        elif len(homes) >= MAX_CONVERSATIONS:
            homes.popitem(last=False)
        homes[name] = worker_id
        if digests:
            self._remember_chain(name, digests, now)
            self._remember_tail(name, digests)

    def sharing(self, name: str, digests: _Chain, now: float) -> list[tuple[int, int]]:
        """Along the prompt: (end in blocks, how many other recent conversations share the blocks
        up to there).
        """
        if now - self._none_before > RECENT_S:
            self._forget_old(now)
        # For a prompt without a session `recognise` has walked just now.
        spans = self._walked[1] if self._walked[0] is digests else self._walk(digests)
        if name not in self._recent:
            return spans
        own = self._recent[name][0]
        others: list[tuple[int, int]] = []
        for end, num_chains in spans:
            # Chains that agree at a position agree everywhere before it.
            is_own = len(own) >= end and own[end - 1] == digests[end - 1]
            if is_own and num_chains == 1:
                break
            others.append((end, num_chains - is_own))
        return others

    def _walk(self, digests: _Chain) -> list[tuple[int, int]]:
        """The spans that recent prompts share with this one."""
        spans = self._recent_tree.spans(digests)
        self._walked = digests, spans
        return spans

    def sweep(self) -> None:
        """Free the prompts that were forgotten; call it from time to time. Freeing the 3,125
        digests of 100k tokens takes 35 us, half the time of a decision, so decisions leave it to
        this call.
        """
        self._forgotten.clear()

    def _continued(self, digests: _Chain) -> str | None:
        """The conversation with the longest last prompt that is a proper prefix of these blocks."""
        last = len(digests) - 2
        if last < 0:
            return None
        anchor = last - last % _STRIDE
        by_tail, end = self._by_tail, last
        for digest in digests[anchor::-_STRIDE]:
            if digest in by_tail:
                tails = by_tail[digest]
                if not tails.keys().isdisjoint(digests[anchor : end + 1]):
                    for index in range(end, anchor - 1, -1):
                        if digests[index] in tails:
                            return tails[digests[index]]
            end = anchor - 1
            anchor -= _STRIDE
        return None

    def _remember_chain(self, name: str, digests: _Chain, now: float) -> None:
        recent = self._recent
        if name in recent:
            self._forget_chain(recent.pop(name)[0])
        elif not recent:
            self._none_before = now
        recent[name] = digests, now
        self._recent_tree.enter(digests)
        self._walked = (), []
        if len(recent) > MAX_RECENT:
            self._forget_chain(recent.popitem(last=False)[1][0])

    def _forget_old(self, now: float) -> None:
        """Forget prompts that are no longer recent. No prompt is older than `_none_before`, so that
        a comparison with it mostly shows that there is nothing to forget.
        """
        recent = self._recent
        while recent:
            chain, at = next(iter(recent.values()))
            if now - at <= RECENT_S:
                self._none_before = at
                return
            recent.popitem(last=False)
            self._forget_chain(chain)

    def _forget_chain(self, chain: _Chain) -> None:
        self._recent_tree.leave(chain)
        self._walked = (), []
        self._forgotten.append(chain)

    def _remember_tail(self, name: str, digests: _Chain) -> None:
        last = len(digests) - 1
        if name in self._tails:
            self._forget_tail(name)
        anchor, tail = digests[last - last % _STRIDE], digests[last]
        self._tails[name] = anchor, tail
        if anchor in self._by_tail:
            self._by_tail[anchor][tail] = name
        else:
            self._by_tail[anchor] = {tail: name}
        if len(self._tails) > MAX_CONVERSATIONS:
            self._forget_tail(next(iter(self._tails)))

    def _forget_tail(self, name: str) -> None:
        anchor, tail = self._tails.pop(name)
        names = self._by_tail.get(anchor, {})
        if names.get(tail) == name:
            del names[tail]
            if not names:
                del self._by_tail[anchor]
