"""A place on a worker.

Owns the moment between the dispatcher's decision and the turn's use of it: an engine may be lost
in between, and the turn must learn it however late it looks. Must not know sequences or frames.
"""

from collections.abc import Callable

import msgspec

from protocol.ids import WorkerId


class Lease(msgspec.Struct, eq=False):
    """The ticket's place on `worker_id`, held until it is released or lost. `files_digest`: see
    `Assign`. `on_lost` is given by `when_lost`.
    """

    ticket: int
    worker_id: WorkerId
    cached_tokens: int
    reason: str
    files_digest: bytes | None = None
    is_lost: bool = False
    died: int | None = None
    why_lost: str = ""
    on_lost: Callable[[], None] | None = None

    def __repr__(self) -> str:
        state = " lost" if self.is_lost else ""
        return f"<Placement {self.ticket} on {self.worker_id.hex()[:8]}{state}>"

    def when_lost(self, callback: Callable[[], None]) -> None:
        """Call `callback` when the place is lost: at once if it is already."""
        self.on_lost = callback
        if self.is_lost:
            callback()

    def lose(self, why: str, died: int | None = None) -> None:
        """The worker's engine, or the worker, is gone, and `why`; `died` is the epoch of an engine
        that is known to have died.
        """
        self.is_lost = True
        self.why_lost = why
        self.died = died
        if self.on_lost is not None:
            self.on_lost()
