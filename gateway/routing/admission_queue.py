"""The admission queue: which requests wait, in which order, and when a refused client may retry.

Owns the waiting requests of one model. Must not know the limits of workers (`worker_view.py`) or
which worker is best (`placement_cost.py`).
"""

import math
from bisect import bisect_left, insort
from collections.abc import Callable, Iterator, Mapping
from heapq import heapify, heappop, heapreplace
from itertools import chain
from typing import Final, NamedTuple

import msgspec

from gateway.routing.effects import RouteRequest
from gateway.routing.fair_shares import FairShares
from protocol.ids import WorkerId

MAX_RETRY_AFTER_S: Final = 60


class Waiting(msgspec.Struct, eq=False):
    """A ticket without a place. `due` orders the sessions of its key (`fair_shares.py`). `first`:
    it goes before others, because its answer has begun or a worker was too busy for it.
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
_Line = list[_Entry]


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
        insort(self._lines.setdefault(_line_of(waiting), []), _entry_of(waiting))

    def get(self, ticket: int) -> Waiting:
        """The waiting ticket. Raises `KeyError` if it does not wait."""
        return self.by_ticket[ticket]

    def pop(self, ticket: int) -> Waiting:
        """Remove the ticket, which must wait."""
        waiting = self.by_ticket.pop(ticket)
        self.num_sequences -= waiting.request.num_sequences
        name = _line_of(waiting)
        line = self._lines[name]
        del line[bisect_left(line, _entry_of(waiting))]
        if not line:
            del self._lines[name]
        return waiting

    def any_auxiliary(self) -> bool:
        return any(is_auxiliary for is_auxiliary, _, _ in self._lines)

    def in_order(self, shares: FairShares) -> list[Waiting]:
        """Auxiliary requests first, then those that are `first`, then the key that was served least
        and within it the session that is due first, then by arrival.
        """
        if len(self.by_ticket) == 1:
            return [*self.by_ticket.values()]
        ranks: dict[tuple[bool, bool, float], list[_Line]] = {}
        for (is_auxiliary, is_first, key), line in self._lines.items():
            served = 0.0 if is_first else shares.served(key)
            ranks.setdefault((not is_auxiliary, not is_first, served), []).append(line)
        order: list[Waiting] = []
        for rank in sorted(ranks):
            lines = ranks[rank]
            in_line = lines[0] if len(lines) == 1 else sorted(chain.from_iterable(lines))
            order += [waiting for _, _, waiting in in_line]
        return order

    def expected_order(
        self, shares: FairShares, charge: Callable[[Waiting], float]
    ) -> list[Waiting]:
        """The order in which the tickets will leave if no other arrives: as `in_order`, but each
        ticket that leaves is charged to its key, so that keys take turns.
        """
        ranks: dict[tuple[bool, bool], list[tuple[float, _Entry, int, _Line]]] = {}
        for (is_auxiliary, is_first, key), line in self._lines.items():
            served = 0.0 if is_first else shares.served(key)
            ranks.setdefault((not is_auxiliary, not is_first), []).append(
                (served, line[0], 0, line)
            )
        order: list[Waiting] = []
        for rank in sorted(ranks):
            heads = ranks[rank]
            heapify(heads)
            while heads:
                served, (_, _, waiting), at, line = heads[0]
                order.append(waiting)
                if at + 1 < len(line):
                    served += 0.0 if waiting.first else charge(waiting) / waiting.request.weight
                    heapreplace(heads, (served, line[at + 1], at + 1, line))
                else:
                    heappop(heads)
        return order


def _line_of(waiting: Waiting) -> tuple[bool, bool, str]:
    request = waiting.request
    return request.auxiliary, waiting.first, "" if waiting.first else request.key


def _entry_of(waiting: Waiting) -> _Entry:
    # Arrivals are unique, so comparing two entries never reaches the third element.
    return 0.0 if waiting.first else waiting.due, waiting.arrival, waiting


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
