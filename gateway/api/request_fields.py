"""The request that a body makes, be it for chat or a raw completion.

Owns the rules between them, and where a body names its conversation. Must not know prompts.
"""

from typing import Any, Final

from gateway.api.chat_request import MAX_SESSION_CHARS, ChatRequest, Message, OtherPart, ToolChoice
from gateway.api.errors import invalid
from gateway.api.sampling_body import SamplingBody

_CONTENT_HASH_PREFIX: Final = "pck_"
"""Hermes Agent's prompt_cache_key is a hash of prompt and tools: equal in all sessions."""

_NONE: Final[dict[str, Any]] = {}

_SESSION_FIELDS: Final = frozenset({"metadata", "session_id", "prompt_cache_key", "user"})


def request_of(
    typed: SamplingBody,
    raw: dict[str, Any],
    *,
    messages: tuple[Message, ...] = (),
    tools: tuple[dict[str, Any], ...] = (),
    tool_choice: ToolChoice = "auto",
    max_tokens: int | None,
    logprobs: bool,
    top_logprobs: int,
    template_kwargs: dict[str, Any] = _NONE,
    other_part: OtherPart | None = None,
    add_special_tokens: bool = True,
    fingerprint: bytes = b"",
    num_bytes: int | None = None,
) -> ChatRequest:
    """The request with what is its API's own, and what `typed`, converted from `raw`, says about
    sampling, streaming and the session. Every field by its name: to pass some of them on in a dict
    takes ten times as long.

    `seed` is cut to 63 bits. Raises `ApiError` 400 for fields that contradict each other.
    """
    options = typed.stream_options
    if options is not None and not typed.stream:
        raise invalid("stream_options", "'stream_options' is only allowed when 'stream' is true.")
    if typed.logit_bias is not None:
        _check_bias(typed.logit_bias)
    stop = typed.stop
    return ChatRequest(
        model=typed.model,
        messages=messages,
        raw=raw,
        tools=tools,
        tool_choice=tool_choice,
        max_tokens=max_tokens,
        logprobs=logprobs,
        top_logprobs=top_logprobs,
        template_kwargs=template_kwargs,
        other_part=other_part,
        add_special_tokens=add_special_tokens,
        fingerprint=fingerprint,
        num_bytes=num_bytes,
        stream=bool(typed.stream),
        include_usage=bool(options and options.include_usage),
        continuous_usage=bool(options and options.include_usage and options.continuous_usage_stats),
        temperature=typed.temperature,
        top_p=typed.top_p,
        top_k=0 if typed.top_k == -1 else typed.top_k,
        min_p=typed.min_p,
        presence_penalty=typed.presence_penalty,
        frequency_penalty=typed.frequency_penalty,
        repetition_penalty=typed.repetition_penalty,
        n=typed.n or 1,
        stop=(stop,) if type(stop) is str else tuple(stop or ()),
        stop_token_ids=tuple(typed.stop_token_ids or ()),
        ignore_eos=bool(typed.ignore_eos),
        seed=None if typed.seed is None else typed.seed % 2**63,
        has_bias=bool(typed.logit_bias),
        session=None if _SESSION_FIELDS.isdisjoint(raw) else _session(raw),
    )


def _check_bias(bias: dict[str, float]) -> None:
    for token_id in bias:
        if not (token_id.isascii() and token_id.isdigit()):
            text = f"'logit_bias' has token ids for keys, as numbers in a string, not {token_id!r}."
            raise invalid("logit_bias", text)


def _session(raw: dict[str, Any]) -> str | None:
    metadata = raw.get("metadata")
    inner = metadata.get("session_id") if isinstance(metadata, dict) else None
    cache_key = raw.get("prompt_cache_key")
    if isinstance(cache_key, str) and cache_key.startswith(_CONTENT_HASH_PREFIX):
        cache_key = None
    for hint in (inner, raw.get("session_id"), cache_key, raw.get("user")):
        if isinstance(hint, str) and hint:
            return hint[:MAX_SESSION_CHARS]
    return None
