"""The shape of a chat completion body: types and bounds of the fields that Herma reads.

Owns the declarative half of validation, which msgspec runs. Must not know what the fields mean
together (`openai.py` does). Fields that are not listed here are accepted and kept in `raw`.
"""

from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta

from protocol.sampling import MAX_LOGPROBS, MAX_STOP_IDS

Part = dict[str, Any]

MAX_STOP_CHARS: Final = 1024
"""Every choice compiles every stop string, 0.1 us per character, on the loop of all streams."""

StopText = Annotated[str, Meta(min_length=1, max_length=MAX_STOP_CHARS)]


class FunctionBody(msgspec.Struct):
    """The function of a tool call in the history; null arguments count as none."""

    name: str
    arguments: str | dict[str, Any] | None = None


class ToolCallBody(msgspec.Struct):
    """A tool call in the history."""

    function: FunctionBody
    id: str | None = None


class MessageBody(msgspec.Struct):
    """A message; `reasoning` is the older name of `reasoning_content`."""

    role: str
    content: str | list[Part] | None = None
    name: str | None = None
    tool_calls: list[ToolCallBody] | None = None
    tool_call_id: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None


class StreamOptions(msgspec.Struct):
    """What a stream adds."""

    include_usage: bool | None = None


class ChatBody(msgspec.Struct):
    """The fields of the request that Herma reads; null counts as absent."""

    model: Annotated[str, Meta(min_length=1)]
    messages: Annotated[list[MessageBody], Meta(min_length=1)]
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    max_tokens: Annotated[int, Meta(ge=1, le=2**31 - 1)] | None = None
    max_completion_tokens: Annotated[int, Meta(ge=1, le=2**31 - 1)] | None = None
    temperature: Annotated[float, Meta(ge=0, le=100)] | None = None
    top_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    top_k: Annotated[int, Meta(ge=-1, le=2**31 - 1)] | None = None
    min_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    presence_penalty: Annotated[float, Meta(ge=-2, le=2)] | None = None
    frequency_penalty: Annotated[float, Meta(ge=-2, le=2)] | None = None
    repetition_penalty: Annotated[float, Meta(ge=0.01, le=100)] | None = None
    n: Annotated[int, Meta(ge=1, le=16)] | None = None
    stop: StopText | Annotated[list[StopText], Meta(max_length=16)] | None = None
    stop_token_ids: (
        Annotated[list[Annotated[int, Meta(ge=0, le=2**32 - 1)]], Meta(max_length=MAX_STOP_IDS)]
        | None
    ) = None
    ignore_eos: bool | None = None
    seed: Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)] | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Meta(ge=0, le=MAX_LOGPROBS)] | None = None
    chat_template_kwargs: dict[str, Any] | None = None
