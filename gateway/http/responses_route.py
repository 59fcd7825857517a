"""/v1/responses: creating responses, counting their prompts, and reading, deleting and cancelling
stored ones.

Owns what happens to a request before its turn. A stored response belongs to the API key that
created it. Must not know how a turn runs, what a response says, nor how it is stored.
"""

from dataclasses import replace
from typing import Any, Final

from gateway.api import (
    PAGE,
    Deleted,
    InputTokens,
    PromptField,
    Responses,
    ResponsesDraft,
    Rewrite,
    compaction_format,
    invalid,
    page_of,
    parse_responses,
    read_responses,
    responses_format,
)
from gateway.http.background_answer import BackgroundAnswer
from gateway.http.edge import Edge, as_events
from gateway.http.exchange import Exchange
from gateway.http.generation import Generation
from gateway.http.messages_route import without_headers
from gateway.http.metrics import Metrics
from gateway.http.streamed_answer import StreamedAnswer
from gateway.http.tokenize import count_chat
from gateway.http.whole_answer import WholeAnswer
from gateway.responses import ResponseOrigin
from gateway.turn import Caller

_NOT_FORWARDED: Final = (b"x-codex-", b"x-stainless-", b"openai-beta")
"""Prefixes of headers that concern this API or the client's installation."""


