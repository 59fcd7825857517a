"""Answers: what every answer shares, and the streamed answer as server-sent events.

Owns the request's id and the facts for headers and metrics; what each event means for a stream,
when its head and its end are sent, and what is sent during a silence. Must not know how a turn
runs, nor sockets. The server cancels the request of a client that leaves.

The head is withheld until the first content, so that a refusal can still be an HTTP status. A
client that has waited for `head_hold_s` gets 200 and the role chunk, then an empty delta after each
`keep_alive_s` without an event (common clients ignore SSE comments and `choices: []`). A chunk is
written by the call that emits its event: the request's task sleeps until the turn is over.
"""

import functools
from collections.abc import Iterable
from typing import Any, Final

import trio

from gateway.api import (
    AnswerHead,
    ApiError,
    ApiFormat,
    ChatRequest,
    ChoiceFinished,
    Failed,
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
    as_event,
    as_payment_required,
    as_unsent,
    connection_lost,
    with_herma,
)
from gateway.http.answer_state import (
    CONTENT,
    CUT,
    DEAF,
    END,
    ENDED,
    FINISH,
    OPEN,
    REPLACE,
    REPLACED,
    SPEAKING,
    STREAMED,
    TABLE,
    UNSENT,
    WHOLE,
    WITHHELD,
    AnswerEvent,
)
from gateway.http.auth import client_of_headers, parent_of_headers
from gateway.http.edge import Edge
from gateway.http.error_responses import (
    JSON_TYPE,
    PRINTABLE,
    REQUEST_ID,
    SSE_HEADERS,
    Header,
    error_headers,
    error_of,
    header,
    passed_on,
)
from gateway.http.metrics import Metrics
from gateway.http.response_writer import ResponseWriter
from gateway.turn import Caller
from gateway.upstream import head_of, with_head

MESSAGES: Final = "messages"
"""The API's name in its format."""

CLIENT_LEFT: Final = 499
"""The status of a request whose client left before its end, for metrics only."""

_header: Final = functools.lru_cache(maxsize=1024)(header)
"""`header` with a cache, for values that many answers share."""

_RareEvent = (
    Started
    | ToolCallStart
    | ToolCallEnd
    | ChoiceFinished
    | Usage
    | UpstreamBody
    | UpstreamUsage
    | Failed
)


class ClientAnswer:
    """What every answer shares. `trace` is what operators see of the request. `status` is the
    request's end for metrics, even if the head of a stream said 200.
    """

    __slots__ = (
        "_api",
        "_edge",
        "_error",
        "_foreign",
        "_head",
        "_metrics",
        "_writer",
        "caller",
        "request",
        "started",
        "state",
        "status",
        "trace",
        "usage",
    )

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
            api.id_prefix + (api.id_suffix or edge.draw(12).hex()),
            int(unix_time),
            request.model,
            request.include_usage,
        )
        trace.id, trace.api, trace.key = self._head.id, api.name, caller.key
        trace.client, trace.is_stream = client_of_headers(caller.sent), request.stream
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
        self.state = WITHHELD

    def _headers(self) -> tuple[Header, ...]:
        """The request's id, unless the provider sent its own; the `x-herma-*` headers whose facts
        are known by now; the provider's headers.
        """
        started: Started | None = self.started
        noticed: tuple[Header, ...] = ()
        if self.trace.notice:
            noticed = (header(b"x-herma-loop", self.trace.notice),)
        if started is None:
            return ((REQUEST_ID, self._head.id.encode()), *noticed)
        ours = (
            _header(b"x-herma-served-by", started.served_by),
            (b"x-herma-cached-tokens", b"%d" % started.cached_tokens),
            (b"x-herma-route", started.route.encode("ascii", "replace").translate(PRINTABLE)),
            *noticed,
        )
        if started.worker:
            named = (REQUEST_ID, self._head.id.encode())
            return named, _header(b"x-herma-worker", started.worker), *ours
        has_limits = self.caller.charge is not None
        return (*ours, *passed_on(started.headers, self._head.id, has_limits=has_limits))

    def _fail(self, error: ApiError) -> None:
        """End the answer with `error`. The client gets the first error only, and no part of the
        answer after it.
        """
        self._error = self._error or error
        self.state = TABLE[self.state, REPLACE]

    def _respond_with_failure(self) -> None:
        """Send the error, or else the body of a provider, as a whole response."""
        if self._error is not None:
            error = self._error = as_unsent(self._error, is_stopping=self._edge.draining())
            if error.is_lasting and self._is_one_of(self._edge.config.lasting_limits_402):
                error = self._error = as_payment_required(error)
            self.status = error.status
            headers = error_headers(error, self._headers())
            self._writer.respond(error.status, (JSON_TYPE, *headers), self._api.error_body(error))
        elif self._foreign is not None:
            self.status = self._foreign.status
            headers = (JSON_TYPE, *self._headers())
            self._writer.respond(self.status, headers, self._foreign.body)

    def _is_one_of(self, agents: Iterable[str]) -> bool:
        """Whether the client's user agent begins with one of these."""
        begins = tuple(one.encode() for one in agents)
        return any(
            name == b"user-agent" and value.startswith(begins)
            for name, value in self.caller.headers
        )

    def _model(self) -> str:
        """The configured model name for metrics, or "unknown": never a name from the client."""
        if self.started is not None and self.started.served_by == "worker":
            return self.started.model
        return self.trace.turn.model or self._edge.public_name(self.request.model) or "unknown"

    def _note_content(self) -> None:
        if self.trace.first_at is None:
            self.trace.first_at = self._edge.now()

    def _observe(self) -> None:
        """The request has ended: record that at once in the rate limits, and later elsewhere."""
        self.trace.usage = self.usage
        if self.caller.charge is not None:
            self.caller.charge.settle(self.trace)
        self._edge.accounts.end(functools.partial(self._account, self._edge.now()))

    def _account(self, ended_at: float) -> None:
        """Record the end of the request in its trace and the metrics."""
        trace = self.trace
        trace.model, trace.status, trace.ended_at = self._model(), self.status, ended_at
        trace.served_by = self.started.served_by if self.started else "none"
        trace.error = "" if self._error is None else self._error.code or self._error.type
        self._metrics.observe(trace)
        self._edge.traces.end(trace)


