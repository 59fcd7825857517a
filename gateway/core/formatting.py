"""Turn events -> the bytes of the OpenAI chat API."""

from gateway.core.errors import ApiError
from gateway.core.events import ChoiceEvent, TurnEvent


class ChunkFormatter:
    """The SSE bytes of one streamed answer.

    `created` is in Unix seconds. With `include_usage` a `Usage` event becomes the last chunk
    (`choices: []`), else it is dropped.
    """

    def __init__(
        self, completion_id: str, created: int, model: str, *, include_usage: bool = False
    ) -> None:
        raise NotImplementedError

    def head(self, num_choices: int = 1) -> bytes:
        """The role chunk of every choice: role assistant, content ""."""
        raise NotImplementedError

    def keep_alive(self) -> bytes:
        """A chunk that says nothing, since clients do not count SSE comments as life."""
        raise NotImplementedError

    def format(self, event: TurnEvent) -> bytes:
        """The bytes for `event`; b"" where the client is told nothing (Started, unasked usage)."""
        raise NotImplementedError

    def error(self, error: ApiError) -> bytes:
        """An SSE error event; no [DONE] may follow."""
        raise NotImplementedError

    def done(self) -> bytes:
        """`data: [DONE]`."""
        raise NotImplementedError


class CompletionBuilder:
    """The body of one answer that is not streamed. `created` is in Unix seconds."""

    def __init__(self, completion_id: str, created: int, model: str) -> None:
        raise NotImplementedError

    def add(self, event: ChoiceEvent) -> None:
        """Take an event in."""
        raise NotImplementedError

    def body(self) -> bytes:
        """The JSON of what was added."""
        raise NotImplementedError
