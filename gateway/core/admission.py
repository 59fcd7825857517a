"""Who waits, in which order, and for how long to tell others to stay away.

Owns the waiting requests of one model. Must not know workers' caps (`worker_state.py`) or which
worker is best (`route.py`).
"""

import math
from collections.abc import Iterator
from typing import Final

import msgspec

from gateway.core.effects import RouteRequest
from gateway.core.fairness import FairShares

MAX_RETRY_AFTER_S: Final = 60


class Waiting(msgspec.Struct, eq=False):
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
    """Tickets by number; the order is computed when somebody may leave. `by_ticket` is there for
    others to look at: who nearly always finds it empty need not call for that.
    """

    def __init__(self) -> None:
        self.by_ticket: dict[int, Waiting] = {}

    def __len__(self) -> int:
        return len(self.by_ticket)

    def __contains__(self, ticket: int) -> bool:
        return ticket in self.by_ticket

    def __iter__(self) -> Iterator[Waiting]:
        return iter(tuple(self.by_ticket.values()))

    def add(self, waiting: Waiting) -> None:
        """The ticket waits."""
        self.by_ticket[waiting.request.ticket] = waiting

    def get(self, ticket: int) -> Waiting:
        """The ticket that waits. Raises `KeyError` if it does not."""
        return self.by_ticket[ticket]

    def pop(self, ticket: int) -> Waiting:
        """The ticket waits no more."""
        return self.by_ticket.pop(ticket)

    def any_auxiliary(self) -> bool:
        """Whether an auxiliary request waits."""
        return any(waiting.request.auxiliary for waiting in self.by_ticket.values())

    def in_order(self, shares: FairShares) -> list[Waiting]:
        """Auxiliary ones first, then those that had a place before, then the key that was served
        least and its session that is due first, then by arrival.
        """

        if len(self.by_ticket) == 1:
            return [*self.by_ticket.values()]
        everybody = self.by_ticket.values()
        served = {key: shares.served(key) for key in {each.request.key for each in everybody}}
        ranks = [
            (not each.request.auxiliary, False, 0.0, 0.0, each.arrival, each)
            if each.first
            else (
                not each.request.auxiliary,
                True,
                served[each.request.key],
                each.due,
                each.arrival,
                each,
            )
            for each in everybody
        ]
        # No two arrivals are equal, so the last of the six is never compared.
        ranks.sort()
        return [rank[-1] for rank in ranks]


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
