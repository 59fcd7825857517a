"""POST /v1/embeddings: its body -> one request per input, and its answer.

Owns the shape of both. A client writes instructions before a query itself. Must not know HTTP,
tokenizers or how a prompt is embedded.
"""

import base64
import sys
from array import array
from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal

import msgspec
import xxhash
from msgspec import Meta

from gateway.api.api_format import AnswerHead, ApiFormat, StreamFormatter
from gateway.api.chat_parser import Rewrite
from gateway.api.completions_parser import Prompt, prompts_of
from gateway.api.events import ContentEvent, Embedded, Started, Usage
from gateway.api.json_body import decode_object, typed_body
from gateway.api.request import ChatRequest, TokenId, session_of

MAX_INPUTS: Final = 2048
"""OpenAI's limit."""

_UNREAD: Final[Mapping[str, tuple[object, ...]]] = {
    "truncate_prompt_tokens": (),
    "truncate": (False, "NONE"),
    "truncation": (False,),
    "normalize": (True,),
    "normalized": (True,),
    "add_special_tokens": (True,),
    "input_type": (),
    "task": (),
    "task_type": (),
    "instruction": (),
    "prompt_name": (),
    "output_dimension": (),
    "output_dimensionality": (),
    "output_dtype": ("float",),
    "embedding_type": ("float",),
    "embedding_types": (["float"],),
    "late_chunking": (False,),
    "messages": (),
}
"""Fields of other embedding servers that would change the embedding, each with the values that
change nothing here.
"""

_encode: Final = msgspec.json.Encoder().encode


class EmbeddingsBody(msgspec.Struct, kw_only=True):
    """Null counts as absent. A list is one of texts, one input in ids, or several such inputs."""

    model: Annotated[str, Meta(min_length=1)]
    input: str | Annotated[list[str | TokenId | list[TokenId]], Meta(min_length=1)]
    dimensions: Annotated[int, Meta(ge=1, le=2**20)] | None = None
    encoding_format: Literal["float", "base64"] | None = None


class EmbeddingObject(msgspec.Struct):
    """One embedding, of L2 norm 1: numbers, or float32 (little-endian) in base64."""

    index: int
    embedding: list[float] | str
    object: Literal["embedding"] = "embedding"


class EmbeddingUsage(msgspec.Struct):
    """Tokens of all inputs."""

    prompt_tokens: int
    total_tokens: int


class EmbeddingList(msgspec.Struct):
    """The embeddings in the order of the inputs."""

    data: list[EmbeddingObject]
    model: str
    usage: EmbeddingUsage
    object: Literal["list"] = "list"


def parse_embeddings(
    body: bytes, rewrite: Rewrite | None = None
) -> tuple[tuple[ChatRequest, ...], bool]:
    """The requests in `body` (JSON in UTF-8), after `rewrite` has replaced some of its fields, and
    whether the numbers are wanted in base64. The first request names what was not read. Raises
    `ApiError` 400 that names the field.
    """
    raw = decode_object(body)
    if rewrite is not None:
        raw = rewrite(raw)
    typed = typed_body(raw, EmbeddingsBody)
    prompts = prompts_of(typed.input, "input", MAX_INPUTS)
    fingerprint = xxhash.xxh3_128_digest(body)
    first, *others = (_request(typed, raw, at, one, fingerprint) for at, one in enumerate(prompts))
    unread = (name for name in sorted(_UNREAD.keys() & raw.keys()) if raw[name] is not None)
    ignored = tuple(name for name in unread if raw[name] not in _UNREAD[name])
    if ignored:
        first = msgspec.structs.replace(first, ignored=ignored)
    return (first, *others), typed.encoding_format == "base64"


def _request(
    typed: EmbeddingsBody, raw: dict[str, Any], at: int, prompt: Prompt, fingerprint: bytes
) -> ChatRequest:
    return ChatRequest(
        model=typed.model,
        messages=(),
        raw=raw,
        max_tokens=1,
        session=session_of(raw),
        fingerprint=xxhash.xxh3_128_digest(fingerprint + at.to_bytes(4, "little")),
        prompt=prompt,
        embeds=True,
        dimensions=typed.dimensions,
    )


def embeddings_format(*, in_base64: bool) -> ApiFormat:
    """How embeddings are written; they are never streamed."""
    return ApiFormat(
        name="embeddings",
        id_prefix="embd_",
        streamed=_no_stream,
        whole=lambda head: EmbeddingsBuilder(head, in_base64=in_base64),
    )


def _no_stream(head: AnswerHead) -> StreamFormatter:
    raise TypeError(f"embeddings are not streamed ({head.id})")


class EmbeddingsBuilder:
    """A `BodyBuilder`: one object with all embeddings."""

    def __init__(self, head: AnswerHead, *, in_base64: bool) -> None:
        self._model = head.model
        self._in_base64 = in_base64
        self._values: dict[int, bytes] = {}

    def add(self, event: ContentEvent) -> None:
        """See `BodyBuilder`; only ends come."""

    def take(self, event: Embedded) -> None:
        """Keep an embedding; a prompt that was moved to another worker may have two."""
        self._values[event.index] = event.values

    def body(self, started: Started | None = None, usage: Usage | None = None) -> bytes:  # noqa: ARG002
        """See `BodyBuilder`."""
        num_tokens = 0 if usage is None else usage.prompt_tokens
        data = [EmbeddingObject(at, self._written(self._values[at])) for at in sorted(self._values)]
        return _encode(EmbeddingList(data, self._model, EmbeddingUsage(num_tokens, num_tokens)))

    def _written(self, values: bytes) -> list[float] | str:
        if self._in_base64:
            return base64.b64encode(values).decode()
        numbers = array("f", values)
        if sys.byteorder == "big":
            numbers.byteswap()
        return numbers.tolist()
