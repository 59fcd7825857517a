"""The event stream of a turn: what every API formats, in the order of the answer.

Owns the closed union `TurnEvent`. Answers of workers are `ChoiceEvent`s: one `Started`, then
reasoning, text and tool calls per choice, one `ChoiceFinished` per choice, one `Usage`. Answers of
providers pass as bytes. Must not know HTTP, SSE or where text comes from.
"""

from typing import Any, Literal, final

import msgspec

from gateway.api.errors import ApiError

StopReason = Literal["stop", "length", "tool_calls", "content_filter"]
Annotation = dict[str, Any]
"""What a text refers to, in the shape of the Responses API: a `type`, as `url_citation` with a
`url`, and the fields of the type.
"""

Wanted = Literal["answer", "summary", "nothing"]
"""What the client gets: the answer, a summary of the conversation, or only a cached prompt."""


class _Event(msgspec.Struct, frozen=True, gc=False):
    """Frozen structs: 0.12 us to create, a frozen dataclass takes 0.57."""


class Started(_Event, frozen=True, gc=False):
    """The turn runs. `served_by` is "worker" or "cloud:NAME"; `worker` is the worker's name.

    `route` is the reason for that worker. `cached_tokens` of the prompt were found in its cache.
    `headers` are those of a provider's answer that are passed on to the client, whose
    `prompt_tokens` are not known yet.
    """

    served_by: str
    worker: str
    cached_tokens: int
    route: str
    model: str
    headers: tuple[tuple[bytes, bytes], ...] = ()
    prompt_tokens: int = 0


class TopLogprob(msgspec.Struct, frozen=True):
    """One alternative token at a position; `bytes` are its UTF-8 bytes as numbers."""

    token: str
    logprob: float
    bytes: list[int]


class TokenLogprob(msgspec.Struct, frozen=True):
    """The chosen token at a position, in the shape of the API's `logprobs.content`."""

    token: str
    logprob: float
    bytes: list[int]
    top_logprobs: tuple[TopLogprob, ...] = ()


@final
class TextDelta(_Event, frozen=True, gc=False):
    """More text of a choice; `logprobs` of its tokens, None if the client did not ask.
    `annotations` are the annotations of the choice's text so far that no earlier event had. By a
    text that `is_refusal` the model declines to answer.
    """

    index: int
    text: str
    logprobs: tuple[TokenLogprob, ...] | None = None
    annotations: tuple[Annotation, ...] = ()
    is_refusal: bool = False


@final
class ReasoningDelta(_Event, frozen=True, gc=False):
    """More reasoning of a choice, before its text."""

    index: int
    text: str


class ToolCallDelta(_Event, frozen=True, gc=False):
    """A part of the call `call_index` (from 0) of a choice: its start, arguments or end."""

    index: int
    call_index: int


class ToolCallStart(ToolCallDelta, frozen=True, gc=False):
    """A call begins; the previous one of the same choice has ended."""

    id: str
    name: str


@final
class ToolCallArguments(ToolCallDelta, frozen=True, gc=False):
    """More of the arguments. All of them together are one JSON object, unless the answer was cut
    short.
    """

    text: str


class ToolCallEnd(ToolCallDelta, frozen=True, gc=False):
    """The call has ended; unless it `is_whole` its arguments were cut short."""

    is_whole: bool = True


class ChoiceFinished(_Event, frozen=True, gc=False):
    """A choice is complete; `stop` is the stop string that ended it, if one did."""

    index: int
    reason: StopReason
    stop: str | None = None


class Usage(_Event, frozen=True, gc=False):
    """Tokens of the turn, over all choices. `accepted_tokens` of the completion were drafts, of
    `drafted_tokens` that a worker verified. `is_estimate`: the upstream has counted nothing.
    """

    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    reasoning_tokens: int = 0
    drafted_tokens: int = 0
    accepted_tokens: int = 0
    is_estimate: bool = False


@final
class UpstreamChunk(_Event, frozen=True, gc=False):
    """Whole SSE events (with their blank lines) of a provider, passed on unchanged."""

    data: bytes


class UpstreamBody(_Event, frozen=True, gc=False):
    """The whole answer of a provider, passed on unchanged."""

    status: int
    body: bytes


class UpstreamUsage(_Event, frozen=True, gc=False):
    """The tokens that a text-level engine or provider has counted. Clients get them in its own
    bytes; the gateway adds them to its sums.
    """

    usage: Usage


class Restarted(_Event, frozen=True, gc=False):
    """A provider begins the answer again, so the earlier parts of the answer do not count. This
    happens only to an answer in one piece of which nothing was sent.
    """


class Embedded(_Event, frozen=True, gc=False):
    """The embedding of a prompt: float32, little-endian."""

    index: int
    values: bytes


class PromptScored(_Event, frozen=True, gc=False):
    """The log-probabilities of a prompt: its `first` token, which has none, and the rest."""

    index: int
    first: str
    rest: tuple[TokenLogprob, ...]


class Failed(_Event, frozen=True, gc=False):
    """The turn ends in an error; nothing follows."""

    error: ApiError


ToolCallEvent = ToolCallStart | ToolCallArguments | ToolCallEnd
ContentEvent = ReasoningDelta | TextDelta | ToolCallEvent | ChoiceFinished
ChoiceEvent = Started | ContentEvent | Usage
TurnEvent = (
    ChoiceEvent
    | UpstreamChunk
    | UpstreamBody
    | UpstreamUsage
    | Restarted
    | Embedded
    | PromptScored
    | Failed
)
