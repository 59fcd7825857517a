"""A streamed answer over ASGI: when its head goes out, what keeps it alive, how it ends.

Owns the choice between pushing (our server) and sending by a task (any other), and the latter. Must
not know where the events come from.

While nothing is decided the head is withheld, so that a refusal can be a status; a client that
waited for `head_hold_s` gets 200 and the role chunk, then an empty delta per `keep_alive_s` of
silence (SSE comments and `choices: []` do not count as life for common clients).
"""

import functools
from collections.abc import Awaitable, Callable

import trio
from starlette.types import Receive, Scope, Send

from gateway.http.buffer import ChunkBuffer
from gateway.http.request_context import RequestContext, while_connected
from gateway.http.response_writer import EXTENSION, MAX_PENDING_BYTES
from gateway.http.stream_push import push_answer
from gateway.http.streamed_answer import StreamedAnswer

Finish = Callable[[], Awaitable[None]]


async def stream_turn(turn: RequestContext, scope: Scope, receive: Receive, send: Send) -> None:
    """Run `turn` and stream its answer."""
    push = scope.get("extensions", {}).get(EXTENSION)
    if push is not None:
        await push_answer(turn, push, send)
    else:
        await _send_answer(turn, receive, send)


async def _send_answer(turn: RequestContext, receive: Receive, send: Send) -> None:
    """The last message is sent outside of the watch for the client: servers say `http.disconnect`
    while they take it, and must not be cancelled halfway.
    """
    answer = _SentAnswer(turn)
    finish: Finish | None = None
    try:
        async with while_connected(receive) as nursery:
            nursery.start_soon(answer.run)
            finish = await answer.send(send)
    finally:
        turn.observe()
    if finish is not None:
        await finish()


class _SentAnswer:
    """`run` feeds a bounded buffer, `send` writes it out; each in its own task."""

    def __init__(self, turn: RequestContext) -> None:
        self._turn = turn
        self._buffer = ChunkBuffer(MAX_PENDING_BYTES)
        self._answer = StreamedAnswer(turn, self._buffer.put)

    async def run(self) -> None:
        """Run the turn to its end; the buffer is closed afterwards."""
        with trio.CancelScope() as work:
            await self._answer.run(work)
        self._buffer.close()

    async def send(self, send: Send) -> Finish:
        """Write the answer out up to its last message, which is left for the caller to send."""
        config = self._turn.edge.config
        with trio.move_on_at(self._turn.started_at + config.head_hold_s):
            await self._buffer.wait()
        # Content that is already there is thrown away for an error: a clean retry is worth more
        # to a client than a fragment.
        if self._buffer.closed and (refuse := self._answer.refusal()):
            return functools.partial(refuse, send)
        # Together: who comes to answer while the head is sent is told of behind the opening.
        head, opening = self._answer.head(), self._answer.opening()
        await send({"type": "http.response.start", "status": 200, "headers": head})
        while True:
            chunks = opening + self._buffer.take()
            if self._buffer.closed:
                chunks += self._answer.ending()
                return functools.partial(_send_chunks, send, chunks, more=False)
            await _send_chunks(send, chunks, more=True)
            with trio.move_on_after(config.keep_alive_s) as silence:
                await self._buffer.wait()
            opening = self._answer.keep_alive() if silence.cancelled_caught else b""


async def _send_chunks(send: Send, chunks: bytes, *, more: bool) -> None:
    await send({"type": "http.response.body", "body": chunks, "more_body": more})
