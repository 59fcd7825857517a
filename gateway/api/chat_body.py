"""The shape of a chat completion body: types and bounds of the fields that Herma reads.

Owns the declarative half of validation, which msgspec runs. Must not know what the fields mean
together (`chat_parser.py` does). Fields that are not listed here are accepted and kept in `raw`.
"""

from typing import Annotated, Any

import msgspec
from msgspec import Meta

from gateway.api.sampling_body import OutputCap, SamplingBody
from protocol.sampling import MAX_LOGPROBS

Part = dict[str, Any]


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


class ChatBody(SamplingBody, kw_only=True):
    """The fields of the request that Herma reads; null counts as absent."""

    messages: Annotated[list[MessageBody], Meta(min_length=1)]
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    max_completion_tokens: OutputCap | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Meta(ge=0, le=MAX_LOGPROBS)] | None = None
    chat_template_kwargs: dict[str, Any] | None = None
