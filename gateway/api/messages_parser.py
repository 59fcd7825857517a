"""The body of POST /v1/messages (Anthropic's API) -> `ChatRequest`.

Owns the shape of the body and its translation into a chat, which providers get too. Fields, blocks
and tools that Herma cannot serve are dropped, because clients send many kinds; the request names
those that the answer would depend on. Two texts of Claude
Code are removed, because they change the beginning of every prompt and so defeat every prefix
cache: a billing header in the system text, and a count of the tokens left. Must not know HTTP.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Annotated, Any, Final

import msgspec
import xxhash
from msgspec import Meta

from gateway.api.chat_parser import TEMPLATE_FIELDS, Rewrite, translated_chat
from gateway.api.client_functions import function_fields
from gateway.api.client_tools import client_tool
from gateway.api.content_parts import READ, call_of, kind_of, parts_of, texts_of, user_messages
from gateway.api.context_edits import EditedContext, edited_context
from gateway.api.deferred_tools import may_refer
from gateway.api.errors import invalid
from gateway.api.named_fields import fields_of_others, not_served
from gateway.api.output_grammar import GRAMMAR_FIELDS
from gateway.api.request import (
    MAX_SESSION_CHARS,
    MAX_STOP_CHARS,
    MAX_STOPS,
    ChatRequest,
    OutputCap,
    cached_tools,
    continued,
    decode_object,
    may_continue,
    typed_body,
)
from gateway.api.signatures import Signer
from protocol.reading import read_object

_FINGERPRINT_SEED: Final = 1
"""Distinguishes these requests from those of other APIs with the same bytes."""

_BILLING_HEADER: Final = re.compile(r"\Ax-anthropic-billing-header:[^\n]*\n*")
_TOKENS_LEFT: Final = re.compile(r"\n*<total_tokens>[^<\n]{0,64}</total_tokens>")
_SESSION: Final = re.compile(r"session_([0-9A-Za-z-]{8,})")
_ROLES: Final = frozenset({"user", "assistant", "system", "developer"})
_NAMED: Final = frozenset({"tool", "function"})
_FORCED: Final = frozenset({"any", "required", *_NAMED})
"""Choices that ask for a call."""
_CHOICES: Final = {"auto": "auto", "any": "required", "required": "required", "none": "none"}
_OUR_TOOLS: Final = frozenset({None, "custom"})
"""Types of tools that the client describes. It runs those of `client_tools.py` too; a server would
run the others.
"""
_SEARCH: Final = "tool_search_tool_"
"""Begins the types of a search that the server would run. No search runs here, so the tools that
the search would find are shown from the beginning.
"""
_EXAMPLES: Final = "Examples of its input:"
_SUMMARY: Final = "Summary of the conversation so far:\n\n{}"

_BLOCKS: Final = READ | {
    "tool_use", "tool_result", "thinking", "redacted_thinking", "compaction",
}  # fmt: skip
"""Types of blocks that are read. Thinking of other servers means nothing to the model."""

Block = dict[str, Any]


class MessageParam(msgspec.Struct):
    """One message; blocks of unknown types are left out, and named."""

    role: Annotated[str, Meta(extra_json_schema={"enum": sorted(_ROLES)})]
    content: str | list[Block]


class ToolParam(msgspec.Struct):
    """A tool that the client runs."""

    name: Annotated[str, Meta(min_length=1)]
    type: str | None = None
    description: str | None = None
    input_schema: dict[str, Any] | None = None
    strict: bool | None = None
    defer_loading: bool | None = None
    input_examples: list[dict[str, Any]] | None = None


class ToolChoiceParam(msgspec.Struct):
    """The choice among tools; only the type `tool` has a `name`. In a chat's form its type is
    `function`, and the name may be in that field.
    """

    type: str
    name: str | None = None
    function: dict[str, Any] | None = None
    disable_parallel_tool_use: bool | None = None

    @property
    def tool_name(self) -> object:
        """The name of the chosen tool."""
        return self.name if self.function is None else self.function.get("name")


class ThinkingParam(msgspec.Struct):
    """`disabled`, or anything else for thinking; the budget is the model's own."""

    type: str


class OutputConfig(msgspec.Struct):
    """The form of the answer; a `format` of type `json_schema` has a `schema`."""

    effort: str | None = None
    format: dict[str, Any] | None = None


class MetadataParam(msgspec.Struct):
    """`user_id` names the conversation, or holds its name."""

    user_id: str | None = None


