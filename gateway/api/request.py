"""A request body: its JSON, the fields that all endpoints share, and the checked request.

Owns the decoding of bodies, the types and bounds of the shared fields (msgspec checks them), the
rules between them, the 400 that names a field, and how a request becomes sampling parameters. Must
not know prompts or templates. Null counts as absent; fields that are not listed are accepted and
kept in `raw` for providers.
"""

import json
import math
import re
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from functools import lru_cache
from typing import Annotated, Any, Final, Literal, TypeVar

import msgspec
from msgspec import Meta

from gateway.api.errors import ApiError, invalid
from gateway.api.events import Wanted
from gateway.api.output_grammar import GRAMMAR_FIELDS, OutputGrammar, given_grammar
from gateway.api.tool_schemas import ToolSchema, ToolSchemas
from protocol.sampling import MAX_STOP_IDS, SamplingParams

Body = TypeVar("Body", bound=msgspec.Struct)

Role = Literal["system", "developer", "user", "assistant", "tool"]

ToolChoice = Literal["none", "auto", "required"]

MAX_SESSION_CHARS: Final = 256
"""Thousands of session names are kept in memory."""

MAX_STOP_CHARS: Final = 1024
"""Every choice compiles every stop string, 0.1 us per character, on the loop of all streams."""

MAX_CHOICES: Final = 16
MAX_STOPS: Final = 16

StopText = Annotated[str, Meta(min_length=1, max_length=MAX_STOP_CHARS)]
TokenId = Annotated[int, Meta(ge=0, le=2**32 - 1)]
OutputCap = Annotated[int, Meta(ge=1, le=2**31 - 1)]
LogitBias = Annotated[
    dict[str, Annotated[float, Meta(ge=-100, le=100)]],
    Meta(extra_json_schema={"propertyNames": {"pattern": "^[0-9]+$"}}),
]

_ESCAPE: Final = re.compile(
    rb"\\(?:u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}"
    rb"|(u[dD][89a-fA-F][0-9a-fA-F]{2})|.)",
    re.DOTALL,
)
"""An escape in JSON: a surrogate pair, half of one (group 1), or any other."""
_MISSING: Final = re.compile(r"missing required field `(\w+)`")
_TYPES: Final = re.compile(r"`([^`]*)`")
_JSON_TYPES: Final = {
    "array": "an array",
    "bool": "a boolean",
    "float": "a number",
    "int": "an integer",
    "object": "an object",
    "str": "a string",
}

_LARGE_BYTES: Final = 4096
_tools: Final = ToolSchemas()
_encode: Final = msgspec.json.Encoder().encode
_decode: Final = msgspec.json.Decoder().decode
_fields: Final = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode

_CONTENT_HASH_PREFIX: Final = "pck_"
"""Hermes Agent's prompt_cache_key is a hash of prompt and tools: equal in all sessions."""
_SESSION_FIELDS: Final = frozenset({"metadata", "session_id", "prompt_cache_key", "user"})
_NO_KWARGS: Final[dict[str, Any]] = {}
_NO_DEFAULTS: Final[Mapping[str, float]] = {}
_NEUTRAL: Final[Mapping[str, Any]] = {
    "temperature": 1.0,
    "top_p": 1.0,
    "top_k": 0,
    "min_p": 0.0,
    "repetition_penalty": 1.0,
}
"""Defaults of the fields that a generation config may set."""


class StreamOptions(msgspec.Struct):
    """What a stream contains beside the answer."""

    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None


class StructuredOutputs(msgspec.Struct):
    """vLLM's field for what the answer must look like; one of them."""

    json: str | dict[str, Any] | None = None
    json_object: bool | None = None
    regex: str | None = None
    choice: list[str] | None = None
    grammar: str | None = None
    structural_tag: str | dict[str, Any] | None = None


class DrawingFields(msgspec.Struct, kw_only=True):
    """How tokens are drawn, and where an answer stops: fields that the APIs have alike."""

    temperature: Annotated[float, Meta(ge=0, le=100)] | None = None
    top_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    top_k: Annotated[int, Meta(ge=-1, le=2**31 - 1)] | None = None
    min_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    presence_penalty: Annotated[float, Meta(ge=-2, le=2)] | None = None
    frequency_penalty: Annotated[float, Meta(ge=-2, le=2)] | None = None
    repetition_penalty: Annotated[float, Meta(ge=0.01, le=100)] | None = None
    stop: StopText | Annotated[list[StopText], Meta(max_length=MAX_STOPS)] | None = None
    seed: Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)] | None = None


