"""The seam between a turn and the API in which it is told.

Owns what a way of writing answers has to offer: one for streams, one for answers in one piece. The
chat API's is in `chat_formatter.py`. Must not know how any of them looks.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import msgspec

from gateway.api.errors import ApiError
from gateway.api.events import ChoiceEvent, ContentEvent, Started, Usage


class AnswerHead(msgspec.Struct, frozen=True):
    """What every part of an answer repeats; `created` is in Unix seconds. `include_usage`: the
    client wants the usage in its stream too.
    """

    id: str
    created: int
    model: str
    include_usage: bool = False


class StreamFormatter(Protocol):
    """The server-sent events of one streamed answer."""

    def head(self, num_choices: int = 1) -> bytes:
        """What opens the stream; b"" for nothing."""
        ...

    def keep_alive(self) -> bytes:
        """What says nothing, but that the answer is still coming; b"" if nothing can."""
        ...

    def format(self, event: ChoiceEvent) -> bytes:
        """The bytes for `event`; b"" where the client is told nothing."""
        ...

    def error(self, error: ApiError) -> bytes:
        """The answer ends in `error`; nothing may follow."""
        ...

    def done(self) -> bytes:
        """The answer is complete."""
        ...


class BodyBuilder(Protocol):
    """The body of one answer that is not streamed."""

    def add(self, event: ContentEvent) -> None:
        """Take in what a choice gives."""
        ...

    def body(self, started: Started | None = None, usage: Usage | None = None) -> bytes:
        """The JSON of what was added, and of who answered at what cost, as far as that is known."""
        ...


@dataclass(frozen=True, slots=True)
class Dialect:
    """How an API writes its answers. `id_prefix` begins their ids."""

    id_prefix: str
    streamed: Callable[[AnswerHead], StreamFormatter]
    whole: Callable[[AnswerHead], BodyBuilder]
