"""The loop that sequence runs and relay runs share: a place, a try there, another place.

Owns the state of a request (`tries.py` has the table), its ticket, its retry policy, and what is
recorded of lost places. Must not know what is asked of a worker, or how an answer comes.
"""

from abc import ABC, abstractmethod
from typing import Final

import trio

from gateway.api import connection_lost
from gateway.link import Outcome
from gateway.routing import Lease, RouteRequest, UseProvider
from gateway.telemetry import AttemptTrace
from gateway.turn.caller import Caller
from gateway.turn.retry_policy import RetryPolicy, loss_reason
from gateway.turn.services import Services
from gateway.turn.tries import ASKING, COMPLETE, END, OVER, PLACE, TABLE, TryEvent, TryState
from protocol.ids import ID_BYTES, RequestId, WorkerId
from protocol.messages import RejectReason

NO_WORKERS = frozenset[WorkerId]()
NO_ROOM: Final = frozenset[RejectReason](("busy", "draining", "not_ready"))
"""A worker that rejects for one of these has not failed."""
LOADED: Final = frozenset({429, 503})
"""An engine of text that answers with one of these has no room now; it is alive."""


class TryLoop(ABC):
    """One request of `caller` at the workers of `model`, in one `state`. Requests with the same
    bytes have the same `fingerprint`. `has_begun`: some worker has sent a part of the answer.

    Workers in `_excluded` are asked only if no other one is ready; if one of them has failed on the
    request (`_has_failed`), only if no provider may answer either. `_distrusted` ones, which broke
    the protocol about it, are not asked again.
    """

    __slots__ = (
        "_caller",
        "_cloud",
        "_distrusted",
        "_excluded",
        "_fingerprint",
        "_has_failed",
        "_model",
        "_num_attempts",
        "_request_id",
        "_retry_policy",
        "_services",
        "_step",
        "_ticket",
        "_trace",
        "_why_busy",
        "has_begun",
        "state",
    )

    def __init__(self, services: Services, caller: Caller, model: str, fingerprint: bytes) -> None:
        self._services = services
        self._caller = caller
        self._model = model
        self._fingerprint = fingerprint
        self._request_id = RequestId(services.draw(ID_BYTES))
        self._trace = caller.trace.turn
        self._step: AttemptTrace | None = None
        self._retry_policy: RetryPolicy | None = None
        self._num_attempts = 0
        self._ticket: int | None = None
        self._excluded = self._distrusted = NO_WORKERS
        self._has_failed = False
        self._cloud = True
        self._why_busy: RejectReason = "busy"
        self.has_begun = False
        self.state = ASKING

    async def run(self, *, cloud: bool = True) -> UseProvider | None:
        """Have the request answered by a worker, or return the providers to ask instead, which
        `cloud` allows. Raises `ApiError` when it cannot be answered.
        """
        self._cloud = cloud
        self._enter_trace()
        dispatcher = self._services.dispatcher
        try:
            answer = await dispatcher.route(self._request())
            while not isinstance(answer, UseProvider):
                self.state = TABLE[self.state, PLACE]
                await self._try(answer)
                tried = self.state
                if tried in OVER:
                    return None
                self.state = TABLE[tried, TryEvent.ASK]
                answer = await self._ask_again(tried, answer)
            self.state = TABLE[self.state, TryEvent.HAND_OVER]
            return answer
        finally:
            self._release()
            self.state = TABLE[self.state, END]

    @abstractmethod
    def _enter_trace(self) -> None:
        """Note the request for a place in the request's trace."""

    @abstractmethod
    def _request(self) -> RouteRequest:
        """The request for the next place, with a new ticket."""

    @abstractmethod
    async def _try(self, lease: Lease) -> None:
        """Ask the worker of the lease. On return the request is over, or the state says why another
        place is due. Raises `ApiError` if it cannot be tried again.
        """

    @abstractmethod
    def _num_tokens(self) -> int:
        """Tokens of the answer so far, with which another worker continues."""

    @abstractmethod
    def _tokens_at_release(self) -> int | None:
        """Tokens of the answer, as far as they are known."""

    async def _ask_again(self, tried: TryState, lease: Lease) -> Lease | UseProvider:
        """Another place, or the providers, after a try at `lease` that ended in the state `tried`.
        Raises `ApiError` if there is none.
        """
        if tried is TryState.BUSY:
            self._services.counters.busy_requeued += 1
            self._note_end("busy")
            answer = await self._after_busy(lease)
        else:
            if tried is TryState.DISTRUSTED:
                self._distrusted |= {lease.worker_id}
            self._excluded = self._distrusted | {lease.worker_id}
            self._release()
            answer = await self._services.dispatcher.route(self._request())
        if isinstance(answer, Lease) and answer.worker_id in self._distrusted:
            raise connection_lost()  # no other worker is ready, and no provider may answer
        return answer

    async def _after_busy(self, lease: Lease) -> Lease | UseProvider:
        """Another place for the same ticket."""
        return await self._services.dispatcher.route_again(lease, self._why_busy)

    def _next_ticket(self) -> int:
        ticket = self._ticket = self._trace.ticket = self._services.dispatcher.next_ticket()
        return ticket

    def _begin_attempt(self, lease: Lease, choice: int = 0) -> str:
        """A try begins. Returns the worker's name."""
        self._num_attempts += 1
        name = self._services.link.worker_name(lease.worker_id)
        self._step = AttemptTrace(
            name,
            lease.asked_at,
            lease.placed_at,
            lease.reason,
            lease.decision,
            choice=choice,
        )
        self._trace.begin(self._step)
        return name

    def _note_end(self, reason: str) -> None:
        """The try ends without the answer, or with a part of it."""
        if self._step is not None:
            self._step.fail(trio.current_time(), reason, self._num_tokens())

    def _note_loss(
        self, lease: Lease, outcome: Outcome, worker: str, *, is_proven: bool = False
    ) -> None:
        """The place on `worker` is lost by `outcome`. `is_proven`: it was proven before. Raises
        `ApiError` if the request has lost too many.
        """
        self._services.counters.sequences_resumed += 1
        self._note_end(loss_reason(lease, outcome))
        self._policy().note_loss(
            lease,
            outcome,
            worker,
            is_proven=is_proven,
            output_tokens=self._num_tokens(),
        )

    @property
    def name(self) -> str:
        """The name of the request in events and logs."""
        return self._request_id.hex()[:8]

    def _policy(self) -> RetryPolicy:
        """The retry policy, created when it is needed: few requests lose a worker."""
        if self._retry_policy is None:
            services = self._services
            self._retry_policy = RetryPolicy(
                services.dispatcher,
                services.feed,
                services.retries,
                self.name,
                self._model,
                (self._caller.key, self._fingerprint),
            )
        return self._retry_policy

    def _release(self) -> None:
        if (ticket := self._ticket) is not None:
            self._ticket = None
            self._services.dispatcher.release(
                ticket, self._tokens_at_release(), is_proven=self.state is COMPLETE
            )