class SamplingBody(DrawingFields, kw_only=True):
    """How the answer is generated."""

    model: Annotated[str, Meta(min_length=1)]
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    max_tokens: OutputCap | None = None
    n: Annotated[int, Meta(ge=1, le=MAX_CHOICES)] | None = None
    stop_token_ids: Annotated[list[TokenId], Meta(max_length=MAX_STOP_IDS)] | None = None
    ignore_eos: bool | None = None
    logit_bias: LogitBias | None = None
    structured_outputs: StructuredOutputs | None = None
    guided_json: str | dict[str, Any] | None = None
    guided_regex: str | None = None
    guided_choice: list[str] | None = None
    guided_grammar: str | None = None
    regex: str | None = None
    choice: list[str] | None = None
    lark: str | None = None


class ToolCall(msgspec.Struct, frozen=True):
    """A call that the assistant made earlier; `arguments` is the text that it wrote."""

    id: str
    name: str
    arguments: str


class Message(msgspec.Struct, frozen=True):
    """One message of the conversation. Text parts are joined by a newline."""

    role: Role
    content: str | None
    name: str | None = None
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str | None = None
    reasoning_content: str | None = None


class OtherPart(msgspec.Struct, frozen=True):
    """The first content part that is not text, which only a provider can read. `is_past`: this and
    all others are in results of tools, or in messages before the last one; their places in
    `Message.content` say that something was left out, so a model of text can go on.
    """

    where: str
    kind: str
    is_past: bool = False

    def refusal(self, translated_from: str = "") -> ApiError:
        """The error for the client if no provider may answer. The place is one in a chat, so it
        means nothing to the client of another API, whose field is `translated_from`.
        """
        code = "unsupported_content_part"
        if translated_from:
            text = f"'{translated_from}' has pictures, files or sound; this model reads only text."
            return invalid(translated_from, text, code=code)
        text = (
            f"'{self.where}' is a part of type {self.kind!r}; only parts of type 'text' are served."
        )
        return invalid(f"{self.where}.type", text, code=code)