class ResponsesRoute:
    """The endpoints of the Responses API."""

    def __init__(self, edge: Edge, generation: Generation, metrics: Metrics) -> None:
        self._edge = replace(edge, run_turn=as_events(edge.run_turn))
        self._generation = generation
        self._metrics = metrics
        self._stored = edge.stored

    async def create(self, exchange: Exchange) -> None:
        """Create a response: at once, streamed, or in the background."""
        caller, draft = await self._take(exchange, "input")
        origin = self._origin_of(draft, caller)
        history = await self._stored.history(caller.key, draft)
        asked = await self._parse(caller, draft, history, is_stored=origin.is_stored)
        record = self._stored.record(origin)
        api = responses_format(asked, self._edge.signer, record, self._edge.unix_time)
        rest = asked.request, caller, api, exchange.writer
        exchange.name_ignored(asked.request)
        if record is not None and origin.is_background:
            self._stored.background.check_room()
            background = BackgroundAnswer(self._edge, self._metrics, *rest)
            queued = background.begin(record)
            self._stored.background.start(queued["id"], record, background.run)
            if draft.typed.stream:
                await self._show(exchange, caller.key, queued["id"], is_stream=True)
                return
            # The client may ask for the response as soon as it has the answer, so wait until the
            # response is on disk.
            await self._stored.response(caller.key, queued["id"])
            await exchange.send_json(queued)
            return
        answer = StreamedAnswer if asked.request.stream else WholeAnswer
        try:
            await answer(self._edge, self._metrics, *rest).run()
        finally:
            if record is not None:
                record.close()

    async def compact(self, exchange: Exchange) -> None:
        """Answer with a summary of the conversation, as one sealed item. Nothing is stored."""
        caller, draft = await self._take(exchange)
        history = await self._stored.history(caller.key, draft)
        asked = await self._parse(caller, draft.compacting(), history)
        api = compaction_format(asked, self._edge.signer)
        exchange.name_ignored(asked.request)
        answer = WholeAnswer(self._edge, self._metrics, asked.request, caller, api, exchange.writer)
        await answer.run()

    async def count_tokens(self, exchange: Exchange) -> None:
        """Answer with the number of tokens in the prompt, counted as a turn would."""
        caller, draft = await self._take(exchange)
        history = await self._stored.history(caller.key, draft)
        asked = await self._parse(caller, draft, history)
        known = await self._edge.text_of(asked.request.model)
        await exchange.send_json(InputTokens(await count_chat(known, caller, asked.request)))

    async def retrieve(self, exchange: Exchange) -> None:
        """Send a stored response, or its stream from the event after `starting_after`."""
        owner, response_id = _named(exchange)
        asked = exchange.query
        is_stream = asked.get("stream", "").lower() in {"true", "1"}
        after = asked.get("starting_after", "")
        if after and not (is_stream and after.isascii() and after.isdigit()):
            text = "'starting_after' must be the number of an event, and goes with 'stream'."
            raise invalid("starting_after", text)
        await self._show(
            exchange, owner, response_id, is_stream=is_stream, after=int(after) if after else -1
        )

    async def delete(self, exchange: Exchange) -> None:
        """Delete a stored response."""
        owner, response_id = _named(exchange)
        await self._stored.delete_response(owner, response_id)
        await exchange.send_json(Deleted(response_id, "response.deleted"))

    async def cancel(self, exchange: Exchange) -> None:
        """Cancel a response that runs in the background."""
        owner, response_id = _named(exchange)
        await exchange.send_json((await self._stored.cancel(owner, response_id)).object)

    async def input_items(self, exchange: Exchange) -> None:
        """Send the input items of a response."""
        owner, response_id = _named(exchange)
        await send_page(exchange, await self._stored.input_items(owner, response_id))

    async def _take(
        self, exchange: Exchange, field: PromptField | None = None
    ) -> tuple[Caller, ResponsesDraft]:
        """The caller, and the request with the stored items that it refers to."""
        caller, body = await self._generation.take(exchange)
        caller = without_headers(caller, _NOT_FORWARDED)
        draft = await self._edge.read(caller, body, lambda body, _: read_responses(body), field)
        if draft.typed.input and not isinstance(draft.typed.input, str):
            draft = draft.with_items(await self._stored.resolved(caller.key, draft.typed.input))
        return caller, draft

    async def _parse(
        self,
        caller: Caller,
        draft: ResponsesDraft,
        history: list[dict[str, Any]],
        *,
        is_stored: bool = False,
    ) -> Responses:
        def parse(_body: bytes, rewrite: Rewrite | None) -> Responses:
            signer = self._edge.signer
            return parse_responses(draft, signer, rewrite, history=history, is_stored=is_stored)

        return await self._edge.read(caller, draft.body, parse)

    def _origin_of(self, draft: ResponsesDraft, caller: Caller) -> ResponseOrigin:
        may_store = self._stored.may_store(may_store=caller.may_store)
        is_background = bool(draft.typed.background)
        if is_background and not may_store:
            text = "'background' needs stored responses, which are switched off here."
            raise invalid("background", text)
        return ResponseOrigin(
            owner=caller.key,
            items=draft.items,
            previous_id=draft.previous_id,
            conversation_id=draft.conversation_id if may_store else None,
            is_background=is_background,
            is_stored=may_store and draft.wants_store,
        )

    async def _show(
        self,
        exchange: Exchange,
        owner: str,
        response_id: str,
        *,
        is_stream: bool,
        after: int = -1,
    ) -> None:
        """Send the response as it is now, or its events with numbers above `after`."""
        found = await self._stored.response(owner, response_id)
        if not is_stream:
            await exchange.send_json(found.object)
            return
        if not found.has_events:
            text = "This response has no stream: it was created without stream=true."
            raise invalid("stream", text)
        await exchange.send_head()
        silence_s, send_part = self._edge.config.keep_alive_s, exchange.send_part
        await self._stored.background.follow(owner, response_id, after, silence_s, send_part)
        await exchange.send_part(b"", is_last=True)


def _named(exchange: Exchange) -> tuple[str, str]:
    """The name of the caller's key, and the id of the response."""
    return exchange.identify().key, exchange.named()


async def send_page(exchange: Exchange, items: list[dict[str, object]]) -> None:
    """Send the page of `items` that the query asks for."""
    asked = exchange.query
    order, limit = asked.get("order", "desc"), asked.get("limit", str(PAGE))
    await exchange.send_json(page_of(items, order, limit, asked.get("after", "")))
