"""A place on a worker.

Owns the time between the dispatcher's decision and the end of its use: an engine may be lost in
between, and the user of the place must learn of it however late it looks. Must not know sequences
or frames.
"""

from collections.abc import Callable

import msgspec

from gateway.telemetry import Decision
from protocol.ids import WorkerId


class Lease(msgspec.Struct, eq=False):
    """The ticket's place on `worker_id`, held until it is released or lost. `files_digest`: see
    `Assign`. `died` is the epoch of an engine that is known to have died. `on_lost` is called when
    the place is lost; set it, then look at `is_lost`. `decision`,
    `asked_at` and `placed_at`: see `Assign`.
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
