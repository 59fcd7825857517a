"""One exchange of a chat: an upstream answers it, or goes on with another's answer.

Owns how the upstream's bytes become events of the turn, and what is kept of them. Must not know
which upstream is asked, or what it costs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

import msgspec

from gateway.api import DONE, Started, UpstreamChunk, Usage
from gateway.turn.open_turns import Emit
from gateway.upstream import (
    AnswerFiltered,
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
    asks_for_usage,
    ended_by_length,
    limit_of,
    said_in,
    stops_of,
    usage_chunk_of,
    with_usage,
)

_OK: Final = 200
_END: Final = slice(-len(DONE), None)

if TYPE_CHECKING:
    from gateway.turn.text_resumption import Resumption


class _Counting:
    """The usage of one answer on its way to the client. If the upstream reports none, the end of a
    stream is held until the usage has come behind it, or is estimated. The client gets it if it
    asked for the usage, or by an API whose answers always have it; a chat in one piece passes
    unchanged. For the usage of our own workers (`is_ours`) the estimate is made in any case.
    """

    def __init__(
        self,
        sent: ProviderRequest,
        emit: Emit,
        on_usage: Callable[[Usage], None],
        resumption: Resumption,
        *,
        is_ours: bool,
    ) -> None:
        self._asked = sent.request
        self._is_ours = is_ours
        self._emit = emit
        self._on_usage = on_usage
        self._resumption = resumption
        self.awaits = True
        self._is_held = False
        self._late: Usage | None = None
        """The usage that the upstream sent behind the end of the stream, which the client has
        not got.
        """

    def note(self, usage: Usage) -> None:
        """Note the usage that the upstream has counted."""
        self.awaits = False
        if self._is_held:
            self._late = usage
        self._on_usage(usage)

    def hold_end(self, events: bytes) -> bytes:
        """`events`, which end the stream, without their end."""
        self._is_held = True
        return events[: -len(DONE)]

    async def end(self) -> None:
        """The stream is over: emit what was held."""
        if not self._is_held:
            return
        answer, asked, usage = self._resumption.sent, self._asked, self._late
        is_shown = bool(asked.translated_from) or asks_for_usage(asked.raw)
        answer.read()
        if self.awaits and (is_shown or self._is_ours):
            said = answer.text + answer.reasoning
            usage = await self._resumption.estimate(said, answer.num_tokens)
        shown = usage_chunk_of(answer.head, usage) if usage is not None and is_shown else b""
        self._emit(UpstreamChunk(shown + DONE))

    async def counted(self, answer: ProviderAnswer) -> ProviderAnswer:
        """The whole answer with an estimated usage, if its API needs one and the upstream
        reports none.
        """
        is_translated = bool(self._asked.translated_from)
        if not (self.awaits and (is_translated or self._is_ours)) or answer.status != _OK:
            return answer
        usage = await self._resumption.estimate(said_in(answer.body))
        if not is_translated:
            return answer
        return msgspec.structs.replace(answer, body=with_usage(answer.body, usage))


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
    is_ours = started.served_by == "worker"
    counting = _Counting(sent, emit, on_usage, resumption, is_ours=is_ours)
    if not sent.request.stream:
        whole = await provider.complete(
            sent.request.raw, model, counting.note, headers=sent.headers, on_calls=on_calls
        )
        return await counting.counted(whole)
    answer = resumption.sent
    answer.upstream_model = model

    def note_headers(headers: tuple[Header, ...]) -> None:
        nonlocal started
        started = msgspec.structs.replace(started, headers=headers)

    def pass_on(events: bytes) -> None:
        if not answer.has_begun:
            answer.has_begun = True
            emit(started)
        # Operators instead of methods, so that no call is made for each chunk.
        if counting.awaits and events[_END] == DONE:
            events = counting.hold_end(events)
        answer.chunks += (events,)
        answer.room -= 1
        if not answer.room:
            answer.read()
        emit(UpstreamChunk(events))

    try:
        refusal = await provider.stream(
            sent.request.raw,
            model,
            pass_on,
            counting.note,
            headers=sent.headers,
            on_headers=note_headers,
            on_calls=on_calls,
        )
    except AnswerFiltered:
        await counting.end()
        raise
    await counting.end()
    return refusal


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
    answer = resumption.sent
    is_ours = started.served_by == "worker"
    counting = _Counting(sent, emit, lambda _: None, resumption, is_ours=is_ours)
    limit = limit_of(resumption.raw)
    if limit is not None and answer.tokens >= limit:
        emit(UpstreamChunk(counting.hold_end(ended_by_length(answer))))
    else:
        given = provider, sent, model, started, emit, on_usage, on_calls, resumption
        try:
            await _go_on(*given, counting)
        except AnswerFiltered:
            await counting.end()
            raise
    await counting.end()


async def _go_on(
    provider: Provider,
    sent: ProviderRequest,
    model: str,
    started: Started,
    emit: Emit,
    on_usage: Callable[[Usage, Usage], None],
    on_calls: Callable[[CallsMade], None],
    resumption: Resumption,
    counting: _Counting,
) -> None:
    """Emit the rest; the end of the stream is left to `counting`."""
    answer, raw = resumption.sent, sent.request.raw

    def pass_on(events: bytes) -> None:
        if not stream.has_passed:
            stream.has_passed = True
            resumption.note_resumed(started.model)
        if counting.awaits and events[_END] == DONE:
            events = counting.hold_end(events)
        answer.add(events)
        emit(UpstreamChunk(events))

    def note(usage: Usage) -> None:
        whole = stream.usage(usage)
        counting.note(whole)
        on_usage(usage, whole)

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
            note,
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
    """The failure of an exchange that goes on with an answer. Before the client has got a part of
    the exchange, another upstream can go on. An answer that a filter ended is not kept for the
    client, because a part of an answer was sent before.
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
