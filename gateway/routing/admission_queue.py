"""The admission queue: which requests wait, in which order, and when a refused client may retry.

Owns the waiting requests of one model. Must not know the limits of workers (`worker.py`) or
which worker is best (`placement_cost.py`).
"""

import math
from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Iterator, Mapping
from heapq import heapify, heappop, heapreplace
from itertools import chain
from operator import itemgetter
from typing import Final, NamedTuple

import msgspec

from gateway.routing.effects import RouteRequest
from gateway.routing.fair_shares import FairShares
from protocol.ids import WorkerId

MAX_RETRY_AFTER_S: Final = 60


class Waiting(msgspec.Struct, eq=False):
    """A ticket without a place. `due` orders the sessions of its key, unless the key was served
    `overdue_at` tokens since (`fair_shares.py`); `cost` is its work in tokens. `first`: it goes
    before others, because its answer has begun or a worker was too busy for it.
    `held_since`: since when nothing can serve its model; None while something can.
    `is_on_probation`: engines died under the request, so it may run only while no other such
    request runs. When it asked, at `asked_at`, each worker of `held` held that many of its blocks,
    and no worker held `fresh_tokens` of it. `forecast` is a pair: a time, and the seconds of wait
    that were expected then.
    """

    request: RouteRequest
    session: str
    arrival: int
    due: float = 0.0
    first: bool = False
    overdue_at: float = math.inf
    cost: float = 1.0
    is_on_probation: bool = False
    held_since: float | None = None
    asked_at: float = 0.0
    held: Mapping[WorkerId, int] = {}
    fresh_tokens: int = 1
    forecast: tuple[float, float] | None = None


class QueuePosition(NamedTuple):
    """A waiting ticket is the `number`-th, from 1, has waited `since` then, and is expected to wait
    for `wait_s` more.
    """

    number: int
    since: float
    wait_s: float = 0.0


_Entry = tuple[float, int, Waiting]
_age: Final = itemgetter(0)


class _Line:
    """Tickets that wait in one line, sorted by when they are due and by when they are overdue.
    `work` is the sum of their costs.
    """

    __slots__ = ("_by_age", "_by_due", "work")

    def __init__(self) -> None:
        self._by_due: list[_Entry] = []
        self._by_age: list[_Entry] = []
        self.work = 0.0

    def __bool__(self) -> bool:
        return bool(self._by_due)

    def add(self, waiting: Waiting) -> None:
        insort(self._by_due, _due_entry(waiting))
        insort(self._by_age, _age_entry(waiting))
        self.work += waiting.cost

    def remove(self, waiting: Waiting) -> None:
        del self._by_due[bisect_left(self._by_due, _due_entry(waiting))]
        del self._by_age[bisect_left(self._by_age, _age_entry(waiting))]
        self.work -= waiting.cost

    def overdue(self, total: float) -> list[_Entry]:
        """The tickets that are overdue, the longest first."""
        by_age = self._by_age
        if by_age[0][0] > total:
            return []
        return by_age[: bisect_right(by_age, total, key=_age)]

    def others(self, overdue: list[_Entry]) -> list[_Entry]:
        """The tickets that are not in `overdue`, by when they are due."""
        if not overdue:
            return self._by_due
        old = {arrival for _, arrival, _ in overdue}
        return [entry for entry in self._by_due if entry[1] not in old]

    def leaving(
        self, total: float, charge: Callable[[Waiting], float]
    ) -> Iterator[tuple[_Entry, float]]:
        """The tickets as they will leave, each with its charge, which makes others overdue."""
        left: set[int] = set()
        by_due, by_age = iter(self._by_due), iter(self._by_age)
        oldest = next(by_age)
        for _ in range(len(self._by_due)):
            while oldest[1] in left:
                oldest = next(by_age)
            if oldest[0] <= total:
                entry = oldest
            else:
                entry = next(one for one in by_due if one[1] not in left)
            left.add(entry[1])
            charged = charge(entry[2])
            total += charged
            yield entry, charged


