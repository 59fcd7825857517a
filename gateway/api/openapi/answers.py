"""The answers of the HTTP API as types.

Owns the shapes that the API's description shows and that tests hold real answers against. Nothing
is encoded by them: streams are written faster than that. Must not know HTTP. Answers of providers
may have more fields.
"""

from typing import Literal

import msgspec
from msgspec import UNSET, UnsetType

from gateway.api.events import TokenLogprob

FinishReason = Literal["stop", "length", "tool_calls"]


class ErrorObject(msgspec.Struct):
    """What went wrong: for people, and for programs by `code` and `param` (the field)."""

    message: str
    type: str
    param: str | None
    code: str | None


class ErrorBody(msgspec.Struct):
    """Every answer that is no success."""

    error: ErrorObject


class PromptDetails(msgspec.Struct):
    """Of the prompt's tokens."""

    cached_tokens: int


class CompletionDetails(msgspec.Struct):
    """Of the answer's tokens."""

    reasoning_tokens: int


class UsageObject(msgspec.Struct):
    """Tokens over all choices."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptDetails
    completion_tokens_details: CompletionDetails


class HermaObject(msgspec.Struct):
    """Who answered, from how much of its cache, and why it was chosen."""

    worker: str
    cached_tokens: int
    route: str
    served_by: str


class FunctionCall(msgspec.Struct):
    """`arguments` is JSON as text."""

    name: str
    arguments: str


class ToolCallObject(msgspec.Struct):
    """A call for the client to make."""

    id: str
    type: Literal["function"]
    function: FunctionCall


class ChatLogprobs(msgspec.Struct):
    """One entry per token of the content."""

    content: list[TokenLogprob]
    refusal: None


class ChatMessage(msgspec.Struct):
    """The answer; thoughts stand under both names that clients read."""

    role: Literal["assistant"]
    content: str | None
    refusal: None
    reasoning_content: str | UnsetType = UNSET
    reasoning: str | UnsetType = UNSET
    tool_calls: list[ToolCallObject] | UnsetType = UNSET


class ChatChoice(msgspec.Struct):
    """One of `n` answers."""

    index: int
    message: ChatMessage
    logprobs: ChatLogprobs | None
    finish_reason: FinishReason


class ChatCompletion(msgspec.Struct):
    """A chat answered in one piece."""

    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    choices: list[ChatChoice]
    usage: UsageObject
    herma: HermaObject | UnsetType = UNSET


class FunctionDelta(msgspec.Struct):
    """More of a call; the name comes once."""

    name: str | UnsetType = UNSET
    arguments: str | UnsetType = UNSET


class ToolCallPart(msgspec.Struct):
    """More of the call `index`; id and type come once."""

    index: int
    function: FunctionDelta
    id: str | UnsetType = UNSET
    type: Literal["function"] | UnsetType = UNSET


class ChatDelta(msgspec.Struct):
    """What this chunk adds to a choice."""

    role: Literal["assistant"] | UnsetType = UNSET
    content: str | UnsetType = UNSET
    reasoning_content: str | UnsetType = UNSET
    reasoning: str | UnsetType = UNSET
    tool_calls: list[ToolCallPart] | UnsetType = UNSET


class ChatChunkChoice(msgspec.Struct):
    """One choice in a chunk."""

    index: int
    delta: ChatDelta
    logprobs: ChatLogprobs | None
    finish_reason: FinishReason | None


class ChatChunk(msgspec.Struct):
    """The data of one event of a streamed chat; the last one has the usage and no choices."""

    id: str
    object: Literal["chat.completion.chunk"]
    created: int
    model: str
    choices: list[ChatChunkChoice]
    usage: UsageObject | UnsetType = UNSET
    herma: HermaObject | UnsetType = UNSET


class TextLogprobs(msgspec.Struct):
    """Lists of one entry per token."""

    tokens: list[str]
    token_logprobs: list[float]
    top_logprobs: list[dict[str, float]]
    text_offset: list[int]


class TextChoice(msgspec.Struct):
    """One of the answers to one of the prompts; the end comes last in a stream."""

    index: int
    text: str
    logprobs: TextLogprobs | None
    finish_reason: FinishReason | None


class TextCompletion(msgspec.Struct):
    """Raw completions in one piece, and the data of one event of a stream of them."""

    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    choices: list[TextChoice]
    usage: UsageObject | UnsetType = UNSET
    herma: HermaObject | UnsetType = UNSET


class ModelObject(msgspec.Struct):
    """A model by one of its names; `root` is its own, `max_model_len` its window, if known."""

    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    root: str
    max_model_len: int | UnsetType = UNSET


class ModelList(msgspec.Struct):
    """All names that answer; those of the models themselves are first, and their own `root`."""

    object: Literal["list"]
    data: list[ModelObject]


class Health(msgspec.Struct):
    """Whether anything can answer, and the state of each model."""

    status: Literal["ok", "starting", "down"]
    models: dict[str, Literal["ready", "starting", "down", "cloud"]]


class Version(msgspec.Struct):
    """Of the gateway."""

    version: str