class MessagesBody(msgspec.Struct, kw_only=True):
    """The fields of the request that Herma reads; null counts as absent."""

    model: Annotated[str, Meta(min_length=1)]
    messages: Annotated[list[MessageParam], Meta(min_length=1)]
    max_tokens: OutputCap | None = None
    system: str | list[Block] | None = None
    stream: bool | None = None
    temperature: Annotated[float, Meta(ge=0, le=100)] | None = None
    top_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    top_k: Annotated[int, Meta(ge=-1, le=2**31 - 1)] | None = None
    stop_sequences: list[Annotated[str, Meta(max_length=MAX_STOP_CHARS)]] | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: ToolChoiceParam | None = None
    thinking: ThinkingParam | None = None
    output_config: OutputConfig | None = None
    output_format: dict[str, Any] | None = None
    context_management: dict[str, Any] | None = None
    seed: Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)] | None = None
    metadata: MetadataParam | None = None


_NOT_SERVED: Final = fields_of_others(MessagesBody)


def parse_messages(body: bytes, signer: Signer, rewrite: Rewrite | None = None) -> ChatRequest:
    """The request in `body` (JSON in UTF-8) as a chat, some of whose fields `rewrite` replaces.

    Thinking in the history counts if `signer` has signed it. Raises `ApiError` 400 that names the
    field.
    """
    raw = decode_object(body)
    typed = typed_body(raw, MessagesBody)
    chat, context = _chat_of(typed, signer)
    for name in (GRAMMAR_FIELDS | TEMPLATE_FIELDS) & raw.keys():
        chat[name] = raw[name]
    if rewrite is not None:
        chat = rewrite(chat)
    fingerprint = xxhash.xxh3_128_digest(body, seed=_FINGERPRINT_SEED)
    form = "output_config.format" if typed.output_format is None else "output_format"
    request = translated_chat(chat, fingerprint, len(body), form, may_load=may_refer(body))
    if may_continue(request.messages):
        request = continued(request, "messages")
    return msgspec.structs.replace(
        request,
        session=_session(typed.metadata),
        translated_from="messages",
        template_kwargs={**_template_kwargs(typed), **request.template_kwargs},
        ignored=_ignored(typed, raw, context),
        context_edits=None if typed.context_management is None else tuple(context.applied),
    )


def _ignored(typed: MessagesBody, raw: dict[str, Any], context: EditedContext) -> tuple[str, ...]:
    """What the client asked for and does not get."""
    tools = [
        f"tools[{at}] ({tool.get('type')})"
        for at, tool in enumerate(typed.tools or ())
        if not _is_ours(tool)
    ]
    fields = list(not_served(raw, _NOT_SERVED))
    config = raw.get("output_config")
    if isinstance(config, dict) and config.get("task_budget"):
        fields.append("output_config.task_budget")
    fields += [
        f"tools[{at}].allowed_callers"
        for at, tool in enumerate(typed.tools or ())
        if isinstance(callers := tool.get("allowed_callers"), list)
        and callers
        and "direct" not in callers
    ]
    if len([stop for stop in typed.stop_sequences or () if stop]) > MAX_STOPS:
        fields.append(f"stop_sequences beyond {MAX_STOPS}")
    if typed.tool_choice is not None and typed.tool_choice.type in _FORCED:
        named = typed.tool_choice.tool_name
        ours = [_own_form(tool).get("name") for tool in typed.tools or () if _is_ours(tool)]
        fields += [] if (ours if named is None else named in ours) else ["tool_choice"]
    kinds = {str(kind): None for one in typed.messages for kind in _kinds(_blocks(one))}
    blocks = [f"messages ({kind})" for kind in kinds if kind not in _BLOCKS]
    edits = [f"context_management ({kind})" for kind in context.ignored]
    return (*tools, *fields, *edits, *blocks)


def _kinds(blocks: Iterable[object]) -> Iterator[object]:
    """The types of blocks, and of those in results of calls."""
    for block in blocks:
        if not isinstance(block, dict):
            continue
        yield kind_of(block)
        if block.get("type") == "tool_result" and isinstance(inner := block.get("content"), list):
            yield from _kinds(inner)


def _blocks(message: MessageParam) -> Sequence[Block]:
    return message.content if isinstance(message.content, list) else ()


