"""The body of POST /v1/chat/completions -> `ChatRequest`.

Owns the shape of the body (types and bounds, which msgspec checks), the rules between its fields,
and the 400 that names the field. One decode to plain values (kept as `raw`, unknown fields intact)
and one typed conversion of those: about 100 us for a 47 KB agent request. Must not know HTTP,
templates or models.
"""

from collections.abc import Callable
from typing import Annotated, Any, Final, get_args

import msgspec
import xxhash
from msgspec import Meta

from gateway.api.chat_shapes import OTHER_PARTS, plain_chat
from gateway.api.chat_tools import TOOL_CHOICES, chosen_tools, own_tools
from gateway.api.content_parts import texts_of
from gateway.api.deferred_tools import load_tools
from gateway.api.errors import ApiError, invalid
from gateway.api.ignored_fields import fields_of_others, not_served
from gateway.api.json_body import decode_object, typed_body
from gateway.api.quiet_format import QUIET_FIELDS, hides_reasoning
from gateway.api.request import (
    ChatRequest,
    Message,
    OtherPart,
    OutputCap,
    Role,
    SamplingBody,
    ToolCall,
    ToolChoice,
    continued,
    may_continue,
    request_of,
)
from gateway.api.response_format import format_grammar, instructed
from gateway.api.template_fields import TEMPLATE_VARIABLES, template_kwargs
from gateway.api.text_files import named_text
from gateway.api.tool_schemas import ToolSchema
from protocol.sampling import MAX_LOGPROBS

Rewrite = Callable[[dict[str, Any]], dict[str, Any]]

_ROLES: Final[dict[str, Role]] = {role: role for role in get_args(Role)}

_TEXT_PARTS: Final = {"text": "text", "refusal": "refusal", "tool_reference": "tool_name"}
"""The field with the text of a part, by its type."""
_PICTURES: Final = "image_url"
_THOUGHTS: Final = {"thinking": "thinking", "reasoning": "text", "redacted_thinking": "data"}
"""The field of what the assistant thought, by the type of the part in its message."""

CONTINUE: Final = "continue_final_message"
BEGUN: Final = frozenset({"prefix", "partial"})
"""Marks of a last message that begins the answer: of Mistral and DeepSeek, and of Moonshot and
Alibaba.
"""
_NONE: Final[dict[str, Any]] = {}

_LEFT_OUT: Final = "[A {} was here. It was left out, because this model reads only text.]"
_WORDS: Final = {"image_url": "picture", "input_audio": "sound recording", "file": "file"}

_encode = msgspec.json.Encoder().encode

# What the checks below require beyond the types, for the description of the API.
_NAME: Final[dict[str, Any]] = {"type": "string", "minLength": 1}


def _object(*required: str, **properties: dict[str, Any]) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(required)}


_FUNCTION: Final = _object(
    "function", type={"const": "function"}, function=_object("name", name=_NAME)
)
_PART: Final = {
    "anyOf": [
        _object("type", "text", type={"const": "text"}, text={"type": "string"}),
        _object("type", "refusal", type={"const": "refusal"}, refusal={"type": "string"}),
        _object("type", "image_url", type={"const": "image_url"}),
        {"type": "object"},  # by the names of other APIs, and any object in a result of a tool
    ]
}
_RESPONSE_FORMAT: Final = {
    "anyOf": [
        _object("type", type={"enum": ["text", "json_object"]}),
        _object(
            "type",
            "json_schema",
            type={"const": "json_schema"},
            json_schema=_object(
                "schema", schema={"type": "object"}, strict={"type": ["boolean", "null"]}
            ),
        ),
    ]
}

Part = Annotated[dict[str, Any], Meta(extra_json_schema=_PART)]
Tool = Annotated[dict[str, Any], Meta(extra_json_schema=_FUNCTION)]


class FunctionBody(msgspec.Struct):
    """The function of a tool call in the history; null arguments count as none."""

    name: Annotated[str, Meta(extra_json_schema=_NAME)]
    arguments: str | dict[str, Any] | list[Any] | int | float | bool | None = None


class ToolCallBody(msgspec.Struct):
    """A tool call in the history."""

    function: FunctionBody
    id: str | None = None


class MessageBody(msgspec.Struct):
    """A message. `reasoning` is the older name of `reasoning_content`; it counts if
    `reasoning_content` is empty. A `refusal` replaces a content that is null. Only the content of a
    tool's result may be neither text nor parts.
    """

    role: Annotated[str, Meta(extra_json_schema={"enum": list(_ROLES)})]
    content: str | list[Part | str] | dict[str, Any] | int | float | bool | None = None
    name: str | None = None
    tool_calls: list[ToolCallBody] | None = None
    tool_call_id: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    refusal: str | None = None


