"""The memory for bodies that are being read, over all connections.

Owns which connection may read on. Bodies count by what has arrived, so that a length which is only
announced takes no room; they count until their answer begins, because a prompt is decoded, rendered
and encoded before that. Must not know sockets, clocks (`now` is an argument) or HTTP.

There are three parts. Any body may read within `shared_bytes`; within `small_bytes` more, those
that announce few bytes; and one body at a time is read to its end whatever the others hold, so that
bodies that are half read do not wait for each other for ever. This body is one of the peer that
holds least, and among the peer's bodies the one that has waited longest.
"""

from collections import Counter
from collections.abc import Callable
from typing import Final

SHARED_BYTES: Final = 24 * 2**20
SMALL_BYTES: Final = 8 * 2**20
"""With the largest body, 32 MiB by default, there are 64 MiB in all."""
SMALL_BODY_BYTES: Final = 2**20
MAX_WAITING: Final = 512
WAIT_S: Final = 30.0


class BodyHold:
    """The share of the budget that one body holds. `resume` is called once the body may be read
    further. `length` is what its head announces, None for a chunked body. `waits_since` is when
    it had to stop reading, None while it may read.
    """

    __slots__ = ("_budget", "is_over", "is_small", "num_bytes", "peer", "resume", "waits_since")

    def __init__(
        self, budget: "BodyBudget", peer: str, resume: Callable[[], None], length: int | None
    ) -> None:
        self._budget = budget
        self.is_small = length is not None and length <= SMALL_BODY_BYTES
        self.peer = peer
        self.resume = resume
        self.num_bytes = 0
        self.waits_since: float | None = None
        self.is_over = False

    def may_read(self, now: float) -> bool:
        """Whether the body may read on. If not, `resume` is called later."""
        return self.is_over or self._budget.may_read(self, now)

    def grow_to(self, num_bytes: int) -> None:
        """The body has `num_bytes` in all."""
        if not self.is_over:
            self._budget.add(self, num_bytes - self.num_bytes)

    def end(self) -> None:
        """The body is needed no more, or gone."""
        if not self.is_over:
            self.is_over = True
            # The callback belongs to the connection of this request.
            self.resume = _nothing
            self._budget.end(self)


def _nothing() -> None:
    """Do nothing: the callback of a body that needs no more room."""


class BodyBudget:
    """The bodies of one server."""

    def __init__(self, shared_bytes: int = SHARED_BYTES, small_bytes: int = SMALL_BYTES) -> None:
        self._shared_bytes = shared_bytes
        self._small_bytes = small_bytes
        self._by_peer: Counter[str] = Counter()
        self._waiting: dict[BodyHold, None] = {}
        self._first: BodyHold | None = None
        self.num_bytes = 0

    def __repr__(self) -> str:
        return f"<BodyBudget: {self.num_bytes} bytes, {len(self._waiting)} wait>"

    @property
    def is_crowded(self) -> bool:
        """Whether no further body may wait."""
        return len(self._waiting) >= MAX_WAITING

    def may_read(self, hold: BodyHold, now: float) -> bool:
        """Whether the body may read on. If not, it waits."""
        if self._has_room(hold):
            return True
        if hold.waits_since is None:
            hold.waits_since = now
        self._waiting[hold] = None
        if self._first is None:
            self._first = self._next_first()
        if self._first is hold:
            self._stop_waiting(hold)
            return True
        return False

    def add(self, hold: BodyHold, num_bytes: int) -> None:
        """The body of `hold` has `num_bytes` more."""
        hold.num_bytes += num_bytes
        self.num_bytes += num_bytes
        self._by_peer[hold.peer] += num_bytes

    def end(self, hold: BodyHold) -> None:
        """Stop counting the body, and let other bodies read on."""
        self._waiting.pop(hold, None)
        self.num_bytes -= hold.num_bytes
        self._by_peer[hold.peer] -= hold.num_bytes
        if self._by_peer[hold.peer] <= 0:
            del self._by_peer[hold.peer]
        hold.num_bytes = 0
        if self._first is hold:
            self._first = None
        if not self._waiting:
            return
        if self._first is None:
            self._first = self._next_first()
        for other in [one for one in self._waiting if self._has_room(one)]:
            self._stop_waiting(other)
            other.resume()

    def _has_room(self, hold: BodyHold) -> bool:
        first = self._first
        if hold is first:
            return True
        num_others = self.num_bytes - (first.num_bytes if first is not None else 0)
        return num_others < self._shared_bytes + (self._small_bytes if hold.is_small else 0)

    def _next_first(self) -> BodyHold:
        # A dict keeps the order in which bodies began to wait.
        return min(self._waiting, key=lambda hold: self._by_peer[hold.peer])

    def _stop_waiting(self, hold: BodyHold) -> None:
        self._waiting.pop(hold, None)
        hold.waits_since = None
