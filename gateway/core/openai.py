"""The body of POST /v1/chat/completions -> `ChatRequest`.

Owns JSON, the rules between fields and the 400 that names the field. One decode to plain values
(kept as `raw`, unknown fields intact) and one typed conversion of those: about 100 us for a 47 KB
agent request. Must not know HTTP, templates or models.
"""

import json
import math
import re
from typing import Any, Final

import msgspec
import xxhash

from gateway.core.chat_body import ChatBody, MessageBody, Part, ToolCallBody
from gateway.core.chat_request import (
    MAX_SESSION_CHARS,
    ChatRequest,
    Message,
    OtherPart,
    Role,
    ToolCall,
    ToolChoice,
)
from gateway.core.errors import ApiError, invalid

_ROLES: Final[dict[str, Role]] = {
    "system": "system",
    "developer": "developer",
    "user": "user",
    "assistant": "assistant",
    "tool": "tool",
}
_CHOICES: Final[dict[str, ToolChoice]] = {"none": "none", "auto": "auto", "required": "required"}

_TEXT_PARTS: Final = frozenset({"text", "refusal"})

_TEMPLATE_OWNED: Final = frozenset({"messages", "tools", "add_generation_prompt"})
"""Template variables that the request's own fields decide."""

_THINKING: Final = ("enable_thinking", "think")
"""Fields of a body that switch thoughts on or off: Alibaba's and Ollama's."""

_CONTENT_HASH_PREFIX: Final = "pck_"
"""Hermes Agent's prompt_cache_key is a hash of prompt and tools: equal in all sessions."""

_decode = msgspec.json.Decoder().decode
_encode = msgspec.json.Encoder().encode


def parse_chat_request(body: bytes) -> ChatRequest:
    """The request in `body` (JSON in UTF-8).

    Raises `ApiError` 400 that names the field: wrong types, values out of bounds (NaN and
    Infinity too), unknown roles, fields that contradict each other.
    """
    raw = _decode_json(body)
    typed = _typed(raw)
    _check_stream_options(typed)
    _check_logprobs(typed)
    tools, tool_choice = _chosen_tools(typed)
    return ChatRequest(
        model=typed.model,
        messages=tuple(_message(item, f"messages[{i}]") for i, item in enumerate(typed.messages)),
        raw=raw,
        tools=tools,
        tool_choice=tool_choice,
        stream=bool(typed.stream),
        include_usage=bool(typed.stream_options and typed.stream_options.include_usage),
        max_tokens=typed.max_completion_tokens or typed.max_tokens,
        temperature=typed.temperature,
        top_p=typed.top_p,
        top_k=0 if typed.top_k == -1 else typed.top_k,
        min_p=typed.min_p,
        presence_penalty=typed.presence_penalty,
        frequency_penalty=typed.frequency_penalty,
        repetition_penalty=typed.repetition_penalty,
        n=typed.n or 1,
        stop=(typed.stop,) if isinstance(typed.stop, str) else tuple(typed.stop or ()),
        stop_token_ids=tuple(typed.stop_token_ids or ()),
        ignore_eos=bool(typed.ignore_eos),
        seed=None if typed.seed is None else typed.seed % 2**63,
        logprobs=bool(typed.logprobs),
        fingerprint=xxhash.xxh3_128_digest(body),
        top_logprobs=typed.top_logprobs or 0,
        template_kwargs=_template_kwargs(typed, raw),
        session=_session(raw),
        other_part=_other_part(typed),
    )


def _decode_json(body: bytes) -> dict[str, Any]:
    if not body.strip():
        raise invalid(None, "The body is empty; send a JSON object.", code="invalid_json")
    try:
        raw = _decode(body)
    except UnicodeDecodeError as error:
        raise invalid(None, "The body is not valid UTF-8.", code="invalid_json") from error
    except RecursionError as error:
        raise invalid(None, "The body is nested too deeply.", code="invalid_json") from error
    except msgspec.MsgspecError as error:
        _refuse_non_finite(body)
        raise invalid(None, f"The body is not valid JSON: {error}.", code="invalid_json") from error
    if not isinstance(raw, dict):
        raise invalid(None, "The body must be a JSON object.", code="invalid_json")
    return raw


def _refuse_non_finite(body: bytes) -> None:
    """Name the field if the only fault of `body` is a NaN or an infinity, which JSON lacks."""
    try:
        lenient = json.loads(body)
    except (ValueError, RecursionError):
        return
    if not isinstance(lenient, dict):
        return
    for name, value in lenient.items():
        if isinstance(value, float) and not math.isfinite(value):
            raise invalid(name, f"{_label(name)} must be a finite number.")


def _typed(raw: dict[str, Any]) -> ChatBody:
    try:
        return msgspec.convert(raw, ChatBody)
    except msgspec.ValidationError as error:
        text, _, path = str(error).partition(" - at `$")
        param = path.rstrip("`").lstrip(".") or None
        missing = re.search(r"missing required field `(\w+)`", text)
        if missing:
            param = f"{param}.{missing[1]}" if param else missing[1]
            raise invalid(param, f"'{param}' is missing.") from error
        raise invalid(param, f"{_label(param)}: {text.replace('`', '')}.") from error


def _label(param: str | None) -> str:
    """How a text calls a field. Hermes Agent takes the name of one for a full window."""
    return "The cap on output tokens" if param == "max_tokens" else f"'{param}'"


def _check_stream_options(typed: ChatBody) -> None:
    if typed.stream_options is not None and not typed.stream:
        raise invalid("stream_options", "'stream_options' is only allowed when 'stream' is true.")


