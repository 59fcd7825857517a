"""Whole answers: an answer in one piece, as JSON.

Owns how the events of a turn become one body, and when it is sent. Must not know how a turn runs,
nor how bytes reach the client.
"""

from gateway.api import (
    ChoiceFinished,
    ContentEvent,
    Embedded,
    EmbeddingsBuilder,
    Failed,
    PromptScored,
    ReasoningDelta,
    Restarted,
    Started,
    TextDelta,
    ToolCallArguments,
    ToolCallEnd,
    ToolCallStart,
    TurnEvent,
    UpstreamBody,
    UpstreamChunk,
    UpstreamUsage,
    Usage,
    connection_lost,
)
from gateway.http.answer_state import (
    DEAF,
    END,
    ENDED,
    FINISH,
    REPLACE,
    REPLACED,
    TABLE,
    WHOLE,
)
from gateway.http.error_responses import JSON_TYPE, error_of
from gateway.http.streamed_answer import ClientAnswer

_RareEvent = (
    ToolCallStart
    | ToolCallArguments
    | ToolCallEnd
    | Failed
    | UpstreamUsage
    | Restarted
    | UpstreamChunk
    | Embedded
    | PromptScored
)


class WholeAnswer(ClientAnswer):
    """An answer in one piece. It keeps all events, whose number the request's max_tokens bounds.

    The answer is sent with its last event, within the link's frame callback, before the turn does
    its accounting.
    """

    __slots__ = ("_builder", "_num_unfinished")

    async def run(self) -> None:
        """Run the turn and send its whole answer."""
        self._begin_anew()
        try:
            error = await error_of(self._edge.run_turn, self.request, self.caller, self.emit)
            if self.state is not ENDED:
                if error is None and self.started is None and self.state not in DEAF:
                    error = connection_lost()
                if error is not None:
                    self._fail(error)
                self._respond()
        finally:
            self._observe()

    def emit(self, event: TurnEvent) -> None:
        """Add an event of the turn."""
        kind = type(event)
        if kind is TextDelta or kind is ReasoningDelta or kind is ChoiceFinished:
            self._add(event)  # type: ignore[arg-type] # as `kind` tells
        elif kind is Started:
            self.started = event  # type: ignore[assignment] # as `kind` tells
        elif kind is Usage:
            self.usage = event  # type: ignore[assignment] # as `kind` tells
            # Without a `Started` event `run` answers with an error.
            if self.state in WHOLE and self.started is not None:
                self._respond()
        elif kind is UpstreamBody:
            self._foreign = event  # type: ignore[assignment] # as `kind` tells
            self.state = TABLE[self.state, REPLACE]
        else:
            self._take_rare(event)  # type: ignore[arg-type] # as `kind` tells

    def _take_rare(self, event: _RareEvent) -> None:
        match event:
            case Failed():
                self._fail(event.error)
            case UpstreamUsage():
                self.usage = event.usage
            case Restarted():
                self._begin_anew()
            case UpstreamChunk() | Embedded() | PromptScored():
                raise TypeError(f"{type(event).__name__} came for an answer of text in one piece")
            case _:
                self._add(event)

    def _add(self, event: ContentEvent) -> None:
        trace = self.trace
        if trace.first_at is None:
            trace.first_at = self._edge.now()
        self._builder.add(event)
        if type(event) is ChoiceFinished:
            trace.finish = event.reason
            self._num_unfinished -= 1
            if not self._num_unfinished:
                self.state = TABLE[self.state, FINISH]

    def _begin_anew(self) -> None:
        self._builder = self._api.whole(self._head)
        self._num_unfinished = self.request.n

    def _respond(self) -> None:
        state, self.state = self.state, TABLE[self.state, END]
        if state is REPLACED:
            self._respond_with_failure()
            return
        self.status = 200
        body = self._builder.body(self.started, self.usage)
        self._writer.respond(200, (JSON_TYPE, *self._headers()), body)


class EmbeddingsAnswer(WholeAnswer):
    """An answer of embeddings. Each comes as an event before the `ChoiceFinished` of its prompt."""

    __slots__ = ()

    def emit(self, event: TurnEvent) -> None:
        """Add an event of the turn."""
        if not isinstance(event, Embedded):
            super().emit(event)
            return
        self._note_content()
        if not isinstance(self._builder, EmbeddingsBuilder):
            raise TypeError("an embedding came for an answer of text")
        self._builder.take(event)
