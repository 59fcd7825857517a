"""A streamed answer as it grows: turn events in, server-sent events out.

Owns what every event means for the stream, and what the stream ends in. Must not know how bytes
reach the client, heads or clocks.
"""

import functools
from collections.abc import Awaitable, Callable

import trio
from starlette.types import Send

from gateway.api import (
    ApiError,
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
    Usage,
    connection_lost,
    with_herma,
)
from gateway.http.errors import error_of, send_error
from gateway.http.reply import Header, send_body
from gateway.http.request_context import RequestContext

_RareEvent = Started | ToolCallStart | ToolCallEnd | Finished | Usage | UpstreamBody | Failed

Refuse = Callable[[Send], Awaitable[None]]


class StreamedAnswer:
    """The answer of `turn`; `put` takes its bytes without waiting, and says whether it could.

    A `put` that could not ends the turn: the client has stopped reading. But not if it `is_gone`,
    which is the server's to notice. What follows the last text, its finish and the usage, waits for
    the end of the stream, which follows at once: each packet costs as much as all else of a token.
    `on_complete` is called when a worker's only choice is told to its end; the turn has yet to wake
    then, and ends later.
    """

    __slots__ = (
        "_error",
        "_foreign",
        "_format",
        "_formatter",
        "_from_provider",
        "_has_content",
        "_has_head",
        "_is_finished",
        "_is_gone",
        "_last",
        "_told",
        "_turn",
        "_work",
        "on_complete",
        "put",
    )

    def __init__(
        self,
        turn: RequestContext,
        put: Callable[[bytes], bool],
        is_gone: Callable[[], bool] = lambda: False,
    ) -> None:
        self._turn = turn
        self._is_gone = is_gone
        self.put = put
        self._formatter = turn.dialect.streamed(turn.head)
        self._format = self._formatter.format
        self._work: trio.CancelScope | None = None
        self._from_provider = False
        self._has_content = False
        self._has_head = False
        self._is_finished = False
        self._told: Started | None = None
        self.on_complete: Callable[[], object] | None = None
        self._last = b""
        self._error: ApiError | None = None
        self._foreign: UpstreamBody | None = None

    async def run(self, work: trio.CancelScope) -> None:
        """Run the turn to its end, within `work`, which is cancelled if the client stops reading;
        `refusal` and `ending` tell the end then.
        """
        turn = self._turn
        self._work = work
        error = await error_of(turn.edge.run_turn, turn.request, turn.caller, self.emit)
        self._error = self._error or error
        if self._error is None and self._foreign is None:
            self._error = connection_lost() if self._says_nothing else None

    def emit(self, event: TurnEvent) -> None:
        """Take in an event of the turn. Never waits and never raises: it is called while a worker's
        frame is taken apart.
        """
        # The first four are what nearly all come to: nothing is asked about them twice.
        if (
            type(event) is TextDelta
            or type(event) is ReasoningDelta
            or type(event) is ToolCallArguments
        ):
            # To call what is in a slot takes half as long if it is taken out first.
            in_bytes = self._format
            chunk = in_bytes(event)
        elif type(event) is UpstreamChunk:
            self._from_provider = True
            chunk = event.data
        else:
            chunk = self._take_rare(event)
        if chunk and self._error is None and self._foreign is None:
            if not self._has_content:
                self._has_content = True
                self._turn.note_content()
            put = self.put
            if not put(chunk):
                self._give_up()

    def opening(self) -> bytes:
        """What stands before the first content; a provider's stream has its own."""
        return b"" if self._from_provider else self._formatter.head(self._turn.request.n)

    def keep_alive(self) -> bytes:
        """What is said in a long silence."""
        return self._formatter.keep_alive()

    def head(self) -> list[Header]:
        """The headers of the stream, as far as its facts are known. If nobody answers yet, or
        another does in the end, the stream tells who.
        """
        self._has_head, self._told = True, self._turn.started
        return [
            (b"content-type", b"text/event-stream; charset=utf-8"),
            (b"cache-control", b"no-cache"),
            (b"x-accel-buffering", b"no"),
            *self._turn.headers(),
        ]

    def refusal(self) -> Refuse | None:
        """How a head that is still withheld can tell an error, if there is one."""
        headers = self._turn.headers()
        if self._error is not None:
            self._turn.status = self._error.status
            return functools.partial(send_error, error=self._error, headers=headers)
        if (foreign := self._foreign) is not None:
            self._turn.status = foreign.status
            return functools.partial(
                send_body, status=foreign.status, body=foreign.body, headers=headers
            )
        return None

    def ending(self) -> bytes:
        """What ends a stream whose head is out."""
        self._turn.status = self._error.status if self._error else 200
        if self._error is not None:
            return self._last + self._formatter.error(self._error)
        if self._foreign is not None:
            # JSON holds line breaks only between its tokens, and an SSE field may hold none.
            body = b"".join(self._foreign.body.splitlines())
            return self._last + b"data: " + body + b"\n\n"
        return self._last if self._from_provider else self._last + self._formatter.done()

    @property
    def _says_nothing(self) -> bool:
        """Nobody has begun it."""
        return self._turn.started is None and not self._has_content

    def _take_rare(self, event: _RareEvent) -> bytes:
        """What is put for `event`."""
        match event:
            case Failed():
                self._error = self._error or event.error
                return b""
            case UpstreamBody():
                self._foreign = event
                return b""
            case Finished() if self._turn.request.n == 1:
                self._turn.note_content()
                self._is_finished = True
                return self._keep_for_end(event)
            case Usage():
                self._turn.usage = event
                self._keep_for_end(event)
                is_whole = self._is_finished and self._error is None and not self._says_nothing
                if is_whole and self.on_complete is not None:
                    self.on_complete()
                return b""
            case Started():
                self._turn.started = event
                if self._has_head and self._is_news(event):
                    self._told = event
                    self._put_aside(with_herma(self._formatter.keep_alive(), event))
                return self._format(event)
            case _:
                return self._format(event)

    def _is_news(self, started: Started) -> bool:
        """Whether the client takes another for who answers. Who goes on with what has begun is not
        told.
        """
        told = self._told
        if told is None or self._has_content:
            return told is None
        return (started.served_by, started.worker) != (told.served_by, told.worker)

    def _put_aside(self, chunk: bytes) -> None:
        """What is no content of the answer."""
        if chunk and self._error is None and not self.put(chunk):
            self._give_up()

    def _keep_for_end(self, event: Finished | Usage) -> bytes:
        if self._error is None:
            self._last += self._format(event)
        return b""

    def _give_up(self) -> None:
        if self._is_gone():
            return
        self._error = ApiError(
            408, "The client has stopped reading its stream.", code="client_too_slow"
        )
        if self._work is not None:
            self._work.cancel()
