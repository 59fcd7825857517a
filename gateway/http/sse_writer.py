"""Answers on their way to the client: what all share, and the streamed one, as server-sent events.

Owns a request's identity and its facts for headers and metrics; what every event means for a
stream, when its head and its end leave, and what is sent in a silence. Must not know how a turn
runs, nor sockets. The server cancels the request of a client that leaves.

While nothing is decided the head is withheld, so that a refusal can be a status; a client that
waited for `head_hold_s` gets 200 and the role chunk, then an empty delta per `keep_alive_s` of
silence (common clients ignore SSE comments and `choices: []`). Each chunk is written where its
event arises: no task wakes for it, and the request's task sleeps until the turn is over.
"""

import functools
from typing import Final

import trio

from gateway.api import (
    AnswerHead,
    ApiError,
    ApiFormat,
    ChatRequest,
    Failed,
    Finished,
    ReasoningDelta,
    Started,
    TextDelta,
    ToolCallArguments,
    ToolCallEnd,
    ToolCallStart,
    TurnEvent,
    UpstreamBody,
    UpstreamChunk,
    UpstreamUsage,
    Usage,
    connection_lost,
    with_herma,
)
from gateway.http.auth import client_of_headers, parent_of_headers
from gateway.http.edge import Edge
from gateway.http.metrics import Metrics
from gateway.http.response_writer import ResponseWriter
from gateway.http.responses import (
    JSON_TYPE,
    PRINTABLE,
    SSE_HEADERS,
    Header,
    error_headers,
    error_of,
    header,
    passed_on,
)
from gateway.turn import Caller

CLIENT_LEFT: Final = 499
"""The status of a request whose client left before its end, for metrics only."""

_header: Final = functools.lru_cache(maxsize=1024)(header)
"""For values that many answers share; nearly every route has its own."""

_RareEvent = (
    Started | ToolCallStart | ToolCallEnd | Finished | Usage | UpstreamBody | UpstreamUsage | Failed
)


class Answer:
    """What both ways of answering share. `trace` is what operators see of it. `status` is how the
    request ended, even if the head had said 200.
    """

    def __init__(
        self,
        edge: Edge,
        metrics: Metrics,
        request: ChatRequest,
        caller: Caller,
        api: ApiFormat,
        writer: ResponseWriter,
    ) -> None:
        self._edge = edge
        self._metrics = metrics
        self._api = api
        self._writer = writer
        trace, unix_time = caller.trace, edge.unix_time()
        self._head = AnswerHead(
            api.id_prefix + edge.draw(12).hex(),
            int(unix_time),
            request.model,
            request.include_usage,
        )
        trace.id, trace.api, trace.key = self._head.id, api.name, caller.key
        trace.client, trace.is_stream = client_of_headers(caller.headers), request.stream
        trace.unix_time, trace.received_at = unix_time, edge.now()
        if edge.traces.keeps_parents:
            trace.parent = parent_of_headers(caller.headers)
        edge.traces.enter(trace)
        self.trace = trace
        self._error: ApiError | None = None
        self._foreign: UpstreamBody | None = None
        self.request = request
        self.caller = caller
        self.started: Started | None = None
        self.usage: Usage | None = None
        self.status = CLIENT_LEFT

    def _headers(self) -> tuple[Header, ...]:
        """The `x-herma-*` headers, as far as the facts are known, and those of a provider."""
        started = self.started
        if started is None:
            return ()
        ours = (
            _header(b"x-herma-served-by", started.served_by),
            (b"x-herma-cached-tokens", b"%d" % started.cached_tokens),
            (b"x-herma-route", started.route.encode("ascii", "replace").translate(PRINTABLE)),
        )
        if started.worker:
            return _header(b"x-herma-worker", started.worker), *ours
        has_limits = self.caller.charge is not None
        return (*ours, *passed_on(started.headers, has_limits=has_limits))

    def _respond_with_failure(self) -> bool:
        """Send the error, or the provider's own answer, as a whole response, if there is one."""
        if self._error is not None:
            error = self._error
            self.status = error.status
            headers = error_headers(error, self._headers())
            self._writer.respond(error.status, (JSON_TYPE, *headers), self._api.error_body(error))
        elif self._foreign is not None:
            self.status = self._foreign.status
            headers = (JSON_TYPE, *self._headers())
            self._writer.respond(self.status, headers, self._foreign.body)
        else:
            return False
        return True

    def _model(self) -> str:
        """The configured name to count it under, never a client's own words."""
        if self.started is not None and self.started.served_by == "worker":
            return self.started.model
        return self._edge.public_name(self.request.model) or "unknown"

    def _note_content(self) -> None:
        if self.trace.first_at is None:
            self.trace.first_at = self._edge.now()

    def _observe(self) -> None:
        """Count the request, which is over."""
        trace = self.trace
        trace.model, trace.status, trace.usage = self._model(), self.status, self.usage
        trace.served_by = self.started.served_by if self.started else "none"
        trace.error = "" if self._error is None else self._error.code or self._error.type
        trace.ended_at = self._edge.now()
        self._metrics.observe(trace)
        self._edge.traces.end(trace)
        if self.caller.charge is not None:
            self.caller.charge.settle(trace)