def _chat_of(typed: MessagesBody, signer: Signer) -> tuple[dict[str, Any], EditedContext]:
    """The chat, and what was edited in it."""
    messages, context = _conversation(typed, signer)
    chat: dict[str, Any] = {"model": typed.model, "messages": messages}
    for name in ("max_tokens", "temperature", "top_p", "top_k", "seed"):
        if (value := getattr(typed, name)) is not None:
            chat[name] = value
    if typed.stream:
        chat |= {"stream": True, "stream_options": {"include_usage": True}}
    if stops := [stop for stop in typed.stop_sequences or () if stop]:
        chat["stop"] = stops[:MAX_STOPS]
    tools = _tools(typed.tools or ())
    if not typed.tools and typed.tool_choice is not None and typed.tool_choice.type in _FORCED:
        raise invalid("tool_choice", "'tool_choice' asks for a call, but there are no tools.")
    if tools:
        chat["tools"] = cached_tools(tools)
        chat |= _tool_choice(typed.tool_choice)
    return chat | _output(typed), context


def _conversation(
    typed: MessagesBody, signer: Signer
) -> tuple[list[dict[str, Any]], EditedContext]:
    system, tokens_left = _system(typed.system)
    messages: list[dict[str, Any]] = []
    for at, message in enumerate(typed.messages):
        if (summary := _compacted(message)) is not None:
            messages = [{"role": "user", "content": _SUMMARY.format(summary)}]
        messages += _messages(message, at, signer)
    context = edited_context(messages, typed.context_management)
    messages = list(context.messages)
    if system:
        messages.insert(0, {"role": "system", "content": system})
    if tokens_left:
        _append(messages[-1], tokens_left)
    return messages, context


def _output(typed: MessagesBody) -> dict[str, Any]:
    """The fields for the effort and the form of the answer."""
    fields: dict[str, Any] = {}
    config = typed.output_config or OutputConfig()
    if typed.thinking is not None:
        thinks = typed.thinking.type != "disabled"
        fields["thinking"] = {"type": "enabled" if thinks else "disabled"}
    if config.effort is not None:
        fields["reasoning_effort"] = config.effort
    form = typed.output_format if config.format is None else config.format
    if form is not None and form.get("type") == "json_schema":
        schema = {"name": "answer", "schema": form.get("schema")}
        fields["response_format"] = {"type": "json_schema", "json_schema": schema}
    elif form is not None:
        fields["response_format"] = form
    return fields


def _compacted(message: MessageParam) -> str | None:
    """The summary that stands for all before it, if a server has compacted the conversation."""
    blocks = _blocks(message)
    texts = [block.get("content") for block in blocks if block.get("type") == "compaction"]
    return next((text for text in reversed(texts) if isinstance(text, str) and text), None)


def _template_kwargs(typed: MessagesBody) -> dict[str, Any]:
    """Variables that switch thinking in the template; each upstream gets its own switch.
    Clients that do not ask for thinking take the first block for the answer.
    """
    thinks = typed.thinking is not None and typed.thinking.type != "disabled"
    kwargs: dict[str, Any] = {"enable_thinking": thinks, "thinking": thinks}
    if typed.output_config is not None and typed.output_config.effort is not None:
        kwargs["reasoning_effort"] = typed.output_config.effort
    return kwargs


def _session(metadata: MetadataParam | None) -> str | None:
    """The session in the user's id, where Claude Code puts it as text or in a JSON object."""
    user = metadata.user_id if metadata is not None else None
    if not user:
        return None
    if user.startswith("{"):
        named = (read_object(user) or {}).get("session_id")
        if isinstance(named, str) and named:
            return named[:MAX_SESSION_CHARS]
    match = _SESSION.search(user)
    return (match[1] if match is not None else user)[:MAX_SESSION_CHARS]


def _system(given: str | list[Block] | None) -> tuple[str, str]:
    """The system text without what changes in every request, and the last count of tokens."""
    texts = [given] if isinstance(given, str) else texts_of(given or ())
    kept = [text for text in (_BILLING_HEADER.sub("", text) for text in texts) if text]
    system = "\n\n".join(kept)
    counts = _TOKENS_LEFT.findall(system)
    if not counts:
        return system, ""
    return _TOKENS_LEFT.sub("", system).strip("\n"), counts[-1].strip("\n")


def _append(message: dict[str, Any], text: str) -> None:
    """Append `text` to the message."""
    content = message.get("content")
    if isinstance(content, list):
        content.append({"type": "text", "text": text})
    else:
        message["content"] = f"{content}\n\n{text}" if content else text


