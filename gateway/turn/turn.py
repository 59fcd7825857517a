"""A turn: one request for generated text, from its arrival to its usage.

Owns the order of the steps (find the model, prepare, run the sequences or ask the providers) and
the nursery of a request with several choices. Must not know HTTP or frames.
"""

from collections.abc import Awaitable, Sequence
from functools import partial
from typing import Final

import msgspec
import trio

from config import FallbackConfig
from gateway.api import (
    COUNTED,
    ApiError,
    ChatRequest,
    Failed,
    Restarted,
    TurnEvent,
    Usage,
    model_not_found,
    poisoned_request,
)
from gateway.routing import ModelView, RouteRequest, UseProvider
from gateway.spending import UNCAPPED_TOKENS, most_tokens
from gateway.telemetry import TurnTrace
from gateway.turn.caller import Caller
from gateway.turn.estimated_usage import UsageEstimate
from gateway.turn.fallback_chain import answer_by_chain
from gateway.turn.open_turns import Emit, RetryClaim
from gateway.turn.preparation import (
    UNSUPPORTED,
    Job,
    guess_prompt_tokens,
    is_auxiliary,
    prepare,
    readable,
)
from gateway.turn.relay_job import RelayJob, chat_job
from gateway.turn.relayed_chat import answer_by_relay
from gateway.turn.sequence_run import SequenceRun
from gateway.turn.services import Services
from gateway.turn.text_resumption import Resumption

_LIMITED: Final = 429


def answer_request(
    services: Services, request: ChatRequest, caller: Caller, emit: Emit
) -> Awaitable[None]:
    """Answer `request`. Events go to `emit`, which must not block: the link's frame callback calls
    it. An error for the client ends the turn as a `Failed` event, and so does a shutdown whose time
    is over. Cancelling the call aborts the work on the worker, for a streamed turn without content
    after a grace period (see `open_turns.py`).
    """
    request = services.conversation_tracker.enter(request, caller)
    turn = Turn(services, request, caller)
    if not request.stream:
        return turn.run(emit)
    claim = RetryClaim(caller.key, request.fingerprint, request.model)
    return services.open_turns.stream(claim, turn.run, emit, caller.trace)


