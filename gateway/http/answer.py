"""A chat or completions request being answered, and the answer in one piece.

Owns a request's identity, its facts for headers and metrics, and how the events of its turn become
one body. Must not know how a turn runs, nor how bytes reach the client.

The server cancels the request of a client that leaves.
"""

import functools
from typing import Final

from gateway.api import (
    AnswerHead,
    ApiError,
    ApiFormat,
    ChatRequest,
    Failed,
    Finished,
    Started,
    TurnEvent,
    UpstreamBody,
    UpstreamChunk,
    Usage,
    connection_lost,
)
from gateway.http.edge import Edge
from gateway.http.metrics import Metrics
from gateway.http.response_writer import ResponseWriter
from gateway.http.responses import JSON_TYPE, Header, error_headers, error_of, header
from gateway.turn import Caller

CLIENT_LEFT: Final = 499
"""The status of a request whose client left before its end, for metrics only."""

_header: Final = functools.lru_cache(maxsize=1024)(header)
"""For values that many answers share; nearly every route has its own."""


class Answer:
    """What both ways of answering share. `started_at` is on trio's clock, as is `first_at`, when
    the first content came. `status` is how the request ended, even if the head had said 200.
    """

    __slots__ = (
        "_api",
        "_edge",
        "_error",
        "_foreign",
        "_head",
        "_metrics",
        "_push",
        "caller",
        "first_at",
        "request",
        "started",
        "started_at",
        "status",
        "usage",
    )

    def __init__(
        self,
        edge: Edge,
        metrics: Metrics,
        request: ChatRequest,
        caller: Caller,
        api: ApiFormat,
        push: ResponseWriter,
    ) -> None:
        self._edge = edge
        self._metrics = metrics
        self._api = api
        self._push = push
        self._head = AnswerHead(
            api.id_prefix + edge.draw(12).hex(),
            int(edge.unix_time()),
            request.model,
            request.include_usage,
        )
        self._error: ApiError | None = None
        self._foreign: UpstreamBody | None = None
        self.request = request
        self.caller = caller
        self.started_at = edge.now()
        self.started: Started | None = None
        self.usage: Usage | None = None
        self.first_at: float | None = None
        self.status = CLIENT_LEFT

    def _headers(self) -> tuple[Header, ...]:
        """The `x-herma-*` headers, as far as the facts are known, and those of a provider."""
        started = self.started
        if started is None:
            return ()
        ours = (
            _header(b"x-herma-served-by", started.served_by),
            (b"x-herma-cached-tokens", b"%d" % started.cached_tokens),
            header(b"x-herma-route", started.route),
        )
        if started.worker:
            return _header(b"x-herma-worker", started.worker), *ours
        return (*ours, *(header(name.encode(), value) for name, value in started.headers))

    def _respond_with_failure(self) -> bool:
        """Send the error, or the provider's own answer, as a whole response, if there is one."""
        if self._error is not None:
            error = self._error
            self.status = error.status
            headers = error_headers(error, self._headers())
            self._push.respond(error.status, (JSON_TYPE, *headers), error.body())
        elif self._foreign is not None:
            self.status = self._foreign.status
            headers = (JSON_TYPE, *self._headers())
            self._push.respond(self.status, headers, self._foreign.body)
        else:
            return False
        return True

    def _model(self) -> str:
        """The configured name to count it under, never a client's own words."""
        if self.started is not None and self.started.served_by == "worker":
            return self.started.model
        return self._edge.public_name(self.request.model) or "unknown"

    def _observe(self) -> None:
        """Count the request, which is over."""
        self._metrics.observe_turn(
            model=self._model(),
            status=self.status,
            served_by=self.started.served_by if self.started else "none",
            usage=self.usage,
            first_token_s=None if self.first_at is None else self.first_at - self.started_at,
            duration_s=self._edge.now() - self.started_at,
        )


class WholeAnswer(Answer):
    """The events so far; the request's max_tokens bounds their number.

    The answer leaves with its last event, inside the link's frame callback: the turn does its
    accounting while the answer is on its way.
    """

    __slots__ = ("_builder", "_has_responded", "_num_unfinished")

    def __init__(
        self,
        edge: Edge,
        metrics: Metrics,
        request: ChatRequest,
        caller: Caller,
        api: ApiFormat,
        push: ResponseWriter,
    ) -> None:
        super().__init__(edge, metrics, request, caller, api, push)
        self._builder = api.whole(self._head)
        self._num_unfinished = request.n
        self._has_responded = False

    async def run(self) -> None:
        """Run the turn and send its whole answer."""
        try:
            error = await error_of(self._edge.run_turn, self.request, self.caller, self.emit)
            if not self._has_responded:
                self._error = error or self._error
                if self._error is None and self._foreign is None and self.started is None:
                    self._error = connection_lost()
                self._respond()
        finally:
            self._observe()

    def emit(self, event: TurnEvent) -> None:
        """Add an event of the turn."""
        match event:
            case Started():
                self.started = event
            case Usage():
                self.usage = event
                is_whole = not self._num_unfinished and self._error is None
                # An answer that nobody has started is an error at the turn's end.
                if is_whole and self.started is not None and not self._has_responded:
                    self._respond()
            case Failed():
                self._error = event.error
            case UpstreamBody():
                self._foreign = event
            case UpstreamChunk():
                raise TypeError("a stream's chunk came for an answer that is not streamed")
            case _:
                if self.first_at is None:
                    self.first_at = self._edge.now()
                self._builder.add(event)
                self._num_unfinished -= type(event) is Finished

    def _respond(self) -> None:
        self._has_responded = True
        if not self._respond_with_failure():
            self.status = 200
            body = self._builder.body(self.started, self.usage)
            self._push.respond(200, (JSON_TYPE, *self._headers()), body)
