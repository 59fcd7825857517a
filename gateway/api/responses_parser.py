"""The body of POST /v1/responses (OpenAI's API) -> `ChatRequest`, and what its answer repeats.

Owns the shape of the body and its translation into a chat, which providers get too. Items, parts
and tools that Herma cannot serve are dropped (the request names them), and no history makes a
request fail, whatever arguments its calls have. The items that a response continues or refers to
are arguments. Must not know HTTP, nor where items are stored.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Annotated, Any, Final

import msgspec
import xxhash
from msgspec import Meta

from gateway.api.chat_parser import Rewrite, translated_chat
from gateway.api.compaction import SUMMARISE, compacting
from gateway.api.errors import invalid
from gateway.api.ignored_fields import fields_of_others, not_served
from gateway.api.json_body import (
    cached_tools,
    decode_object,
    other_api,
    typed_body,
)
from gateway.api.output_grammar import GRAMMAR_FIELDS
from gateway.api.request import (
    ChatRequest,
    DrawingFields,
    OutputCap,
    session_of,
)
from gateway.api.responses_chat import ResponsesChat
from gateway.api.responses_tools import (
    CHOICES,
    ToolName,
    inner_tools,
    is_in_namespace,
    is_known,
    is_search_by_server,
    tool_choice,
)
from gateway.api.signatures import Signer
from gateway.api.template_fields import TEMPLATE_FIELDS
from protocol.sampling import MAX_LOGPROBS

ENCRYPTED: Final = "reasoning.encrypted_content"
LOGPROBS: Final = "message.output_text.logprobs"

_INCLUDED: Final = (ENCRYPTED, LOGPROBS)
_USUAL_VERBOSITY: Final = "medium"
_MAX_SHOWN: Final = 64
_NO_PROMPT: Final = " No prompt is stored here: send its text instead of 'prompt'."
_FINGERPRINT_SEED: Final = 2
"""Distinguishes these requests from those of other APIs with the same bytes."""


Item = dict[str, Any]


class ReasoningParam(msgspec.Struct):
    """`effort` is a variable of the template; there are no summaries."""

    effort: str | None = None


class TextParam(msgspec.Struct):
    """`format` is as `response_format` of a chat, without its wrapper."""

    format: dict[str, Any] | None = None


class ConversationParam(msgspec.Struct):
    """A conversation by its id."""

    id: str


class ResponsesBody(DrawingFields, kw_only=True):
    """The fields of the request that Herma reads; null counts as absent."""

    model: Annotated[str, Meta(min_length=1)]
    input: str | list[dict[str, Any]] | None = None
    instructions: str | None = None
    stream: bool | None = None
    max_output_tokens: OutputCap | None = None
    top_logprobs: Annotated[int, Meta(ge=0, le=MAX_LOGPROBS)] | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    reasoning: ReasoningParam | None = None
    text: TextParam | None = None
    include: list[str] | None = None
    previous_response_id: str | None = None
    conversation: str | ConversationParam | None = None
    store: bool | None = None
    background: bool | None = None


_NOT_SERVED: Final = fields_of_others(ResponsesBody)


class Responses(msgspec.Struct, frozen=True):
    """A request, and what its answer needs: the tools by the names that the model knows, the fields
    to `echo`, and whether reasoning is `sealed` into a blob. One that `compacts` is answered with a
    summary of the conversation, as one sealed item.
    """

    request: ChatRequest
    names: dict[str, ToolName]
    echo: dict[str, Any]
    sealed: bool = False
    is_background: bool = False
    compacts: bool = False


class ResponsesDraft(msgspec.Struct, frozen=True):
    """A request whose history is not known yet."""

    body: bytes
    raw: dict[str, Any]
    typed: ResponsesBody

    @property
    def previous_id(self) -> str | None:
        """The id of the response to continue, if any."""
        return self.typed.previous_response_id

    @property
    def conversation_id(self) -> str | None:
        """The id of the conversation to continue, if any."""
        given = self.typed.conversation
        return given.id if isinstance(given, ConversationParam) else given

    @property
    def items(self) -> Sequence[Item]:
        """The input as items; a text is a message."""
        return _given_items(self.typed)

    def with_items(self, items: list[Item]) -> "ResponsesDraft":
        """The request with `items` as its input."""
        return msgspec.structs.replace(self, typed=msgspec.structs.replace(self.typed, input=items))

    def compacting(self) -> "ResponsesDraft":
        """The demand for a summary of the conversation, in one piece."""
        items = [*self.items, {"type": "compaction_trigger"}]
        typed = msgspec.structs.replace(self.typed, input=items, stream=False, background=False)
        return msgspec.structs.replace(self, typed=typed)

    @property
    def wants_store(self) -> bool:
        """Whether the client wants the response to be stored, which is the default."""
        return self.typed.store is not False


def read_responses(body: bytes) -> ResponsesDraft:
    """The request in `body` (JSON in UTF-8). Raises `ApiError` 400 that names the field."""
    raw = decode_object(body)
    draft = ResponsesDraft(body, raw, typed_body(raw, ResponsesBody))
    if draft.previous_id is not None and draft.conversation_id is not None:
        text = "'previous_response_id' and 'conversation' cannot go together."
        raise invalid("conversation", text)
    if draft.typed.input is None and draft.previous_id is None and draft.conversation_id is None:
        text = "'input' is missing, and so are 'previous_response_id' and 'conversation'."
        is_named = isinstance(raw.get("prompt"), dict)
        raise invalid("input", text + (_NO_PROMPT if is_named else other_api(raw, "input")))
    if draft.typed.background and not draft.wants_store:
        raise invalid("background", "'background' needs 'store': the answer is fetched later.")
    return draft


def parse_responses(
    draft: ResponsesDraft | bytes,
    signer: Signer,
    rewrite: Rewrite | None = None,
    *,
    history: Iterable[Item] = (),
    is_stored: bool = False,
) -> Responses:
    """The request (or a body) as a chat, some of whose fields `rewrite` replaces. `history` holds
    the items that it continues; `is_stored`: the response will be stored.

    Reasoning in the history counts if `signer` has sealed it, or if it is plain text. Raises
    `ApiError` 400 that names the field.
    """
    if isinstance(draft, bytes):
        draft = read_responses(draft)
    typed, raw = draft.typed, draft.raw
    said = ResponsesChat(signer)
    chat = _chat_of(typed, said, history)
    for name in (GRAMMAR_FIELDS | TEMPLATE_FIELDS) & raw.keys():
        chat[name] = raw[name]
    if rewrite is not None:
        chat = rewrite(chat)
    fingerprint = xxhash.xxh3_128_digest(draft.body, seed=_FINGERPRINT_SEED)
    given = chat, fingerprint, len(draft.body), "text.format"
    request = translated_chat(*given, may_load=said.has_references)
    if said.compacts:
        request = compacting(request)
    return Responses(
        request=msgspec.structs.replace(
            request,
            session=session_of(raw) or draft.conversation_id,
            translated_from="input",
            ignored=_ignored(typed, raw, said),
        ),
        names=said.names,
        echo={**_echo(typed, raw, said), **_stored_fields(draft, is_stored=is_stored)},
        sealed=ENCRYPTED in (typed.include or ()),
        is_background=bool(typed.background),
        compacts=said.compacts,
    )


def _ignored(typed: ResponsesBody, raw: Mapping[str, Any], said: ResponsesChat) -> tuple[str, ...]:
    """What the client asked for, or sent, and the model does not get."""
    tools = [
        f"tools[{at}] ({tool.get('type')})"
        for at, tool in enumerate(typed.tools or ())
        if not is_known(tool)
    ]
    tools += [
        f"tools[{at}].tools[{place}] ({one.get('type')})"
        for at, tool in enumerate(typed.tools or ())
        for place, one in enumerate(inner_tools(tool))
        if not is_in_namespace(one)
    ]
    tools += [
        f"tools[{at}].{name}"
        for at, tool in enumerate(typed.tools or ())
        for name in _unmet_marks(tool)
    ]
    dropped = (f"input ({kind})" for kind in said.dropped)
    fields = not_served(raw, _NOT_SERVED)
    fields += tuple(_unmet_values(typed, raw))
    return (*tools, *said.doubled, *fields, *_unmet_choice(typed.tool_choice, said), *dropped)


def _unmet_marks(tool: Item) -> Iterator[str]:
    """Fields of a tool that runs here, on which its calls would depend."""
    if tool.get("async") is True:
        yield "async"
    callers = tool.get("allowed_callers")
    if isinstance(callers, list) and callers and "direct" not in callers:
        yield "allowed_callers"


def _unmet_values(typed: ResponsesBody, raw: Mapping[str, Any]) -> Iterator[str]:
    """Values of fields that are read only in part, or not at all."""
    if raw.get("truncation") == "auto":
        yield "truncation (auto)"
    cached = raw.get("prompt_cache_options")
    if isinstance(cached, dict) and cached.get("prewarm") is True:
        yield "prompt_cache_options (prewarm)"
    text = raw.get("text")
    verbosity = text.get("verbosity") if isinstance(text, dict) else None
    if isinstance(verbosity, str) and verbosity != _USUAL_VERBOSITY:
        yield f"text.verbosity ({verbosity[:_MAX_SHOWN]})"
    for name in typed.include or ():
        if name not in _INCLUDED:
            yield f"include ({name[:_MAX_SHOWN]})"


def _unmet_choice(choice: str | dict[str, Any] | None, said: ResponsesChat) -> tuple[str, ...]:
    """The values of `tool_choice` that cannot be met: a tool that a server would run, any tool if
    there are no others, and allowed tools that the request does not have.
    """
    _, allowed = tool_choice(choice)
    if allowed is not None:
        unknown = allowed - {name.name for name in said.names.values()}
        return tuple(f"tool_choice ({name})" for name in sorted(unknown))
    kind = str(choice.get("type")) if isinstance(choice, dict) else choice
    if isinstance(choice, dict) and kind not in CHOICES:
        return (f"tool_choice ({kind})",)
    return ("tool_choice",) if kind not in (None, "auto", "none") and not said.tools else ()


def check_items(items: Iterable[Item], signer: Signer) -> None:
    """Raise `ApiError` 400 for an item that no request could hold."""
    said = ResponsesChat(signer)
    for at, item in enumerate(items):
        said.add(item, f"items[{at}]")


def _stored_fields(draft: ResponsesDraft, *, is_stored: bool) -> dict[str, Any]:
    conversation = draft.conversation_id
    return {
        "background": bool(draft.typed.background),
        "conversation": None if conversation is None else {"id": conversation},
        "previous_response_id": draft.previous_id,
        "store": is_stored,
    }


def _given_items(typed: ResponsesBody) -> Sequence[Item]:
    if isinstance(typed.input, str):
        return [{"type": "message", "role": "user", "content": typed.input}]
    return typed.input or ()


def _echo(typed: ResponsesBody, raw: dict[str, Any], said: ResponsesChat) -> dict[str, Any]:
    """The fields of the request that every response object repeats."""
    return {
        "frequency_penalty": typed.frequency_penalty or 0.0,
        "instructions": typed.instructions,
        "max_output_tokens": typed.max_output_tokens,
        "max_tool_calls": None,
        "metadata": raw.get("metadata") if isinstance(raw.get("metadata"), dict) else {},
        "parallel_tool_calls": typed.parallel_tool_calls is not False,
        "presence_penalty": typed.presence_penalty or 0.0,
        "prompt_cache_key": _text_or_none(raw.get("prompt_cache_key")),
        "reasoning": {"effort": _effort(typed, said), "summary": None},
        "safety_identifier": _text_or_none(raw.get("safety_identifier")),
        "service_tier": "default",
        "temperature": typed.temperature,
        "text": {"format": _form(typed, said) or {"type": "text"}},
        "tool_choice": "auto" if typed.tool_choice is None else typed.tool_choice,
        "tools": [tool for tool in typed.tools or () if is_known(tool)],
        "top_logprobs": typed.top_logprobs or 0,
        "top_p": typed.top_p,
        "truncation": "disabled",
        "user": _text_or_none(raw.get("user")),
    }


def _text_or_none(value: object) -> str | None:
    return value if isinstance(value, str) else None


def _chat_of(typed: ResponsesBody, said: ResponsesChat, history: Iterable[Item]) -> dict[str, Any]:
    """The chat; `said` gets its messages and tools."""
    said.may_defer = not any(map(is_search_by_server, typed.tools or ()))
    said.take_tools(typed.tools or (), "tools")
    if typed.instructions:
        said.messages.append({"role": "system", "content": typed.instructions})
    for item in history:
        said.add(item, "history")
    said.compacts = False
    for at, item in enumerate(_given_items(typed)):
        said.add(item, f"input[{at}]")
    messages = said.messages
    if said.compacts:
        messages.append({"role": "user", "content": SUMMARISE})
    if all(message["role"] in {"system", "developer"} for message in messages):
        # A client that only checks the connection sends no input.
        messages.append({"role": "user", "content": ""})
    given: dict[str, Any] = {
        "max_tokens": typed.max_output_tokens,
        "temperature": typed.temperature,
        "top_p": typed.top_p,
        "top_k": typed.top_k,
        "min_p": typed.min_p,
        "presence_penalty": typed.presence_penalty,
        "frequency_penalty": typed.frequency_penalty,
        "repetition_penalty": typed.repetition_penalty,
        "seed": typed.seed,
        "stop": typed.stop,
        "reasoning_effort": _effort(typed, said),
    }
    chat = {name: value for name, value in given.items() if value is not None}
    # What runs in the background can be streamed at any time.
    if typed.stream or typed.background:
        chat |= {"stream": True, "stream_options": {"include_usage": True}}
    if typed.top_logprobs or LOGPROBS in (typed.include or ()):
        chat |= {"logprobs": True, "top_logprobs": typed.top_logprobs or 0}
    return {
        "model": typed.model,
        "messages": messages,
        **chat,
        **_tool_fields(typed, said),
        **_response_format(_form(typed, said)),
    }


def _tool_fields(typed: ResponsesBody, said: ResponsesChat) -> dict[str, Any]:
    """The tools, and which of them may be called."""
    tools = said.tools
    choice, allowed = tool_choice(typed.tool_choice)
    if choice == "required" and not tools and not typed.tools:
        raise invalid("tool_choice", "'tool_choice' is 'required', but there are no tools.")
    if choice == "none" and said.compacts:
        choice = "auto"  # the prompt must begin as that of the last turn did
    if allowed is not None:
        tools = [tool for tool in tools if said.names[tool["function"]["name"]].name in allowed]
    if not tools:
        return {}
    fields = {"tools": cached_tools(tools), "tool_choice": choice}
    return (
        {**fields, "parallel_tool_calls": False} if typed.parallel_tool_calls is False else fields
    )


def _effort(typed: ResponsesBody, said: ResponsesChat) -> str | None:
    """The reasoning effort: that of an item of the conversation goes before the request's."""
    return said.effort or (None if typed.reasoning is None else typed.reasoning.effort)


def _form(typed: ResponsesBody, said: ResponsesChat) -> dict[str, Any] | None:
    """The form of the answer, by the same rule."""
    return said.form or (None if typed.text is None else typed.text.format)


def _response_format(form: dict[str, Any] | None) -> dict[str, Any]:
    if form is None or form.get("type") == "text":
        return {}
    if form.get("type") != "json_schema":
        return {"response_format": form}
    wrapped = {name: value for name, value in form.items() if name != "type"}
    return {"response_format": {"type": "json_schema", "json_schema": wrapped}}
