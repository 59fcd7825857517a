"""POST /v1/chat/completions, POST /v1/completions and POST /v1/embeddings.

Owns what they do with a request before its turn: how many start at once, the caller, what the body
says. Must not know how a turn runs.
"""

from dataclasses import replace
from typing import Final, final

import msgspec
import trio
from starlette.types import Receive, Scope, Send

from gateway.api import (
    CHAT_FORMAT,
    Completions,
    completions_format,
    embeddings_format,
    named_body,
    parse_chat_request,
    parse_completions,
    parse_embeddings,
    unavailable,
    with_continuous_usage,
)
from gateway.http.auth import Gatekeeper
from gateway.http.body import read_body
from gateway.http.edge import Edge, model_named
from gateway.http.metrics import Metrics
from gateway.http.pass_through_route import PassThroughRoute
from gateway.http.prompts import EachPrompt
from gateway.http.response_writer import EXTENSION
from gateway.http.sse_writer import StreamedAnswer
from gateway.http.whole_answer import EmbeddingsAnswer, WholeAnswer
from gateway.prompt import checked_ids, decode_raw
from gateway.routing import ModelView
from gateway.spending import RateLimits
from gateway.turn import Caller, off_the_loop

RESTART_S: Final = 5
"""Retry-After while the gateway is stopping: a restart takes about so long."""

PER_TURN: Final = 16
"""A short request takes a quarter of a millisecond of the loop. Many in one turn are cheaper than
few: their submissions leave together, so that the worker wakes once.
"""


BYTES_PER_TOKEN: Final = 4
"""Of a request's body, to estimate its tokens for rate limits until its end tells them."""


