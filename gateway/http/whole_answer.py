"""Whole answers: an answer in one piece, as JSON.

Owns how the events of a turn become one body, and when it is sent. Must not know how a turn runs,
nor how bytes reach the client.
"""

from gateway.api import (
    Embedded,
    EmbeddingsBuilder,
    Failed,
    Finished,
    PromptScored,
    Started,
    TurnEvent,
    UpstreamBody,
    UpstreamChunk,
    UpstreamUsage,
    Usage,
    connection_lost,
)
from gateway.http.responses import JSON_TYPE, error_of
from gateway.http.sse_writer import Answer


class WholeAnswer(Answer):
    """An answer in one piece. It keeps all events, whose number the request's max_tokens bounds.

    The answer is sent with its last event, within the link's frame callback, before the turn does
    its accounting.
    """

    _has_responded = False

    async def run(self) -> None:
        """Run the turn and send its whole answer."""
        self._builder = self._api.whole(self._head)
        self._num_unfinished = self.request.n
        try:
            error = await error_of(self._edge.run_turn, self.request, self.caller, self.emit)
            if not self._has_responded:
                self._error = error or self._error
                if self._error is None and self._foreign is None and self.started is None:
                    self._error = connection_lost()
                self._respond()
        finally:
            self._observe()

    def emit(self, event: TurnEvent) -> None:
        """Add an event of the turn."""
        match event:
            case Started():
                self.started = event
            case Usage():
                self.usage = event
                is_whole = not self._num_unfinished and self._error is None
                # Without a `Started` event `run` answers with an error.
                if is_whole and self.started is not None and not self._has_responded:
                    self._respond()
            case Failed():
                self._error = event.error
            case UpstreamBody():
                self._foreign = event
            case UpstreamUsage():
                self.usage = event.usage
            case UpstreamChunk():
                raise TypeError("a stream's chunk came for an answer that is not streamed")
            case Embedded() | PromptScored():
                raise TypeError(f"{type(event).__name__} came for an answer of text")
            case _:
                self._note_content()
                self._builder.add(event)
                if type(event) is Finished:
                    self._num_unfinished -= 1
                    self.trace.finish = event.reason

    def _respond(self) -> None:
        self._has_responded = True
        if not self._respond_with_failure():
            self.status = 200
            body = self._builder.body(self.started, self.usage)
            self._writer.respond(200, (JSON_TYPE, *self._headers()), body)


class EmbeddingsAnswer(WholeAnswer):
    """An answer of embeddings. Each comes as an event before the `Finished` of its prompt."""

    def emit(self, event: TurnEvent) -> None:
        """Add an event of the turn."""
        if not isinstance(event, Embedded):
            super().emit(event)
            return
        self._note_content()
        if not isinstance(self._builder, EmbeddingsBuilder):
            raise TypeError("an embedding came for an answer of text")
        self._builder.take(event)
