"""The bodies of POST /tokenize and POST /detokenize, and their answers; vLLM's shapes.

Must not know tokenizers or HTTP.
"""

from typing import Annotated, Any

import msgspec
from msgspec import Meta

from gateway.api.chat_body import MessageBody
from gateway.api.sampling_body import TokenId

ModelName = Annotated[str, Meta(min_length=1)]


class TokenizeBody(msgspec.Struct, kw_only=True):
    """Either a text in `prompt` or a chat in `messages`. Null counts as absent; the model may be
    left out where there is only one.
    """

    model: ModelName | None = None
    prompt: str | None = None
    messages: Annotated[list[MessageBody], Meta(min_length=1)] | None = None
    tools: list[dict[str, Any]] | None = None
    add_special_tokens: bool | None = None
    add_generation_prompt: bool | None = None
    return_token_strs: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None


class DetokenizeBody(msgspec.Struct, kw_only=True):
    """Token ids to be read."""

    model: ModelName | None = None
    tokens: list[TokenId]


class Tokenized(msgspec.Struct):
    """`max_model_len` is the model's window, if known."""

    count: int
    max_model_len: int | None
    tokens: list[int]
    token_strs: list[str] | None = None


class Detokenized(msgspec.Struct):
    """The text of the tokens, control tokens spelt out."""

    prompt: str
