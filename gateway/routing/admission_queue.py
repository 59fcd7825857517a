"""The admission queue: which requests wait, in which order, and when a refused client may retry.

Owns the waiting requests of one model. Must not know workers' caps (`worker_view.py`) or which
worker is best (`placement_cost.py`).
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
    """A ticket without a place. `due`: its turn among the sessions of its key. `first`: it goes
    before others, because its answer began already or a worker was too busy for it. `held_since`:
    since when nothing can serve its model; None while something can. `is_on_probation`: no other
    such request may run beside it until it is `proven`, since engines died under it. `asked_at`:
    when it asked for its place. Since then: `held` blocks of it by worker, and `fresh_tokens` that
    no worker held. `forecast`: at a time, so many seconds of wait were expected.
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
    """`number` from 1, of a ticket that waits since a time and has a place in `wait_s`."""

    number: int
    since: float
    wait_s: float = 0.0


_Entry = tuple[float, int, Waiting]
_Line = list[_Entry]


class AdmissionQueue:
    """Tickets by number, in lines that are kept in order: one for each key, one for those that had
    a place before, both once more for auxiliary requests. Which line is next is found when a ticket
    may leave. `by_ticket` is public for reading: it is nearly always empty, and looking costs no
    call. `num_sequences` of all of them. `is_any_held`: some ticket's `held_since` is set.
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
        """The ticket that waits. Raises `KeyError` if it does not."""
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
        """Auxiliary ones first, then those that had a place before, then the key that was served
        least and its session that is due first, then by arrival.
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
        """The order in which they will go if none comes: as `in_order`, but each that goes is
        charged to its key, so that keys take turns.
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
    # No two arrivals are equal, so the last of the three is never compared.
    return 0.0 if waiting.first else waiting.due, waiting.arrival, waiting


def retry_after_s(wait_s: float) -> int:
    """Whole seconds for a header: at least one, and no more than clients accept."""
    # Bounded before it is rounded: what is expected may be infinite.
    return math.ceil(min(MAX_RETRY_AFTER_S, max(1.0, wait_s)))


def start_retry_after_s(elapsed_s: float, fraction: float) -> int:
    """Whole seconds until a start should be over that got to `fraction` in `elapsed_s`."""
    if fraction <= 0.0:
        return 5
    left_s = elapsed_s * (1.0 - fraction) / fraction
    return retry_after_s(left_s)
