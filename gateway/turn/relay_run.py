"""A relay run: one request on text-level engines, from its first place to its answer.

Owns the moves between workers: if an exchange fails before the answer begins, another worker is
tried; afterwards the answer can only be cut. A text-level engine is asked in the same way as a
provider (`gateway/upstream`), over the link of its worker. Must not know HTTP, frames or what is
asked.
"""

import logging
import math
from collections.abc import Awaitable, Callable
from typing import Final

import trio

from config import FallbackConfig, GatewayConfig, ParamsConfig, ProviderConfig
from gateway.api import ApiError, Usage, busy, connection_lost, invalid
from gateway.link import Overdue, RelayClient, Silence
from gateway.routing import Lease, RouteRequest, UseProvider
from gateway.turn.relay_job import RelayJob
from gateway.turn.services import Services
from gateway.turn.text_resumption import Resumption
from gateway.turn.tries import LAST, PART, SUBMIT, TABLE, TryEvent, TryState
from gateway.turn.try_loop import LOADED, NO_ROOM, NO_WORKERS, TryLoop
from gateway.upstream import AnswerFiltered, Provider, ProviderCut, ProviderUnavailable
from protocol.ids import WorkerId
from protocol.messages import Finished, Rejected, RelayFacts

_ABSENT: Final = 404
_LACKS: Final = frozenset({_ABSENT, 501})
"""Statuses of an engine that does not serve a path: it lacks the path, or the path is switched
off, as embeddings in llama.cpp are.
"""
CHAT_PATH: Final = "/v1/chat/completions"
_RETRY_AFTER_S: Final = 5
_REFUSED: Final = frozenset({400, 413, 415, 422})
"""The engine refuses the request, with a body that is not JSON."""

_log = logging.getLogger("herma.turn")

Exchange = Callable[[Provider, FallbackConfig, Lease], Awaitable[None]]
"""Asks an engine. The target gives the model's name there and the fields to leave out. Raises
`ProviderUnavailable` before an answer has begun, `ProviderCut` after it.
"""


