"""Requests that may be what kills engines.

Owns who was there when engines died. Must not know how requests are served.

An engine's death strikes every request that was on it and had got fewer than `PROOF_TOKENS` from
it. Whoever gets as many is innocent. At `PROBATION_STRIKES` a request is on trial: of those, one
at a
time is on any engine (`placement.py`), so that its neighbours are not struck with it again. At
`POISON_STRIKES` it is refused, and so is the same request when it comes again.

Links that are lost and engines that left when asked strike nobody.
"""

from collections.abc import Collection, Hashable
from typing import Final

PROOF_TOKENS: Final = 8
"""Some requests kill at the second token and would otherwise get on by one token a death."""
PROBATION_STRIKES: Final = 2
POISON_STRIKES: Final = 3
MEMORY_S: Final = 600.0
"""Agents try again within seconds; an operator may have mended the cause by then."""
MOST: Final = 1024


class _Suspect:
    __slots__ = ("deaths", "struck_at")

    def __init__(self) -> None:
        self.deaths: set[Hashable] = set()
        self.struck_at = 0.0


class Quarantine:
    """By fingerprint. Times are on the caller's clock."""

    def __init__(self) -> None:
        self._quarantine: dict[bytes, _Suspect] = {}
        self.known: Final[Collection[bytes]] = self._quarantine.keys()
        """Their fingerprints: nearly always none, which every request asks without a call."""

    def strike(self, fingerprint: bytes, death: Hashable, now: float) -> bool:
        """The request was there at `death`. True if that is the one too many. Choices of one
        request that die together are struck once.
        """
        suspect = self._find(fingerprint, now) or _Suspect()
        self._quarantine.pop(fingerprint, None)
        while len(self._quarantine) >= MOST:
            del self._quarantine[next(iter(self._quarantine))]
        self._quarantine[fingerprint] = suspect
        is_new = death not in suspect.deaths
        suspect.deaths.add(death)
        suspect.struck_at = now
        return is_new and len(suspect.deaths) == POISON_STRIKES

    def clear(self, fingerprint: bytes) -> None:
        """The request got its tokens."""
        self._quarantine.pop(fingerprint, None)

    def strikes(self, fingerprint: bytes, now: float) -> int:
        """At how many deaths the request was."""
        suspect = self._find(fingerprint, now)
        return len(suspect.deaths) if suspect is not None else 0

    def is_on_probation(self, fingerprint: bytes, now: float) -> bool:
        """Whether no other suspect may run beside it."""
        return self.strikes(fingerprint, now) >= PROBATION_STRIKES

    def poison(self, fingerprint: bytes, now: float) -> int:
        """At how many deaths it was if it must not be served; else 0."""
        deaths = self.strikes(fingerprint, now)
        return deaths if deaths >= POISON_STRIKES else 0

    def _find(self, fingerprint: bytes, now: float) -> _Suspect | None:
        suspect = self._quarantine.get(fingerprint)
        if suspect is not None and now - suspect.struck_at >= MEMORY_S:
            del self._quarantine[fingerprint]
            return None
        return suspect
