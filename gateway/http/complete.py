"""An answer in one piece.

Owns how the events of a turn become one body. Must not know streams: nothing is sent before the
turn is over, and the client's leaving cancels it.
"""

from starlette.types import Receive, Scope, Send

from gateway.core.errors import ApiError, connection_lost
from gateway.core.events import Failed, Started, TurnEvent, UpstreamBody, UpstreamChunk, Usage
from gateway.http.errors import error_of, send_error
from gateway.http.push import EXTENSION
from gateway.http.reply import send_body
from gateway.http.turn import CLIENT_LEFT, Turn, while_connected


async def complete_turn(turn: Turn, scope: Scope, receive: Receive, send: Send) -> None:
    """Run `turn` and send its whole answer.

    The answer is sent outside of the watch for the client: servers say `http.disconnect` while
    they take the last message, and must not be cancelled halfway. Our own server needs no watch:
    it cancels the request of a client that leaves.
    """
    answer = WholeAnswer(turn)
    try:
        if EXTENSION in scope.get("extensions", {}):
            await answer.run()
        else:
            async with while_connected(receive):
                await answer.run()
    finally:
        turn.observe()
    if turn.status != CLIENT_LEFT:
        await answer.send(send)


class WholeAnswer:
    """The events so far. Their amount is bounded by the request's own max_tokens."""

    def __init__(self, turn: Turn) -> None:
        self._turn = turn
        self._builder = turn.dialect.whole(turn.head)
        self._error: ApiError | None = None
        self._foreign: UpstreamBody | None = None

    async def run(self) -> None:
        """Run the turn to its end."""
        turn = self._turn
        self.end(await error_of(turn.edge.run_turn(turn.request, turn.caller, self.emit)))

    def emit(self, event: TurnEvent) -> None:
        """Take in an event of the turn."""
        match event:
            case Failed():
                self._error = event.error
                return
            case UpstreamBody():
                self._foreign = event
                return
            case UpstreamChunk():
                raise TypeError("a stream's chunk came for an answer that is not streamed")
            case Started():
                self._turn.started = event
            case Usage():
                self._turn.usage = event
            case _:
                self._turn.note_content()
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

    async def send(self, send: Send) -> None:
        """Send the answer, or the error that it ended in."""
        headers = self._turn.headers()
        if self._error is not None:
            await send_error(send, self._error, headers)
        elif self._foreign is not None:
            await send_body(send, self._foreign.status, self._foreign.body, headers=headers)
        else:
            await send_body(send, 200, self._builder.body(), headers=headers)
