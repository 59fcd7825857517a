"""The body of POST /v1/completions -> one request per prompt.

Owns the shape of the body, the forms of `prompt` and the rules between the fields. Must not know
HTTP or tokenizers.
"""

from typing import Annotated, Any, Final

import msgspec
import xxhash
from msgspec import Meta

from gateway.api.chat_parser import Rewrite
from gateway.api.errors import ApiError, invalid
from gateway.api.ignored_fields import fields_of_others, not_served
from gateway.api.json_body import decode_object, typed_body
from gateway.api.request import (
    ChatRequest,
    SamplingBody,
    TokenId,
    request_of,
)
from protocol.sampling import MAX_LOGPROBS

DEFAULT_MAX_TOKENS: Final = 16
"""OpenAI's default."""

MAX_PROMPTS: Final = 64
"""Each prompt is a turn with `n` choices."""

Prompt = str | tuple[int, ...]

# What the checks below require beyond the types, for the description of the API.
_NOT_EMPTY: Final = {"minLength": 1}
_ONE_KIND: Final = {
    "anyOf": [
        {"items": {"type": "integer"}},
        {"items": {"type": "string", "minLength": 1}, "maxItems": MAX_PROMPTS},
        {"items": {"type": "array", "minItems": 1}, "maxItems": MAX_PROMPTS},
    ]
}
_ANY_TEXT: Final = {"properties": {"type": {"const": "text"}}, "required": ["type"]}


class CompletionBody(SamplingBody, kw_only=True):
    """Null counts as absent. A list is one of texts, one prompt in ids, or several such prompts."""

    prompt: (
        Annotated[str, Meta(extra_json_schema=_NOT_EMPTY)]
        | Annotated[
            list[str | TokenId | list[TokenId]], Meta(min_length=1, extra_json_schema=_ONE_KIND)
        ]
    )
    suffix: str | None = None
    echo: bool | None = None
    best_of: int | None = None
    logprobs: Annotated[int, Meta(ge=0, le=MAX_LOGPROBS)] | None = None
    prompt_logprobs: int | None = None
    response_format: Annotated[dict[str, Any], Meta(extra_json_schema=_ANY_TEXT)] | None = None
    add_special_tokens: bool | None = None
    max_tokens: Annotated[int, Meta(ge=0, le=2**31 - 1)] | None = None


_NOT_SERVED: Final = fields_of_others(CompletionBody)


class Completions(msgspec.Struct, frozen=True):
    """One request per prompt, otherwise equal. The choices of prompt i are i*n to i*n + n - 1.

    `echo`: each choice begins with its prompt. `num_top`: its log-probabilities begin with the
    prompt's, each with this many likeliest tokens. `is_echo_only`: no token is generated.
    """

    requests: tuple[ChatRequest, ...]
    echo: bool = False
    num_top: int | None = None
    is_echo_only: bool = False

    @property
    def scoring(self) -> tuple[ChatRequest, ...]:
        """Requests for the log-probabilities of the prompts."""
        return tuple(
            msgspec.structs.replace(
                request,
                n=1,
                stream=False,
                num_top=self.num_top or 0,
                continuous_usage=False,
                grammar=None,
                fingerprint=xxhash.xxh3_128_digest(request.fingerprint + b"score"),
            )
            for request in self.requests
        )

    @property
    def num_choices(self) -> int:
        return len(self.requests) * self.requests[0].n


def parse_completions(body: bytes, rewrite: Rewrite | None = None) -> Completions:
    """The requests in `body` (JSON in UTF-8), after `rewrite` has replaced some of its fields.

    Raises `ApiError` 400 that names the field.
    """
    raw = decode_object(body)
    if rewrite is not None:
        raw = rewrite(raw)
    typed = typed_body(raw, CompletionBody)
    _refuse_the_unserved(typed)
    prompts = prompts_of(typed.prompt, "prompt", MAX_PROMPTS)
    shared = request_of(
        typed,
        raw,
        max_tokens=typed.max_tokens or DEFAULT_MAX_TOKENS,
        logprobs=typed.logprobs is not None,
        top_logprobs=typed.logprobs or 0,
        add_special_tokens=typed.add_special_tokens is not False,
    )
    if not _NOT_SERVED.isdisjoint(raw) and (ignored := not_served(raw, _NOT_SERVED)):
        shared = msgspec.structs.replace(shared, ignored=ignored)
    fingerprint = xxhash.xxh3_128_digest(body)
    echo = bool(typed.echo)
    is_scored = echo and typed.logprobs is not None and shared.grammar is None
    if is_scored and typed.max_tokens == 1:
        # Evaluations drop the last entry for the generated token, so a token that ends the answer
        # must have one too.
        shared = msgspec.structs.replace(shared, ignore_eos=True)
    return Completions(
        requests=tuple(
            _with_prompt(shared, at, one, fingerprint) for at, one in enumerate(prompts)
        ),
        echo=echo,
        num_top=typed.logprobs if echo else None,
        is_echo_only=typed.max_tokens == 0,
    )


def _with_prompt(shared: ChatRequest, at: int, prompt: Prompt, fingerprint: bytes) -> ChatRequest:
    """The fingerprint differs for each prompt of a body, even if their texts are equal."""
    own = xxhash.xxh3_128_digest(fingerprint + at.to_bytes(4, "little"))
    return msgspec.structs.replace(shared, prompt=prompt, fingerprint=own)


def _refuse_the_unserved(typed: CompletionBody) -> None:
    if typed.suffix:
        raise _unserved("suffix", "is not served; write the prompt as the model expects it")
    if typed.best_of is not None and typed.best_of != (typed.n or 1):
        raise _unserved("best_of", "is not served, unless it equals 'n'")
    if typed.prompt_logprobs is not None:
        raise _unserved("prompt_logprobs", "is not served; 'echo' with 'logprobs' gives them")
    if typed.max_tokens == 0 and not typed.echo:
        text = "The cap on output tokens is 0, which needs 'echo': there would be no answer."
        raise invalid("max_tokens", text)
    if typed.response_format is not None and typed.response_format.get("type") != "text":
        raise _unserved("response_format", "belongs to chat; write what you want into the prompt")


def _unserved(param: str, text: str) -> ApiError:
    return invalid(param, f"'{param}' {text}.")


def prompts_of(given: str | list[Any], field: str, most: int) -> tuple[Prompt, ...]:
    """The prompts in that field in order; a list of numbers is one prompt. Raises `ApiError` 400
    for more than `most`, for an empty one and for a mixture.
    """
    if isinstance(given, str):
        _check_not_empty(given, field)
        return (given,)
    kinds = {type(item) for item in given}
    if len(kinds) > 1:
        raise invalid(field, f"'{field}' mixes texts, token ids and lists; send one kind.")
    if kinds == {int}:
        return (tuple(given),)
    if len(given) > most:
        raise invalid(field, f"'{field}' has {len(given)} prompts; at most {most}.")
    for at, item in enumerate(given):
        _check_not_empty(item, f"{field}[{at}]")
    return tuple(item if isinstance(item, str) else tuple(item) for item in given)


def _check_not_empty(prompt: str | list[int], where: str) -> None:
    if not prompt:
        raise invalid(where, f"'{where}' is empty; a model needs something to go on from.")