class ChatBody(SamplingBody, kw_only=True):
    """The fields of the request that Herma reads; null counts as absent."""

    messages: Annotated[list[MessageBody], Meta(min_length=1)]
    tools: list[Tool] | None = None
    tool_choice: (
        Annotated[str, Meta(extra_json_schema={"enum": list(TOOL_CHOICES)})]
        | Annotated[dict[str, Any], Meta(extra_json_schema=_FUNCTION)]
        | None
    ) = None
    parallel_tool_calls: bool | None = None
    continue_final_message: bool | None = None
    max_completion_tokens: OutputCap | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Meta(ge=0, le=MAX_LOGPROBS)] | None = None
    response_format: Annotated[dict[str, Any], Meta(extra_json_schema=_RESPONSE_FORMAT)] | None = (
        None
    )
    chat_template_kwargs: dict[str, Any] | None = None


_NOT_SERVED: Final = fields_of_others(ChatBody, "reasoning_effort")


def parse_chat_request(body: bytes, rewrite: Rewrite | None = None) -> ChatRequest:
    """The request in `body` (JSON in UTF-8), after `rewrite` has replaced some of its fields.

    Raises `ApiError` 400 that names the field, for wrong types, values out of bounds (NaN and
    Infinity too), unknown roles, and fields that contradict each other.
    """
    raw = decode_object(body)
    if rewrite is not None:
        raw = rewrite(raw)
    return chat_request(raw, xxhash.xxh3_128_digest(body), len(body))


def chat_request(
    raw: dict[str, Any],
    fingerprint: bytes = b"",
    num_bytes: int | None = None,
    *,
    may_load: bool = False,
) -> ChatRequest:
    """The request in the decoded body `raw`; raises as `parse_chat_request`. With `may_load` there
    may be references to tools although no tool is deferred.
    """
    tools = raw.get("tools")
    if may_load:
        return _shaped_request(raw, fingerprint, num_bytes)
    # A loop within this function, because every request comes here.
    for tool in tools if type(tools) is list else ():
        if type(tool) is not ToolSchema or not tool.function_name:
            return _shaped_request(raw, fingerprint, num_bytes)
    try:
        return _plain_request(raw, fingerprint, num_bytes)
    except ApiError:
        if plain_chat(raw)[0] is raw:
            raise
        return _shaped_request(raw, fingerprint, num_bytes)


def _shaped_request(raw: dict[str, Any], fingerprint: bytes, num_bytes: int | None) -> ChatRequest:
    """The request in a body that may have the shapes of other APIs, and deferred tools."""
    plain, customs = plain_chat(raw)
    loaded = load_tools(plain)
    local = {**loaded.body, "messages": loaded.messages}
    request = _plain_request(local, fingerprint, num_bytes)
    return msgspec.structs.replace(
        request,
        raw=loaded.body,
        custom_tools=customs,
        shown_tools=loaded.shown_of(request.tools),
    )


def _plain_request(raw: dict[str, Any], fingerprint: bytes, num_bytes: int | None) -> ChatRequest:
    """The request in a body of the plain shape."""
    typed = typed_body(raw, ChatBody)
    if typed.top_logprobs and not typed.logprobs:
        raise invalid("top_logprobs", "'top_logprobs' is only allowed when 'logprobs' is true.")
    tools: tuple[dict[str, Any], ...] = ()
    tool_choice: ToolChoice = "auto"
    foreign_tool = ""
    if typed.tools or typed.tool_choice is not None:
        given = tuple(raw.get("tools") or ())
        tools, foreign_tool = own_tools(given)
        tools, tool_choice = chosen_tools(typed.tool_choice, tools, has_others=bool(foreign_tool))
    others: list[OtherPart] = []
    messages = _messages(typed.messages, others)
    if others:
        messages = _in_results(messages, typed.messages)
    grammar = None
    if typed.response_format is not None:
        messages = instructed(messages, typed.response_format)
        grammar = format_grammar(typed.response_format)
    request = request_of(
        typed,
        raw,
        messages=messages,
        tools=tools,
        tool_choice=tool_choice,
        parallel_calls=typed.parallel_tool_calls is not False,
        max_tokens=typed.max_completion_tokens or typed.max_tokens,
        logprobs=bool(typed.logprobs),
        top_logprobs=typed.top_logprobs or 0,
        template_kwargs=_NONE
        if TEMPLATE_VARIABLES.isdisjoint(raw)
        else template_kwargs(typed.chat_template_kwargs, raw),
        other_part=_first(others) if others else None,
        grammar=grammar,
        fingerprint=fingerprint,
        num_bytes=num_bytes,
    )
    if not _NOT_SERVED.isdisjoint(raw) and (ignored := not_served(raw, _NOT_SERVED)):
        request = msgspec.structs.replace(request, ignored=ignored)
    if not QUIET_FIELDS.isdisjoint(raw) and hides_reasoning(raw):
        request = msgspec.structs.replace(request, hides_reasoning=True)
    if foreign_tool:
        request = msgspec.structs.replace(request, foreign_tool=foreign_tool)
    if typed.continue_final_message:
        return continued(request, CONTINUE)
    last = raw["messages"][-1]
    return request if BEGUN.isdisjoint(last) else _begun(request, last)


