"""Who waits, in which order, and for how long to tell others to stay away.

Owns the waiting requests of one model. Must not know workers' caps (`worker_state.py`) or which
worker is best (`route.py`).
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from gateway.core.effects import RouteRequest
from gateway.core.fairness import FairShares

MAX_RETRY_AFTER_S: Final = 60


@dataclass(slots=True, eq=False)
class Waiting:
    """A ticket without a place. `due`: its turn among the sessions of its key. `first`: its answer
    began already, or a worker was too busy for it. `held_since`: since when nothing can serve its
    model; None while something can.
    """

    request: RouteRequest
    session: str
    arrival: int
    due: float = 0.0
    first: bool = False
    held_since: float | None = None


class WaitingRoom:
    """Tickets by number; the order is computed when somebody may leave."""

    def __init__(self) -> None:
        self._by_ticket: dict[int, Waiting] = {}

    def __len__(self) -> int:
        return len(self._by_ticket)

    def __contains__(self, ticket: int) -> bool:
        return ticket in self._by_ticket

    def __iter__(self) -> Iterator[Waiting]:
        return iter(tuple(self._by_ticket.values()))

    def add(self, waiting: Waiting) -> None:
        """The ticket waits."""
        self._by_ticket[waiting.request.ticket] = waiting

    def get(self, ticket: int) -> Waiting:
        """The ticket that waits. Raises `KeyError` if it does not."""
        return self._by_ticket[ticket]

    def pop(self, ticket: int) -> Waiting:
        """The ticket waits no more."""
        return self._by_ticket.pop(ticket)

    def any_auxiliary(self) -> bool:
        """Whether an auxiliary request waits."""
        return any(waiting.request.auxiliary for waiting in self._by_ticket.values())

    def in_order(self, shares: FairShares) -> list[Waiting]:
        """Auxiliary ones first, then those that had a place before, then the key that was served
        least and its session that is due first, then by arrival.
        """

        def rank(waiting: Waiting) -> tuple[bool, bool, float, float, int]:
            request = waiting.request
            if waiting.first:
                return not request.auxiliary, False, 0.0, 0.0, waiting.arrival
            served = shares.served(request.key)
            return not request.auxiliary, True, served, waiting.due, waiting.arrival

        if len(self._by_ticket) == 1:
            return [*self._by_ticket.values()]
        return sorted(self._by_ticket.values(), key=rank)


def retry_after_s(num_waiting: int, num_places: int, service_s: float) -> int:
    """Whole seconds until a newcomer would find the queue drained: each place is free again every
    `service_s` (a moving average).
    """
    wait_s = (num_waiting + 1) * service_s / max(1, num_places)
    return min(MAX_RETRY_AFTER_S, max(1, math.ceil(wait_s)))


def start_retry_after_s(elapsed_s: float, fraction: float) -> int:
    """Whole seconds until a start that came so far in so long should be over."""
    if fraction <= 0.0:
        return 5
    left_s = elapsed_s * (1.0 - fraction) / fraction
    # Bounded before it is rounded: of a tiny fraction it is infinite.
    return math.ceil(min(MAX_RETRY_AFTER_S, max(1.0, left_s)))
