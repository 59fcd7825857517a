"""A lease: a ticket's place on a worker.

Owns the news that the place is lost. An engine may be lost at any time after the dispatcher's
decision, even before the turn has looked at its lease, and the turn must learn of it. Must not know
sequences or frames.
"""

from collections.abc import Callable

import msgspec

from gateway.telemetry import Decision
from protocol.ids import WorkerId


class Lease(msgspec.Struct, eq=False):
    """The ticket's place on `worker_id`, held until it is released or lost. `died` is the epoch of
    the engine if it is known to have died. `on_lost` is called when the place is lost; after
    setting it, check `is_lost`. For the other fields see `Assign`.
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
    decision: Decision | None = None
    asked_at: float = 0.0
    placed_at: float = 0.0

    def __repr__(self) -> str:
        state = " lost" if self.is_lost else ""
        return f"<Lease {self.ticket} on {self.worker_id.hex()[:8]}{state}>"

    def lose(self, why: str, died: int | None = None) -> None:
        self.is_lost = True
        self.why_lost = why
        self.died = died
        if self.on_lost is not None:
            self.on_lost()
