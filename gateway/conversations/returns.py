"""When a conversation comes back: learned from the pauses of earlier conversations.

Owns the counts of pauses by the tool that an answer called, by key and by client, and what follows
from them for one conversation. Must not know workers, caches or tokens. The time is an argument.

An agent sends its next request when its tool is done, so the tool's name says most. Counts of one
key, client and tool are few at first; they start from those of the tool anywhere, and these from
those of all turns that ended in a call, or ended without a call (then a person answers, or the
conversation is over).
"""

from collections import OrderedDict
from collections.abc import Iterable
from math import exp2, log2
from typing import Final, NamedTuple, Protocol

LOST_AFTER_S: Final = 900.0
"""A conversation that stays away for so long counts as one that does not come back."""

MAX_GROUPS: Final = 2048
_PRIOR_WEIGHT: Final = 6.0
"""A group's own pauses are averaged with this number of pauses of the wider group."""

_HALVE_AT: Final = 256.0
"""Counts that reach this number are halved, so that the last few hundred pauses decide."""

_FIRST_BIN: Final = -5
_NUM_BINS: Final = 22
"""Pauses from 1/32 s to 2^16 s, one bin for each power of two."""

TTL_PARTS: Final = 60.0
"""A client that asks for a prefix to be kept for five minutes is expected to come back, with a
median pause of five seconds at least: it pays for the whole of its time to live.
"""


class Expected(NamedTuple):
    """With probability `chance` there is another request; half of these come within `within_s`."""

    chance: float
    within_s: float


class Hint(NamedTuple):
    """What a client says. `keep_s`: how long it wants its prefix kept; `is_over`: the conversation
    is finished; `comes`: it announces its next turn.
    """

    keep_s: float | None = None
    is_over: bool = False
    comes: bool = False


NO_HINT: Final = Hint()
OVER: Final = Expected(0.0, 1.0)
_Group = tuple[str, ...]


class _Counts:
    """The pauses of a group by size, and the conversations that did not come back."""

    __slots__ = ("bins", "lost", "num_ends", "returned")

    def __init__(self) -> None:
        self.bins = [0.0] * _NUM_BINS
        self.returned = 0.0
        self.lost = 0.0
        self.num_ends = 0

    def add(self, pause_s: float | None) -> None:
        """Count one end: its pause, or None if it did not come back."""
        self.num_ends += 1
        if self.returned + self.lost >= _HALVE_AT:
            self.bins = [count / 2 for count in self.bins]
            self.returned, self.lost = self.returned / 2, self.lost / 2
        if pause_s is None:
            self.lost += 1
        else:
            self.returned += 1
            self.bins[_bin(pause_s)] += 1


class _Ending:
    """The answers that ended with a call of one tool, for one key and client. `groups` are the
    groups of pauses that they belong to, the widest first; `counts` are the counts of the groups
    that exist; `expected` was computed when these counts had `num_ends` ends in all.
    """

    __slots__ = ("counts", "expected", "groups", "num_ends")

    def __init__(self, groups: tuple[_Group, ...], counts: list[_Counts]) -> None:
        self.groups = groups
        self.counts = counts
        self.num_ends = -1
        self.expected = OVER


Away = tuple[float, _Ending]
"""Since when a conversation is away, and how its last answer ended."""


class Leaver(Protocol):
    """A conversation, which may be away."""

    away: Away | None


