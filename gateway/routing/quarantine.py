"""Requests that may be what kills engines.

Owns which requests were on engines that died. `Dispatch` holds it and alone changes it. Must not
know how requests are served.

An engine's death strikes every request that was on it and had got fewer than `PROOF_TOKENS` from
it. Whoever gets as many is innocent. At `PROBATION_STRIKES` a request is on trial: of those, one
at a
time is on any engine (`placement.py`), so that its neighbours are not struck with it again. At
`POISON_STRIKES` it is refused, and so is the same request when it comes again.

Links that are lost and engines that left when asked strike nobody.
"""

from collections.abc import Hashable
from typing import Final

PROOF_TOKENS: Final = 8
"""Some requests kill at the second token and would otherwise get on by one token a death."""
PROBATION_STRIKES: Final = 2
POISON_STRIKES: Final = 3
MEMORY_S: Final = 600.0
"""Agents try again within seconds; an operator may have mended the cause by then."""
MOST: Final = 1024


Suspect = tuple[str, bytes]
"""By what a request is known again: the name of its key and the fingerprint of its bytes."""


class _Record:
    __slots__ = ("deaths", "struck_at")

    def __init__(self) -> None:
        self.deaths: set[Hashable] = set()
        self.struck_at = 0.0


class Quarantine:
    """Times are on the caller's clock. Nearly always there is none, which is what each question is
    answered by first.
    """

    def __init__(self) -> None:
        self._records: dict[Suspect, _Record] = {}

    def __len__(self) -> int:
        return len(self._records)

    def strike(self, suspect: Suspect, death: Hashable, now: float) -> bool:
        """The request was there at `death`. True if that makes it poison. Sequences of one request
        that die together are struck once.
        """
        record = self._find(suspect, now) or _Record()
        self._records.pop(suspect, None)
        while len(self._records) >= MOST:
            del self._records[next(iter(self._records))]
        self._records[suspect] = record
        is_new = death not in record.deaths
        record.deaths.add(death)
        record.struck_at = now
        return is_new and len(record.deaths) == POISON_STRIKES

    def clear(self, suspect: Suspect) -> None:
        """The request got its tokens."""
        self._records.pop(suspect, None)

    def strikes(self, suspect: Suspect, now: float) -> int:
        """At how many deaths the request was."""
        record = self._find(suspect, now)
        return len(record.deaths) if record is not None else 0

    def is_on_probation(self, suspect: Suspect, now: float) -> bool:
        """Whether no other suspect may run beside it."""
        return self.strikes(suspect, now) >= PROBATION_STRIKES

    def poison(self, suspect: Suspect, now: float) -> int:
        """At how many deaths it was if it must not be served; else 0."""
        deaths = self.strikes(suspect, now)
        return deaths if deaths >= POISON_STRIKES else 0

    def _find(self, suspect: Suspect, now: float) -> _Record | None:
        record = self._records.get(suspect)
        if record is not None and now - record.struck_at >= MEMORY_S:
            del self._records[suspect]
            return None
        return record
