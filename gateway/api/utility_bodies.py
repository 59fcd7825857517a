"""Bodies and answers of the endpoints that generate nothing: /tokenize and /detokenize (in vLLM's
shapes), /models, /health, /version.

Must not know tokenizers, workers or HTTP.
"""

from datetime import UTC, datetime
from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from gateway.api.chat_parser import MessageBody
from gateway.api.request import TokenId

ModelState = Literal["ready", "starting", "waking", "asleep", "down", "cloud"]
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
    """`max_model_len` is the model's context length, if known."""

    count: int
    max_model_len: int | None
    tokens: list[int]
    token_strs: list[str] | None = None


class Detokenized(msgspec.Struct):
    """The text of the tokens, control tokens spelled out."""

    prompt: str


class ModelObject(msgspec.Struct):
    """A model by one of its names; `root` is its own name. The numbers are its context length, if
    known, under vLLM's name and OpenRouter's. `state` is there while its workers are asleep or
    wake.
    """

    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    root: str
    max_model_len: int | UnsetType = UNSET
    context_length: int | UnsetType = UNSET
    state: str | UnsetType = UNSET


class TokenizerInfo(msgspec.Struct):
    """The special tokens of a model and its chat template, as its files say. The query names the
    `model` if there are several.
    """

    tokenizer_class: str | None
    bos_token: str | None
    eos_token: str | None
    unk_token: str | None
    sep_token: str | None
    pad_token: str | None
    cls_token: str | None
    mask_token: str | None
    chat_template: str | None
    model_max_length: int | None


class ModelList(msgspec.Struct):
    """All model names: first the models' own names, each of which is its own `root`, then the
    aliases. codex wants the array `models`, of a form of its own, and takes an empty one.
    """

    object: Literal["list"]
    data: list[ModelObject]
    models: list[dict[str, Any]] = []


class MessageModel(msgspec.Struct):
    """A model in the shape of Anthropic's API."""

    id: str
    type: Literal["model"]
    display_name: str
    created_at: str
    max_input_tokens: int | UnsetType = UNSET

    @staticmethod
    def of(model: ModelObject) -> "MessageModel":
        created_at = datetime.fromtimestamp(model.created, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        return MessageModel(model.id, "model", model.root, created_at, model.max_model_len)


class MessageModelList(msgspec.Struct):
    """All model names in the shape of Anthropic's API, on one page."""

    data: list[MessageModel]
    has_more: bool
    first_id: str | None
    last_id: str | None


def message_models(models: ModelList) -> MessageModelList:
    """`models` for clients of Anthropic's API."""
    data = [MessageModel.of(model) for model in models.data]
    first, last = (data[0].id, data[-1].id) if data else (None, None)
    return MessageModelList(data, has_more=False, first_id=first, last_id=last)


class Health(msgspec.Struct):
    """Whether anything can answer, and the state of each model. `draining`: the gateway stops, and
    only answers that have begun go on.
    """

    status: Literal["ok", "starting", "down", "draining"]
    models: dict[str, ModelState]


class Alive(msgspec.Struct):
    """The process answers."""

    status: Literal["alive"]


class Version(msgspec.Struct):
    """The version of the gateway."""

    version: str
