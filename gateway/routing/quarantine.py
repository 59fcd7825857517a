"""Quarantine: finds the requests that kill engines.

Owns the record of requests that ran on engines that died. Only the fleet state changes it
(`fleet_state.py`, `placement_queue.py`). Must not know how requests are served.

The death of an engine is a strike for every request that ran on it and had fewer than
`PROOF_TOKENS` from it. A request that gets as many is cleared. With `PROBATION_STRIKES` a request
is on probation: of a model only one such request runs at a time (`queue_pick.py`), so that others
get no strike because of it. With `POISON_STRIKES` the request is refused, and so is every later
request with the same bytes.

A lost link and an engine that leaves when asked are no strikes.
"""

from collections.abc import Hashable
from typing import Final

PROOF_TOKENS: Final = 8
"""Some requests kill an engine at their second token. If one token were a proof, such a request
would kill an engine for every token.
"""
PROBATION_STRIKES: Final = 2
POISON_STRIKES: Final = 3
MEMORY_S: Final = 600.0
"""How long strikes count. Agents retry within seconds; later the cause may have been removed."""
MAX_RECORDS: Final = 1024

RequestIdentity = tuple[str, bytes]
"""The name of the request's key and the fingerprint of its bytes."""


class _Record:
    __slots__ = ("deaths", "struck_at")

    def __init__(self) -> None:
        self.deaths: set[Hashable] = set()
        self.struck_at = 0.0


class Quarantine:
    """Strikes by request. Times are on the caller's clock. `records` is nearly always empty, which
    callers check first.
    """

    def __init__(self) -> None:
        self.records: dict[RequestIdentity, _Record] = {}

    def strike(self, request: RequestIdentity, death: Hashable, now: float) -> bool:
        """The request ran on the engine of `death`. True if it is to be refused from now on.
        Several sequences of a request that die together are one strike.
        """
        record = self._find(request, now) or _Record()
        self.records.pop(request, None)
        while len(self.records) >= MAX_RECORDS:
            del self.records[next(iter(self.records))]
        self.records[request] = record
        is_new = death not in record.deaths
        record.deaths.add(death)
        record.struck_at = now
        return is_new and len(record.deaths) == POISON_STRIKES

    def clear(self, request: RequestIdentity) -> None:
        """The request has made progress: forget its strikes."""
        self.records.pop(request, None)

    def strikes(self, request: RequestIdentity, now: float) -> int:
        """The number of engine deaths that count against the request."""
        record = self._find(request, now)
        return len(record.deaths) if record is not None else 0

    def is_on_probation(self, request: RequestIdentity, now: float) -> bool:
        """Whether the request may run only while no other one on probation runs."""
        return self.strikes(request, now) >= PROBATION_STRIKES

    def poison_deaths(self, request: RequestIdentity, now: float) -> int:
        """`strikes` if the request must not be served; else 0."""
        deaths = self.strikes(request, now)
        return deaths if deaths >= POISON_STRIKES else 0

    def _find(self, request: RequestIdentity, now: float) -> _Record | None:
        record = self.records.get(request)
        if record is not None and now - record.struck_at >= MEMORY_S:
            del self.records[request]
            return None
        return record