def _begun(request: ChatRequest, last: dict[str, Any]) -> ChatRequest:
    """`request` with its last message as the beginning of the answer, if the message is marked as
    one. If an answer cannot begin with this message, the mark is named as ignored.
    """
    mark = next((name for name in BEGUN if last.get(name) is True), None)
    if mark is None or last.get("role") != "assistant":
        return request
    is_free = request.grammar is None and request.tool_choice != "required"
    if is_free and may_continue(request.messages):
        return continued(request, CONTINUE)
    ignored = (*request.ignored, f"messages ({mark})")
    return msgspec.structs.replace(request, ignored=ignored)


def translated_chat(
    raw: dict[str, Any], fingerprint: bytes, num_bytes: int, form: str, *, may_load: bool = False
) -> ChatRequest:
    """Like `chat_request`, for a body that was translated from another API's body. Errors about the
    form of the answer name the field `form`.
    """

    def renamed(text: str) -> str:
        return text.replace("response_format.json_schema", form).replace("response_format", form)

    try:
        request = chat_request(raw, fingerprint, num_bytes, may_load=may_load)
    except ApiError as error:
        param = None if error.param is None else renamed(error.param)
        raise invalid(param, renamed(error.message), code=error.code or "invalid_value") from error
    grammar = request.grammar
    if grammar is None:
        return request
    grammar = msgspec.structs.replace(grammar, field=renamed(grammar.field))
    return msgspec.structs.replace(request, grammar=grammar)


def _messages(bodies: list[MessageBody], others: list[OtherPart]) -> tuple[Message, ...]:
    """The messages; parts that are not text are added to `others`. The comprehension is the fast
    path: nearly every message has a known role and a text, and nothing is left to check.
    """
    return tuple(
        [
            Message(
                _ROLES[body.role],
                body.content,
                body.name,
                _tool_calls(body.tool_calls, at) if body.tool_calls else (),
                body.tool_call_id,
                body.reasoning_content
                if body.reasoning_content or body.reasoning is None
                else body.reasoning,
            )
            if type(body.content) is str
            and body.role in _ROLES
            and (not body.tool_calls or body.role == "assistant")
            else _message(body, at, others, is_past=_is_past(bodies, at))
            for at, body in enumerate(bodies)
        ]
    )


def _is_past(bodies: list[MessageBody], at: int) -> bool:
    """Whether a message may lose a file or sound without the client asking about just that: a
    result of a tool, what follows one (clients pass a tool's pictures on as the user's), and all
    messages before the last one. The assistant's own at the end is the beginning of an answer.
    """
    role = bodies[at].role
    if role == "tool" or (at > 0 and bodies[at - 1].role == "tool"):
        return True
    last = len(bodies) - 1 - (bodies[-1].role == "assistant")
    return at < last and role in ("user", "assistant")


def _in_results(messages: tuple[Message, ...], bodies: list[MessageBody]) -> tuple[Message, ...]:
    """The messages, without turns of the user that only contain pictures behind a tool's result:
    the note that a picture was left out becomes part of the result. Templates that show only the
    reasoning since the user's last turn would otherwise drop that of a running agent.
    """
    found: list[Message] = []
    for message, body in zip(messages, bodies, strict=True):
        last = found[-1] if found else None
        if last is not None and (last.role, body.role) == ("tool", "user") and _is_no_text(body):
            text = "\n".join(one for one in (last.content, message.content) if one)
            found[-1] = msgspec.structs.replace(last, content=text)
        else:
            found.append(message)
    return tuple(found)


