"""Chains of prompts: the conversation that a prompt without a name continues.

Owns the recognition by messages. A next turn holds all messages of the turn before and more. If a
client changes the beginning (a time stamp, a summary), the messages at the end of the turn before
still stand in a row in the next one. Must not know names, tokens or the time.
"""

from array import array
from collections.abc import Sequence
from operator import attrgetter
from typing import Any, Final

MAX_ENDS: Final = 4
"""Ends of earlier prompts by which a conversation is found: a side call that continues one must not
take the place of its next turn.
"""
MAX_TAIL: Final = 32
"""Messages of the last prompt that are compared when its beginning has changed."""
ANCHORS: Final = 3
LONG_RUN: Final = 3
"""So many messages in a row prove that two prompts belong together."""
SHORT: Final = 3
"""Prompts with so few messages may be equal by chance."""

said: Final = attrgetter("role", "content", "tool_calls")
"""The parts of a message that are hashed. Reasoning is not, because clients drop it later."""

role_of: Final = attrgetter("role")
NO_HASHES: Final = array("q")


class Chain:
    """What is kept of the prompts of `owner`: hashes of messages, less than 2 KB. For `scope` see
    `ends_of`. `may_repeat`:
    the last prompt got no answer, so the same one again is a retry and no other conversation;
    `PromptChains.set_repeat` sets it.
    """

    __slots__ = ("ends", "may_repeat", "num_messages", "owner", "scope", "tail")

    def __init__(self, owner: Any, scope: int) -> None:  # noqa: ANN401 - whatever is looked for
        self.owner = owner
        self.scope = scope
        self.ends: list[int] = []
        self.tail: array[int] = NO_HASHES
        self.num_messages = 0
        self.may_repeat = False

    @property
    def num_bytes(self) -> int:
        """The size, with the entries of the tables that refer to it."""
        return 300 + 8 * len(self.tail) + 200 * (len(self.ends) + ANCHORS)


def ends_of(hashes: "array[int]", scope: int) -> list[int]:
    """For each message, a hash of all messages up to it. `scope` keeps keys and models apart."""
    ends, end = [], scope
    for one in hashes:
        end = hash((end, one))
        ends.append(end)
    return ends


ChainTable = dict[int, list[Chain]]
"""Chains by a hash, the oldest first. Thousands of clients may send the same prompt, so no request
looks at each of their chains.
"""


class PromptChains:
    """The chains of all conversations without a sure name. For `scope` see `ends_of`."""

    def __init__(self) -> None:
        self._by_last: ChainTable = {}
        """Chains by the newest of their ends."""
        self._by_end: ChainTable = {}
        """Chains by their other ends."""
        self._unanswered: ChainTable = {}
        """Chains whose prompt may come again, by each of their ends."""
        self._by_anchor: ChainTable = {}
        """Chains by the last messages of their last prompts."""
        self._unanchored: set[Chain] = set()
        """Chains that are not in `_by_anchor` yet: few prompts look there, and by then most
        conversations have another last prompt.
        """

    def find(self, hashes: "array[int]", scope: int) -> tuple[Chain | None, list[int]]:
        """The chain that a prompt of these messages continues or repeats, and their `ends_of`."""
        # `ends_of`, inlined: this is on the way of most requests.
        ends, end = [], scope
        for one in hashes:
            end = hash((end, one))
            ends.append(end)
        by_last, by_end, is_surely_next = self._by_last, self._by_end, len(ends) > SHORT
        for end in reversed(ends):
            found = by_last.get(end) or by_end.get(end)
            if found is not None:
                if is_surely_next:
                    return found[0], ends
                if (unanswered := self._unanswered.get(end)) is not None:
                    return unanswered[0], ends
            is_surely_next = True  # the prompt has more messages than this end
        return self._changed(scope, hashes) if len(ends) >= SHORT else None, ends

    def set_repeat(self, chain: Chain, *, may_repeat: bool) -> None:
        """The last prompt of `chain` got no answer, or got one."""
        if chain.may_repeat is may_repeat:
            return
        chain.may_repeat = may_repeat
        for end in chain.ends:
            if may_repeat:
                self._unanswered.setdefault(end, []).append(chain)
            else:
                _leave(self._unanswered, end, chain)

    def note(self, chain: Chain, hashes: "array[int]", ends: Sequence[int]) -> None:
        """`chain` has a new last prompt, which runs. Its tables are written in one call: this is on
        the way of every request.
        """
        if chain.may_repeat:
            self.set_repeat(chain, may_repeat=False)
        known, end = chain.ends, ends[-1] if ends else chain.scope
        if chain not in self._unanchored:
            if known:
                self._unanchor(chain)
            self._unanchored.add(chain)
        if end not in known:
            if known:
                _leave(self._by_last, known[-1], chain)
                self._by_end.setdefault(known[-1], []).append(chain)
            known.append(end)
            if (chains := self._by_last.get(end)) is None:
                self._by_last[end] = [chain]
            else:
                chains.append(chain)
            if len(known) > MAX_ENDS:
                _leave(self._by_end, known.pop(0), chain)
        chain.tail = hashes[-MAX_TAIL:]
        chain.num_messages = len(hashes)

    def forget(self, chain: Chain) -> None:
        """`chain` is not continued any more."""
        if chain.may_repeat:
            self.set_repeat(chain, may_repeat=False)
        if chain in self._unanchored:
            self._unanchored.remove(chain)
        else:
            self._unanchor(chain)
        chain.tail = NO_HASHES
        ends, chain.ends = chain.ends, []
        if ends:
            _leave(self._by_last, ends.pop(), chain)
        for end in ends:
            _leave(self._by_end, end, chain)

    def _unanchor(self, chain: Chain) -> None:
        for one in chain.tail[-ANCHORS:]:
            _leave(self._by_anchor, hash((chain.scope, one)), chain)

    def _changed(self, scope: int, hashes: "array[int]") -> Chain | None:
        """The chain whose last prompt ends in the middle of this one, with another beginning."""
        for chain in self._unanchored:
            for one in chain.tail[-ANCHORS:]:
                self._by_anchor.setdefault(hash((chain.scope, one)), []).append(chain)
        self._unanchored.clear()
        for at in range(len(hashes) - 1, 0, -1):
            found = self._by_anchor.get(hash((scope, hashes[at])))
            if found is None:
                continue
            best = max(found, key=lambda chain: _run(chain.tail, hashes, at))
            run = _run(best.tail, hashes, at)
            if run >= LONG_RUN:
                return best
            is_only = len({id(chain) for chain in found}) == 1
            if is_only and run and best.num_messages <= SHORT and at < best.num_messages:
                return best
        return None


def _run(tail: "array[int]", hashes: "array[int]", at: int) -> int:
    """How many messages that end with the one at `at` stand in the same order in `tail`."""
    last = -1
    for offset in range(1, min(ANCHORS, len(tail)) + 1):
        if tail[-offset] == hashes[at]:
            last = len(tail) - offset
            break
    if last < 0:
        return 0
    run = 0
    while run <= min(last, at) and tail[last - run] == hashes[at - run]:
        run += 1
    return run


def _leave(table: ChainTable, entry: int, chain: Chain) -> None:
    chains = table.get(entry)
    if chains is None:
        return
    if len(chains) > 1:
        if chain in chains:
            chains.remove(chain)
    elif chains[0] is chain:
        del table[entry]