def _messages(message: MessageParam, at: int, signer: Signer) -> list[dict[str, Any]]:
    role, content = message.role, message.content
    if role not in _ROLES:
        where = f"messages[{at}].role"
        raise invalid(where, f"'{where}' must be user, assistant or system, not {role!r}.")
    if isinstance(content, str):
        return [{"role": role, "content": content}]
    if role == "assistant":
        return [_assistant(content, at, signer)]
    if role == "user":
        return list(user_messages(content, f"messages[{at}].content", _parts))
    return [{"role": role, "content": "\n\n".join(texts_of(content))}]


def _assistant(blocks: list[Block], at: int, signer: Signer) -> dict[str, Any]:
    """Text, calls and thinking of one turn. Thinking that another server signed is dropped."""
    message: dict[str, Any] = {"role": "assistant", "content": "".join(texts_of(blocks))}
    thoughts = "".join(_thoughts(blocks, signer))
    calls = [
        call_of(block, f"messages[{at}].content[{index}]")
        for index, block in enumerate(blocks)
        if block.get("type") == "tool_use"
    ]
    if thoughts:
        message["reasoning_content"] = thoughts
    if calls:
        message["tool_calls"] = calls
    return message


def _thoughts(blocks: Iterable[Block], signer: Signer) -> Iterator[str]:
    for block in blocks:
        if block.get("type") == "thinking":
            text, signature = block.get("thinking"), block.get("signature")
            if not (isinstance(text, str) and isinstance(signature, str)):
                continue
            if signer.is_signed(text, signature):
                yield text


def _parts(block: object, where: str) -> list[Block]:
    """The parts of a chat message for a block of the user; unknown ones have none."""
    parts = parts_of(block)
    if parts is not None:
        return parts
    if not isinstance(block, dict):
        raise invalid(where, f"'{where}' must be text or blocks.")
    if block.get("type") == "text":
        raise invalid(f"{where}.text", f"'{where}.text' must be a string.")
    return []


def _is_ours(tool: dict[str, Any]) -> bool:
    kind = tool.get("type")
    is_named = (kind is None or isinstance(kind, str)) and kind in _OUR_TOOLS
    is_ours = is_named or client_tool(tool) is not None or "input_schema" in tool
    return is_ours or function_fields(tool) is not None


def _own_form(tool: dict[str, Any]) -> dict[str, Any]:
    """A tool in the form of this API."""
    fields = None if "input_schema" in tool else function_fields(tool)
    return tool if fields is None else {**fields, "input_schema": fields.get("parameters")}


def _tools(given: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """The tools that the client runs, as tools of the chat API."""
    searches = any(str(tool.get("type")).startswith(_SEARCH) for tool in given)
    return [
        _tool(tool, at, may_defer=not searches) for at, tool in enumerate(given) if _is_ours(tool)
    ]


def _tool(given: dict[str, Any], at: int, *, may_defer: bool) -> dict[str, Any]:
    """A tool of the chat API."""
    given = _own_form(given)
    tool = typed_body(given, ToolParam, f"tools[{at}]")
    function: dict[str, Any] = {"name": tool.name}
    description, schema = tool.description, tool.input_schema
    if schema is None and (known := client_tool(given)) is not None:
        description, schema = known
    if tool.input_examples:
        shown = map(_text_of_json, tool.input_examples)
        description = "\n".join([*([description, ""] if description else []), _EXAMPLES, *shown])
    if description is not None:
        function["description"] = description
    function["parameters"] = schema or {"type": "object", "properties": {}}
    if tool.strict:
        function["strict"] = True
    found: dict[str, Any] = {"type": "function", "function": function}
    if tool.defer_loading and may_defer:
        found["defer_loading"] = True
    return found


def _text_of_json(value: object) -> str:
    return msgspec.json.encode(value).decode()


def _tool_choice(choice: ToolChoiceParam | None) -> dict[str, Any]:
    """The fields for a choice among tools."""
    if choice is None:
        return {}
    fields: dict[str, Any] = (
        {"parallel_tool_calls": False} if choice.disable_parallel_tool_use else {}
    )
    if choice.type in _NAMED:
        named = {"type": "function", "function": {"name": choice.tool_name}}
        return {**fields, "tool_choice": named}
    chosen = _CHOICES.get(choice.type)
    if chosen is None:
        text = f"'tool_choice.type' must be auto, any, tool or none, not {choice.type!r}."
        raise invalid("tool_choice.type", text)
    return {**fields, "tool_choice": chosen}
