"""The body of POST /v1/chat/completions, also in the shape of the Responses API.

Owns how a body with `input` in the place of `messages` is read: as the Responses API reads it, to
be answered as a chat. Cursor sends such bodies for some names of models (codex-lb#833). Must not
know stored responses.
"""

from typing import Any, Final

import msgspec

from gateway.api.chat_parser import Rewrite, parse_chat_request
from gateway.api.errors import ApiError, invalid
from gateway.api.request import ChatRequest
from gateway.api.responses_parser import parse_responses, read_responses
from gateway.api.signatures import Signer

_STORED: Final = ("previous_response_id", "conversation", "background")
_CHAT_FIELDS: Final = frozenset(
    {
        "max_tokens", "max_completion_tokens", "stop", "n", "stream_options", "response_format",
        "reasoning_effort", "chat_template_kwargs", "enable_thinking", "min_p", "top_k",
        "presence_penalty", "frequency_penalty", "repetition_penalty", "logit_bias", "logprobs",
        "stop_token_ids", "ignore_eos",
    }
)  # fmt: skip
"""Fields of chats that such a body may have too."""


def parse_any_chat(body: bytes, signer: Signer, rewrite: Rewrite | None = None) -> ChatRequest:
    """The request in `body`; see `parse_chat_request` for the errors and `rewrite`."""
    try:
        return parse_chat_request(body, rewrite)
    except ApiError as error:
        if error.param != "messages" or body.find(b'"input"') < 0:
            raise
        return _from_input(body, signer, rewrite, error)


def _from_input(
    body: bytes, signer: Signer, rewrite: Rewrite | None, error: ApiError
) -> ChatRequest:
    draft = read_responses(body)
    if draft.typed.input is None:
        raise error
    for name in _STORED:
        if draft.raw.get(name):
            text = f"'{name}' belongs to /v1/responses; send the request there, or 'messages' here."
            raise invalid(name, text)
    own = {name: draft.raw[name] for name in _CHAT_FIELDS & draft.raw.keys()}

    def with_own(chat: dict[str, Any]) -> dict[str, Any]:
        merged = {**chat, **own}
        return merged if rewrite is None else rewrite(merged)

    asked = parse_responses(draft, signer, with_own)
    if asked.compacts:
        text = "'input' has a compaction_trigger, which belongs to /v1/responses."
        raise invalid("input", text)
    customs = {name: True for name, tool in asked.names.items() if tool.kind == "custom"}
    ignored = tuple(name for name in asked.request.ignored if name not in own)
    return msgspec.structs.replace(asked.request, custom_tools=customs, ignored=ignored)
