"""POST /v1/chat/completions, POST /v1/completions and POST /v1/embeddings.

Owns what happens to a request before its turn: the caller and its rate limits, how many requests
start at once, and the choice of parser and answer. Must not know how a turn runs.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final, final

import msgspec
import trio

from gateway.api import (
    CHAT_FORMAT,
    SMALL_BYTES,
    ChatRequest,
    Completions,
    Echo,
    PromptScored,
    Rewrite,
    check_target,
    completions_format,
    custom_chat_format,
    embeddings_format,
    named_body,
    nothing_at,
    parse_any_chat,
    parse_completions,
    parse_embeddings,
    passed_on,
    quiet_format,
    stopping,
    with_continuous_usage,
)
from gateway.http.edge import Edge, RunTurn, as_events, model_named
from gateway.http.exchange import Exchange
from gateway.http.metrics import Metrics
from gateway.http.pass_through_route import PassThroughRoute
from gateway.http.prompts import EachPrompt, PromptScoring
from gateway.http.streamed_answer import StreamedAnswer
from gateway.http.whole_answer import EmbeddingsAnswer, WholeAnswer
from gateway.prompt import checked_ids, decode_raw
from gateway.routing import ModelView
from gateway.spending import RateLimits
from gateway.turn import Caller

PER_TURN: Final = 16
"""Requests that start in one turn of the event loop. A short one takes 0.25 ms. Starting many
together is cheaper: their submissions leave together, so that the worker wakes once.
"""

NO_SCORES: Final[Mapping[int, PromptScored]] = {}

_PASSED_ON: Final = ("/v1/", "/embeddings", "/rerank", "/images/", "/audio/")
"""The beginnings of paths that engines and providers may serve."""

BYTES_PER_TOKEN: Final = 4
"""Bytes of a request's body that rate limits count as one token until the usage is known."""