def _check_logprobs(typed: ChatBody) -> None:
    if typed.top_logprobs and not typed.logprobs:
        raise invalid("top_logprobs", "'top_logprobs' is only allowed when 'logprobs' is true.")


def _message(body: MessageBody, where: str) -> Message:
    role = _ROLES.get(body.role)
    if role is None:
        known = ", ".join(_ROLES)
        raise invalid(f"{where}.role", f"'{where}.role' must be one of {known}, not {body.role!r}.")
    calls = tuple(
        _tool_call(call, f"{where}.tool_calls[{i}]") for i, call in enumerate(body.tool_calls or ())
    )
    if calls and role != "assistant":
        raise invalid(f"{where}.tool_calls", f"'{where}.tool_calls' belongs to the assistant.")
    if body.content is None and role not in ("assistant", "tool"):
        raise invalid(f"{where}.content", f"'{where}.content' must be text for role {role}.")
    reasoning = body.reasoning if body.reasoning_content is None else body.reasoning_content
    return Message(
        role=role,
        content=_text(body.content, f"{where}.content"),
        name=body.name,
        tool_calls=calls,
        tool_call_id=body.tool_call_id,
        reasoning_content=reasoning,
    )


def _text(content: str | list[Part] | None, where: str) -> str | None:
    if not isinstance(content, list):
        return content
    texts = [_part_text(part, f"{where}[{i}]") for i, part in enumerate(content)]
    return "\n".join(text for text in texts if text is not None)


def _part_text(part: Part, where: str) -> str | None:
    kind = part.get("type")
    if not isinstance(kind, str):
        raise invalid(f"{where}.type", f"'{where}.type' must be a string.")
    if kind not in _TEXT_PARTS:
        return None
    text = part.get(kind)
    if not isinstance(text, str):
        raise invalid(f"{where}.{kind}", f"'{where}.{kind}' must be a string.")
    return text


def _other_part(typed: ChatBody) -> OtherPart | None:
    for at, message in enumerate(typed.messages):
        for index, part in enumerate(message.content if isinstance(message.content, list) else ()):
            if part["type"] not in _TEXT_PARTS:
                return OtherPart(f"messages[{at}].content[{index}]", part["type"])
    return None


def _tool_call(call: ToolCallBody, where: str) -> ToolCall:
    if not call.function.name:
        raise invalid(f"{where}.function.name", f"'{where}.function.name' is empty.")
    arguments = call.function.arguments
    if not isinstance(arguments, str):
        arguments = _encode(arguments or {}).decode()
    return ToolCall(id=call.id or "", name=call.function.name, arguments=arguments)


def _chosen_tools(typed: ChatBody) -> tuple[tuple[dict[str, Any], ...], ToolChoice]:
    """The tools that the model may see, and the choice; a named function leaves only itself."""
    tools = tuple(typed.tools or ())
    names = [_tool_name(tool, f"tools[{i}]") for i, tool in enumerate(tools)]
    choice = typed.tool_choice
    if choice is None:
        return tools, "auto"
    if isinstance(choice, str):
        known = _CHOICES.get(choice)
        if known is None:
            raise _bad_choice(f"must be none, auto, required or an object, not {choice!r}")
        if known == "required" and not tools:
            raise _bad_choice("is 'required', but there are no tools")
        return (() if known == "none" else tools), known
    wanted = choice.get("function")
    if choice.get("type", "function") != "function" or not isinstance(wanted, dict):
        raise _bad_choice("must name a function")
    if wanted.get("name") not in names:
        raise _bad_choice(f"names {wanted.get('name')!r}, which is not among the tools")
    return (tools[names.index(wanted["name"])],), "required"


def _bad_choice(text: str) -> ApiError:
    return invalid("tool_choice", f"'tool_choice' {text}.")


def _tool_name(tool: dict[str, Any], where: str) -> str:
    if tool.get("type", "function") != "function":
        raise invalid(f"{where}.type", f"'{where}.type' must be 'function'.")
    function = tool.get("function")
    if not isinstance(function, dict):
        raise invalid(f"{where}.function", f"'{where}.function' must be an object.")
    name = function.get("name")
    if not isinstance(name, str) or not name:
        raise invalid(f"{where}.function.name", f"'{where}.function.name' must be a string.")
    return name


def _template_kwargs(typed: ChatBody, raw: dict[str, Any]) -> dict[str, Any]:
    """Variables for the template; "do not think" in the words of several APIs is one of them."""
    kwargs = dict(typed.chat_template_kwargs or {})
    taken = sorted(_TEMPLATE_OWNED & kwargs.keys())
    if taken:
        where = f"chat_template_kwargs.{taken[0]}"
        raise invalid(where, f"'{where}' follows from the rest of the request.")
    effort = _effort(raw)
    if effort is not None:
        kwargs.setdefault("reasoning_effort", effort)
    thinks = next((v for v in map(raw.get, _THINKING) if isinstance(v, bool)), None)
    if effort == "none":
        thinks = False
    if thinks is not None:
        # Templates differ in the name: Qwen's and GLM's, DeepSeek's and Kimi's.
        kwargs.setdefault("enable_thinking", thinks)
        kwargs.setdefault("thinking", thinks)
    return kwargs


def _effort(raw: dict[str, Any]) -> str | None:
    """How much to think: OpenAI's field, or that of the Responses API and OpenRouter."""
    nested = raw.get("reasoning")
    effort = raw.get("reasoning_effort")
    if effort is None and isinstance(nested, dict):
        effort = nested.get("effort")
    return effort if isinstance(effort, str) else None


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