class RelayRun(TryLoop):
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
        super().__init__(services, job.caller, job.model, job.fingerprint)
        self._job = job
        self._what = what
        self._exchange = exchange
        self._streamed = streamed
        self._resumption = resumption
        if resumption is not None:
            resumption.name = self.name
        self._client: RelayClient | None = None
        self._absent = self._cut = self._full = NO_WORKERS
        self._full_until: float | None = None
        self._retry_after_s = _RETRY_AFTER_S
        self.usage: Usage | None = None

    def _enter_trace(self) -> None:
        self._trace.model = self._job.model
        self._trace.prompt_tokens += self._job.prompt_tokens
        self._trace.names += (self._request_id,)

    async def _ask_again(self, tried: TryState, lease: Lease) -> Lease | UseProvider:
        match tried:
            case TryState.ABSENT:
                return await self._elsewhere(lease)
            case TryState.CUT:
                return await self._go_on(lease)
            case _:
                return await super()._ask_again(tried, lease)

    async def _elsewhere(self, lease: Lease) -> Lease | UseProvider:
        """Another place: the engine of `lease` does not have the path, or the model. Raises
        `ApiError` 404 once all ready ones were asked.
        """
        self._note_end("not served there")
        self._absent |= {lease.worker_id}
        self._release()
        answer = await self._services.dispatcher.route(self._ask(self._absent, has_failed=True))
        if isinstance(answer, Lease) and answer.worker_id in self._absent:
            raise no_such_path(self._job.model, self._what)
        return answer

    async def _go_on(self, lease: Lease) -> Lease | UseProvider:
        """A place, or the providers, for the rest of an answer that was cut at `lease`. Raises
        `ApiError` if no engine and no provider goes on with it.
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
                ask = self._ask(unfit | self._cut, has_failed=True)
                answer = await dispatcher.route(ask)
                if isinstance(answer, UseProvider) or answer.worker_id in others:
                    return answer
            self._release()
        view = dispatcher.model(model)
        if view is not None and view.cloud and self._may_use_providers and view.fallback:
            reason = f"a stream of {model} was cut"
            return UseProvider(dispatcher.next_ticket(), view.fallback, reason)
        raise self._resumption.lost()

    async def _after_busy(self, lease: Lease) -> Lease | UseProvider:
        """Another place: the worker of `lease` has no room. If the model has several workers,
        another one is asked. Engines that refuse for `resume_wait_s` are not waited for any longer:
        a provider answers, or the client is told when to ask again. Raises `ApiError` 429.
        """
        self._trace.ticket = lease.ticket
        dispatcher, now = self._services.dispatcher, trio.current_time()
        if self._full_until is None:
            self._full_until = now + self._services.config.gateway.resume_wait_s
        self._full |= {lease.worker_id}
        with trio.move_on_at(self._full_until):
            answer = await dispatcher.route_again(lease, self._why_busy)
            if isinstance(answer, UseProvider):
                return answer
            view = dispatcher.model(self._job.model)
            num_ready = 0 if view is None else view.ready_workers
            if answer.worker_id in self._full and num_ready > len(self._full):
                self._release()
                answer = await dispatcher.route(self._ask(self._full))
            if trio.current_time() < self._full_until:
                return answer
        self._release()
        view = dispatcher.model(self._job.model)
        if view is not None and view.cloud and self._may_use_providers and view.fallback:
            reason = f"the workers of {view.name} take no requests"
            return UseProvider(dispatcher.next_ticket(), view.fallback, reason)
        text = f"The engines of {self._job.model} are full and took no request for long."
        raise busy(text, self._retry_after_s)

    def note_usage(self, usage: Usage) -> None:
        """Keep the usage that the engine reports."""
        self.usage = usage

    def begin(self, lease: Lease) -> None:
        """The first part of the answer has arrived."""
        self.state = TABLE[self.state, PART]
        self.has_begun = True
        if self._client is not None:
            self._client.attempt.begin()
        first_at = self._services.dispatcher.started(lease.ticket)
        if self._step is not None:
            self._step.first_at = first_at

    def _request(self) -> RouteRequest:
        return self._ask(self._excluded, has_failed=self._has_failed)

    def _ask(self, excluded: frozenset[WorkerId], *, has_failed: bool = False) -> RouteRequest:
        return self._job.route_request(
            self._next_ticket(), cloud=self._cloud, excluded=excluded, has_failed=has_failed
        )

    @property
    def _may_use_providers(self) -> bool:
        return self._cloud and self._caller.cloud

    def _num_tokens(self) -> int:
        return 0  # a text-level engine counts no tokens before its answer ends

    def _tokens_at_release(self) -> int | None:
        return self.usage.completion_tokens if self.usage is not None else None

    async def _try(self, lease: Lease) -> None:
        dispatcher = self._services.dispatcher
        facts = dispatcher.relay_facts(lease.worker_id)
        if facts is None:
            if not lease.is_lost:
                raise no_such_path(self._job.model, self._what)
            self.state = TABLE[self.state, TryEvent.LOSE]
            return
        name = self._begin_attempt(lease)
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
        self.state = TABLE[self.state, SUBMIT]
        try:
            await self._exchange(engine_behind(name, client, facts, bounds.stall_s), target, lease)
        except ProviderUnavailable as error:
            if self._resumption is not None and self._resumption.is_cut:
                self._note_end("it did not go on with the answer")
                _log.warning("worker %s does not go on with an answer: %s", name, error.with_words)
                self.state = TABLE[self.state, TryEvent.BREAK]
            else:
                event = self._judge(error, client, lease, name, facts.model)
                self.state = TABLE[self.state, event]
            return
        except ProviderCut as error:
            _log.warning("an answer of worker %s was cut: %s", name, error.__cause__ or error)
            if not lease.is_lost:
                dispatcher.failed(lease.ticket, "it broke an answer off")
            if self._resumption is None or not self._resumption.note_cut(name, error):
                raise connection_lost(error.words) from error
            self._note_end("it broke the answer off")
            self.state = TABLE[self.state, TryEvent.BREAK]
            return
        except AnswerFiltered as error:
            dispatcher.failed(lease.ticket, str(error))
        self.state = TABLE[self.state, LAST]

    def _judge(
        self, error: ProviderUnavailable, client: RelayClient, lease: Lease, name: str, model: str
    ) -> TryEvent:
        """Judge a failure before the answer; `model` is the engine's own name. Raises `ApiError` if
        the request cannot be tried again.
        """
        dispatcher, outcome = self._services.dispatcher, client.attempt.outcome
        if isinstance(outcome, Rejected):
            if outcome.reason not in NO_ROOM:
                raise invalid(None, f"The worker cannot run this request: {outcome.detail}")
            self._why_busy = outcome.reason
            return TryEvent.LOSE if lease.is_lost else TryEvent.REJECT
        if not lease.is_lost:
            if error.status in LOADED:
                self._retry_after_s = error.retry_after_s or _RETRY_AFTER_S
                self._why_busy = "busy"
                return TryEvent.REJECT
            is_gone = error.status == _ABSENT and self._what == CHAT_PATH
            if error.status in _LACKS and self._what != CHAT_PATH:
                return TryEvent.LACK
            if error.status in _REFUSED:
                text = error.words or f"The engine of {self._job.model} refuses this request."
                raise ApiError(error.status or _ABSENT, text)
            self._has_failed = True
            if isinstance(outcome, Overdue):
                dispatcher.failed(lease.ticket, "it was silent about a request")
                self._policy().note_silence(has_begun=False)
            else:
                # The engine's probes were chats, so it has the path: it has another model now.
                why = f"{name} has no model `{model}` any more" if is_gone else error.with_words
                dispatcher.failed(lease.ticket, "its engine failed on a request")
                self._policy().note_error(why)
                outcome = Finished(
                    self._request_id, self._num_attempts, "error", 0, 0, 0, detail=why
                )
        self._note_loss(lease, outcome or Overdue(), name)
        return TryEvent.LOSE

    def _silence(self, bounds: GatewayConfig) -> Silence:
        """The bounds until the answer begins. An answer in one piece begins at its end."""
        first_s, now = bounds.first_token_s, trio.current_time()
        if not self._streamed:
            first_s += bounds.stall_s
        if self._retry_policy is None:
            return Silence(first_s, math.inf, now)
        return self._retry_policy.silence(first_s, math.inf, now, 0)


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
