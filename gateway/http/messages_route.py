"""POST /v1/messages, POST /v1/messages/count_tokens and other endpoints of Anthropic's API.

Owns the request's id and the shape of errors before an answer begins. Must not know how a turn
runs, nor what a message says.
"""

from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial
from typing import Final

import msgspec

from gateway.api import (
    ApiError,
    ChatRequest,
    PromptField,
    Rewrite,
    TokenCount,
    message_error,
    messages_format,
    parse_messages,
)
from gateway.http.edge import Edge, as_events
from gateway.http.error_responses import error_headers, header
from gateway.http.exchange import Exchange
from gateway.http.generation import Generation
from gateway.http.metrics import Metrics
from gateway.http.streamed_answer import StreamedAnswer
from gateway.http.tokenize import count_chat
from gateway.http.whole_answer import WholeAnswer
from gateway.turn import Caller

_NOT_FORWARDED: Final = (b"anthropic-", b"x-stainless-")
"""Prefixes of headers that concern this API; providers get a chat completion instead."""

_Handler = Callable[[str, Exchange], Awaitable[None]]
_Parse = Callable[[bytes, Rewrite | None], ChatRequest]


def without_headers(caller: Caller, beginnings: tuple[bytes, ...]) -> Caller:
    """`caller` without the headers whose names begin with one of `beginnings`."""
    kept = tuple(pair for pair in caller.headers if not pair[0].startswith(beginnings))
    return msgspec.structs.replace(caller, headers=kept)


class Messages:
    """The endpoints of the Messages API."""

    def __init__(self, edge: Edge, generation: Generation, metrics: Metrics) -> None:
        self._edge = edge
        self._turns = replace(edge, run_turn=as_events(edge.run_turn))
        self._generation = generation
        self._metrics = metrics
        self.create = partial(self._in_shape, self._create)
        self.count_tokens = partial(self._in_shape, self._count_tokens)

    async def _in_shape(self, handler: _Handler, exchange: Exchange) -> None:
        """Call the handler; send an `ApiError` that it raises in this API's shape."""
        request_id = "req_" + self._edge.draw(12).hex()
        exchange.add_headers(header(b"request-id", request_id))
        try:
            await handler(request_id, exchange)
        except ApiError as error:
            body = message_error(error, request_id)
            await exchange.send_body(error.status, body, headers=error_headers(error))

    async def _create(self, request_id: str, exchange: Exchange) -> None:
        """Answer a message."""
        caller, request = await self._take(exchange, self._parse, "messages")
        thinks = request.template_kwargs.get("enable_thinking") is True
        api = messages_format(
            self._edge.signer,
            request_id,
            shows_thinking=thinks,
            context_edits=request.context_edits,
            wanted=request.wanted,
        )
        answer = StreamedAnswer if request.stream else WholeAnswer
        exchange.name_ignored(request)
        await answer(self._turns, self._metrics, request, caller, api, exchange.writer).run()

    async def _count_tokens(self, request_id: str, exchange: Exchange) -> None:  # noqa: ARG002
        """Answer with the number of tokens in the prompt, counted as a turn would."""
        caller, request = await self._take(exchange, partial(self._parse, is_counted=True))
        known = await self._edge.text_of(request.model)
        await exchange.send_json(TokenCount(await count_chat(known, caller, request)))

    def _parse(
        self, body: bytes, rewrite: Rewrite | None, *, is_counted: bool = False
    ) -> ChatRequest:
        return parse_messages(body, self._edge.signer, rewrite, is_counted=is_counted)

    async def _take(
        self, exchange: Exchange, parse: _Parse, field: PromptField | None = None
    ) -> tuple[Caller, ChatRequest]:
        caller, body = await self._generation.take(exchange)
        request = await self._edge.read(caller, body, parse, field)
        return without_headers(caller, _NOT_FORWARDED), request