class ChatRequest(msgspec.Struct, frozen=True):
    """A checked request, of any endpoint. None: the client did not set the field.

    `tools` are those that the model may call (none with tool_choice "none", only the named one if
    one was named); `shown_tools` are those at the beginning of the prompt if they are others, since
    deferred tools stand in messages. Without `parallel_calls` an answer has at most one call.
    `seed` is cut to 63 bits. `session` is the name of the conversation in the body. `other_part` is
    the first content part that `messages` cannot hold; `has_bias`: there is a logit bias.
    `foreign_tool`: the place of a tool that only some provider runs, if there is one. The
    answer must follow `grammar`. It continues `answer_start`, which is not part of it. `raw` is the
    decoded body with unknown fields, for a provider; it must not be changed. `fingerprint` is equal
    for equal bytes of the body, which has `num_bytes`.

    `custom_tools` are those functions that stand for tools of text, True for those that the client
    sent without a wrapper. `ignored` names what the client asked for and does not get;
    `context_edits` are the edits of the conversation that it asked for and got, None without any
    request for some.

    `embeds`: the embedding of the prompt is wanted, of `dimensions` numbers. `num_top`: the
    log-probabilities of the prompt are wanted, with so many likeliest tokens, and no answer.
    `hides_reasoning`: the client wants an answer without it.
    `translated_from`: `raw` was translated from the body of another API, and `messages` from its
    field of this name.

    A raw completion has a `prompt` (text, or token ids) and no `messages`; `add_special_tokens`:
    the tokenizer adds its special tokens around a text.
    """

    model: str
    messages: tuple[Message, ...]
    raw: dict[str, Any]
    tools: tuple[dict[str, Any], ...] = ()
    tool_choice: ToolChoice = "auto"
    parallel_calls: bool = True
    stream: bool = False
    include_usage: bool = False
    continuous_usage: bool = False
    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    n: int = 1
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    seed: int | None = None
    logprobs: bool = False
    top_logprobs: int = 0
    template_kwargs: dict[str, Any] = {}
    session: str | None = None
    other_part: OtherPart | None = None
    has_bias: bool = False
    foreign_tool: str = ""
    grammar: OutputGrammar | None = None
    fingerprint: bytes = b""
    num_bytes: int | None = None
    prompt: str | tuple[int, ...] | None = None
    add_special_tokens: bool = True
    translated_from: str = ""
    answer_start: str = ""
    embeds: bool = False
    dimensions: int | None = None
    shown_tools: tuple[dict[str, Any], ...] | None = None
    custom_tools: Mapping[str, bool] = {}
    ignored: tuple[str, ...] = ()
    context_edits: tuple[dict[str, Any], ...] | None = None
    num_top: int | None = None
    hides_reasoning: bool = False
    wanted: Wanted = "answer"

    @property
    def prompt_tools(self) -> tuple[dict[str, Any], ...]:
        """The tools at the beginning of the prompt."""
        return self.tools if self.shown_tools is None else self.shown_tools

    @property
    def prompt_field(self) -> str:
        if self.prompt is not None:
            return "prompt"
        return self.translated_from or "messages"

    @property
    def refused_locally(self) -> ApiError | None:
        """Why workers cannot answer it, although a provider may; None if they can."""
        if self.other_part is not None:
            return self.other_part.refusal(self.translated_from)
        if self.grammar is not None and self.grammar.is_foreign:
            field = self.grammar.field
            text = (
                f"'{field}' is a grammar in a form (GBNF, structural tags) that this model's "
                "engines do not read; send a Lark grammar in 'structured_outputs.grammar' or a "
                "JSON schema in 'response_format'."
            )
            return invalid(field, text, code="grammar_not_served")
        if self.foreign_tool:
            text = (
                f"'{self.foreign_tool}' must be 'function': only a provider could run a tool of "
                "another type."
            )
            return invalid(self.foreign_tool, text, code="tool_not_served")
        if self.has_bias:
            text = "'logit_bias' is not served by local models; send the request without it."
            return invalid("logit_bias", text, code="logit_bias_not_served")
        return None

    def sampling(
        self, max_tokens: int, defaults: Mapping[str, float] = _NO_DEFAULTS
    ) -> SamplingParams:
        """The sampling parameters of this request, for at most `max_tokens` (>= 1) tokens.

        `defaults` (the model's generation config), then neutral values, fill the fields that the
        client did not set. Raises `ApiError` 400 for a value that no worker accepts.
        """
        # Written out, because a loop over the names or a dict of arguments takes 4 times as long.
        rest = {**_NEUTRAL, **defaults}
        penalty = self.repetition_penalty
        try:
            return _params_of(
                max_tokens,
                rest["temperature"] if self.temperature is None else self.temperature,
                rest["top_p"] if self.top_p is None else self.top_p,
                rest["top_k"] if self.top_k is None else self.top_k,
                rest["min_p"] if self.min_p is None else self.min_p,
                self.presence_penalty or 0.0,
                self.frequency_penalty or 0.0,
                rest["repetition_penalty"] if penalty is None else penalty,
                self.stop_token_ids,
                self.ignore_eos,
                self.top_logprobs if self.logprobs else None,
            )
        except ValueError as error:
            raise invalid(str(error).partition(" ")[0], str(error)) from error


_params_of: Final = lru_cache(maxsize=1024)(SamplingParams)
"""Clients send the same values again and again, and checking them takes 2 us."""


def request_of(
    typed: SamplingBody,
    raw: dict[str, Any],
    *,
    messages: tuple[Message, ...] = (),
    tools: tuple[dict[str, Any], ...] = (),
    tool_choice: ToolChoice = "auto",
    parallel_calls: bool = True,
    max_tokens: int | None,
    logprobs: bool,
    top_logprobs: int,
    template_kwargs: dict[str, Any] = _NO_KWARGS,
    other_part: OtherPart | None = None,
    grammar: OutputGrammar | None = None,
    add_special_tokens: bool = True,
    fingerprint: bytes = b"",
    num_bytes: int | None = None,
) -> ChatRequest:
    """The request of the shared fields in `typed`, converted from `raw`, and of the fields that
    an endpoint has of its own. Raises `ApiError` 400 for fields that contradict each other. Each
    field is passed by name, because a dict of arguments takes ten times as long.
    """
    options, stop = typed.stream_options, typed.stop
    _check_options(typed)
    if grammar is not None or not GRAMMAR_FIELDS.isdisjoint(raw):
        grammar = _checked_grammar(grammar, typed, raw)
    return ChatRequest(
        model=typed.model,
        messages=messages,
        raw=raw,
        tools=tools,
        tool_choice=tool_choice,
        parallel_calls=parallel_calls,
        max_tokens=max_tokens,
        logprobs=logprobs,
        top_logprobs=top_logprobs,
        template_kwargs=template_kwargs,
        other_part=other_part,
        grammar=grammar,
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
        session=None if _SESSION_FIELDS.isdisjoint(raw) else session_of(raw),
    )


