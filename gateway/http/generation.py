"""POST /v1/chat/completions and POST /v1/completions.

Owns what both do with a request before and after its turn. Must not know how a turn runs.
"""

from dataclasses import replace
from typing import Final

import msgspec
from starlette.types import Receive, Scope, Send

from gateway.api import (
    CHAT,
    ChatRequest,
    Dialect,
    parse_chat_request,
    unavailable,
    with_continuous_usage,
)
from gateway.api.completions import Completions, completions_dialect, parse_completions
from gateway.http.admission_pacer import AdmissionPacer
from gateway.http.auth import Gatekeeper
from gateway.http.body import body_at_hand, read_body
from gateway.http.complete import complete_turn
from gateway.http.edge import Edge
from gateway.http.metrics import Metrics
from gateway.http.prompts import EachPrompt
from gateway.http.request_context import open_turn
from gateway.http.stream import stream_turn
from gateway.prompt import checked_ids, decode_raw
from gateway.turn import Caller, beside_the_loop

RESTART_S: Final = 5
"""When to come back to a gateway that is stopping: a restart takes about so long."""


class Generation:
    """The front door of both APIs: who asks, is there time, what is the body."""

    def __init__(self, edge: Edge, gate: Gatekeeper, metrics: Metrics) -> None:
        self._edge = edge
        self._gate = gate
        self._metrics = metrics
        self._admission_pacer = AdmissionPacer()

    async def chat(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One conversation, one answer."""
        caller, body = await self._take(scope, receive)
        request = parse_chat_request(body, self._edge.by_alias)
        turn = open_turn(self._edge, self._metrics, request, caller, _counting(CHAT, request))
        answer = stream_turn if request.stream else complete_turn
        await answer(turn, scope, receive, send)

    async def completions(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Raw prompts, each with its choices. Workers answer; providers are not asked."""
        caller, body = await self._take(scope, receive)
        asked = parse_completions(body, self._edge.by_alias)
        dialect = completions_dialect(await self._echoes(asked) if asked.echo else ())
        each = EachPrompt(self._edge.run_turn, asked.requests)
        whole = msgspec.structs.replace(asked.requests[0], n=asked.num_choices)
        turn = open_turn(
            replace(self._edge, run_turn=each.run),
            self._metrics,
            whole,
            msgspec.structs.replace(caller, cloud=False),
            _counting(dialect, whole),
        )
        answer = stream_turn if whole.stream else complete_turn
        await answer(turn, scope, receive, send)

    async def _take(self, scope: Scope, receive: Receive) -> tuple[Caller, bytes]:
        caller = self._gate.identify(scope)
        if self._edge.draining():
            raise unavailable("The gateway is stopping.", RESTART_S)
        max_bytes = self._edge.config.max_body_bytes
        body = body_at_hand(scope, max_bytes)
        if body is None:
            body = await read_body(receive, scope["headers"], max_bytes)
        if not self._admission_pacer.may_pass():
            await self._admission_pacer.enter()
        return caller, body

    async def _echoes(self, asked: Completions) -> list[str]:
        """What each choice begins with: its prompt as text."""
        texts = [await self._text_of(request.model, request.prompt) for request in asked.requests]
        return [text for text in texts for _ in range(asked.requests[0].n)]

    async def _text_of(self, model: str, prompt: str | tuple[int, ...] | None) -> str:
        if prompt is None or isinstance(prompt, str):
            return prompt or ""
        known = await self._edge.text_of(model)
        ids = checked_ids(known.text, prompt, "prompt")
        return await beside_the_loop(len(ids), lambda: decode_raw(known.text, ids))


def _counting(dialect: Dialect, request: ChatRequest) -> Dialect:
    """`dialect`, with the usage so far in every chunk if the client wants that."""
    return with_continuous_usage(dialect, request.n) if request.continuous_usage else dialect