class StreamedAnswer(ClientAnswer):
    """An answer as a stream of server-sent events.

    The turn of a client that stops reading is cancelled. The finish and the usage are kept in
    `_last` and leave together with the end of the stream: a packet of its own would cost as much as
    all other work for a token. With a single choice the usage ends the stream within the frame
    callback, before the turn's task wakes. `_head_sent` is the head of a chunk of ours that came
    before those of a provider, the latest of which are `_theirs`.
    """

    __slots__ = (
        "_announced",
        "_comments_since",
        "_formatter",
        "_from_provider",
        "_head_sent",
        "_last",
        "_theirs",
    )

    async def run(self) -> None:
        """Run the turn and stream its answer; an error before the head is a whole response."""
        self._formatter = self._api.streamed(self._head)
        self._announced: Started | None = None
        self._comments_since: float | None = None
        self._from_provider = False
        self._head_sent: dict[str, Any] | None = None
        self._last = self._theirs = b""
        self._writer.watch(
            self._break_silence, self.trace.received_at + self._edge.settings.config.head_hold_s
        )
        try:
            error = await error_of(self._edge.run_turn, self.request, self.caller, self.emit)
            if error is None and self._is_silent and self.state not in DEAF:
                error = connection_lost()
            if error is not None:
                self._fail(error)
            if self.state is not ENDED:
                self._end()
        finally:
            # The writer's reference to this object is a cycle, which only the collector would free.
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
            chunk = self._take_upstream(event.data)  # type: ignore[union-attr] # as `kind` tells
        else:
            chunk = self._take_rare(event)  # type: ignore[arg-type] # as `kind` tells
        if not chunk:
            return
        state, writer = self.state, self._writer
        if state is SPEAKING:
            is_sent = writer.write(chunk)
        elif state in DEAF:
            return
        else:
            self.state = TABLE[state, CONTENT]
            self._note_content()
            is_sent = self._open(chunk) if state in UNSENT else writer.write(chunk)
        if not is_sent and not writer.is_gone:
            self._give_up()

    def _take_upstream(self, chunk: bytes) -> bytes:
        """Take chunks of a provider; returns what is sent for them: the same, unless the stream was
        opened with a chunk of ours. Notes since when only comments come, which clients do not
        count.
        """
        if not self._from_provider:
            self._from_provider = True
            if self.state not in UNSENT:
                self._head_sent = head_of(self._formatter.keep_alive())
        if not chunk.startswith(b":") or chunk.find(b"\ndata:") >= 0:
            self._comments_since, self._theirs = None, chunk
        elif self._comments_since is None:
            is_sent = self.state not in UNSENT
            self._comments_since = self._writer.wrote_at if is_sent else trio.current_time()
        return chunk if self._head_sent is None else with_head(chunk, self._head_sent)

    def _keep_alive(self) -> bytes:
        """An empty delta with the head that the stream has."""
        chunk = self._formatter.keep_alive()
        if not self._theirs or self._head_sent is not None:
            return chunk
        return with_head(chunk, head_of(self._theirs))

    def _take_rare(self, event: _RareEvent) -> bytes:
        """Take an event that is not a delta; returns what is sent for it."""
        match event:
            case Failed():
                self._fail(event.error)
                return b""
            case UpstreamBody():
                self._foreign = event
                self.state = TABLE[self.state, REPLACE]
                return b""
            case UpstreamUsage():
                self.usage = event.usage
                return b""
            case ChoiceFinished():
                self.trace.finish = event.reason
                if self.request.n != 1:
                    return self._formatter.format(event)
                self._note_content()
                self.state = TABLE[self.state, FINISH]
                self._keep_for_end(event)
                return b""
            case Usage():
                self.usage = event
                self._keep_for_end(event)
                if self.state in WHOLE and not self._is_silent:
                    self._end()
                return b""
            case Started():
                self.started = event
                if self.state in STREAMED and self._is_news(event):
                    self._announced = event
                    self._announce(event)
                return self._formatter.format(event)
            case _:
                return self._formatter.format(event)

    @property
    def _is_silent(self) -> bool:
        """Whether no server has begun to answer."""
        return self.started is None and self.state is not SPEAKING

    def _is_news(self, started: Started) -> bool:
        """Whether the client has yet to learn of this server: the head named another one, or none.
        After the first content another server is not announced.
        """
        announced = self._announced
        if announced is None or self.state is not OPEN:
            return announced is None
        return (started.served_by, started.worker) != (announced.served_by, announced.worker)

    def _announce(self, started: Started) -> None:
        """Send an empty delta that names the worker or provider, because the head did not."""
        chunk = with_herma(self._formatter.keep_alive(), started)
        if chunk and not self._writer.write(chunk) and not self._writer.is_gone:
            self._give_up()

    def _keep_for_end(self, event: ChoiceFinished | Usage) -> None:
        if self._error is None:
            self._last += self._formatter.format(event)

    def _give_up(self) -> None:
        text = "The client has stopped reading its stream."
        self._fail(ApiError(408, text, code="client_too_slow"))
        self._end()
        self._writer.give_up()

    def _open(self, chunk: bytes) -> bool:
        """Send the head, the opening and `chunk`."""
        self._open_head()
        return self._writer.write(self._opening() + chunk)

    def _open_head(self) -> None:
        """Begin the response, with the headers whose facts are known by now."""
        self._announced = self.started
        self._writer.open(200, [*SSE_HEADERS, *self._headers()])

    def _opening(self) -> bytes:
        """The chunks before the first content; a provider's stream brings its own."""
        return b"" if self._from_provider else self._formatter.head(self.request.n)

    def _break_silence(self, now: float) -> float:
        """Send the head once it was held for `head_hold_s`, later a keep-alive in each silence.
        Returns when to be called again.
        """
        keep_alive_s = self._edge.config.keep_alive_s
        writer = self._writer
        said_at = writer.wrote_at if self._comments_since is None else self._comments_since
        if self.state is REPLACED:
            return now + keep_alive_s  # its response ends the turn
        if self.state in UNSENT:
            self.state = TABLE[self.state, AnswerEvent.SILENCE]
            self._open(b"")
        elif now >= said_at + keep_alive_s:
            writer.write(self._keep_alive())
            if self._comments_since is not None:
                self._comments_since = writer.wrote_at
        else:
            return said_at + keep_alive_s
        return writer.wrote_at + keep_alive_s

    def _end(self) -> None:
        """End the stream; while the head is withheld an error is a whole response."""
        state, self.state = self.state, TABLE[self.state, END]
        if state is REPLACED:
            self._respond_with_failure()
        elif state in UNSENT:
            self._open_head()
            self._writer.end(self._opening() + self._ending())
        elif state is CUT and self._error is not None and self._breaks_off(self._error):
            # Without its last chunk: the server cuts the connection.
            self.status = self._error.status
        else:
            self._writer.end(self._ending())

    def _breaks_off(self, error: ApiError) -> bool:
        """Whether to break the connection instead of reporting the failure. After an `error` event
        Claude Code asks again without a stream, which it gives up after 300 s, and Cline ends its
        task; after a broken connection both ask for a stream again.
        """
        return error.may_pass and self._is_one_of(self._edge.config.break_streams_of)

    def _ending(self) -> bytes:
        if self._error is not None:
            self.status = self._error.status
            return self._last + self._formatter.error(as_event(self._error))
        self.status = 200
        if self._foreign is not None:
            # JSON holds line breaks only between its tokens, and an SSE field may hold none.
            body = b"".join(self._foreign.body.splitlines())
            return self._last + b"data: " + body + b"\n\n"
        return self._last if self._from_provider else self._last + self._formatter.done()
