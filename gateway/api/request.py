"""The fields that the bodies of all endpoints share, and the checked request.

Owns the types and bounds of the shared fields (msgspec checks them), the rules between them, and
how a request becomes sampling parameters. Must not know how JSON is decoded, prompts or templates.
Null counts as absent; fields that are not listed are accepted and kept in `raw` for providers.
"""

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import Meta

from gateway.api.errors import ApiError, invalid
from gateway.api.events import Wanted
from gateway.api.output_grammar import GRAMMAR_FIELDS, OutputGrammar, given_grammar
from protocol.sampling import MAX_STOP_IDS, SamplingParams

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

_encode: Final = msgspec.json.Encoder().encode

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
