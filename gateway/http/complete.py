"""An answer in one piece.

Owns how the events of a turn become one body, and when it leaves. Must not know streams: nothing is
sent before all is told, and the client's leaving cancels the turn.

Our own server gets the answer with the last event, where a worker's frame is taken apart: the turn
wakes and keeps its books while the answer is on its way.
"""

from collections.abc import Awaitable

from starlette.types import Receive, Scope, Send

from gateway.api import (
    ApiError,
    Failed,
    Finished,
    Started,
    TurnEvent,
    UpstreamBody,
    UpstreamChunk,
    Usage,
    connection_lost,
)
from gateway.http.errors import error_headers, error_of
from gateway.http.reply import JSON_TYPE, Header, send_body
from gateway.http.request_context import CLIENT_LEFT, RequestContext, while_connected
from gateway.http.response_writer import EXTENSION, ResponseWriter


async def complete_turn(turn: RequestContext, scope: Scope, receive: Receive, send: Send) -> None:
    """Run `turn` and send its whole answer.

    The answer is sent outside of the watch for the client: servers say `http.disconnect` while
    they take the last message, and must not be cancelled halfway. Our own server needs no watch:
    it cancels the request of a client that leaves.
    """
    push = scope.get("extensions", {}).get(EXTENSION)
    answer = WholeAnswer(turn, push)
    try:
        if push is not None:
            answer.end(await answer.run())
        else:
            async with while_connected(receive):
                answer.end(await answer.run())
    finally:
        turn.observe()
    if turn.status == CLIENT_LEFT:
        return
    if push is not None:
        answer.push()
    else:
        status, headers, body = answer.response()
        await send_body(send, status, body, headers=headers)


class WholeAnswer:
    """The events so far. Their amount is bounded by the request's own max_tokens. They leave by
    `push`, if there is one.
    """

    __slots__ = ("_builder", "_error", "_foreign", "_num_unfinished", "_push", "_turn")

    def __init__(self, turn: RequestContext, push: ResponseWriter | None = None) -> None:
        self._turn = turn
        self._push = push
        self._num_unfinished = turn.request.n
        self._builder = turn.dialect.whole(turn.head)
        self._error: ApiError | None = None
        self._foreign: UpstreamBody | None = None

    def run(self) -> Awaitable[ApiError | None]:
        """Run the turn to its end; the error that it ends in, for `end`."""
        turn = self._turn
        return error_of(turn.edge.run_turn, turn.request, turn.caller, self.emit)

    def emit(self, event: TurnEvent) -> None:
        """Take in an event of the turn."""
        turn = self._turn
        match event:
            case Started():
                turn.started = event
            case Usage():
                turn.usage = event
                # What nobody has begun is an error at the turn's end.
                if not self._num_unfinished and turn.started is not None:
                    self.push()
            case Failed():
                self._error = event.error
            case UpstreamBody():
                self._foreign = event
            case UpstreamChunk():
                raise TypeError("a stream's chunk came for an answer that is not streamed")
            case _:
                turn.note_content()
                self._builder.add(event)
                self._num_unfinished -= type(event) is Finished

    def end(self, error: ApiError | None) -> None:
        """The turn is over, perhaps by `error`."""
        self._error = error or self._error
        if self._error is None and self._foreign is None and self._turn.started is None:
            self._error = connection_lost()
        if self._error is not None:
            self._turn.status = self._error.status
        else:
            self._turn.status = self._foreign.status if self._foreign else 200

    def push(self) -> None:
        """Send the answer, unless it has left already."""
        push, self._push = self._push, None
        if push is not None:
            status, headers, body = self.response()
            push.respond(status, (JSON_TYPE, *headers), body)

    def response(self) -> tuple[int, tuple[Header, ...], bytes]:
        """The answer, or the error that it ended in: status, headers beside the type, body."""
        headers = self._turn.headers()
        if self._error is not None:
            error = self._error
            return error.status, error_headers(error, headers), error.body()
        if self._foreign is not None:
            return self._foreign.status, headers, self._foreign.body
        return 200, headers, self._builder.body(self._turn.started, self._turn.usage)
