"""Requests that may be what kills engines.

Owns which requests were on engines that died. Held and changed by the fleet state alone
(`dispatch.py`, `tickets.py`). Must not know how requests are served.

The death of an engine strikes every request that was on it and had got fewer than `PROOF_TOKENS`
from it. A request that gets as many is cleared. With `PROBATION_STRIKES` a request is on probation:
one such request at a time is on any engine (`queue_pick.py`), so that others are not struck with
it. With `POISON_STRIKES` it is refused, and so is the same request when it comes again.

Links that are lost and engines that leave when asked strike no request.
"""

from collections.abc import Hashable
from typing import Final

PROOF_TOKENS: Final = 8
"""Some requests kill at the second token and would otherwise get on by one token a death."""
PROBATION_STRIKES: Final = 2
POISON_STRIKES: Final = 3
MEMORY_S: Final = 600.0
"""Agents try again within seconds; an operator may have removed the cause by then."""
MAX_RECORDS: Final = 1024

RequestIdentity = tuple[str, bytes]
"""The name of the request's key and the fingerprint of its bytes."""


class _Record:
    __slots__ = ("deaths", "struck_at")

    def __init__(self) -> None:
        self.deaths: set[Hashable] = set()
        self.struck_at = 0.0


class Quarantine:
    """Times are on the caller's clock. `records` is nearly always empty, which callers look at
    first.
    """

    def __init__(self) -> None:
        self.records: dict[RequestIdentity, _Record] = {}

    def strike(self, request: RequestIdentity, death: Hashable, now: float) -> bool:
        """The request was there at `death`. True if that makes it poison. Sequences of one request
        that die together are struck once.
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
        """The request got its tokens."""
        self.records.pop(request, None)

    def strikes(self, request: RequestIdentity, now: float) -> int:
        """At how many deaths the request was."""
        record = self._find(request, now)
        return len(record.deaths) if record is not None else 0

    def is_on_probation(self, request: RequestIdentity, now: float) -> bool:
        """Whether no other request on probation may run beside it."""
        return self.strikes(request, now) >= PROBATION_STRIKES

    def poison_deaths(self, request: RequestIdentity, now: float) -> int:
        """At how many deaths it was if it must not be served; else 0."""
        deaths = self.strikes(request, now)
        return deaths if deaths >= POISON_STRIKES else 0

    def _find(self, request: RequestIdentity, now: float) -> _Record | None:
        record = self.records.get(request)
        if record is not None and now - record.struck_at >= MEMORY_S:
            del self.records[request]
            return None
        return record
