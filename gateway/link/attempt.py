"""One sequence on one worker.

Owns the place where the frames of a worker meet the turn that waits for them: tokens are pushed
through synchronously, the end wakes the turn once. Must not know text, HTTP or sockets.
"""

from collections.abc import Callable
from typing import Final

import msgspec

from gateway.routing import Lease
from gateway.runtime import Wakeup
from protocol.ids import RequestId
from protocol.messages import Accepted, Finished, Rejected, TokenItem


class Lost(msgspec.Struct, frozen=True):
    """The worker, its engine or the link to it is gone."""


class Overdue(msgspec.Struct, frozen=True):
    """The worker gave no token in time, and may not know the sequence at all."""


class Stopped(msgspec.Struct, frozen=True):
    """The turn has all that it wants; the worker does not know it yet."""


class Crashed(msgspec.Struct, frozen=True):
    """Taking in the tokens failed on our side."""

    error: Exception


Outcome = Finished | Rejected | Lost | Overdue | Stopped | Crashed

LOST: Final = Lost()
OVERDUE: Final = Overdue()
STOPPED: Final = Stopped()


class Attempt:
    """The sink of one (request, attempt). `expected` is the offset of the next output token.

    It is over once there is an `outcome`: `ended` rings then.

    `on_tokens`, `on_accepted` and `on_complete` are called inside the link's frame callback and
    must not block. `on_tokens` tells whether it wants no more; another may take its place in time.
    `on_complete` hears of the sequence's own end before whoever waits: what a client is told of it
    does not wait for a task.
    """

    __slots__ = (
        "ended",
        "expected",
        "number",
        "on_accepted",
        "on_complete",
        "on_tokens",
        "outcome",
        "placement",
        "request_id",
        "worker_id",
    )

    def __init__(
        self,
        placement: Lease,
        request_id: RequestId,
        number: int,
        *,
        expected: int,
        on_tokens: Callable[[TokenItem], bool],
        on_accepted: Callable[[Accepted], None],
        on_complete: Callable[[Finished], None] = lambda _finished: None,
    ) -> None:
        self.placement = placement
        self.worker_id = placement.worker_id
        self.request_id = request_id
        self.number = number
        self.expected = expected
        self.outcome: Outcome | None = None
        self.on_tokens = on_tokens
        self.on_accepted = on_accepted
        self.on_complete = on_complete
        self.ended = Wakeup()
        placement.when_lost(self.lose)

    def __repr__(self) -> str:
        return f"<Attempt {self.request_id.hex()[:8]}/{self.number} at {self.expected}>"

    def lose(self) -> None:
        """The worker cannot finish it."""
        self.end(LOST)

    def end(self, outcome: Outcome) -> None:
        """It is over; the first outcome counts."""
        if self.outcome is None:
            self.outcome = outcome
            # It has nobody to call back any more. What refers to itself awaits the collector, which
            # took 20 us per request of them.
            self.placement.on_lost = None
            self.ended.ring()

    async def wait(self) -> Outcome:
        """Return once it is over."""
        while (outcome := self.outcome) is None:
            await self.ended.wait()
        return outcome
