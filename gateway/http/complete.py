"""An answer in one piece.

Owns how the events of a turn become one body. Must not know streams: nothing is sent before the
turn is over, and the client's leaving cancels it.
"""

from collections.abc import Awaitable

from starlette.types import Receive, Scope, Send

from gateway.core.errors import ApiError, connection_lost
from gateway.core.events import Failed, Started, TurnEvent, UpstreamBody, UpstreamChunk, Usage
from gateway.http.errors import error_headers, error_of
from gateway.http.push import EXTENSION
from gateway.http.reply import JSON_TYPE, Header, send_body
from gateway.http.turn import CLIENT_LEFT, Turn, while_connected


async def complete_turn(turn: Turn, scope: Scope, receive: Receive, send: Send) -> None:
    """Run `turn` and send its whole answer.

    The answer is sent outside of the watch for the client: servers say `http.disconnect` while
    they take the last message, and must not be cancelled halfway. Our own server needs no watch:
    it cancels the request of a client that leaves.
    """
    answer = WholeAnswer(turn)
    push = scope.get("extensions", {}).get(EXTENSION)
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
    status, headers, body = answer.response()
    if push is not None:
        push.respond(status, (JSON_TYPE, *headers), body)
    else:
        await send_body(send, status, body, headers=headers)


class WholeAnswer:
    """The events so far. Their amount is bounded by the request's own max_tokens."""

    __slots__ = ("_builder", "_error", "_foreign", "_turn")

    def __init__(self, turn: Turn) -> None:
        self._turn = turn
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
            case Failed():
                self._error = event.error
            case UpstreamBody():
                self._foreign = event
            case UpstreamChunk():
                raise TypeError("a stream's chunk came for an answer that is not streamed")
            case _:
                turn.note_content()
                self._builder.add(event)

    def end(self, error: ApiError | None) -> None:
        """The turn is over, perhaps by `error`."""
        self._error = error or self._error
        if self._error is None and self._foreign is None and self._turn.started is None:
            self._error = connection_lost()
        if self._error is not None:
            self._turn.status = self._error.status
        else:
            self._turn.status = self._foreign.status if self._foreign else 200

    def response(self) -> tuple[int, tuple[Header, ...], bytes]:
        """The answer, or the error that it ended in: status, headers beside the type, body."""
        headers = self._turn.headers()
        if self._error is not None:
            error = self._error
            return error.status, error_headers(error, headers), error.body()
        if self._foreign is not None:
            return self._foreign.status, headers, self._foreign.body
        return 200, headers, self._builder.body(self._turn.started, self._turn.usage)