def may_continue(messages: Sequence[Message]) -> bool:
    """Whether the last message is the assistant's, so that the answer can continue it."""
    last = messages[-1]
    is_text = last.role == "assistant" and bool(last.content) and not last.tool_calls
    return is_text and len(messages) > 1


def continued(request: ChatRequest, field: str) -> ChatRequest:
    """`request` with its last message as the beginning of the answer, as `field` asks. Raises
    `ApiError` 400.
    """
    if not may_continue(request.messages):
        text = f"'{field}' needs a last message of the assistant with text and without calls."
        raise invalid(field, text)
    if request.grammar is not None or request.tool_choice == "required":
        text = f"'{field}': an answer that continues a text can have no form and no forced call."
        raise invalid(field, text)
    *before, last = request.messages
    return msgspec.structs.replace(request, messages=tuple(before), answer_start=last.content)


def _checked_grammar(
    own: OutputGrammar | None, typed: SamplingBody, raw: Mapping[str, Any]
) -> OutputGrammar | None:
    """The grammar of the endpoint's `own` field, or of the shared fields."""
    shared = given_grammar(raw)
    if own is not None and shared is not None:
        raise invalid(shared.field, f"'{shared.field}' and '{own.field}' cannot go together.")
    grammar = own or shared
    if grammar is not None and grammar.is_required and typed.ignore_eos:
        raise invalid("ignore_eos", f"'ignore_eos' cannot go with '{grammar.field}'.")
    return grammar


def _check_options(typed: SamplingBody) -> None:
    if typed.stream_options is not None and not typed.stream:
        raise invalid("stream_options", "'stream_options' is only allowed when 'stream' is true.")
    for token_id in typed.logit_bias or ():
        if not (token_id.isascii() and token_id.isdigit()):
            text = f"'logit_bias' has token ids for keys, as numbers in a string, not {token_id!r}."
            raise invalid("logit_bias", text)


def text_of_result(value: object) -> str:
    """The text of a call's result; one that is neither text nor parts, against all APIs, is its
    JSON.
    """
    if value is None or isinstance(value, str):
        return value or ""
    return _encode(value).decode()


def session_of(raw: dict[str, Any]) -> str | None:
    """The name that the fields of a body give to the conversation."""
    metadata = raw.get("metadata")
    inner = metadata.get("session_id") if isinstance(metadata, dict) else None
    cache_key = raw.get("prompt_cache_key")
    if isinstance(cache_key, str) and cache_key.startswith(_CONTENT_HASH_PREFIX):
        cache_key = None
    for hint in (inner, raw.get("session_id"), cache_key, raw.get("user")):
        if isinstance(hint, str) and hint:
            return hint[:MAX_SESSION_CHARS]
    return None


def decode_object(body: bytes) -> dict[str, Any]:
    """The JSON object in `body` (UTF-8; a byte order mark and other forms of Unicode are read
    too). Half of a surrogate pair, as programs in JavaScript leave
    it where they cut a text, is read as U+FFFD. Raises `ApiError` 400, which names the field of a
    NaN or an infinity.
    """
    try:
        # Searching a large body takes as long as splitting it into fields.
        has_tools = len(body) >= _LARGE_BYTES or body.find(b'"tools"') >= 0
        raw = decode_with_tools(body) if has_tools else _decode(body)
    except UnicodeDecodeError as error:
        raise _unreadable("The body is not valid UTF-8.") from error
    except RecursionError as error:
        raise _unreadable("The body is nested too deeply.") from error
    except msgspec.MsgspecError as error:
        mended = without_halves(_in_utf8(body))
        if mended != body:
            return decode_object(mended)
        if not body.strip():
            raise _unreadable("The body is empty; send a JSON object.") from error
        _refuse_almost_json(body)
        raise _unreadable(f"The body is not valid JSON: {error}.") from error
    if type(raw) is not dict:
        raise _unreadable("The body must be a JSON object.")
    return raw


_MAIN_FIELDS: Final = {
    "messages": "/v1/chat/completions and /v1/messages",
    "input": "/v1/responses",
    "prompt": "/v1/completions",
}
"""The field that every body of an API has, and the paths of that API."""


