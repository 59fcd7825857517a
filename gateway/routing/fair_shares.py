"""Fair shares: the order between API keys, and between the sessions of a key.

Owns virtual token counters: what each API key was served, divided by its weight, and within a key
what each session was served. The lowest goes first. A key that was idle starts at the lowest
counter of the active keys, so that idle time earns no credit (Sheng et al., "Fairness in Serving
Large Language Models", 2024); when no key is active, all counters start again. Must not know queues
or workers.

Within a key the order is that of the Fair Sojourn Protocol (Friedman and Henderson, 2003): first
comes the request that would finish first if all sessions were served at once in equal parts. A
clock counts what each active session would have been served by now. A request is due at its
session's counter, or at the clock if that is later, plus its own cost. So short prompts pass long
ones, but no request waits longer than under equal parts, because later requests are due later.

Under equal parts of a fleet that is overloaded for minutes a long request waits for most of all
that arrives. So age counts too: `overdue_at` bounds what may pass a request.
"""

from collections.abc import Callable
from functools import partial
from typing import Final, Generic, TypeVar

import msgspec

OUTPUT_COST: Final = 4
"""One output token costs as much as four uncached prompt tokens."""

MAX_IDLE_SESSIONS: Final = 512

QUEUE_FACTOR: Final = 1.2
OWN_FACTOR: Final = 3.0
"""A request is overdue once its key was served 1.2 times the work that waited before it, and three
times its own: in order of arrival it would have begun behind that work alone.

On 2,500 requests of Mooncake's trace with two workers at load 0.95 the longest wait falls from 353
to 170 s and the 99th percentile from 187 to 137 s, as in order of arrival (lmetric: 151 and 146);
the mean rises from 11 to 38 s (lmetric: 70). docs/routing-benchmark.md has other factors.
"""

_M = TypeVar("_M", bound="_Member")


def cost_of(uncached_tokens: int, output_tokens: int) -> int:
    """The price of a sequence in prompt tokens."""
    return uncached_tokens + OUTPUT_COST * output_tokens


class _Member(msgspec.Struct, gc=False):
    active: int = 0
    served: float = 0.0


class _Level(Generic[_M]):
    """Members that compete with each other. `members` are the active ones; `idle` are the others,
    the longest idle first. `clock` is what each active member would have been served in equal
    parts, `total` what all were served together.
    """

    __slots__ = ("_make", "clock", "idle", "members", "num_active", "total")

    def __init__(self, make: Callable[[], _M]) -> None:
        self._make = make
        self.members: dict[str, _M] = {}
        self.idle: dict[str, _M] = {}
        self.num_active = 0
        self.clock = 0.0
        self.total = 0.0

    def enter(self, name: str) -> _M:
        members = self.members
        if name in members:
            member = members[name]
        else:
            if not members:
                self.idle.clear()
                self.clock = 0.0
            if name in self.idle:
                member = members[name] = self.idle.pop(name)
                member.served = max(member.served, self.clock)
            else:
                member = members[name] = self._make()
                member.served = self.clock
        member.active += 1
        self.num_active += 1
        return member

    def leave(self, name: str) -> None:
        member = self.members[name]
        member.active -= 1
        self.num_active -= 1
        if not member.active:
            idle = self.idle
            idle[name] = self.members.pop(name)
            if len(idle) > MAX_IDLE_SESSIONS:
                # A dict keeps the order of insertion.
                del idle[next(iter(idle))]


class _Key(_Member):
    sessions: _Level[_Member] = msgspec.field(default_factory=partial(_Level, _Member))


class FairShares:
    """Counters of keys and of the sessions within them."""

    def __init__(self) -> None:
        self._keys = _Level(_Key)

    def enter(self, key: str, session: str) -> None:
        """One more sequence of this session waits or runs."""
        keys = self._keys
        member = keys.enter(key)
        if member.active == 1 and keys.num_active > 1:
            others = (m.served for m in keys.members.values() if m is not member)
            member.served = max(member.served, min(others, default=0.0))
        member.sessions.enter(session)

    def leave(self, key: str, session: str) -> None:
        self._keys.members[key].sessions.leave(session)
        self._keys.leave(key)

    def charge(self, key: str, session: str, weight: float, tokens: float) -> None:
        """Charge the key and the session, which must be active; negative `tokens` are a refund."""
        member = self._keys.members[key]
        member.served += tokens / weight
        level = member.sessions
        level.total += tokens
        level.clock += tokens / (level.num_active or 1)
        if tokens < 0:
            level.clock = max(0.0, level.clock)
        level.members[session].served += tokens

    def due(self, key: str, session: str, cost: float) -> float:
        """When a request of that cost that arrives now is due, on the clock of its key's sessions.
        The key and the session must be active.
        """
        level = self._keys.members[key].sessions
        return max(level.clock, level.members[session].served) + cost

    def overdue_at(self, key: str, waiting: float, cost: float) -> float:
        """The `total` of the key at which a request is overdue that arrives now, of that cost and
        behind `waiting` tokens of work. The key must be active.
        """
        return self.total(key) + QUEUE_FACTOR * waiting + OWN_FACTOR * cost

    def total(self, key: str) -> float:
        """The tokens that all sequences of the key were served. The key must be active."""
        return self._keys.members[key].sessions.total

    def clock(self, key: str) -> tuple[float, int]:
        """The clock of the key's sessions, and how many of its sequences wait or run. The key must
        be active.
        """
        level = self._keys.members[key].sessions
        return level.clock, level.num_active

    def served(self, key: str) -> float:
        """The key's counter; the lowest goes first. The key must be active."""
        return self._keys.members[key].served

    def has_request(self, key: str, session: str) -> bool:
        """Whether a sequence of this session waits or runs."""
        member = self._keys.members.get(key)
        return member is not None and session in member.sessions.members
