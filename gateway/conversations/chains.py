"""Chains of prompts: the conversation that a prompt without a name continues.

Owns the recognition by messages. A next turn holds all messages of the turn before and more. If a
client changes the beginning (a time stamp, a summary), the messages at the end of the turn before
still stand in a row in the next one. Must not know names, tokens or the time.
"""

from array import array
from collections.abc import Sequence
from operator import attrgetter
from typing import Final

from gateway.conversations.conversation import NO_HASHES, KnownConversation

MAX_ENDS: Final = 4
"""Ends of earlier prompts by which a conversation is found: a side call that continues one must not
take the place of its next turn.
"""
MAX_TAIL: Final = 32
"""Messages of the last prompt that are compared when its beginning has changed."""
ANCHORS: Final = 3
LONG_RUN: Final = 3
"""This many equal messages in a row prove that two prompts belong together."""
SHORT: Final = 3
"""Prompts with so few messages may be equal by chance."""

said: Final = attrgetter("role", "content", "tool_calls")
"""The parts of a message that are hashed. Reasoning is not, because clients drop it later."""

role_of: Final = attrgetter("role")


def ends_of(hashes: "array[int]", scope: int) -> list[int]:
    """For each message, a hash of all messages up to it. `scope` keeps keys and models apart."""
    ends, end = [], scope
    for one in hashes:
        end = hash((end, one))
        ends.append(end)
    return ends


ChainTable = dict[int, list[KnownConversation]]
"""Conversations by a hash, the oldest first. Thousands of clients may send the same prompt, so no
request looks at each of their conversations.
"""


class PromptChains:
    """The prompts of all conversations without a sure name. For `scope` see `ends_of`."""

    def __init__(self) -> None:
        self._by_last: ChainTable = {}
        """Conversations by the newest of their ends."""
        self._by_end: ChainTable = {}
        """Conversations by their other ends."""
        self._unanswered: ChainTable = {}
        """Conversations whose prompt may come again, by each of their ends."""
        self._by_anchor: ChainTable = {}
        """Conversations by the last messages of their last prompts."""
        self._unanchored: set[KnownConversation] = set()
        """Conversations that are not in `_by_anchor` yet: few prompts look there, and by then most
        conversations have another last prompt.
        """

    def find(self, hashes: "array[int]", scope: int) -> tuple[KnownConversation | None, list[int]]:
        """The conversation that a prompt of these messages continues or repeats, and their
        `ends_of`.
        """
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

    def set_repeat(self, one: KnownConversation, *, may_repeat: bool) -> None:
        """The last prompt of `one` got no answer, or got one."""
        if one.may_repeat is may_repeat:
            return
        one.may_repeat = may_repeat
        for end in one.ends or ():
            if may_repeat:
                self._unanswered.setdefault(end, []).append(one)
            else:
                _leave(self._unanswered, end, one)

    def note(self, one: KnownConversation, hashes: "array[int]", ends: Sequence[int]) -> None:
        """`one` has a new last prompt, which runs. Its tables are written in one call: this is on
        the way of every request.
        """
        if one.may_repeat:
            self.set_repeat(one, may_repeat=False)
        assert one.ends is not None
        known, end = one.ends, ends[-1] if ends else one.scope
        if one not in self._unanchored:
            if known:
                self._unanchor(one)
            self._unanchored.add(one)
        if end not in known:
            if known:
                _leave(self._by_last, known[-1], one)
                self._by_end.setdefault(known[-1], []).append(one)
            known.append(end)
            if (found := self._by_last.get(end)) is None:
                self._by_last[end] = [one]
            else:
                found.append(one)
            if len(known) > MAX_ENDS:
                _leave(self._by_end, known.pop(0), one)
        one.tail = hashes[-MAX_TAIL:]
        one.num_messages = len(hashes)

    def forget(self, one: KnownConversation) -> None:
        """`one` is not continued any more. One whose name is sure is in no table."""
        if one.ends is None:
            return
        if one.may_repeat:
            self.set_repeat(one, may_repeat=False)
        if one in self._unanchored:
            self._unanchored.remove(one)
        else:
            self._unanchor(one)
        one.tail = NO_HASHES
        ends, one.ends = one.ends, None
        if ends:
            _leave(self._by_last, ends.pop(), one)
        for end in ends:
            _leave(self._by_end, end, one)

    def _unanchor(self, one: KnownConversation) -> None:
        for each in one.tail[-ANCHORS:]:
            _leave(self._by_anchor, hash((one.scope, each)), one)

    def _changed(self, scope: int, hashes: "array[int]") -> KnownConversation | None:
        """The conversation whose last prompt ends in the middle of this one, behind another
        beginning.
        """
        for one in self._unanchored:
            for each in one.tail[-ANCHORS:]:
                self._by_anchor.setdefault(hash((one.scope, each)), []).append(one)
        self._unanchored.clear()
        for at in range(len(hashes) - 1, 0, -1):
            found = self._by_anchor.get(hash((scope, hashes[at])))
            if found is None:
                continue
            best = max(found, key=lambda one: _run(one.tail, hashes, at))
            run = _run(best.tail, hashes, at)
            if run >= LONG_RUN:
                return best
            is_only = len({id(one) for one in found}) == 1
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


def _leave(table: ChainTable, entry: int, one: KnownConversation) -> None:
    found = table.get(entry)
    if found is None:
        return
    if len(found) > 1:
        if one in found:
            found.remove(one)
    elif found[0] is one:
        del table[entry]
