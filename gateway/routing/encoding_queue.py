"""The queue of requests for the threads that encode prompts.

Owns whose work is next: fair between keys and between the sessions of a key, by bytes, as places on
workers are (`fair_shares.py`), and never first in, first out for all. Work on a long text comes in
steps, between which others pass; one thread is kept for short texts, so that these wait for no step
of a long one. Must not know threads, tokenizers or time.
"""

from typing import Final

import msgspec

from gateway.routing.fair_shares import FairShares

SHORT_BYTES: Final = 128 * 1024
"""Work of this size takes about 40 ms."""
MAX_WAITING_BYTES: Final = 64 * 2**20
"""Texts that wait; beyond them long ones are refused."""


class EncodingVisit(msgspec.Struct, eq=False):
    """The work of one request, one step at a time."""

    key: str
    session: str
    weight: float
    num_bytes: int
    number: int
    due: float = 0.0
    step_bytes: int = 0

    @property
    def is_short(self) -> bool:
        return self.num_bytes <= SHORT_BYTES


class EncodingQueue:
    """Visits, and which of them work. At most `num_slots` work at once, at most one less on long
    texts.
    """

    def __init__(self, num_slots: int = 2) -> None:
        self._num_slots = num_slots
        self._shares = FairShares()
        self._waiting: list[EncodingVisit] = []
        self._num_visits = 0
        self._num_working = 0
        self._num_long = 0
        self.num_bytes = 0

    def __repr__(self) -> str:
        state = f"{self._num_working} work, {len(self._waiting)} wait, {self.num_bytes} bytes"
        return f"<EncodingQueue: {state}>"

    def has_room(self, num_bytes: int) -> bool:
        """Whether a request with that much text may come."""
        return num_bytes <= SHORT_BYTES or self.num_bytes < MAX_WAITING_BYTES

    def enter(self, key: str, session: str, weight: float, num_bytes: int) -> EncodingVisit:
        """A request comes. It must `leave`."""
        self._num_visits += 1
        visit = EncodingVisit(key, session, weight, num_bytes, self._num_visits)
        self._shares.enter(key, session)
        visit.due = self._shares.due(key, session, num_bytes)
        self.num_bytes += num_bytes
        return visit

    def leave(self, visit: EncodingVisit) -> None:
        """A request goes; it neither waits nor works."""
        self._shares.leave(visit.key, visit.session)
        self.num_bytes -= visit.num_bytes

    def ask(self, visit: EncodingVisit, step_bytes: int) -> None:
        """The request wants to work on `step_bytes` of text."""
        visit.step_bytes = step_bytes
        self._waiting.append(visit)

    def cancel(self, visit: EncodingVisit) -> None:
        """The request waits no longer."""
        self._waiting.remove(visit)

    def next(self) -> EncodingVisit | None:
        """The request that may work now, if any may. It must `end`."""
        num_free = self._num_slots - self._num_working
        if not num_free or not self._waiting:
            return None
        may_be_long = self._num_long < max(1, self._num_slots - 1)
        able = [visit for visit in self._waiting if may_be_long or visit.is_short]
        if not able:
            return None
        visit = min(able, key=self._rank)
        self._waiting.remove(visit)
        self._num_working += 1
        self._num_long += not visit.is_short
        self._shares.charge(visit.key, visit.session, visit.weight, visit.step_bytes)
        return visit

    def end(self, visit: EncodingVisit) -> None:
        """The request has worked for one step."""
        self._num_working -= 1
        self._num_long -= not visit.is_short

    def _rank(self, visit: EncodingVisit) -> tuple[float, float, int]:
        return self._shares.served(visit.key), visit.due, visit.number
