"""The format of an API's answers: the interface between the event stream and the formatters.

Owns what a format consists of (one formatter for streams, one for whole bodies), the parts that all
formats share, and the running usage in chunks. Must not know any single format, such as
`chat_formatter.py`.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final, Protocol

import msgspec
from msgspec import UNSET, UnsetType

from gateway.api.errors import ApiError
from gateway.api.events import (
    ChoiceEvent,
    ChoiceFinished,
    ContentEvent,
    ReasoningDelta,
    Started,
    TextDelta,
    ToolCallDelta,
    Usage,
)

DONE: Final = b"data: [DONE]\n\n"
CHUNK_END: Final = b"}\n\n"
"""The end of every event except the last one, `data: [DONE]`."""

COUNTED: Final = (TextDelta, ReasoningDelta, ToolCallDelta, ChoiceFinished)
"""Events that a running count precedes, if the client asks for it."""

_encode = msgspec.json.Encoder().encode


class AnswerHead(msgspec.Struct, frozen=True):
    """The values that every part of an answer repeats; `created` is in Unix seconds.
    `include_usage`: the stream ends with the usage.
    """

    id: str
    created: int
    model: str
    include_usage: bool = False


class StreamFormatter(Protocol):
    """The server-sent events of one streamed answer."""

    def head(self, num_choices: int = 1) -> bytes:
        """The first bytes of the stream; may be b""."""
        ...

    def keep_alive(self) -> bytes:
        """A chunk without content, for an answer that is still coming; b"" if there is none."""
        ...

    def format(self, event: ChoiceEvent) -> bytes:
        """The bytes for `event`; b"" if the format has none for it."""
        ...

    def error(self, error: ApiError) -> bytes:
        """The last bytes of an answer that ends in `error`."""
        ...

    def done(self) -> bytes:
        """The last bytes of a complete answer."""
        ...


class BodyBuilder(Protocol):
    """The body of one answer that is not streamed."""

    def add(self, event: ContentEvent) -> None:
        """Add content of a choice."""
        ...

    def body(self, started: Started | None = None, usage: Usage | None = None) -> bytes:
        """The JSON of the added content, with the server and the usage if they are known."""
        ...


@dataclass(frozen=True, slots=True)
class ApiFormat:
    """How the API called `name` writes its answers. Their ids begin with `id_prefix` and end in
    `id_suffix`, or in random digits without one. `error_body` is the whole body of an error.
    """

    name: str
    id_prefix: str
    streamed: Callable[[AnswerHead], StreamFormatter]
    whole: Callable[[AnswerHead], BodyBuilder]
    error_body: Callable[[ApiError], bytes] = ApiError.body
    id_suffix: str = ""


class PromptDetails(msgspec.Struct):
    """Parts of the prompt's tokens."""

    cached_tokens: int


class CompletionDetails(msgspec.Struct):
    """Parts of the answer's tokens."""

    reasoning_tokens: int


class UsageObject(msgspec.Struct):
    """Tokens over all choices. `is_estimate`: the upstream has counted nothing."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptDetails
    completion_tokens_details: CompletionDetails
    is_estimate: bool | UnsetType = UNSET

    @staticmethod
    def of(usage: Usage) -> "UsageObject":
        return UsageObject(
            usage.prompt_tokens,
            usage.completion_tokens,
            usage.prompt_tokens + usage.completion_tokens,
            PromptDetails(usage.cached_tokens),
            CompletionDetails(usage.reasoning_tokens),
            usage.is_estimate or UNSET,
        )


class HermaObject(msgspec.Struct, omit_defaults=True):
    """The worker or provider of an answer, its cached tokens, and why it was chosen; if it drafted,
    how many drafts were verified and accepted.
    """

    worker: str
    cached_tokens: int
    route: str
    served_by: str
    drafted_tokens: int = 0
    accepted_tokens: int = 0

    @staticmethod
    def of(started: Started, usage: Usage | None = None) -> "HermaObject":
        """`usage` has the final count of cached tokens, `started` the first."""
        found = HermaObject(started.worker, started.cached_tokens, started.route, started.served_by)
        if usage is not None:
            found.cached_tokens = usage.cached_tokens
            found.drafted_tokens = usage.drafted_tokens
            found.accepted_tokens = usage.accepted_tokens
        return found


def usage_chunk(envelope: bytes, usage: Usage, started: Started | None) -> bytes:
    """The last chunk, with the usage; `envelope` is the beginning of every chunk, up to a comma."""
    rest: dict[str, object] = {"choices": [], "usage": UsageObject.of(usage)}
    if started is not None:
        rest["herma"] = HermaObject.of(started, usage)
    return envelope + _encode(rest)[1:] + b"\n\n"


def error_chunk(error: ApiError) -> bytes:
    """The event of an error; no [DONE] may follow."""
    return b"data: " + error.body() + b"\n\n"


def with_herma(chunk: bytes, started: Started) -> bytes:
    """`chunk`, an event of any format, with its `herma` object; b"" stays b""."""
    herma = _encode(HermaObject.of(started))
    return chunk and chunk[: -len(CHUNK_END)] + b',"herma":' + herma + CHUNK_END


def with_continuous_usage(api: ApiFormat, num_choices: int) -> ApiFormat:
    """`api` with the running usage in every chunk, as vLLM's `continuous_usage_stats` has it."""
    return replace(api, streamed=lambda head: ContinuousUsage(api.streamed(head), num_choices))


class ContinuousUsage:
    """A `StreamFormatter` that adds running counts to the chunks of another one. A running count
    is a `Usage` event that comes before the last choice has finished.
    """

    def __init__(self, inner: StreamFormatter, num_choices: int) -> None:
        self._inner = inner
        self._num_going_on = num_choices
        self._running: Usage | None = None

    def head(self, num_choices: int = 1) -> bytes:
        return self._inner.head(num_choices)

    def keep_alive(self) -> bytes:
        return self._inner.keep_alive()

    def format(self, event: ChoiceEvent) -> bytes:
        if isinstance(event, Usage) and self._num_going_on:
            self._running = event
            return b""
        chunk = self._inner.format(event)
        if isinstance(event, ChoiceFinished):
            self._num_going_on -= 1
        if self._running is None or not chunk or not isinstance(event, COUNTED):
            return chunk
        usage = _encode(UsageObject.of(self._running))
        return chunk[: -len(CHUNK_END)] + b',"usage":' + usage + CHUNK_END

    def error(self, error: ApiError) -> bytes:
        return self._inner.error(error)

    def done(self) -> bytes:
        return self._inner.done()
