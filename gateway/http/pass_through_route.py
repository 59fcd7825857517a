"""POST to any other path of OpenAI's API, such as images, audio and rerank, and raw completions of
text-level engines.

Owns how a response is passed on to the client, and how its usage is found. Must not know what the
path means, nor which server answers.
"""

from collections.abc import Callable
from typing import Final, final

from gateway.api import ApiError, Started, Usage, as_unsent, missing_model, named_body
from gateway.http.auth import client_of_headers, parent_of_headers
from gateway.http.edge import Edge
from gateway.http.error_responses import Header, header, passed_on
from gateway.http.exchange import Exchange
from gateway.http.metrics import Metrics
from gateway.http.streamed_answer import CLIENT_LEFT
from gateway.telemetry import RequestTrace
from gateway.turn import Caller, PathRequest
from gateway.upstream import UsageTail
from protocol.transport import HttpResponse

_STREAM: Final = b"text/event-stream"


class PassThroughRoute:
    """The endpoint."""

    def __init__(self, edge: Edge, metrics: Metrics) -> None:
        self._edge = edge
        self._metrics = metrics

    async def answer(self, exchange: Exchange, caller: Caller, body: bytes) -> None:
        """Pass the request on, and the response back."""
        path = exchange.path.removeprefix("/v1")
        content_type = exchange.header(b"content-type") or ""
        named = await self._edge.read(caller, body, lambda body, _: named_body(content_type, body))
        if named is None:
            raise missing_model(exchange.path)
        if named.raw is not None:
            named = named.with_fields(self._edge.by_alias(named.raw))
        response = _Response(exchange, caller)
        trace = self._enter(exchange, caller)
        trace.status = CLIENT_LEFT
        try:
            await self._edge.pass_through(PathRequest(path, named), caller, response.pass_on)
            trace.status = response.status
        except ApiError as raised:
            is_cut = response.has_begun
            is_stopping = not is_cut and self._edge.draining()
            error = as_unsent(raised, is_stopping=is_stopping)
            trace.status, trace.error = error.status, error.code or error.type
            if not is_cut:
                raise error from raised.__cause__
            await response.fail(error)
        finally:
            trace.model = self._edge.public_name(named.model) or "unknown"
            trace.served_by, trace.usage = response.served_by, response.usage
            trace.ended_at = self._edge.now()
            self._metrics.observe(trace)
            self._edge.traces.end(trace)
            if caller.charge is not None:
                caller.charge.settle(trace)

    def _enter(self, exchange: Exchange, caller: Caller) -> RequestTrace:
        trace = caller.trace
        trace.id = f"req_{self._edge.draw(12).hex()}"
        trace.api, trace.key = exchange.path.removeprefix("/v1").strip("/")[:40], caller.key
        trace.client = client_of_headers(caller.sent)
        trace.unix_time, trace.received_at = self._edge.unix_time(), self._edge.now()
        if self._edge.traces.keeps_parents:
            trace.parent = parent_of_headers(caller.headers)
        self._edge.traces.enter(trace)
        return trace


@final
class _Response:
    """One response on its way to the client. Sending waits for the client, so what it does not take
    stays with the engine.
    """

    def __init__(self, exchange: Exchange, caller: Caller) -> None:
        self._exchange = exchange
        self._caller = caller
        self._is_stream = False
        self.has_begun = False
        self.status = 0
        self.served_by = "none"
        self.usage: Usage | None = None

    async def pass_on(
        self, response: HttpResponse, started: Started, note_usage: Callable[[Usage], None]
    ) -> None:
        """Send the response as it arrives."""
        received = dict(response.headers)
        content_type = received.get(b"content-type", b"application/octet-stream")
        self._is_stream = content_type.startswith(_STREAM)
        self.has_begun, self.status, self.served_by = True, response.status, started.served_by
        head = [(b"content-type", content_type), *_headers(started, self._caller)]
        await self._exchange.send_head(response.status, head)
        tail = UsageTail()
        async for data in response.body:
            tail.add(data)
            await self._exchange.send_part(data)
        if (usage := tail.usage(is_stream=self._is_stream)) is not None:
            self.usage = usage
            note_usage(usage)
        await self._exchange.send_part(b"", is_last=True)

    async def fail(self, error: ApiError) -> None:
        """End a stream with an error event. Another response is left incomplete, which the client
        notices as well.
        """
        if self._is_stream:
            event = b"data: " + error.body() + b"\n\n"
            await self._exchange.send_part(event, is_last=True)


def _headers(started: Started, caller: Caller) -> list[Header]:
    ours = [
        header(b"x-herma-served-by", started.served_by),
        header(b"x-herma-route", started.route),
    ]
    given, request_id = started.headers, caller.trace.id
    if started.worker:
        given, ours = (), [header(b"x-herma-worker", started.worker), *ours]
    return [*ours, *passed_on(given, request_id, has_limits=caller.charge is not None)]
