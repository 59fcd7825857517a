"""The whole fleet state: who serves what, who holds which blocks, who waits.

Owns every decision about places. Its sole caller is the dispatcher actor, which passes the time
in and carries the returned effects out, in order. Must not know sockets, tokens or HTTP.
"""

from dataclasses import dataclass

from config import ModelConfig
from gateway.core.effects import Effects, RouteRequest
from gateway.core.models import ModelView
from protocol.ids import WorkerId
from protocol.messages import (
    Accepted,
    BlocksDropped,
    BlocksSnapshot,
    BlocksStored,
    Bye,
    Fault,
    Load,
    Progress,
    Register,
    RejectReason,
)

FleetMessage = (
    Progress | Accepted | BlocksStored | BlocksDropped | BlocksSnapshot | Load | Fault | Bye
)


@dataclass(frozen=True, slots=True)
class DispatchStatistics:
    """Counters and gauges for metrics and the debug page."""

    workers: int
    ready_workers: int
    running: int
    queued: int
    stale_messages: int
    index_gaps: int


class Dispatch:
    """Fleet, index, queues and policy in one synchronous state machine."""

    def __init__(
        self, models: tuple[ModelConfig, ...], *, max_queue: int, resume_wait_s: float
    ) -> None:
        raise NotImplementedError

    def register(self, worker_id: WorkerId, message: Register, now: float) -> Effects:
        """A worker says who it is: `Accept` or `RefuseWorker` comes first."""
        raise NotImplementedError

    def heard(self, worker_id: WorkerId, message: FleetMessage, now: float) -> Effects:
        """A registered worker reports. Reports of others are counted and ignored."""
        raise NotImplementedError

    def lost(self, worker_id: WorkerId, now: float) -> Effects:
        """The link to the worker is gone, and with it all that it ran."""
        raise NotImplementedError

    def ask(self, request: RouteRequest, now: float) -> Effects:
        """Find a place: `Assign`, `UseProvider` or `Refuse` at once, or none: it waits."""
        raise NotImplementedError

    def started(self, ticket: int, now: float) -> None:
        """The ticket's first token came: its prefill is no longer ahead of others. Optional."""
        raise NotImplementedError

    def busy(self, ticket: int, now: float, reason: RejectReason = "busy") -> Effects:
        """The worker refused for load: the ticket goes back to the front of the queue."""
        raise NotImplementedError

    def release(self, ticket: int, now: float, output_tokens: int | None = None) -> Effects:
        """The turn is over with this ticket, running or waiting. Unknown tickets are ignored.

        `output_tokens` settles the key's account; without it the estimate stands.
        """
        raise NotImplementedError

    def files_arrived(self, digest: bytes) -> None:
        """The files of this digest are here: no worker is asked for them again."""
        raise NotImplementedError

    def tick(self, now: float) -> Effects:
        """Deadlines and expiries; call it every 50 to 250 ms."""
        raise NotImplementedError

    def model(self, name: str) -> ModelView | None:
        """The model of that name or alias."""
        raise NotImplementedError

    def models(self) -> tuple[ModelView, ...]:
        """All models, configured ones first."""
        raise NotImplementedError

    def statistics(self) -> DispatchStatistics:
        """What metrics read."""
        raise NotImplementedError