def other_api(raw: dict[str, Any], missing: str) -> str:
    """The hint that a body without its main field `missing` is one of another API; may be empty."""
    given = [name for name in _MAIN_FIELDS if name in raw and name != missing]
    others = given if missing in _MAIN_FIELDS else []
    return "".join(f" '{name}' is a field of {_MAIN_FIELDS[name]}." for name in others)


def typed_body(raw: dict[str, Any], kind: type[Body], where: str = "") -> Body:
    """`raw`, which is the body or stands at `where` in it, as a `kind`. Raises `ApiError` 400 that
    names the first field that does not fit.
    """
    try:
        return msgspec.convert(raw, kind)
    except msgspec.ValidationError as error:
        if (whole := _with_integers(raw)) is not None:
            return typed_body(whole, kind, where)
        text, _, path = str(error).partition(" - at `$")
        param = (where + path.rstrip("`")).lstrip(".") or None
        missing = _MISSING.search(text)
        if missing:
            param = f"{param}.{missing[1]}" if param else missing[1]
            raise invalid(param, f"'{param}' is missing.{other_api(raw, param)}") from error
        raise invalid(param, f"{label(param)}: {_TYPES.sub(_in_json, text)}.") from error


def _with_integers(raw: dict[str, Any]) -> dict[str, Any] | None:
    """`raw` with each number like 5.0 among its fields, and in lists of them, as an integer; None
    if it has none. To JSON both are the same number, and some languages write only the longer.
    """
    changed: dict[str, Any] = {}
    for name, value in raw.items():
        if _is_whole(value):
            changed[name] = int(value)
        elif isinstance(value, list) and any(map(_is_whole, value)):
            changed[name] = [int(one) if _is_whole(one) else one for one in value]
    return {**raw, **changed} if changed else None


def _is_whole(value: object) -> bool:
    return isinstance(value, float) and value.is_integer() and abs(value) < 2.0**63


def _in_json(types: re.Match[str]) -> str:
    """msgspec's names of Python types, replaced by those of JSON."""
    *firsts, last = [_JSON_TYPES.get(each, each) for each in types[1].split(" | ")]
    return f"{', '.join(firsts)} or {last}" if firsts else last


def decode_with_tools(body: bytes) -> Any:  # noqa: ANN401 (JSON of any shape)
    """The JSON in `body`; the objects in its field `tools` are cached `ToolSchema`s.

    Raises `msgspec.MsgspecError` or `UnicodeDecodeError`, as decoding the whole body does.
    """
    try:
        return {
            name: _tools.read_all(bytes(raw)) if name == "tools" else _decode(raw)
            for name, raw in _fields(body).items()
        }
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return _decode(body)


def cached_tools(tools: list[dict[str, Any]]) -> list[ToolSchema]:
    """Tools that were translated from another API's, with a cache of their texts in prompts."""
    return _tools.read_all(_encode(tools))


def guard_tools(guard: AbstractContextManager[object]) -> None:
    """Use the cache of tools under `guard`, a lock: several threads read bodies."""
    _tools.guard = guard


def label(param: str | None) -> str:
    """The name of a field in a message. Hermes Agent takes "max_tokens" for a full window."""
    return "The cap on output tokens" if param == "max_tokens" else f"'{param}'"


def _unreadable(text: str) -> ApiError:
    return invalid(None, text, code="invalid_json")


def without_halves(text: bytes) -> bytes:
    """JSON with U+FFFD for each escaped half of a surrogate pair."""
    return _ESCAPE.sub(_without_half, text)


def _in_utf8(body: bytes) -> bytes:
    """JSON that begins with a byte order mark, as programs on Windows write it, or is UTF-16 or
    UTF-32, in UTF-8 and without the mark; any other bytes as they are.
    """
    encoding = json.detect_encoding(body)
    if encoding == "utf-8":
        return body
    try:
        return body.decode(encoding).encode()
    except UnicodeDecodeError:
        return body


def _without_half(escape: re.Match[bytes]) -> bytes:
    return rb"\ufffd" if escape[1] else escape[0]


def _refuse_almost_json(body: bytes) -> None:
    """Raise a clearer `ApiError` for NaN and infinities, which Python's decoder accepts."""
    try:
        lenient = json.loads(body)
    except (ValueError, RecursionError):
        return
    if not isinstance(lenient, dict):
        return
    for name, value in lenient.items():
        if isinstance(value, float) and not math.isfinite(value):
            raise invalid(name, f"{label(name)} must be a finite number.")