class AdmissionQueue:
    """Waiting tickets in sorted lines: one line for each key and one for tickets that are `first`,
    each once more for auxiliary requests. The order between lines is computed when a ticket may
    leave. `by_ticket` is public so that callers can see without a call that it is empty, as it
    nearly always is. `num_sequences` is the sum over all tickets. `is_any_held`: the `held_since`
    of some ticket is set.
    """

    def __init__(self) -> None:
        self.by_ticket: dict[int, Waiting] = {}
        self.num_sequences = 0
        self.is_any_held = False
        self._lines: dict[tuple[bool, bool, str], _Line] = {}

    def __len__(self) -> int:
        return len(self.by_ticket)

    def __contains__(self, ticket: int) -> bool:
        return ticket in self.by_ticket

    def __iter__(self) -> Iterator[Waiting]:
        return iter(tuple(self.by_ticket.values()))

    def add(self, waiting: Waiting) -> None:
        self.by_ticket[waiting.request.ticket] = waiting
        self.num_sequences += waiting.request.num_sequences
        self._lines.setdefault(_line_of(waiting), _Line()).add(waiting)

    def work(self, key: str) -> float:
        """The work of the tickets of that key, in tokens."""
        lines = (self._lines.get((is_auxiliary, False, key)) for is_auxiliary in (False, True))
        return sum(line.work for line in lines if line is not None)

    def get(self, ticket: int) -> Waiting:
        """The waiting ticket. Raises `KeyError` if it does not wait."""
        return self.by_ticket[ticket]

    def pop(self, ticket: int) -> Waiting:
        """Remove the ticket, which must wait."""
        waiting = self.by_ticket.pop(ticket)
        self.num_sequences -= waiting.request.num_sequences
        name = _line_of(waiting)
        line = self._lines[name]
        line.remove(waiting)
        if not line:
            del self._lines[name]
        return waiting

    def any_auxiliary(self) -> bool:
        return any(is_auxiliary for is_auxiliary, _, _ in self._lines)

    def in_order(self, shares: FairShares) -> list[Waiting]:
        """Auxiliary requests first, then those that are `first`, then the key that was served least
        and within it what is overdue, then the session that is due first, then by arrival.
        """
        if len(self.by_ticket) == 1:
            return [*self.by_ticket.values()]
        ranks: dict[tuple[bool, bool, float], list[tuple[_Line, float]]] = {}
        for (is_auxiliary, is_first, key), line in self._lines.items():
            served, total = (0.0, 0.0) if is_first else (shares.served(key), shares.total(key))
            ranks.setdefault((not is_auxiliary, not is_first, served), []).append((line, total))
        order: list[Waiting] = []
        for rank in sorted(ranks):
            late, others = [], []
            for line, total in ranks[rank]:
                overdue = line.overdue(total)
                late += overdue
                others += line.others(overdue)
            if len(ranks[rank]) > 1:
                late.sort()
                others.sort()
            order += [waiting for _, _, waiting in chain(late, others)]
        return order

    def expected_order(
        self, shares: FairShares, charge: Callable[[Waiting], float]
    ) -> list[Waiting]:
        """The order in which the tickets will leave if no other arrives: as `in_order`, but each
        ticket that leaves is charged to its key, so that keys take turns and others are overdue.
        """
        ranks: dict[tuple[bool, bool], list[_Head]] = {}
        for (is_auxiliary, is_first, key), line in self._lines.items():
            served, total = (0.0, 0.0) if is_first else (shares.served(key), shares.total(key))
            leaving = line.leaving(total, charge)
            entry, charged = next(leaving)
            ranks.setdefault((not is_auxiliary, not is_first), []).append(
                (served, entry, charged, leaving)
            )
        order: list[Waiting] = []
        for rank in sorted(ranks):
            heads = ranks[rank]
            heapify(heads)
            while heads:
                served, (_, _, waiting), charged, leaving = heads[0]
                order.append(waiting)
                if (behind := next(leaving, None)) is None:
                    heappop(heads)
                    continue
                served += 0.0 if waiting.first else charged / waiting.request.weight
                heapreplace(heads, (served, *behind, leaving))
        return order


_Head = tuple[float, _Entry, float, Iterator[tuple[_Entry, float]]]
"""The head of a line: what the line's key was served so far, the next ticket, its charge, and the
tickets behind it.
"""


def _line_of(waiting: Waiting) -> tuple[bool, bool, str]:
    request = waiting.request
    return request.auxiliary, waiting.first, "" if waiting.first else request.key


# Arrivals are unique, so comparing two entries never reaches the third element.


def _due_entry(waiting: Waiting) -> _Entry:
    return 0.0 if waiting.first else waiting.due, waiting.arrival, waiting


def _age_entry(waiting: Waiting) -> _Entry:
    return math.inf if waiting.first else waiting.overdue_at, waiting.arrival, waiting


def retry_after_s(wait_s: float) -> int:
    """Whole seconds for a header: at least one, and no more than clients accept."""
    # Bounded before it is rounded, because `wait_s` may be infinite.
    return math.ceil(min(MAX_RETRY_AFTER_S, max(1.0, wait_s)))


def start_retry_after_s(elapsed_s: float, fraction: float) -> int:
    """Whole seconds until a start should end that has reached `fraction` after `elapsed_s`."""
    if fraction <= 0.0:
        return 5
    left_s = elapsed_s * (1.0 - fraction) / fraction
    return retry_after_s(left_s)
