"""Background answers: answers that no client waits for.

Owns how the events of a turn become the record of a response that runs in the background, and how
the response ends: complete, failed, cancelled, or because the gateway stops. Must not know its
readers.
"""

from typing import Any

from gateway.api import (
    STOPPED,
    ApiError,
    ChoiceFinished,
    Embedded,
    Failed,
    PromptScored,
    ResponseStream,
    Restarted,
    Started,
    TurnEvent,
    UpstreamBody,
    UpstreamChunk,
    UpstreamUsage,
    Usage,
    connection_lost,
)
from gateway.http.error_responses import error_of
from gateway.http.streamed_answer import ClientAnswer
from gateway.responses import BackgroundRun, ResponseRecord


class BackgroundAnswer(ClientAnswer):
    """The stream of a response, which goes only to its record."""

    __slots__ = ("_formatter", "_record")

    def begin(self, record: ResponseRecord) -> dict[str, Any]:
        """Record the response as queued; returns it in that state."""
        formatter = self._api.streamed(self._head)
        if not isinstance(formatter, ResponseStream):
            raise TypeError("only responses run in the background")
        self._record, self._formatter = record, formatter
        formatter.head()
        return record.response

    async def run(self, running: BackgroundRun) -> None:
        """Run the turn and record its end, also if this call is cancelled."""
        try:
            error = await error_of(self._edge.run_turn, self.request, self.caller, self.emit)
            self._error = self._error or error
            if self._error is None and self.started is None and self.trace.first_at is None:
                self._error = connection_lost()
            self._end()
        finally:
            if not self._record.has_ended:
                self._break_off(running)
            self._observe()

    def emit(self, event: TurnEvent) -> None:
        """Record an event of the turn. Never waits."""
        match event:
            case Failed():
                self._error = self._error or event.error
                return
            case UpstreamUsage():
                self.usage = event.usage
                return
            case UpstreamBody() | UpstreamChunk() | Restarted() | Embedded() | PromptScored():
                raise TypeError(f"{type(event).__name__} came where text is expected")
            case Started():
                self.started = event
            case Usage():
                self.usage = event
            case ChoiceFinished():
                self._note_content()
                self.trace.finish = event.reason
            case _:
                self._note_content()
        if self._error is None:
            self._formatter.format(event)

    def _end(self) -> None:
        if self._error is None:
            self.status = 200
            self._formatter.done()
            return
        # A gateway that stops ends turns with `connection_lost`; the record gives the real reason.
        error = ApiError(503, STOPPED) if self._edge.draining() else self._error
        self.status = error.status
        self._formatter.error(error)

    def _break_off(self, running: BackgroundRun) -> None:
        if running.is_cancelled:
            self._formatter.cancel()
        else:
            self.status = 503
            self._formatter.error(ApiError(503, STOPPED))
