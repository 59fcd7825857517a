"""A relayed chat: the client's body goes to a text-level engine, whose bytes come back unchanged.

Owns how one exchange becomes events of a turn. Must not know links or HTTP.
"""

from collections.abc import Callable
from functools import partial
from typing import Final

import msgspec

from config import FallbackConfig, ModelConfig
from gateway.api import (
    ChatRequest,
    Started,
    TurnEvent,
    UpstreamUsage,
    Usage,
    unavailable,
)
from gateway.routing import Lease, UseProvider
from gateway.turn.chat_stream import ask_chat, go_on
from gateway.turn.fallback_chain import conversation_of, emit_whole, in_forms, with_kept
from gateway.turn.model_prompts import PLAIN
from gateway.turn.open_turns import Emit
from gateway.turn.relay_job import RelayJob
from gateway.turn.relay_run import CHAT_PATH, RelayRun
from gateway.turn.services import Services
from gateway.turn.text_resumption import Resumption
from gateway.turn.tries import PREFILLING
from gateway.upstream import (
    AnswerFiltered,
    CallsMade,
    Provider,
    ProviderAnswer,
    ProviderRequest,
    ProviderUnavailable,
    forwarded_to_provider,
    provider_request,
)

_AGAIN_S = 1
_VARIABLES: Final = "chat_template_kwargs"


async def answer_by_relay(
    services: Services,
    request: ChatRequest,
    job: RelayJob,
    emit: Emit,
    resumption: Resumption,
    *,
    cloud: bool,
) -> UseProvider | None:
    """Answer `request`, or return the providers to ask instead, perhaps for the rest of an answer.
    Raises `ApiError`.
    """
    if request.prompt is not None:
        # The endpoint passes raw completions on for text-level models. It took this one for a model
        # with a tokenizer, because none of its workers was known a moment ago.
        raise unavailable(f"{job.model} has just become ready; send the request again.", _AGAIN_S)
    chat = _RelayedChat(services, request, job, emit, resumption)
    try:
        return await chat.run.run(cloud=cloud)
    finally:
        chat.record()


class _RelayedChat:
    """One chat, on one engine after the other."""

    def __init__(
        self,
        services: Services,
        request: ChatRequest,
        job: RelayJob,
        emit: Emit,
        resumption: Resumption,
    ) -> None:
        self._services = services
        self._request = _with_variables(services, request, job.model)
        self._job = job
        self._emit = emit
        self._resumption = resumption
        self.run = RelayRun(
            services,
            job,
            CHAT_PATH,
            self._exchange,
            streamed=request.stream,
            resumption=resumption,
        )

    def record(self) -> None:
        """Record the usage, also for a client that has left."""
        run, job, services = self.run, self._job, self._services
        if not run.has_begun:
            return
        sent_tokens = self._resumption.sent.tokens if self._resumption.is_cut else 0
        counted = run.usage or self._resumption.estimated
        usage = counted or Usage(job.prompt_tokens, 0, sent_tokens)
        services.spending.record_local(job.caller.key, job.model, usage, job.caller.trace.turn)
        services.counters.count(usage)

    async def _exchange(self, provider: Provider, target: FallbackConfig, lease: Lease) -> None:
        started = Started(
            served_by="worker",
            worker=provider.name,
            cached_tokens=lease.cached_tokens,
            route=lease.reason,
            model=self._job.model,
        )
        key, source = self._job.caller.key, f"model:{self._job.model}"
        table = self._table()
        request = self._asked(provider, target, lease, table)
        sent = provider_request(
            request,
            forwarded_to_provider(self._job.caller.headers),
            params=target.params,
            session_hint=None,
            session="",
            thinking_switch=table.thinking_switch,
        )
        named = conversation_of(self._job.caller, request)
        sent = with_kept(self._services, sent, key, source, named, table.reasoning_field)
        sent = in_forms(sent, table.cap_field, table.call_ids)
        on_calls = partial(self._services.kept_calls.note, key, source, conversation=named)
        begin = partial(self._begin, lease)
        filtered: AnswerFiltered | None = None
        answer: ProviderAnswer | bytes | None = None
        try:
            answer = await self._ask(provider, sent, target.model, started, begin, on_calls)
        except AnswerFiltered as error:
            filtered = error
        except ProviderUnavailable as error:
            if error.filtered is None:
                raise
            # Another worker of the model has the same filter.
            answer, filtered = error.filtered, AnswerFiltered(str(error))
        if answer is not None:
            if self.run.usage is not None:
                cached_tokens = self.run.usage.cached_tokens
                started = msgspec.structs.replace(started, cached_tokens=cached_tokens)
            emit_whole(answer, started, begin)
        if self.run.usage is not None:
            self._emit(UpstreamUsage(self.run.usage))
        if filtered is not None:
            raise filtered

    async def _ask(
        self,
        provider: Provider,
        sent: ProviderRequest,
        model: str,
        started: Started,
        emit: Emit,
        on_calls: Callable[[CallsMade], None],
    ) -> ProviderAnswer | None:
        run, resumption = self.run, self._resumption
        if not resumption.is_cut:
            return await ask_chat(
                provider, sent, model, started, emit, run.note_usage, on_calls, resumption
            )

        def note_usage(_: Usage, whole: Usage) -> None:
            run.note_usage(whole)

        await go_on(provider, sent, model, started, emit, note_usage, on_calls, resumption)
        return None

    def _asked(
        self, provider: Provider, target: FallbackConfig, lease: Lease, table: ModelConfig
    ) -> ChatRequest:
        """The request to the engine. Raises `ProviderUnavailable` if it cannot resume an answer."""
        if not self._resumption.is_cut:
            return self._request
        form = self._services.dispatcher.prefill_form(lease.worker_id)
        asked = self._resumption.asked(form, target.params, table.reasoning_field)
        if asked is None:
            raise ProviderUnavailable(f"{provider.name} cannot go on with an answer")
        return _with_variables(self._services, asked, self._job.model)

    def _table(self) -> ModelConfig:
        """The model's table; the defaults for a model that only a worker has named."""
        name = self._job.model
        return next(
            (model for model in self._services.config.models if model.name == name),
            ModelConfig(name=name),
        )

    def _begin(self, lease: Lease, event: TurnEvent) -> None:
        """Pass an event on; the first one marks the beginning of the answer."""
        if self.run.state is PREFILLING:
            self.run.begin(lease)
        self._emit(event)


def _with_variables(services: Services, request: ChatRequest, model: str) -> ChatRequest:
    """The request with the variables that the configuration has for the engine's template."""
    own = services.prompts.get(model, PLAIN)
    if not own.variables:
        return request
    given = request.raw.get(_VARIABLES)
    variables = own.with_variables(given if isinstance(given, dict) else {})
    return msgspec.structs.replace(request, raw={**request.raw, _VARIABLES: variables})
