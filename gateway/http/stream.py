"""A streamed answer: turn events -> server-sent events.

Owns when the head goes out, what keeps a silent stream alive and how it ends. Must not know where
the events come from.

While nothing is decided the head is withheld, so that a refusal can be a status; a client that
waited for `head_hold_s` gets 200 and the role chunk, then an empty delta per `keep_alive_s` of
silence (SSE comments and `choices: []` do not count as life for common clients).
"""

import functools
from collections.abc import Awaitable, Callable
from typing import Final

import trio
from starlette.types import Receive, Send

from gateway.core.errors import ApiError, connection_lost
from gateway.core.events import Failed, Started, TurnEvent, UpstreamBody, UpstreamChunk, Usage
from gateway.http.buffer import ChunkBuffer
from gateway.http.errors import error_of, send_error
from gateway.http.reply import send_body
from gateway.http.turn import Turn, while_connected

MAX_PENDING_BYTES: Final = 2**20
"""About a minute of text for a client that has stopped reading."""

Finish = Callable[[], Awaitable[None]]


async def stream_turn(turn: Turn, receive: Receive, send: Send) -> None:
    """Run `turn` and stream its answer.

    The last message is sent outside of the watch for the client: servers say `http.disconnect`
    while they take it, and must not be cancelled halfway.
    """
    answer = StreamedAnswer(turn)
    finish: Finish | None = None
    try:
        async with while_connected(receive) as nursery:
            nursery.start_soon(answer.run)
            finish = await answer.send(send)
    finally:
        turn.observe()
    if finish is not None:
        await finish()


class StreamedAnswer:
    """`run` feeds events into a bounded buffer, `send` writes it out; each in its own task."""

    def __init__(self, turn: Turn) -> None:
        self._turn = turn
        self._buffer = ChunkBuffer(MAX_PENDING_BYTES)
        self._formatter = turn.dialect.streamed(turn.head)
        self._work = trio.CancelScope()
        self._from_provider = False
        self._error: ApiError | None = None
        self._foreign: UpstreamBody | None = None

    async def run(self) -> None:
        """Run the turn to its end; the buffer is closed afterwards."""
        turn = self._turn
        error: ApiError | None = None
        with self._work:
            error = await error_of(turn.edge.run_turn(turn.request, turn.caller, self.emit))
        self._end(self._error or error)

    def emit(self, event: TurnEvent) -> None:
        """Take in an event of the turn. Never waits and never raises: it is called while a worker's
        frame is taken apart.
        """
        match event:
            case Started():
                self._turn.started = event
            case Failed():
                self._error = self._error or event.error
                return
            case UpstreamBody():
                self._foreign = event
                return
            case UpstreamChunk():
                self._from_provider = True
                self._turn.note_content()
            case Usage():
                self._turn.usage = event
            case _:
                self._turn.note_content()
        self._put(self._formatter.format(event))

    async def send(self, send: Send) -> Finish:
        """Write the answer out up to its last message, which is left for the caller to send."""
        config = self._turn.edge.config
        with trio.move_on_at(self._turn.started_at + config.head_hold_s):
            await self._buffer.wait()
        if self._buffer.closed and (refusal := self._refusal(send)):
            return refusal
        await self._send_head(send)
        opening = b"" if self._from_provider else self._formatter.head(self._turn.request.n)
        while True:
            chunks = opening + self._buffer.take()
            if self._buffer.closed:
                self._turn.status = self._error.status if self._error else 200
                return functools.partial(_send_chunks, send, chunks, more=False)
            await _send_chunks(send, chunks, more=True)
            with trio.move_on_after(config.keep_alive_s) as silence:
                await self._buffer.wait()
            opening = self._formatter.keep_alive() if silence.cancelled_caught else b""

    def _put(self, chunk: bytes) -> None:
        if self._buffer.closed or self._error is not None:
            return
        if not self._buffer.put(chunk):
            self._error = ApiError(
                408, "The client has stopped reading its stream.", code="client_too_slow"
            )
            self._work.cancel()

    def _end(self, error: ApiError | None) -> None:
        foreign = self._foreign
        if error is None and foreign is None and not self._turn.started and not self._buffer:
            error = connection_lost()
        self._error = error
        if error is not None:
            self._buffer.close(self._formatter.error(error))
        elif foreign is not None:
            # JSON holds line breaks only between its tokens, and an SSE field may hold none.
            self._buffer.close(b"data: " + b"".join(foreign.body.splitlines()) + b"\n\n")
        else:
            self._buffer.close(b"" if self._from_provider else self._formatter.done())

    def _refusal(self, send: Send) -> Finish | None:
        """How the withheld head can still tell an error, if there is one.

        Content that is already there is thrown away: a clean retry is worth more to a client
        than a fragment.
        """
        headers = self._turn.headers()
        if self._error is not None:
            self._turn.status = self._error.status
            return functools.partial(send_error, send, self._error, headers)
        if self._foreign is not None:
            self._turn.status = self._foreign.status
            return functools.partial(
                send_body, send, self._foreign.status, self._foreign.body, headers=headers
            )
        return None

    async def _send_head(self, send: Send) -> None:
        headers = [
            (b"content-type", b"text/event-stream; charset=utf-8"),
            (b"cache-control", b"no-cache"),
            (b"x-accel-buffering", b"no"),
            *self._turn.headers(),
        ]
        await send({"type": "http.response.start", "status": 200, "headers": headers})


async def _send_chunks(send: Send, chunks: bytes, *, more: bool) -> None:
    await send({"type": "http.response.body", "body": chunks, "more_body": more})