class Turn:
    """One request on its way to its answer.

    Its waits are few calls deep, because Python passes through every nested `await` on resuming.
    """

    __slots__ = (
        "_caller",
        "_emit",
        "_error",
        "_held",
        "_is_unsupported",
        "_model",
        "_request",
        "_resumption",
        "_services",
        "_task",
        "_usage",
    )

    _emit: Emit
    _task: trio.lowlevel.Task

    def __init__(self, services: Services, request: ChatRequest, caller: Caller) -> None:
        self._services = services
        self._request = request
        self._caller = caller
        self._error: ApiError | None = None
        self._is_unsupported = False
        self._model = ""
        self._usage: Usage | None = None
        self._resumption: Resumption | None = None
        self._held: int | None = None

    async def run(self, emit: Emit) -> None:
        """Answer by a worker, else by the providers."""
        self._emit = emit
        with self:
            trace = self._caller.trace.turn
            if trace.limited is not None or trace.hold_s > 0:
                await self._hold(trace)
            identity = self._caller.key, self._request.fingerprint
            if deaths := self._services.dispatcher.poison_deaths(identity):
                raise poisoned_request(deaths)
            provider = await self._try_locally(cloud=True)
            if provider is not None:
                await self._ask_providers(provider)

    async def _hold(self, trace: TurnTrace) -> None:
        """Wait as long as the conversation has to, and hold what the request may use of its limits.
        Raises `ApiError` if a limit is reached.
        """
        if trace.hold_s > 0:
            with self._services.open_turns.interruptible():
                await trio.sleep(trace.hold_s)
        if trace.limited is None:
            return
        tokens, limit = 0, trace.limited.limits.tokens
        if limit is not None:
            self._request = with_cap(self._request, min(limit, UNCAPPED_TOKENS))
            tokens = most_tokens(self._request)
        held = await self._services.spending.hold(trace.limited, tokens=tokens, turns=1)
        if isinstance(held, ApiError):
            raise held
        self._held = held

    def __enter__(self) -> None:
        services = self._services
        services.counters.turns_started += 1
        self._task = services.open_turns.open()
        self._caller.trace.turn.num_open += 1

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> bool:
        """Count the turn by how it ends; emit an `ApiError` to the client as its last event."""
        self._services.counters.end_turn(error)
        self._services.open_turns.close(self._task)
        trace = self._caller.trace
        trace.turn.num_open -= 1
        if self._held is not None:
            self._services.spending.release(self._held, tokens=trace.turn.spent_tokens)
        if trace.ended_at is not None:
            self._services.traces.end_turn(trace.turn)
        if not isinstance(error, ApiError):
            return False
        # A traceback refers to its error and to the request until the garbage collector runs.
        self._emit(Failed(error.with_traceback(None)))
        return True

    async def _ask_providers(self, provider: UseProvider) -> None:
        """Answer by a provider. If all providers fail, try a worker once if one is ready or due."""
        name = self._model
        with self._services.open_turns.interruptible():
            error = await answer_by_chain(
                self._services,
                self._request,
                provider,
                self._emit,
                caller=self._caller,
                model=name,
                resumption=self._resumed(),
            )
        if error is None:
            return
        view = self._services.dispatcher.model(name)
        is_down = view is None or view.state == "down"
        is_gone = is_down and not self._services.dispatcher.is_awaited(name)
        is_final = self._is_unsupported or is_gone
        try:
            if is_final or await self._try_locally(cloud=False) is not None:
                raise error
        except ApiError as unserved:
            # No worker came, so the client gets the error of the providers: it names their limit.
            is_limit = error.status == _LIMITED and unserved.code == "unavailable"
            if is_limit and not self._services.draining.is_set():
                raise error from unserved
            raise

    def _resumed(self) -> Resumption:
        """The state of an answer of text that several upstreams may give in parts."""
        if self._resumption is None:
            services = self._services
            # It is made only when needed: most answers need no resumption.
            estimate = partial(UsageEstimate, services, self._request, self._caller, self._model)
            given = self._request, services.counters, services.feed
            self._resumption = Resumption(*given, estimate)
            self._caller.trace.turn.outputs.append(self._resumption.sent)
        return self._resumption

    async def _prepared(self, *, cloud: bool) -> Job | RelayJob | UseProvider:
        """The job for a worker: in tokens, or for a text-level engine the request as it is. Returns
        the providers to ask instead if no worker can take it. Waits for the model's tokenizer.
        """
        while True:
            view = self._view()
            if view.relays:
                return chat_job(self._request, self._caller, view)
            chain = view.fallback if cloud and view.cloud and self._caller.cloud else ()
            request = self._request
            if request.other_part is not None and not chain:
                request = readable(self._services, request, view)
            try:
                job = await prepare(self._services, request, self._caller, view)
            except ApiError as error:
                return self._divert(view, error, chain)
            if job is not None:
                return job
            provider = await self._await_model(view, cloud=cloud)
            if provider is not None:
                return provider

    def _divert(
        self, view: ModelView, error: ApiError, chain: tuple[FallbackConfig, ...]
    ) -> UseProvider:
        """The providers for content that the model cannot take; raises `error` if there is none."""
        if error.code not in UNSUPPORTED or not chain:
            raise error
        without = readable(self._services, self._request, view)
        self._is_unsupported = without is self._request or without.refused_locally is not None
        reason = f"{view.name} cannot take this request ({error.code})"
        return UseProvider(self._services.dispatcher.next_ticket(), chain, reason)

    def _view(self) -> ModelView:
        view = self._services.dispatcher.model(self._model or self._request.model)
        if view is None:
            raise model_not_found(self._request.model)
        # The turn keeps the model's own name: a reload may remove the alias.
        self._model = view.name
        return view

    async def _await_model(self, view: ModelView, *, cloud: bool) -> UseProvider | None:
        """Wait for a model that no worker has served yet, or return the providers to ask. The place
        is released at once: only the tokenizer shows how many tokens the request needs.
        """
        dispatcher = self._services.dispatcher
        prompt_tokens = guess_prompt_tokens(self._request)
        ask = RouteRequest(
            ticket=dispatcher.next_ticket(),
            model=view.name,
            key=self._caller.key,
            weight=self._caller.weight,
            session=self._caller.session or self._request.session,
            digests=(),
            prompt_tokens=prompt_tokens,
            max_tokens=1,
            auxiliary=is_auxiliary(self._request, prompt_tokens),
            cloud=cloud and self._caller.cloud,
        )
        self._caller.trace.turn.ticket = ask.ticket
        answer = await dispatcher.route(ask)
        dispatcher.release(ask.ticket)
        return answer if isinstance(answer, UseProvider) else None

    async def _try_locally(self, *, cloud: bool) -> UseProvider | None:
        """Answer by a worker, or return the providers to ask instead.

        All n choices run on one worker. The others start when the first choice has its first token,
        so that they find the prompt's blocks in the worker's cache.
        """
        job = await self._prepared(cloud=cloud)
        if isinstance(job, UseProvider):
            return job
        if isinstance(job, RelayJob):
            given = self._services, self._request, job, self._emit, self._resumed()
            return await answer_by_relay(*given, cloud=cloud)
        choices: list[SequenceRun] = []
        emit = self._counting(job, choices) if job.request.continuous_usage else self._emit
        first = SequenceRun(self._services, job, 0, emit)
        choices.append(first)
        try:
            if job.request.n == 1:
                first.on_end = partial(self._emit_usage, job)
                provider = await first.run(cloud=cloud)
            else:
                choices += _further(self._services, job, emit)
                provider = await self._fan_out(first, choices[1:], cloud=cloud)
        finally:
            # Also for a client that left early: the worker has computed for it.
            if first.has_begun:
                usage = self._usage or _usage_of(job, choices)
                trace = self._caller.trace.turn
                self._services.spending.record_local(self._caller.key, job.model, usage, trace)
        if provider is None:
            self._services.counters.count(self._usage or self._emit_usage(job, *choices))
        elif first.has_begun and not job.request.stream:
            self._emit(Restarted())
        return provider

    async def _fan_out(
        self, first: SequenceRun, others: list[SequenceRun], *, cloud: bool
    ) -> UseProvider | None:
        providers: list[UseProvider] = []
        with self._services.open_turns.interruptible():
            async with trio.open_nursery() as nursery:
                for choice in others:
                    nursery.start_soon(self._follow, first, choice, cloud, providers, nursery)
                await self._run_choice(first, cloud, providers, nursery)
        if self._error is not None:
            raise self._error
        return providers[0] if providers else None

    async def _follow(
        self,
        first: SequenceRun,
        choice: SequenceRun,
        cloud: bool,
        providers: list[UseProvider],
        nursery: trio.Nursery,
    ) -> None:
        await first.until_begun()
        choice.follow(first)
        await self._run_choice(choice, cloud, providers, nursery)

    async def _run_choice(
        self, choice: SequenceRun, cloud: bool, providers: list[UseProvider], nursery: trio.Nursery
    ) -> None:
        """Run a choice. If providers are to answer instead, they answer for all choices."""
        try:
            provider = await choice.run(cloud=cloud)
        except ApiError as error:
            self._fail(error, nursery.cancel_scope)
            return
        if provider is not None:
            providers.append(provider)
            nursery.cancel_scope.cancel()

    def _fail(self, error: ApiError, scope: trio.CancelScope) -> None:
        """End all choices with `error`: one that cannot be finished ends the answer."""
        self._error = self._error or error
        scope.cancel()

    def _counting(self, job: Job, choices: list[SequenceRun]) -> Emit:
        """An `emit` that sends the usage so far before each event that the client sees."""

        def emit(event: TurnEvent) -> None:
            if isinstance(event, COUNTED):
                self._emit(_usage_of(job, choices))
            self._emit(event)

        return emit

    def _emit_usage(self, job: Job, *choices: SequenceRun) -> Usage:
        """Emit the usage, the last event of a turn. A single choice calls this at its end, so that
        both events leave in one write.
        """
        usage = self._usage = _usage_of(job, choices)
        self._emit(usage)
        return usage


def _further(services: Services, job: Job, emit: Emit) -> list[SequenceRun]:
    """The choices beside the first one."""
    return [SequenceRun(services, job, at, emit) for at in range(1, job.request.n)]


def with_cap(request: ChatRequest, most: int) -> ChatRequest:
    """`request` with a cap on its output, if it has none."""
    if request.max_tokens is not None or request.embeds:
        return request
    raw = {**request.raw, "max_tokens": most}
    return msgspec.structs.replace(request, max_tokens=most, raw=raw)


def _usage_of(job: Job, choices: Sequence[SequenceRun]) -> Usage:
    completion_tokens = reasoning_tokens = drafted_tokens = accepted_tokens = 0
    for choice in choices:
        completion_tokens += choice.output.completion_tokens
        reasoning_tokens += choice.output.reasoning_tokens
        drafted_tokens += choice.drafted_tokens
        accepted_tokens += choice.accepted_tokens
    cached_tokens = choices[0].cached_tokens or 0
    return Usage(
        prompt_tokens=job.prompt_tokens,
        cached_tokens=cached_tokens,
        completion_tokens=completion_tokens,
        reasoning_tokens=reasoning_tokens,
        drafted_tokens=drafted_tokens,
        accepted_tokens=accepted_tokens,
    )