class StreamedAnswer(Answer):
    """The stream so far.

    A client that stops reading ends its turn; one that has left is the server's to notice. What
    follows the last text, its finish and the usage, waits for the end of the stream, which follows
    at once: each packet costs as much as all else of a token. A lone choice of a worker ends the
    stream with its usage; the turn's task wakes later.
    """

    _announced: Started | None = None
    _from_provider = False
    _has_content = False
    _has_ended = False
    _is_finished = False
    _is_open = False
    _last = b""

    async def run(self) -> None:
        """Run the turn and stream its answer; an error in its place is a whole response."""
        self._formatter = self._api.streamed(self._head)
        self._work = trio.CancelScope()
        self._writer.watch(
            self._break_silence, self.trace.received_at + self._edge.config.head_hold_s
        )
        try:
            with self._work:
                error = await error_of(self._edge.run_turn, self.request, self.caller, self.emit)
                self._error = self._error or error
                if self._is_silent and self._error is None and self._foreign is None:
                    self._error = connection_lost()
            if not self._has_ended:
                self._end()
        finally:
            # A reference from the writer to here would keep the request until the next collection.
            self._writer.unwatch()
            self._observe()

    def emit(self, event: TurnEvent) -> None:
        """Send an event of the turn. Never waits and never raises: the link's frame callback calls
        it.
        """
        kind = type(event)
        if kind is TextDelta or kind is ReasoningDelta or kind is ToolCallArguments:
            chunk = self._formatter.format(event)  # type: ignore[arg-type] # as `kind` tells
        elif kind is UpstreamChunk:
            self._from_provider = True
            chunk = event.data  # type: ignore[union-attr] # as `kind` tells
        else:
            chunk = self._take_rare(event)  # type: ignore[arg-type] # as `kind` tells
        if not chunk or self._error is not None or self._foreign is not None:
            return
        if not self._has_content:
            self._has_content = True
            self._note_content()
        writer = self._writer
        if not (writer.write(chunk) if self._is_open else self._open(chunk)) and not writer.is_gone:
            self._give_up()

    def _take_rare(self, event: _RareEvent) -> bytes:
        """What is sent for `event`."""
        match event:
            case Failed():
                self._error = self._error or event.error
                return b""
            case UpstreamBody():
                self._foreign = event
                return b""
            case UpstreamUsage():
                self.usage = event.usage
                return b""
            case Finished():
                self.trace.finish = event.reason
                if self.request.n != 1:
                    return self._formatter.format(event)
                self._note_content()
                self._is_finished = True
                self._keep_for_end(event)
                return b""
            case Usage():
                self.usage = event
                self._keep_for_end(event)
                is_whole = self._is_finished and self._error is None and not self._is_silent
                if is_whole and not self._has_ended:
                    self._end()
                return b""
            case Started():
                self.started = event
                if self._is_open and self._is_news(event):
                    self._announced = event
                    self._announce(event)
                return self._formatter.format(event)
            case _:
                return self._formatter.format(event)

    @property
    def _is_silent(self) -> bool:
        """No server has begun to answer."""
        return self.started is None and not self._has_content

    def _is_news(self, started: Started) -> bool:
        """Whether the head named another server, or none. Which worker continues an
        answer that has content is not announced.
        """
        announced = self._announced
        if announced is None or self._has_content:
            return announced is None
        return (started.served_by, started.worker) != (announced.served_by, announced.worker)

    def _announce(self, started: Started) -> None:
        """An empty delta names the worker or provider, as the head could not."""
        chunk = with_herma(self._formatter.keep_alive(), started)
        if (
            chunk
            and self._error is None
            and not self._writer.write(chunk)
            and not self._writer.is_gone
        ):
            self._give_up()

    def _keep_for_end(self, event: Finished | Usage) -> None:
        if self._error is None:
            self._last += self._formatter.format(event)

    def _give_up(self) -> None:
        self._error = ApiError(
            408, "The client has stopped reading its stream.", code="client_too_slow"
        )
        self._work.cancel()

    def _open(self, chunk: bytes) -> bool:
        """Send the head and the opening, with `chunk` behind them."""
        self._open_head()
        return self._writer.write(self._opening() + chunk)

    def _open_head(self) -> None:
        """The headers hold the facts that are known by now."""
        self._is_open = True
        self._announced = self.started
        self._writer.open(200, [*SSE_HEADERS, *self._headers()])

    def _opening(self) -> bytes:
        """What precedes the first content; a provider's stream has its own."""
        return b"" if self._from_provider else self._formatter.head(self.request.n)

    def _break_silence(self, now: float) -> float:
        """Send the head when it was held long enough, then something in every silence. Returns when
        to look again.
        """
        keep_alive_s = self._edge.config.keep_alive_s
        writer = self._writer
        if not self._is_open:
            self._open(b"")
        elif now >= writer.wrote_at + keep_alive_s:
            writer.write(self._formatter.keep_alive())
        return writer.wrote_at + keep_alive_s

    def _end(self) -> None:
        """End the stream; while the head is withheld an error is a whole response."""
        self._has_ended = True
        if self._is_open:
            self._writer.end(self._ending())
        elif not self._respond_with_failure():
            self._open_head()
            self._writer.end(self._opening() + self._ending())

    def _ending(self) -> bytes:
        if self._error is not None:
            self.status = self._error.status
            return self._last + self._formatter.error(self._error)
        self.status = 200
        if self._foreign is not None:
            # JSON holds line breaks only between its tokens, and an SSE field may hold none.
            body = b"".join(self._foreign.body.splitlines())
            return self._last + b"data: " + body + b"\n\n"
        return self._last if self._from_provider else self._last + self._formatter.done()