class Generation:
    """All three endpoints."""

    def __init__(self, edge: Edge, gate: Gatekeeper, metrics: Metrics) -> None:
        self._edge = edge
        self._gate = gate
        self._metrics = metrics
        self._admission_pacer = AdmissionPacer()
        self.pass_through = PassThroughRoute(edge, metrics).answer

    async def chat(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002
        """One conversation, one answer."""
        caller, body = await self.take(scope, receive)
        request = parse_chat_request(body, self._edge.rewrite)
        api = (
            with_continuous_usage(CHAT_FORMAT, request.n)
            if request.continuous_usage
            else CHAT_FORMAT
        )
        answer = StreamedAnswer if request.stream else WholeAnswer
        writer = scope["extensions"][EXTENSION]
        await answer(self._edge, self._metrics, request, caller, api, writer).run()

    async def completions(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Raw prompts, each with its choices. Workers answer; providers are not asked."""
        caller, body = await self.take(scope, receive)
        if self._relays_of(body):
            given = msgspec.structs.replace(caller, cloud=False)
            await self.pass_through(scope, send, given, body)
            return
        asked = parse_completions(body, self._edge.rewrite)
        api = completions_format(await self._echoes(asked) if asked.echo else ())
        whole = msgspec.structs.replace(asked.requests[0], n=asked.num_choices)
        if whole.continuous_usage:
            api = with_continuous_usage(api, whole.n)
        answer = StreamedAnswer if whole.stream else WholeAnswer
        await answer(
            replace(self._edge, run_turn=EachPrompt(self._edge.run_turn, asked.requests).run),
            self._metrics,
            whole,
            msgspec.structs.replace(caller, cloud=False),
            api,
            scope["extensions"][EXTENSION],
        ).run()

    async def embeddings(self, scope: Scope, receive: Receive, send: Send) -> None:
        """The embedding of each input, if native workers give embeddings of that model; otherwise
        the request is passed on.
        """
        caller, body = await self.take(scope, receive)
        model = self._model_of(body)
        if model is None or not model.embedding_size:
            await self.pass_through(scope, send, caller, body)
            return
        requests, in_base64 = parse_embeddings(body, self._edge.rewrite)
        await EmbeddingsAnswer(
            replace(self._edge, run_turn=EachPrompt(self._edge.run_turn, requests).run),
            self._metrics,
            msgspec.structs.replace(requests[0], n=len(requests)),
            msgspec.structs.replace(caller, cloud=False),
            embeddings_format(in_base64=in_base64),
            scope["extensions"][EXTENSION],
        ).run()

    def _relays_of(self, body: bytes) -> bool:
        """Whether engines that take text serve the model: they get the body as it is."""
        if not any(model.relays for model in self._edge.models()):
            return False
        model = self._model_of(body)
        return model is not None and model.relays

    def _model_of(self, body: bytes) -> ModelView | None:
        named = named_body("", body)
        return None if named is None else model_named(self._edge.models(), named.model)

    async def take(self, scope: Scope, receive: Receive) -> tuple[Caller, bytes]:
        """The caller and the body, once it is this request's turn to start."""
        caller = self._gate.identify(scope)
        if self._edge.draining():
            raise unavailable("The gateway is stopping.", RESTART_S)
        max_bytes = self._edge.config.max_body_bytes
        body = scope["extensions"][EXTENSION].whole_body(max_bytes)
        if body is None:
            body = await read_body(receive, scope["headers"], max_bytes)
        limits = self._edge.settings.rate_limits
        if limits is not None:
            caller = self._charged(limits, scope, caller, len(body))
        if not self._admission_pacer.may_pass():
            await self._admission_pacer.enter()
        return caller, body

    def _charged(self, limits: RateLimits, scope: Scope, caller: Caller, num_bytes: int) -> Caller:
        """`caller` with its charge; the response gets the headers. Raises `ApiError` 429."""
        host, _ = scope["client"] or ("", 0)
        tokens = num_bytes // BYTES_PER_TOKEN
        charge, refusal = limits.charge(caller.key, host, tokens, self._edge.now())
        writer = scope["extensions"][EXTENSION]
        writer.extra_headers = (*writer.extra_headers, *charge.headers())
        if refusal is not None:
            raise refusal
        return msgspec.structs.replace(caller, charge=charge)

    async def other(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Any other path: the engine or provider of the model may serve it."""
        caller, body = await self.take(scope, receive)
        await self.pass_through(scope, send, caller, body)

    async def _echoes(self, asked: Completions) -> list[str]:
        """The beginning of each choice: its prompt as text."""
        texts = [await self._text_of(request.model, request.prompt) for request in asked.requests]
        return [text for text in texts for _ in range(asked.requests[0].n)]

    async def _text_of(self, model: str, prompt: str | tuple[int, ...] | None) -> str:
        if prompt is None or isinstance(prompt, str):
            return prompt or ""
        known = await self._edge.text_of(model)
        ids = checked_ids(known.text, prompt, "prompt")
        return await off_the_loop(len(ids), lambda: decode_raw(known.text, ids))


@final
class AdmissionPacer:
    """Lets `PER_TURN` requests start in one turn of the loop, in the order in which they came.

    A thousand requests that come in the same instant would otherwise all be parsed, encoded and
    placed before the loop looks at anything else, for a second or more, while every stream stands
    still. While no request waits, the cost is one callback of the loop per `PER_TURN` requests.
    """

    def __init__(self) -> None:
        self._num_free = PER_TURN
        self._waiting = trio.lowlevel.ParkingLot()

    def may_pass(self) -> bool:
        """Pass if there is a place in this turn of the loop; otherwise call `enter`."""
        if self._num_free == 0:
            return False
        self._num_free -= 1
        if self._num_free == 0:
            self._ask_for_turn()
        return True

    async def enter(self) -> None:
        """Return in this turn of the loop or, behind all that came before, in a later one."""
        if not self.may_pass():
            await self._waiting.park()

    def _ask_for_turn(self) -> None:
        trio.lowlevel.current_trio_token().run_sync_soon(self._next_turn)

    def _next_turn(self) -> None:
        self._num_free = PER_TURN - len(self._waiting.unpark(count=PER_TURN))
        if self._num_free == 0:
            self._ask_for_turn()