class ReturnModel:
    """Computes when a conversation comes back, from the pauses of all conversations so far. Each
    conversation keeps its `away`, until it comes back or is forgotten.
    """

    def __init__(self) -> None:
        self._groups: OrderedDict[_Group, _Counts] = OrderedDict()
        self._endings: dict[_Group, _Ending] = {}
        """The endings by tool, key and client. They are rebuilt when groups come or go."""
        for kind, usual_s, chance in (("call", 0.5, 0.97), ("none", 30.0, 0.6)):
            counts = self._counts((kind,))
            # Pauses that operators report count as the first few pauses.
            for step in (-2, -1, 0, 0, 1, 2):
                counts.bins[_bin(usual_s * 4.0**step)] += chance
            counts.returned, counts.lost = 6 * chance, 6 * (1 - chance)

    def ended(
        self,
        one: Leaver,
        now: float,
        *,
        tool: str,
        key: str = "",
        client: str = "",
        hint: Hint = NO_HINT,
    ) -> Expected:
        """An answer of `one` has ended with a call of `tool`, or with none ("")."""
        one.away = None
        if hint.is_over:
            return OVER
        ending = self._endings.get((tool, key, client)) or self._new_ending(tool, key, client)
        one.away = now, ending
        expected = _expected(ending)
        return expected if hint is NO_HINT else _sharpened(expected, hint)

    def returned(self, one: Leaver, now: float) -> None:
        """`one` has sent another request."""
        if one.away is not None:
            since, ending = one.away
            one.away = None
            self._note(ending, now - since)

    def sweep(self, all_of_them: Iterable[Leaver], now: float) -> None:
        """Give up those that have been away for long; call it now and then."""
        for one in all_of_them:
            if one.away is not None and now - one.away[0] >= LOST_AFTER_S:
                self.forget(one)

    def forget(self, one: Leaver) -> None:
        """Count `one` as not returned if it is away: its return can no longer be recognised."""
        if one.away is not None:
            ending, one.away = one.away[1], None
            self._note(ending, None)

    def _note(self, ending: _Ending, pause_s: float | None) -> None:
        for group in ending.groups:
            self._counts(group).add(pause_s)

    def _new_ending(self, tool: str, key: str, client: str) -> _Ending:
        kind = "call" if tool else "none"
        groups: tuple[_Group, ...] = ((kind,), (kind, tool), (kind, tool, key, client))
        found = [counts for group in groups if (counts := self._groups.get(group)) is not None]
        if len(self._endings) >= MAX_GROUPS:
            self._endings.clear()
        ending = self._endings[tool, key, client] = _Ending(groups, found)
        return ending

    def _counts(self, group: _Group) -> _Counts:
        counts = self._groups.get(group)
        if counts is None:
            if len(self._groups) >= MAX_GROUPS:
                # The two widest groups are the oldest, and stay.
                del self._groups[next(name for name in self._groups if len(name) > 1)]
            counts = self._groups[group] = _Counts()
            self._endings.clear()
        elif len(group) > 1:
            self._groups.move_to_end(group)
        return counts


def _expected(ending: _Ending) -> Expected:
    """Computed again once the groups have seen 3 % more ends: it takes 15 us of each request, and a
    few ends among hundreds change little.
    """
    num_ends = 0
    for counts in ending.counts:
        num_ends += counts.num_ends
    if num_ends - ending.num_ends > ending.num_ends >> 5:
        ending.num_ends, ending.expected = num_ends, _expected_of(ending.counts)
    return ending.expected


def _expected_of(found: list[_Counts]) -> Expected:
    """The expectation by the counts of groups, the widest group first."""
    chance, shares = 0.5, [1.0 / _NUM_BINS] * _NUM_BINS
    for counts in found:
        total = counts.returned + counts.lost
        chance = (counts.returned + _PRIOR_WEIGHT * chance) / (total + _PRIOR_WEIGHT)
        weight = counts.returned + _PRIOR_WEIGHT
        shares = [
            (own + _PRIOR_WEIGHT * wide) / weight
            for own, wide in zip(counts.bins, shares, strict=True)
        ]
    return Expected(chance, _median_s(shares))


def _bin(pause_s: float) -> int:
    size = round(log2(max(pause_s, 1e-3)))
    return min(_NUM_BINS - 1, max(0, size - _FIRST_BIN))


def _median_s(shares: list[float]) -> float:
    """The size of the pause that half of all do not exceed."""
    left = sum(shares) / 2
    for index, share in enumerate(shares):
        if share >= left:
            return exp2(_FIRST_BIN + index - 0.5 + left / share)
        left -= share
    return exp2(_FIRST_BIN + len(shares) - 1)


def _sharpened(expected: Expected, hint: Hint) -> Expected:
    """The expectation if the client's hint is taken into account."""
    chance, within_s = expected
    if hint.comes:
        chance = max(chance, 0.98)
    if hint.keep_s is not None:
        chance = max(chance, 0.9)
        within_s = max(within_s, hint.keep_s / TTL_PARTS)
    return Expected(chance, within_s)
