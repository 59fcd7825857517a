"""The fallback chain: a model's providers are asked in order until one answers.

Owns which provider is asked next, and the error when none answers. No provider is asked before
`Spending` has reserved the most that the request can cost. Must not know HTTP: a provider's bytes
are passed on unchanged.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from functools import cache, partial
from typing import Final

import msgspec
import trio

from config import FallbackConfig
from gateway.api import (
    ApiError,
    ChatRequest,
    Started,
    UpstreamBody,
    UpstreamChunk,
    busy,
    charged_by,
    connection_lost,
)
from gateway.routing import UseProvider
from gateway.spending import Bill, soonest_refusal
from gateway.telemetry import AnswerCut, AttemptTrace
from gateway.telemetry import ProviderFailed as ProviderFailedEvent
from gateway.turn.caller import Caller
from gateway.turn.chat_stream import ask_chat, go_on
from gateway.turn.open_turns import Emit
from gateway.turn.services import Services
from gateway.turn.text_resumption import Resumption
from gateway.upstream import (
    AnswerFiltered,
    CallIdForm,
    CallsMade,
    CapField,
    Provider,
    ProviderAnswer,
    ProviderCut,
    ProviderRequest,
    ProviderUnavailable,
    cap_at,
    field_at,
    forwarded_to_provider,
    ids_at,
    provider_request,
    session_name,
    switch_at,
    with_forms,
)

_NO_PATH: Final = frozenset({404, 405, 501})
"""Statuses of a provider that does not serve a path."""

_REMEDIES: Final = {
    401: "it refuses the API key: correct what api_key_env or api_key_file of [providers.{}] holds",
    402: "its account has no credit: add some there",
    403: "its account or API key may not do this: see the limits of both there",
}
"""The remedies for the statuses of a provider that are about our account."""

_OF_MODEL: Final = frozenset({400, 403, 404, 410, 413, 415, 422, 451})
"""Statuses by which a provider refuses us one model, or what we want of it, and not all models."""

PAUSE_WAIT_S: Final = 20.0
"""If at most this much of a pause is left, the request waits for its end: pi asks four times
within 14 s, providers ask for 30 s.
"""
MAX_WAITING: Final = 256
"""The most requests that wait for the end of a pause; others are refused, with the rest of the
pause as `Retry-After`.
"""
COOL_S: Final = 1
"""Pause for a provider that answers 429 without a `Retry-After`."""

Exchange = Callable[[Provider, FallbackConfig, ProviderRequest, Bill], Awaitable[None]]
"""Asks one provider, whose cost goes to the bill. Raises `ProviderUnavailable` or `ProviderCut`."""


async def answer_by_chain(
    services: Services,
    request: ChatRequest,
    route: UseProvider,
    emit: Emit,
    *,
    caller: Caller,
    model: str,
    resumption: Resumption,
) -> ApiError | None:
    """Answer a chat by a provider of the chain, or go on with an answer that was cut; see
    `ask_chain`. An answer that the filter of a provider refused goes to the client if no
    other provider answers.
    """
    filtered: list[tuple[Started, ProviderAnswer | bytes]] = []

    async def exchange(
        provider: Provider, target: FallbackConfig, sent: ProviderRequest, bill: Bill
    ) -> None:
        started = Started(
            served_by=f"cloud:{provider.name}",
            worker="",
            cached_tokens=0,
            route=route.reason,
            model=target.model,
        )
        try:
            on_calls = partial(
                services.kept_calls.note,
                caller.key,
                provider.name,
                conversation=conversation_of(caller, sent.request),
            )
            answer = await _ask(
                provider, sent, target.model, started, emit, bill, on_calls, resumption
            )
        except ProviderUnavailable as error:
            if error.filtered is not None:
                filtered.append((started, error.filtered))
            raise
        if answer is not None:
            emit_whole(answer, started, emit)

    error = await ask_chain(
        services, request, route, exchange, caller=caller, model=model, resumption=resumption
    )
    if error is not None and resumption.is_cut:
        raise resumption.lost()
    if error is None or not filtered:
        return error
    started, answer = filtered[0]
    emit_whole(answer, started, emit)
    return None


def emit_whole(answer: ProviderAnswer | bytes, started: Started, emit: Emit) -> None:
    """Emit an answer that has come as a whole: in one piece, or as all events of a stream."""
    if isinstance(answer, bytes):
        emit(started)
        emit(UpstreamChunk(answer))
    else:
        emit(msgspec.structs.replace(started, headers=answer.headers))
        emit(UpstreamBody(answer.status, answer.body))


async def ask_chain(
    services: Services,
    request: ChatRequest,
    route: UseProvider,
    exchange: Exchange,
    *,
    caller: Caller,
    model: str,
    path: str | None = None,
    resumption: Resumption | None = None,
) -> ApiError | None:
    """Ask the providers of the chain in order until one answers; the caller's key and `model` are
    charged. `path` is below the API's root; None: a chat. After a cut only providers are asked that
    can go on with the answer. Returns the client's error if no provider answered. Raises `ApiError`
    when an answer was cut after its beginning.
    """
    caller.trace.turn.model = model
    failures: list[ProviderUnavailable] = []
    refusals: list[ApiError] = []
    found, pause_s = await in_time(services, route.chain)
    if pause_s is not None:
        return busy("No provider takes requests now: each asked for a pause.", math.ceil(pause_s))
    targets = deque(found)
    while targets:
        target = targets.popleft()
        provider = services.providers[target.provider]
        if (asked := _asked(request, provider, target, resumption)) is None:
            continue
        if failures and not _may_go_on(services, target.provider, failures):
            break
        sent = _request_for(services, asked, caller, target)
        bill = await _bill(services, caller, model, target, sent, path)
        if isinstance(bill, ApiError):
            refusals.append(bill)
            continue
        step = _begin(services, caller, target, route.reason)
        try:
            with bill.counted_in(caller.trace.turn):
                await exchange(provider, target, sent, bill)
            services.health.succeeded(target)
        except ProviderUnavailable as error:
            step.fail(trio.current_time(), error.with_words)
            if _may_ask_again(error, failures):
                targets.appendleft(target)
            else:
                _note_failure(services, target, error, path)
            failures.append(error)
            continue
        except ProviderCut as error:
            step.fail(trio.current_time(), "it broke the answer off")
            _note_cut(services, provider.name, target.model, error, resumption)
            continue
        except AnswerFiltered as error:
            services.health.failed(provider.name, str(error))
        services.counters.cloud_answers += 1
        return None
    what = None if path is None else f"Model {model} has nothing at /v1{path}"
    return _none_answered(failures, refusals, what)


async def in_time(
    services: Services, chain: Sequence[FallbackConfig]
) -> tuple[list[FallbackConfig], float | None]:
    """The providers in their order, or how long all of them are left alone: a short rest of a pause
    is waited for here. Some clients ask again after seconds of their own and give up, whatever
    `Retry-After` says.
    """
    health = services.health
    found, pause_s = health.in_order(chain)
    if pause_s is None or pause_s > PAUSE_WAIT_S or health.num_waiting >= MAX_WAITING:
        return found, pause_s
    health.num_waiting += 1
    try:
        await trio.sleep(pause_s)
    finally:
        health.num_waiting -= 1
    return health.in_order(chain)


def _asked(
    request: ChatRequest,
    provider: Provider,
    target: FallbackConfig,
    resumption: Resumption | None,
) -> ChatRequest | None:
    """The request to a provider; None if the answer was cut, and this one does not go on with
    it.
    """
    if resumption is None or not resumption.is_cut:
        return request
    return resumption.asked_of_provider(provider.config, target)


async def _bill(
    services: Services,
    caller: Caller,
    model: str,
    target: FallbackConfig,
    sent: ProviderRequest,
    path: str | None,
) -> Bill | ApiError:
    charge = "answer" if path is None else charged_by(path)
    limited = caller.trace.turn.limited
    given = caller.key, model, target, sent.request, charge
    return await services.spending.open_bill_of(limited, *given)


def _begin(services: Services, caller: Caller, target: FallbackConfig, reason: str) -> AttemptTrace:
    """A provider is asked now."""
    services.health.asked(target)
    now = trio.current_time()
    step = AttemptTrace(target.provider, now, now, reason, is_cloud=True)
    caller.trace.turn.begin(step)
    return step


def _may_go_on(services: Services, name: str, failures: list[ProviderUnavailable]) -> bool:
    """Whether a provider is asked behind `failures`. A new connection in place of a kept one that
    had ended is no retry.
    """
    is_retry = len(failures) > 1 or not failures[0].was_kept
    return not is_retry or services.retries.may_retry(name, trio.current_time())


def _may_ask_again(error: ProviderUnavailable, failures: list[ProviderUnavailable]) -> bool:
    """Whether the same provider is asked once more: it closed a connection that was kept from an
    earlier request, which is no failure of the provider, and a new one may do.
    """
    return error.was_kept and not any(failure.was_kept for failure in failures)


def _note_failure(
    services: Services, target: FallbackConfig, error: ProviderUnavailable, path: str | None
) -> None:
    """Count a failure. That a provider has nothing at `path` says nothing about chats there, so it
    does not count against the provider.
    """
    services.counters.cloud_failures += 1
    name, health = target.provider, services.health
    reason = _for_operators(error, name)
    services.feed.publish(ProviderFailedEvent(name, target.model, reason, error.status))
    if path is not None and error.status in _NO_PATH:
        return
    if error.status == 429 or error.retry_after_s is not None:
        health.busy(target, error.retry_after_s or COOL_S)
    elif error.status in _OF_MODEL:
        health.model_failed(target, reason)
    else:
        health.failed(name, reason)


def _for_operators(error: ProviderUnavailable, name: str) -> str:
    """The failure and its remedy, for operators. Clients do not see details of our account."""
    text = f"{error}: {error.inner}" if error.inner else error.with_words
    remedy = "" if error.status is None else _REMEDIES.get(error.status, "")
    return f"{text}: {remedy.format(name)}" if remedy else text


def _note_cut(
    services: Services, name: str, model: str, error: ProviderCut, resumption: Resumption | None
) -> None:
    """A provider broke its answer off. Raises `ApiError` unless another one may go on."""
    services.counters.cloud_cut += 1
    services.feed.publish(AnswerCut(name, model, str(error)))
    services.health.failed(name, "it broke an answer off")
    if resumption is None or not resumption.note_cut(f"cloud:{name}", error):
        raise connection_lost(error.words) from error


def _request_for(
    services: Services, request: ChatRequest, caller: Caller, target: FallbackConfig
) -> ProviderRequest:
    """The request in the form that this provider gets."""
    table, session = services.providers[target.provider].config, ""
    if table.session_hint is not None:
        session = session_name(caller.key, caller.session or request.session, request)
    url = table.base_url
    sent = with_kept(
        services,
        provider_request(
            request,
            forwarded_to_provider(caller.headers),
            params=target.params,
            session_hint=table.session_hint,
            stream_usage=table.stream_usage,
            session=session,
            thinking_switch=table.thinking_switch or switch_at(url),
        ),
        caller.key,
        target.provider,
        conversation_of(caller, request),
        table.reasoning_field or field_at(url),
    )
    return in_forms(sent, table.cap_field or cap_at(url), table.call_ids or ids_at(url))


def in_forms(
    sent: ProviderRequest, cap: CapField | None, ids: CallIdForm | None
) -> ProviderRequest:
    """`sent` with the bound of its answer and the ids of its calls as the upstream takes them."""
    raw = sent.request.raw
    changed = with_forms(raw, cap, ids)
    if changed is raw:
        return sent
    return sent._replace(request=msgspec.structs.replace(sent.request, raw=changed))


def conversation_of(caller: Caller, request: ChatRequest) -> Callable[[], str]:
    """The name of the conversation, which takes a hash of its first texts."""
    return cache(lambda: session_name(caller.key, caller.session or request.session, request))


def with_kept(
    services: Services,
    sent: ProviderRequest,
    key: str,
    source: str,
    conversation: Callable[[], str],
    field: str | None,
) -> ProviderRequest:
    """`sent` with what the upstream `source` wants back of its earlier answers."""
    raw = sent.request.raw
    restored = services.kept_calls.restored(raw, key, source, conversation, field)
    if restored is raw:
        return sent
    return sent._replace(request=msgspec.structs.replace(sent.request, raw=restored))


async def _ask(
    provider: Provider,
    sent: ProviderRequest,
    model: str,
    started: Started,
    emit: Emit,
    bill: Bill,
    on_calls: Callable[[CallsMade], None],
    resumption: Resumption,
) -> ProviderAnswer | None:
    """Ask one provider for a chat; its cost goes to `bill`."""
    answer: ProviderAnswer | None = None
    try:
        if resumption.is_cut:
            await go_on(
                provider,
                sent,
                model,
                started,
                emit,
                lambda usage, _: bill.note_usage(usage),
                on_calls,
                resumption,
            )
        else:
            answer = await ask_chat(
                provider, sent, model, started, emit, bill.note_usage, on_calls, resumption
            )
    except ProviderUnavailable as error:
        settle_failure(bill, error)
        raise
    except AnswerFiltered:
        bill.complete()
        raise
    if answer is not None and answer.status != 200:
        bill.waive()
    bill.complete()
    return answer


def settle_failure(bill: Bill, error: ProviderUnavailable) -> None:
    """Book what a provider charges for no answer: nothing, what it has counted of an answer that
    its filter ended, or the most that the request can cost.
    """
    if not error.may_be_charged:
        bill.waive()
    elif isinstance(error.filtered, ProviderAnswer) and error.filtered.usage is not None:
        bill.note_usage(error.filtered.usage)
        bill.complete()


def _none_answered(
    failures: list[ProviderUnavailable], refusals: list[ApiError], no_path: str | None
) -> ApiError:
    """The client's error; `no_path` begins it if no provider has the path."""
    if no_path is not None and failures and all(error.status in _NO_PATH for error in failures):
        text = f"{no_path}: {'; '.join(map(str, failures))}."
        return ApiError(404, text, code="path_not_served")
    if refusals and not failures:
        return soonest_refusal(refusals)
    retry_after = [error.retry_after_s for error in failures if error.retry_after_s is not None]
    text = "No provider could answer: " + "; ".join(one.with_words for one in failures) + "."
    text = " ".join([text, *dict.fromkeys(error.message for error in refusals)])
    if failures and all(error.status == 429 for error in failures):
        return ApiError(429, text, code="busy", retry_after_s=min(retry_after, default=5))
    if failures and len(retry_after) == len(failures):
        # Each error has a Retry-After: without it, SDKs give up after two tries within 2 s.
        return ApiError(503, text, code="no_provider_answered", retry_after_s=min(retry_after))
    return ApiError(502, text, code="no_provider_answered")
