"""POST /v1/responses.

Owns what a request becomes before its turn. Nothing is stored. Must not know how a turn runs, nor
what a response says.
"""

from dataclasses import replace
from typing import Final

from starlette.types import Receive, Scope, Send

from gateway.api import parse_responses, responses_format
from gateway.http.edge import Edge
from gateway.http.generation import Generation
from gateway.http.messages_route import as_events, without_headers
from gateway.http.metrics import Metrics
from gateway.http.response_writer import EXTENSION
from gateway.http.sse_writer import StreamedAnswer
from gateway.http.whole_answer import WholeAnswer

_NOT_FORWARDED: Final = (b"x-codex-", b"x-stainless-", b"openai-beta")
"""Headers about this API, or about the client's installation, begin so."""


class ResponsesRoute:
    """That API's endpoint."""

    def __init__(self, edge: Edge, generation: Generation, metrics: Metrics) -> None:
        self._edge = replace(edge, run_turn=as_events(edge.run_turn))
        self._generation = generation
        self._metrics = metrics
        self._rewrite = edge.by_alias if edge.alias_params else None

    async def create(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002
        """One conversation, one answer."""
        caller, body = await self._generation.take(scope, receive)
        caller = without_headers(caller, _NOT_FORWARDED)
        asked = parse_responses(body, self._edge.signer, self._rewrite)
        api = responses_format(asked, self._edge.signer)
        answer = StreamedAnswer if asked.request.stream else WholeAnswer
        writer = scope["extensions"][EXTENSION]
        await answer(self._edge, self._metrics, asked.request, caller, api, writer).run()
