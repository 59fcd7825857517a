"""What the loss of a place means for the sequence that had it.

Owns the judgement between going on elsewhere and giving up, and its telling: who died, whether the
sequence may be why, whether the fleet can afford another try. Must not know tokens or events of
the answer.
"""

import logging
from typing import Final

from gateway.api import ApiError, connection_lost, poisoned_request
from gateway.link import Outcome, Overdue
from gateway.routing import Lease
from gateway.telemetry import Rerouted, Resumed
from gateway.turn.preparation import Job
from gateway.turn.services import Services
from protocol.ids import RequestId
from protocol.messages import Finished

MAX_ERRORS: Final = 2
"""Engines that may fail at a sequence (out of memory in a step, say) before its client is told.
What fails thrice lies in the request.
"""

MAX_BARREN_LOSSES: Final = 8
"""A sequence that loses so many places in a row without a proof of progress is given up, although
no engine is known to have died: links that flap do not serve.
"""


_log = logging.getLogger("herma.turn")


def _reason(placement: Lease, outcome: Outcome) -> str:
    """Why the place is lost, in our own words."""
    match outcome:
        case Finished(reason="error"):
            return "its engine failed on the request"
        case Finished():
            return "it gave the work up"
        case Overdue():
            return "no first token came in time"
        case _:
            return placement.why_lost or "it is out of reach"


class RetryPolicy:
    """Of one sequence; operators find it in the log by the beginning of its id."""

    __slots__ = ("_job", "_num_barren", "_num_errors", "_request_id", "_services")

    def __init__(self, services: Services, job: Job, request_id: RequestId) -> None:
        self._services = services
        self._job = job
        self._request_id = request_id
        self._num_barren = 0
        self._num_errors = 0

    @property
    def _name(self) -> str:
        return self._request_id.hex()[:8]

    def proven(self) -> None:
        """The sequence makes progress."""
        self._num_barren = 0

    def bear(self, detail: str) -> None:
        """An engine's error, told in `detail`, is one more lost place, or else the end, which
        raises `ApiError`.
        """
        self._num_errors += 1
        if self._num_errors > MAX_ERRORS or not self._services.retries.may(self._job.model):
            # The detail is the engine's: it may hold words on which clients act.
            _log.error("request %s ends in an engine's error: %s", self._name, detail)
            why = f"the gateway's log says why (request {self._name})"
            raise ApiError(500, f"The engine failed on this request; {why}.")
        _log.warning("request %s goes on elsewhere after an engine's error: %s", self._name, detail)

    def note(
        self,
        placement: Lease,
        outcome: Outcome,
        worker: str,
        *,
        is_proven: bool,
        output_tokens: int,
    ) -> None:
        """The place on `worker` is lost, by `outcome`. `is_proven`: progress was made there. Raises
        `ApiError` if it was one loss too many.
        """
        services, model = self._services, self._job.model
        services.counters.sequences_resumed += 1
        if placement.died is not None:
            if not is_proven:
                self._strike(placement)
        elif not is_proven:
            self._count_barren()
        told = self._name, model, worker, _reason(placement, outcome)
        services.feed.publish(Resumed(*told, output_tokens) if output_tokens else Rerouted(*told))

    def _count_barren(self) -> None:
        self._num_barren += 1
        is_over = self._num_barren >= MAX_BARREN_LOSSES
        if is_over or (self._num_barren > 1 and not self._services.retries.may(self._job.model)):
            raise connection_lost()

    def _strike(self, placement: Lease) -> None:
        suspect = self._job.caller.key, self._job.request.fingerprint
        dispatcher = self._services.dispatcher
        if deaths := dispatcher.strike(suspect, placement, self._name, self._job.model):
            raise poisoned_request(deaths)
