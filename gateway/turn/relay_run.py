"""A relay run: one request on text-level engines, from its first place to its answer.

Owns the moves between workers: if an exchange fails before the answer begins, another worker is
tried; afterwards the answer can only be cut. A text-level engine is asked in the same way as a
provider (`gateway/upstream`), over the link of its worker. Must not know HTTP, frames or what is
asked.
"""

import logging
import math
from collections.abc import Awaitable, Callable
from typing import Final, Literal

import trio

from config import FallbackConfig, GatewayConfig, ParamsConfig, ProviderConfig
from gateway.api import ApiError, Usage, busy, connection_lost, invalid
from gateway.link import Overdue, RelayClient, Silence
from gateway.routing import Lease, RouteRequest, UseProvider
from gateway.telemetry import AttemptTrace
from gateway.turn.relay_job import RelayJob
from gateway.turn.resumption import Resumption
from gateway.turn.retry_policy import RetryPolicy, loss_reason
from gateway.turn.services import Services
from gateway.upstream import AnswerFiltered, Provider, ProviderCut, ProviderFailed
from protocol.ids import ID_BYTES, RequestId, WorkerId
from protocol.messages import Rejected, RejectReason, RelayFacts

_Failure = RejectReason | Literal["lost", "failed", "absent", "cut"]
"""`failed`: the engine lives, and has failed on the request. `cut`: the answer has begun, and needs
an engine that goes on with it.
"""
_BUSY: Final = frozenset({"busy", "draining", "not_ready"})
_LOADED: Final = frozenset({429, 503})
"""An engine that answers with one of these has no room now; it is alive."""
_ABSENT: Final = 404
_RETRY_AFTER_S: Final = 5
_REFUSED: Final = frozenset({400, 413, 415, 422})
"""The engine refuses the request, with a body that is not JSON."""

_log = logging.getLogger("herma.turn")

Exchange = Callable[[Provider, FallbackConfig, Lease], Awaitable[None]]
"""Asks an engine. The target gives the model's name there and the fields to leave out. Raises
`ProviderFailed` before an answer has begun, `ProviderCut` after it.
"""


