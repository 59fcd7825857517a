"""Bodies and answers of the endpoints that generate nothing: /tokenize and /detokenize (in vLLM's
shapes), /models, /health, /version.

Must not know tokenizers, workers or HTTP.
"""

from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from gateway.api.chat_parser import MessageBody
from gateway.api.request import TokenId

ModelState = Literal["ready", "starting", "down", "cloud"]
ModelName = Annotated[str, Meta(min_length=1)]


class TokenizeBody(msgspec.Struct, kw_only=True):
    """Either a text in `prompt` or a chat in `messages`. Null counts as absent; `model` may be
    absent if there is only one.
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
    """Token ids to turn into text."""

    model: ModelName | None = None
    tokens: list[TokenId]


class Tokenized(msgspec.Struct):
    """`max_model_len` is the model's window, if known."""

    count: int
    max_model_len: int | None
    tokens: list[int]
    token_strs: list[str] | None = None


class Detokenized(msgspec.Struct):
    """The text of the tokens, control tokens spelled out."""

    prompt: str


class ModelObject(msgspec.Struct):
    """A model by one of its names; `root` is its own, `max_model_len` its window, if known."""

    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    root: str
    max_model_len: int | UnsetType = UNSET


class ModelList(msgspec.Struct):
    """All model names: those of the models first, which are their own `root`, then the aliases."""

    object: Literal["list"]
    data: list[ModelObject]


class Health(msgspec.Struct):
    """Whether anything can answer, and the state of each model."""

    status: Literal["ok", "starting", "down"]
    models: dict[str, ModelState]


class Version(msgspec.Struct):
    """The version of the gateway."""

    version: str
