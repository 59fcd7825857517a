"""A streamed answer that is pushed: each chunk is written where it comes to be.

Owns when the head and the end leave, and what is said in a silence. No task wakes for a chunk: the
request's sleeps until the turn is over, and the server looks after silences. Must not know sockets
or turn events.

The server watches the client here, and cancels the request when it leaves.
"""

import trio
from starlette.types import Send

from gateway.http.request_context import RequestContext
from gateway.http.response_writer import ResponseWriter
from gateway.http.streamed_answer import Refuse, StreamedAnswer


async def push_answer(turn: RequestContext, push: ResponseWriter, send: Send) -> None:
    """Run `turn` and push its answer; an error in place of an answer goes by `send`."""
    pushed = _PushedAnswer(turn, push)
    try:
        with trio.CancelScope() as work:
            await pushed.answer.run(work)
        refuse = pushed.end()
    finally:
        pushed.let_go()
        turn.observe()
    if refuse is not None:
        await refuse(send)


class _PushedAnswer:
    __slots__ = (
        "_has_ended",
        "_is_open",
        "_push",
        "_turn",
        "answer",
    )

    def __init__(self, turn: RequestContext, push: ResponseWriter) -> None:
        self.answer = StreamedAnswer(turn, self._put_first, lambda: push.is_gone)
        self._turn = turn
        self._push = push
        self._is_open = False
        self._has_ended = False
        self.answer.on_complete = self.end
        push.watch(self._stay_alive, turn.started_at + turn.edge.config.head_hold_s)

    def end(self) -> Refuse | None:
        """End the stream, unless that is done; or how to refuse, while the head is withheld."""
        if self._has_ended:
            return None
        if not self._is_open:
            if (refuse := self.answer.refusal()) is not None:
                return refuse
            self._open()
            self._push.end(self.answer.opening() + self.answer.ending())
        else:
            self._push.end(self.answer.ending())
        self._has_ended = True
        return None

    def let_go(self) -> None:
        """Disturb no refusal, and leave no circle to the collector: it looks through what is old so
        rarely that thousands of requests with their prompts would wait for it.
        """
        self._push.unwatch()
        self.answer.put = self._push.write
        self.answer.on_complete = None

    def _stay_alive(self, now: float) -> float:
        """Send the head when it was held long enough, then something in every silence."""
        keep_alive_s = self._turn.edge.config.keep_alive_s
        if not self._is_open:
            self._put_first(b"")
        elif now >= self._push.wrote_at + keep_alive_s:
            self.answer.put(self.answer.keep_alive())
        return self._push.wrote_at + keep_alive_s

    def _put_first(self, chunk: bytes) -> bool:
        self._open()
        return self._push.write(self.answer.opening() + chunk)

    def _open(self) -> None:
        self._is_open = True
        self.answer.put = self._push.write
        self._push.open(200, self.answer.head())