class Generation:
    """The three endpoints. Endpoints of other APIs use `take` and `pass_through` too."""

    def __init__(self, edge: Edge, metrics: Metrics) -> None:
        self._edge = edge
        self._as_events = replace(edge, run_turn=as_events(edge.run_turn))
        self._metrics = metrics
        self._admission_pacer = AdmissionPacer()
        self.pass_through = PassThroughRoute(edge, metrics).answer

    async def chat(self, exchange: Exchange) -> None:
        """Answer a chat."""
        caller, body = await self.take(exchange)
        if len(body) <= SMALL_BYTES:
            # `Edge.rewrite`, inlined: every chat comes this way.
            rewrite = self._edge.by_alias if self._edge.settings.alias_params else None
            request = parse_any_chat(body, self._edge.signer, rewrite)
        else:
            request = await self._edge.read(caller, body, self._parse_chat, "messages")
        del body
        api, edge = CHAT_FORMAT, self._edge
        if request.custom_tools:
            api, edge = custom_chat_format(request.custom_tools), self._as_events
        if request.hides_reasoning:
            api = quiet_format(api)
        if request.continuous_usage:
            api = with_continuous_usage(api, request.n)
        answer = StreamedAnswer if request.stream else WholeAnswer
        if request.ignored and not self._gets_all_fields(request.model):
            exchange.name_ignored(request)
        await answer(edge, self._metrics, request, caller, api, exchange.writer).run()

    async def completions(self, exchange: Exchange) -> None:
        """Answer raw prompts, each with its choices. Providers are asked only for a model that has
        nothing else: a raw prompt is written for the template of one model.
        """
        caller, body = await self.take(exchange)
        model = await self._model_of(caller, body) if self._may_pass_on() else None
        if model is not None and (model.relays or model.has_only_providers):
            given = msgspec.structs.replace(caller, cloud=caller.cloud and not model.relays)
            await self.pass_through(exchange, given, body)
            return
        asked = await self._edge.read(caller, body, parse_completions, "prompt")
        exchange.name_ignored(asked.requests[0])
        del body
        caller = msgspec.structs.replace(caller, cloud=False)
        run_turn: RunTurn = EachPrompt(self._edge.run_turn, asked.requests).run
        echoes: Sequence[Echo] = ()
        if asked.num_top is not None or asked.is_echo_only:
            scoring = PromptScoring(self._edge.run_turn)
            await scoring.run(asked.scoring, caller)
            if asked.is_echo_only:
                run_turn = scoring.replay(asked.num_choices)
            echoes = await self._echoes(asked, caller, scoring.scores)
        elif asked.echo:
            echoes = await self._echoes(asked, caller)
        api = completions_format(echoes)
        whole = msgspec.structs.replace(asked.requests[0], n=asked.num_choices)
        if whole.continuous_usage:
            api = with_continuous_usage(api, whole.n)
        answer = StreamedAnswer if whole.stream else WholeAnswer
        await answer(
            replace(self._edge, run_turn=run_turn),
            self._metrics,
            whole,
            caller,
            api,
            exchange.writer,
        ).run()

    async def embeddings(self, exchange: Exchange) -> None:
        """Answer with the embedding of each input if native workers embed with that model;
        otherwise pass the request on.
        """
        caller, body = await self.take(exchange)
        model = await self._model_of(caller, body)
        if model is None or not model.embedding_size:
            await self.pass_through(exchange, caller, body)
            return
        requests, in_base64 = await self._edge.read(caller, body, parse_embeddings)
        exchange.name_ignored(requests[0])
        del body
        await EmbeddingsAnswer(
            replace(self._edge, run_turn=EachPrompt(self._edge.run_turn, requests).run),
            self._metrics,
            msgspec.structs.replace(requests[0], n=len(requests)),
            msgspec.structs.replace(caller, cloud=False),
            embeddings_format(in_base64=in_base64),
            exchange.writer,
        ).run()

    def _may_pass_on(self) -> bool:
        """Whether some model's text-level engine or provider gets bodies unchanged. Then a body is
        first read for the name of its model alone.
        """
        return any(model.relays or model.has_only_providers for model in self._edge.models())

    def _parse_chat(self, body: bytes, rewrite: Rewrite | None) -> ChatRequest:
        return parse_any_chat(body, self._edge.signer, rewrite)

    def _gets_all_fields(self, name: str) -> bool:
        """Whether only text-level engines and providers answer for the model, which get a chat's
        fields as they are.
        """
        model = model_named(self._edge.models(), name)
        return model is not None and (model.relays or model.has_only_providers)

    async def _model_of(self, caller: Caller, body: bytes) -> ModelView | None:
        named = await self._edge.read(caller, body, lambda body, _: named_body("", body))
        return None if named is None else model_named(self._edge.models(), named.model)

    async def take(self, exchange: Exchange) -> tuple[Caller, bytes]:
        """The caller and the body. Returns when the admission pacer lets the request start. Raises
        `ApiError` 401, 429 for a rate limit, 503 while the gateway stops, and the errors of the
        body.
        """
        caller = exchange.authenticator.identify(exchange.scope)
        if self._edge.draining():
            raise stopping()
        body = exchange.writer.whole_body(self._edge.settings.config.max_body_bytes)
        if body is None:
            body = await exchange.body()
        limits = self._edge.settings.rate_limits
        if limits is not None:
            caller = self._charged(limits, exchange, caller, len(body))
        if not self._admission_pacer.may_pass():
            await self._admission_pacer.enter()
        return caller, body

    def _charged(
        self, limits: RateLimits, exchange: Exchange, caller: Caller, num_bytes: int
    ) -> Caller:
        """`caller` with its charge against the rate limits, which become headers of the response.
        Raises `ApiError` 429.
        """
        tokens = num_bytes // BYTES_PER_TOKEN
        charge, refusal = limits.charge(caller.key, exchange.host, tokens, self._edge.now())
        exchange.add_headers(*charge.headers())
        if refusal is not None:
            raise refusal
        return msgspec.structs.replace(caller, charge=charge)

    async def other(self, exchange: Exchange) -> None:
        """Answer a request to a path without a route if it is passed on. Raises `ApiError` 404, and
        400 for a path that a provider could read in another way.
        """
        check_target(exchange.scope["raw_path"])
        if not exchange.path.startswith(_PASSED_ON):
            raise nothing_at(exchange.path)
        exchange.identify()
        passed_on(exchange.path, self._edge.config.paths)
        caller, body = await self.take(exchange)
        await self.pass_through(exchange, caller, body)

    async def _echoes(
        self, asked: Completions, caller: Caller, scores: Mapping[int, PromptScored] = NO_SCORES
    ) -> list[Echo]:
        """The prompt of each choice as text, with which `echo` begins the choice, and its `scores`
        if the request asks for log-probabilities.
        """
        found = []
        for at, request in enumerate(asked.requests):
            text = await self._text_of(request.model, caller, request.prompt)
            echo = Echo(text, scores[at] if asked.num_top is not None else None)
            found += [echo] * request.n
        return found

    async def _text_of(
        self, model: str, caller: Caller, prompt: str | tuple[int, ...] | None
    ) -> str:
        if prompt is None or isinstance(prompt, str):
            return prompt or ""
        known = await self._edge.text_of(model)
        ids = checked_ids(known.text, prompt, "prompt")
        return await known.run(caller, len(ids), lambda: decode_raw(known.text, ids))


@final
class AdmissionPacer:
    """Lets `PER_TURN` requests start in one turn of the event loop, in the order of their arrival.

    Otherwise a thousand requests that arrive at once would all be parsed, encoded and placed before
    the loop does anything else, and every stream would pause for a second or more. While no request
    waits, the cost is one callback of the loop per `PER_TURN` requests.
    """

    def __init__(self) -> None:
        self._num_free = PER_TURN
        self._waiting = trio.lowlevel.ParkingLot()

    def may_pass(self) -> bool:
        """Whether the request may start in this turn of the loop; if not, await `enter`."""
        if self._num_free == 0:
            return False
        self._num_free -= 1
        if self._num_free == 0:
            self._ask_for_turn()
        return True

    async def enter(self) -> None:
        """Return when the request may start, after all requests that entered before it."""
        if not self.may_pass():
            await self._waiting.park()

    def _ask_for_turn(self) -> None:
        trio.lowlevel.current_trio_token().run_sync_soon(self._next_turn)

    def _next_turn(self) -> None:
        self._num_free = PER_TURN - len(self._waiting.unpark(count=PER_TURN))
        if self._num_free == 0:
            self._ask_for_turn()