def _is_no_text(body: MessageBody) -> bool:
    parts = body.content if isinstance(body.content, list) else ()
    kinds = [part.get("type") for part in parts if isinstance(part, dict)]
    return bool(kinds) and all(kind in _WORDS for kind in kinds)


def _first(others: list[OtherPart]) -> OtherPart:
    is_past = all(other.is_past for other in others)
    return msgspec.structs.replace(others[0], is_past=is_past)


def _message(body: MessageBody, at: int, others: list[OtherPart], *, is_past: bool) -> Message:
    where = f"messages[{at}]"
    role = _ROLES.get(body.role)
    if role is None:
        known = ", ".join(_ROLES)
        raise invalid(f"{where}.role", f"'{where}.role' must be one of {known}, not {body.role!r}.")
    calls = _tool_calls(body.tool_calls or [], at)
    if calls and role != "assistant":
        raise invalid(f"{where}.tool_calls", f"'{where}.tool_calls' belongs to the assistant.")
    if body.content is None and role not in ("assistant", "tool"):
        raise invalid(f"{where}.content", f"'{where}.content' must be text for role {role}.")
    is_newer = body.reasoning_content or body.reasoning is None
    reasoning = body.reasoning_content if is_newer else body.reasoning
    content = body.content
    if isinstance(content, list) and role == "assistant":
        reasoning = reasoning or _thoughts(content) or reasoning
    return Message(
        role=role,
        content=body.refusal
        if content is None
        else _text(content, f"{where}.content", others, is_past=is_past, role=role),
        name=body.name,
        tool_calls=calls,
        tool_call_id=body.tool_call_id,
        reasoning_content=reasoning,
    )


def _text(content: object, where: str, others: list[OtherPart], *, is_past: bool, role: str) -> str:
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        # Such a body is read again by `chat_request`, in the plain shape, as in `_part_text`.
        raise invalid(where, f"'{where}' must be text or a list of parts.")
    texts = [
        _part_text(part, f"{where}[{i}]", others, is_past=is_past)
        for i, part in enumerate(content)
        if role != "assistant" or not _is_thought(part)
    ]
    return "\n".join(text for text in texts if text is not None)


def _is_thought(part: object) -> bool:
    kind = part.get("type") if isinstance(part, dict) else None
    return isinstance(kind, str) and kind in _THOUGHTS


def _thoughts(content: list[Any]) -> str | None:
    """What the parts of the assistant's message say that it thought: a text, or parts of text as in
    Mistral's API. What another server has encrypted means nothing.
    """
    found: list[object] = []
    for part in filter(_is_thought, content):
        kind = part["type"]
        thought = None if kind == "redacted_thinking" else part.get(_THOUGHTS[kind])
        found += texts_of(thought) if isinstance(thought, list) else [thought]
    return "".join(text for text in found if isinstance(text, str)) or None


def _part_text(
    part: Part | str, where: str, others: list[OtherPart], *, is_past: bool
) -> str | None:
    kind = part.get("type") if isinstance(part, dict) else None
    if isinstance(part, str) or not isinstance(kind, str):
        raise invalid(f"{where}.type", f"'{where}.type' must be a string.")
    field = _TEXT_PARTS.get(kind)
    if field is not None:
        text = part.get(field)
        if not isinstance(text, str):
            raise invalid(f"{where}.{field}", f"'{where}.{field}' must be a string.")
        return text
    if kind in OTHER_PARTS:
        # `chat_request` reads the body again, in the plain shape.
        raise invalid(f"{where}.type", f"'{where}' is a part of another API.")
    file = part.get("file") if kind == "file" else None
    if isinstance(file, dict) and (text := named_text(file)) is not None:
        return text
    is_past = is_past or kind == _PICTURES
    others.append(OtherPart(where, kind, is_past))
    return _LEFT_OUT.format(_WORDS.get(kind, "part")) if is_past else None


def _tool_calls(bodies: list[ToolCallBody], at: int) -> tuple[ToolCall, ...]:
    return tuple(
        [
            ToolCall(body.id or "", body.function.name, body.function.arguments)
            if body.function.name and type(body.function.arguments) is str
            else _tool_call(body, f"messages[{at}].tool_calls[{index}]")
            for index, body in enumerate(bodies)
        ]
    )


def _tool_call(call: ToolCallBody, where: str) -> ToolCall:
    if not call.function.name:
        raise invalid(f"{where}.function.name", f"'{where}.function.name' is empty.")
    arguments = call.function.arguments
    if not isinstance(arguments, str):
        arguments = _encode({} if arguments is None else arguments).decode()
    return ToolCall(id=call.id or "", name=call.function.name, arguments=arguments)
