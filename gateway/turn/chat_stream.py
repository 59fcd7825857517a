"""One exchange of a chat: an upstream answers it, or goes on with another's answer.

Owns how the upstream's bytes become events of the turn, and what is kept of them. Must not know
which upstream is asked, or what it costs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import msgspec

from gateway.api import Started, UpstreamChunk, Usage
from gateway.turn.open_turns import Emit
from gateway.upstream import (
    CallsMade,
    ContinuedStream,
    Header,
    NotContinued,
    Provider,
    ProviderAnswer,
    ProviderCut,
    ProviderRequest,
    ProviderUnavailable,
    StopReached,
    ended_by_length,
    limit_of,
    stops_of,
)

if TYPE_CHECKING:
    from gateway.turn.text_resumption import Resumption


async def ask_chat(
    provider: Provider,
    sent: ProviderRequest,
    model: str,
    started: Started,
    emit: Emit,
    on_usage: Callable[[Usage], None],
    on_calls: Callable[[CallsMade], None],
    resumption: Resumption,
) -> ProviderAnswer | None:
    """The answer in one piece; or None after a stream was emitted, which begins with `started`.
    Raises `ProviderUnavailable` or `ProviderCut`.
    """
    if not sent.request.stream:
        return await provider.complete(
            sent.request.raw, model, on_usage, headers=sent.headers, on_calls=on_calls
        )
    answer = resumption.sent
    answer.upstream_model = model

    def note_headers(headers: tuple[Header, ...]) -> None:
        nonlocal started
        started = msgspec.structs.replace(started, headers=headers)

    def pass_on(events: bytes) -> None:
        if not answer.has_begun:
            answer.has_begun = True
            emit(started)
        # An operator, which costs no call for each chunk.
        answer.chunks += (events,)
        answer.room -= 1
        if not answer.room:
            answer.read()
        emit(UpstreamChunk(events))

    return await provider.stream(
        sent.request.raw,
        model,
        pass_on,
        on_usage,
        headers=sent.headers,
        on_headers=note_headers,
        on_calls=on_calls,
    )


async def go_on(
    provider: Provider,
    sent: ProviderRequest,
    model: str,
    started: Started,
    emit: Emit,
    on_usage: Callable[[Usage, Usage], None],
    on_calls: Callable[[CallsMade], None],
    resumption: Resumption,
) -> None:
    """Emit the rest of an answer that was cut. `sent` asks for it; `on_usage` gets the usage of
    this exchange and that of the whole answer. Raises as `ask_chat`.
    """
    answer, raw = resumption.sent, sent.request.raw
    limit = limit_of(resumption.raw)
    if limit is not None and answer.tokens >= limit:
        emit(UpstreamChunk(ended_by_length(answer)))
        return

    def pass_on(events: bytes) -> None:
        if not stream.has_passed:
            stream.has_passed = True
            resumption.note_resumed(started.model)
        answer.add(events)
        emit(UpstreamChunk(events))

    by = f"{started.served_by}:{started.worker}" if started.worker else started.served_by
    stream = ContinuedStream(
        answer,
        pass_on,
        by,
        stops=stops_of(raw),
        keeps_stop=raw.get("include_stop_str_in_output") is True,
    )
    try:
        refusal = await provider.stream(
            raw,
            model,
            stream.take,
            lambda usage: on_usage(usage, stream.usage(usage)),
            headers=sent.headers,
            on_calls=on_calls,
        )
    except StopReached:
        return
    except (NotContinued, ProviderUnavailable, ProviderCut) as error:
        raise _failure(provider.name, error, has_passed=stream.has_passed) from error
    if refusal is not None:
        text = f"{provider.name} does not go on with an answer"
        raise ProviderUnavailable(text, status=refusal.status)


def _failure(
    name: str, error: NotContinued | ProviderUnavailable | ProviderCut, *, has_passed: bool
) -> ProviderUnavailable | ProviderCut:
    """Before the client has got a part of this exchange, another upstream can go on; what a filter
    ended is no answer behind a part of one.
    """
    match error:
        case NotContinued():
            text = f"{name} {error}"
            return ProviderCut(text) if has_passed else ProviderUnavailable(text)
        case ProviderCut(words=words) if not has_passed:
            return ProviderUnavailable(str(error), words=words)
        case ProviderUnavailable(filtered=filtered) if filtered is not None:
            return ProviderUnavailable(str(error))
        case _:
            return error