class RelayRun:
    """One request. `exchange` is called once per attempt. `what` is the path in error texts.
    `streamed`: the answer comes in parts.
    """

    def __init__(
        self,
        services: Services,
        job: RelayJob,
        what: str,
        exchange: Exchange,
        *,
        streamed: bool = False,
        resumption: Resumption | None = None,
    ) -> None:
        self._services = services
        self._job = job
        self._what = what
        self._exchange = exchange
        self._streamed = streamed
        self._resumption = resumption
        self._cut = frozenset[WorkerId]()
        self._client: RelayClient | None = None
        self._request_id = RequestId(services.draw(ID_BYTES))
        if resumption is not None:
            resumption.name = self._request_id.hex()[:8]
        self._trace = job.caller.trace.turn
        self._step: AttemptTrace | None = None
        self._num_attempts = 0
        self._ticket: int | None = None
        self._is_complete = False
        self._retry_policy: RetryPolicy | None = None
        self._absent = self._full = frozenset[WorkerId]()
        self._full_until: float | None = None
        self._retry_after_s = _RETRY_AFTER_S
        self.has_begun = False
        self.has_begun_here = False
        self.usage: Usage | None = None

    async def run(self, *, cloud: bool) -> UseProvider | None:
        """Answer by a worker, or return the providers to ask instead. Raises `ApiError`."""
        dispatcher = self._services.dispatcher
        excluded, has_failed = frozenset[WorkerId](), False
        self._trace.model = self._job.model
        self._trace.prompt_tokens += self._job.prompt_tokens
        self._trace.names += (self._request_id,)
        try:
            answer = await dispatcher.route(self._ask(excluded, cloud=cloud))
            while not isinstance(answer, UseProvider):
                failure = await self._try(answer)
                if failure is None:
                    return None
                if failure == "cut":
                    answer = await self._go_on(answer, cloud=cloud)
                    continue
                if failure == "absent":
                    answer = await self._elsewhere(answer, cloud=cloud)
                    continue
                has_failed = has_failed or failure == "failed"
                if failure == "lost" or failure == "failed" or answer.is_lost:  # noqa: PLR1714
                    excluded = frozenset({answer.worker_id})
                    self._release()
                    ask = self._ask(excluded, cloud=cloud, has_failed=has_failed)
                    answer = await dispatcher.route(ask)
                    continue
                self._services.counters.busy_requeued += 1
                self._note_loss("busy")
                self._trace.ticket = answer.ticket
                answer = await self._again(answer, failure, cloud=cloud)
            return answer
        finally:
            self._release()

    async def _elsewhere(self, lease: Lease, *, cloud: bool) -> Lease | UseProvider:
        """Another place: the engine of `lease` does not have the path, or the model. Raises
        `ApiError` 404 once all ready ones were asked.
        """
        self._note_loss("not served there")
        self._absent |= {lease.worker_id}
        self._release()
        ask = self._ask(self._absent, cloud=cloud, has_failed=True)
        answer = await self._services.dispatcher.route(ask)
        if isinstance(answer, Lease) and answer.worker_id in self._absent:
            raise no_such_path(self._job.model, self._what)
        return answer

    async def _go_on(self, lease: Lease, *, cloud: bool) -> Lease | UseProvider:
        """A place, or the providers, for the rest of an answer that was cut at `lease`. Raises
        `ApiError` if nobody goes on with it.
        """
        assert self._resumption is not None
        dispatcher, model = self._services.dispatcher, self._job.model
        self._cut |= {lease.worker_id}
        self._release()
        forms = dispatcher.prefill_forms(model)
        others = {one for one, form in forms.items() if form is not None} - self._cut
        if others:
            unfit = frozenset(forms) - others
            with trio.move_on_after(self._services.config.gateway.resume_wait_s):
                ask = self._ask(unfit | self._cut, cloud=cloud, has_failed=True)
                answer = await dispatcher.route(ask)
                if isinstance(answer, UseProvider) or answer.worker_id in others:
                    return answer
            self._release()
        view = dispatcher.model(model)
        if view is not None and view.cloud and cloud and self._job.caller.cloud and view.fallback:
            reason = f"a stream of {model} was cut"
            return UseProvider(dispatcher.next_ticket(), view.fallback, reason)
        raise self._resumption.lost()

    async def _again(
        self, lease: Lease, failure: RejectReason, *, cloud: bool
    ) -> Lease | UseProvider:
        """Another place: the worker of `lease` has no room. Of several workers another one is
        asked. Engines that refuse for `resume_wait_s` are not waited for any longer: a provider
        answers, or the client is told when to ask again. Raises `ApiError` 429.
        """
        dispatcher, now = self._services.dispatcher, trio.current_time()
        if self._full_until is None:
            self._full_until = now + self._services.config.gateway.resume_wait_s
        self._full |= {lease.worker_id}
        with trio.move_on_at(self._full_until):
            answer = await dispatcher.route_again(lease, failure)
            if isinstance(answer, UseProvider):
                return answer
            view = dispatcher.model(self._job.model)
            num_ready = 0 if view is None else view.ready_workers
            if answer.worker_id in self._full and num_ready > len(self._full):
                self._release()
                answer = await dispatcher.route(self._ask(self._full, cloud=cloud))
            if trio.current_time() < self._full_until:
                return answer
        self._release()
        view = dispatcher.model(self._job.model)
        if view is not None and view.cloud and cloud and self._job.caller.cloud and view.fallback:
            reason = f"the workers of {view.name} take no requests"
            return UseProvider(dispatcher.next_ticket(), view.fallback, reason)
        text = f"The engines of {self._job.model} are full and took no request for long."
        raise busy(text, self._retry_after_s)

    def note_usage(self, usage: Usage) -> None:
        """Keep the usage that the engine reports."""
        self.usage = usage

    def begin(self, lease: Lease) -> None:
        """The first part of the answer has arrived."""
        self.has_begun = self.has_begun_here = True
        if self._client is not None:
            self._client.attempt.begin()
        first_at = self._services.dispatcher.started(lease.ticket)
        if self._step is not None:
            self._step.first_at = first_at

    def _note_loss(self, reason: str) -> None:
        if self._step is not None:
            self._step.fail(trio.current_time(), reason)

    def _ask(
        self, excluded: frozenset[WorkerId], *, cloud: bool, has_failed: bool = False
    ) -> RouteRequest:
        self._ticket = self._services.dispatcher.next_ticket()
        self._trace.ticket = self._ticket
        return self._job.route_request(
            self._ticket, cloud=cloud, excluded=excluded, has_failed=has_failed
        )

    async def _try(self, lease: Lease) -> _Failure | None:
        """Ask the engine of this worker. Returns None if it has answered, else why the place is
        lost. Raises `ApiError` if the request cannot be tried again.
        """
        dispatcher = self._services.dispatcher
        facts = dispatcher.relay_facts(lease.worker_id)
        if facts is None:
            if lease.is_lost:
                return "not_ready"
            raise no_such_path(self._job.model, self._what)
        self._num_attempts += 1
        self.has_begun_here = False
        name = self._services.link.worker_name(lease.worker_id)
        self._step = AttemptTrace(
            name, lease.asked_at, lease.placed_at, lease.reason, lease.decision
        )
        self._trace.begin(self._step)
        bounds = self._services.config.gateway
        client = self._client = RelayClient(
            self._services.link,
            lease,
            self._request_id,
            self._num_attempts,
            model=self._job.model,
            digests=self._job.digests,
            silence=self._silence(bounds),
        )
        target = FallbackConfig(
            provider=name, model=facts.model, params=ParamsConfig(drop=facts.refused_fields)
        )
        try:
            await self._exchange(engine_behind(name, client, facts, bounds.stall_s), target, lease)
        except ProviderFailed as error:
            if self._resumption is not None and self._resumption.is_cut:
                self._note_loss("it did not go on with the answer")
                _log.warning("worker %s does not go on with an answer: %s", name, error)
                return "cut"
            return self._judge(error, client, lease, name)
        except ProviderCut as error:
            _log.warning("an answer of worker %s was cut: %s", name, error.__cause__ or error)
            if not lease.is_lost:
                dispatcher.failed(lease.ticket, "it broke an answer off")
            if self._resumption is None or not self._resumption.note_cut(name, error):
                raise connection_lost(error.words) from error
            self._note_loss("it broke the answer off")
            return "cut"
        except AnswerFiltered as error:
            dispatcher.failed(lease.ticket, str(error))
        self._is_complete = True
        return None

    def _judge(
        self, error: ProviderFailed, client: RelayClient, lease: Lease, name: str
    ) -> _Failure:
        """Why a failure before the answer loses the place. Raises `ApiError` if the request cannot
        be tried again.
        """
        dispatcher, outcome = self._services.dispatcher, client.attempt.outcome
        has_failed = False
        if isinstance(outcome, Rejected):
            if outcome.reason not in _BUSY:
                raise invalid(None, f"The worker cannot run this request: {outcome.detail}")
            return outcome.reason
        if not lease.is_lost:
            if error.status in _LOADED:
                self._retry_after_s = error.retry_after_s or _RETRY_AFTER_S
                return "busy"
            if error.status == _ABSENT:
                return "absent"
            if error.status in _REFUSED:
                text = error.words or f"The engine of {self._job.model} refuses this request."
                raise ApiError(error.status or _ABSENT, text)
            has_failed = True
            if isinstance(outcome, Overdue):
                dispatcher.failed(lease.ticket, "it was silent about a request")
                self._policy().note_silence(has_begun=False)
            else:
                dispatcher.failed(lease.ticket, "its engine failed on a request")
                self._policy().note_error(str(error))
        self._services.counters.sequences_resumed += 1
        lost = outcome or Overdue()
        self._note_loss(loss_reason(lease, lost))
        self._policy().note_loss(lease, lost, name, is_proven=False, output_tokens=0)
        return "failed" if has_failed else "lost"

    def _silence(self, bounds: GatewayConfig) -> Silence:
        """The bounds until the answer begins. An answer in one piece begins at its end."""
        first_s, now = bounds.first_token_s, trio.current_time()
        if not self._streamed:
            first_s += bounds.stall_s
        if self._retry_policy is None:
            return Silence(first_s, math.inf, now)
        return self._retry_policy.silence(first_s, math.inf, now, 0)

    def _policy(self) -> RetryPolicy:
        if self._retry_policy is None:
            services, job = self._services, self._job
            self._retry_policy = RetryPolicy(
                services.dispatcher,
                services.feed,
                services.retries,
                self._request_id.hex()[:8],
                job.model,
                (job.caller.key, job.fingerprint),
            )
        return self._retry_policy

    def _release(self) -> None:
        if (ticket := self._ticket) is not None:
            self._ticket = None
            tokens = self.usage.completion_tokens if self.usage is not None else None
            self._services.dispatcher.release(ticket, tokens, is_proven=self._is_complete)


def engine_behind(
    worker: str, client: RelayClient, facts: RelayFacts, stall_s: float = math.inf
) -> Provider:
    """A worker's text-level engine as a `Provider`. Until an answer begins, the link's watch over
    the attempt (`gateway/link/silence.py`) bounds it; then it may be silent for `stall_s`.
    """
    settings = ProviderConfig(
        base_url="http://engine/v1",
        first_token_s=math.inf,
        read_s=stall_s,
        answer_s=math.inf,
        stream_usage="stream_options" not in facts.refused_fields,
    )
    return Provider(worker, settings, None, client)


def no_such_path(model: str, what: str) -> ApiError:
    """The error when no engine of the model serves the path. A doubled /v1 is named as the cause:
    some clients append /v1 to a base URL that already ends in it.
    """
    why = "its engine does not serve that path"
    if what.startswith("/v1/v1/"):
        why = "the client's base URL has one /v1 too many"
    return ApiError(404, f"Model {model} has nothing at {what}: {why}.", code="path_not_served")
