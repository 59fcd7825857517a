"""A place on a worker.

Owns the moment between the dispatcher's decision and the turn's use of it: an engine may be lost
in between, and the turn must learn it however late it looks. Must not know sequences or frames.
"""

from collections.abc import Callable

from protocol.ids import WorkerId


class Placement:
    """The ticket's place on `worker_id`, held until it is released or lost."""

    __slots__ = ("_on_lost", "cached_tokens", "died", "is_lost", "reason", "ticket", "worker_id")

    def __init__(self, ticket: int, worker_id: WorkerId, cached_tokens: int, reason: str) -> None:
        self.ticket = ticket
        self.worker_id = worker_id
        self.cached_tokens = cached_tokens
        self.reason = reason
        self.is_lost = False
        self.died: int | None = None
        self._on_lost: Callable[[], None] | None = None

    def __repr__(self) -> str:
        state = " lost" if self.is_lost else ""
        return f"<Placement {self.ticket} on {self.worker_id.hex()[:8]}{state}>"

    def when_lost(self, callback: Callable[[], None]) -> None:
        """Call `callback` when the place is lost: at once if it is already."""
        self._on_lost = callback
        if self.is_lost:
            callback()

    def lose(self, died: int | None = None) -> None:
        """The worker's engine, or the worker, is gone; `died` is the epoch of an engine that is
        known to have died.
        """
        self.is_lost = True
        self.died = died
        if self._on_lost is not None:
            self._on_lost()
