"""The body of POST /v1/messages (Anthropic's API) -> `ChatRequest`.

Owns the shape of the body and its translation into a chat, which providers get too. Fields, blocks
and tools that Herma cannot serve are dropped, because clients send many kinds; the request names
those that the answer would depend on. Two texts of Claude
Code are removed, because they change the beginning of every prompt and so defeat every prefix
cache: a billing header in the system text, and a count of the tokens left. Must not know HTTP.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import takewhile
from typing import Annotated, Any, Final, NamedTuple

import msgspec
import xxhash
from msgspec import UNSET, Meta, UnsetType

from gateway.api.chat_parser import Rewrite, translated_chat
from gateway.api.compaction import SUMMARISE, compacting
from gateway.api.content_parts import (
    READ,
    TEXTS,
    call_of,
    kind_of,
    parts_of,
    texts_of,
    user_messages,
)
from gateway.api.context_edits import EditedContext, edited_context
from gateway.api.deferred_tools import may_refer
from gateway.api.errors import NO_THREADS, invalid
from gateway.api.events import Wanted
from gateway.api.ignored_fields import fields_of_others, not_served
from gateway.api.json_body import cached_tools, decode_object, typed_body
from gateway.api.messages_tools import (
    FORCED,
    ToolChoiceParam,
    functions_of,
    is_ours,
    tool_choice_fields,
)
from gateway.api.output_grammar import GRAMMAR_FIELDS
from gateway.api.request import (
    MAX_SESSION_CHARS,
    MAX_STOP_CHARS,
    MAX_STOPS,
    ChatRequest,
    continued,
    may_continue,
)
from gateway.api.signatures import Signer
from gateway.api.template_fields import TEMPLATE_FIELDS
from gateway.api.tool_changes import (
    CHANGES,
    changes_in,
    defined_tools,
    defines,
    part_of_change,
    unread_change,
)
from protocol.reading import read_object

_FINGERPRINT_SEED: Final = 1
"""Distinguishes these requests from those of other APIs with the same bytes."""

_BILLING_HEADER: Final = re.compile(r"\Ax-anthropic-billing-header:[^\n]*\n*")
_TOKENS_LEFT: Final = re.compile(r"(?<!\n)\n*+<total_tokens>[^<\n]{0,64}</total_tokens>")
_SESSION: Final = re.compile(r"session_([0-9A-Za-z-]{8,})")
_INSTRUCTING: Final = frozenset({"system", "developer"})
_ROLES: Final = _INSTRUCTING | {"user", "assistant"}
_SUMMARY: Final = "Summary of the conversation so far:\n\n{}"

_RESULT: Final = "tool_result"
_COMPACTION: Final = "compaction"
_ANYWHERE: Final = frozenset({_COMPACTION, "fallback"})
"""Types of blocks that have a meaning in each message; the last one is for servers alone."""
_READ_AS: Final[Mapping[str, frozenset[str]]] = {
    "user": READ | CHANGES | _ANYWHERE | {_RESULT},
    "assistant": TEXTS | _ANYWHERE | {"tool_use", "thinking", "redacted_thinking"},
    "system": TEXTS | CHANGES | _ANYWHERE,
    "developer": TEXTS | CHANGES | _ANYWHERE,
}
"""Types of blocks that are read, by the role of the message. Thinking of other servers means
nothing to the model.
"""
_MAX_SHOWN: Final = 64
_SUMMARISE: Final = "summarize"
_ONE_TURN: Final = "next_user_message"

Block = dict[str, Any]


class OutputConfig(msgspec.Struct):
    """The form of the answer; a `format` of type `json_schema` has a `schema`."""

    effort: str | None = None
    format: dict[str, Any] | None = None


class MessageParam(msgspec.Struct):
    """One message; blocks of unknown types are left out, and named. Only a system message may do
    without a content: it may state the effort of a turn. One that is to `clear_at` the user's next
    message holds for one turn.
    """

    role: Annotated[str, Meta(extra_json_schema={"enum": sorted(_ROLES)})]
    content: str | list[Block] | UnsetType = UNSET
    clear_at: str | None = None
    output_config: OutputConfig | None = None


class ThinkingParam(msgspec.Struct):
    """`disabled`, or anything else for thinking; the budget is the model's own."""

    type: str


class CompactionParam(msgspec.Struct):
    """`summarize` demands a summary of the conversation, by other words if there are
    `instructions`.
    """

    type: str
    instructions: str | None = None


class ThreadParam(msgspec.Struct):
    """A conversation that the server holds: `create` one, or `continue` one."""

    type: str


class MetadataParam(msgspec.Struct):
    """`user_id` names the conversation, or holds its name."""

    user_id: str | None = None


class MessagesBody(msgspec.Struct, kw_only=True):
    """The fields of the request that Herma reads; null counts as absent."""

    model: Annotated[str, Meta(min_length=1)]
    messages: Annotated[list[MessageParam], Meta(min_length=1)]
    max_tokens: Annotated[int, Meta(ge=0, le=2**31 - 1)] | None = None
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
    compaction: CompactionParam | None = None
    thread: ThreadParam | None = None


_NOT_SERVED: Final = fields_of_others(MessagesBody)


def parse_messages(
    body: bytes, signer: Signer, rewrite: Rewrite | None = None, *, is_counted: bool = False
) -> ChatRequest:
    """The request in `body` (JSON in UTF-8) as a chat, some of whose fields `rewrite` replaces.

    Thinking in the history counts if `signer` has signed it. One that `is_counted` asks for no
    summary. Raises `ApiError` 400 that names the field.
    """
    raw = decode_object(body)
    typed = typed_body(raw, MessagesBody)
    if typed.thread is not None and typed.thread.type == "continue":
        text = "'thread' continues a conversation that a server holds, and none is held here: send "
        raise invalid("thread", text + "all messages, without 'thread'.", code=NO_THREADS)
    wanted = "answer" if is_counted else _wanted(typed)
    chat, context = _chat_of(typed, signer)
    if wanted == "summary":
        _ask_for_summary(chat, typed)
    for name in (GRAMMAR_FIELDS | TEMPLATE_FIELDS) & raw.keys():
        chat[name] = raw[name]
    if rewrite is not None:
        chat = rewrite(chat)
    fingerprint = xxhash.xxh3_128_digest(body, seed=_FINGERPRINT_SEED)
    form = "output_config.format" if typed.output_format is None else "output_format"
    request = translated_chat(chat, fingerprint, len(body), form, may_load=may_refer(body))
    if wanted == "answer" and may_continue(request.messages):
        request = continued(request, "messages")
    if wanted == "summary":
        request = compacting(request)
    return msgspec.structs.replace(
        request,
        session=_session(typed.metadata),
        translated_from="messages",
        wanted=wanted,
        template_kwargs={**_template_kwargs(typed), **request.template_kwargs},
        ignored=_ignored(typed, raw, context, request.tools),
        context_edits=None if typed.context_management is None else tuple(context.applied),
    )


def _wanted(typed: MessagesBody) -> Wanted:
    if typed.compaction is not None and typed.compaction.type == _SUMMARISE:
        return "summary"
    return "nothing" if typed.max_tokens == 0 else "answer"


def _ask_for_summary(chat: dict[str, Any], typed: MessagesBody) -> None:
    asked = typed.compaction.instructions if typed.compaction is not None else None
    chat["messages"].append({"role": "user", "content": (asked or "").strip() or SUMMARISE})
    if chat.get("tool_choice") == "none":
        chat["tool_choice"] = "auto"  # the prompt must begin as that of the last turn did


def _ignored(
    typed: MessagesBody,
    raw: dict[str, Any],
    context: EditedContext,
    tools_chosen: Iterable[dict[str, Any]],
) -> tuple[str, ...]:
    """What the client asked for and does not get."""
    tools = [
        f"tools[{at}] ({tool.get('type')})"
        for at, tool in enumerate(typed.tools or ())
        if not is_ours(tool)
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
    if typed.thread is not None:
        fields.append(f"thread ({typed.thread.type[:_MAX_SHOWN]})")
    if typed.compaction is not None and typed.compaction.type != _SUMMARISE:
        fields.append(f"compaction ({typed.compaction.type[:_MAX_SHOWN]})")
    if len([stop for stop in typed.stop_sequences or () if stop]) > MAX_STOPS:
        fields.append(f"stop_sequences beyond {MAX_STOPS}")
    if typed.tool_choice is not None and typed.tool_choice.type in FORCED:
        named = typed.tool_choice.tool_name
        ours = [tool["function"]["name"] for tool in tools_chosen]
        fields += [] if (ours if named is None else named in ours) else ["tool_choice"]
    kinds = {kind: None for one in typed.messages for kind in _unread(one.role, _blocks(one))}
    blocks = [f"messages ({kind})" for kind in kinds]
    edits = [f"context_management ({kind})" for kind in context.ignored]
    return (*tools, *fields, *edits, *blocks)


def _unread(role: str, blocks: Iterable[object]) -> Iterator[str]:
    """The types of the blocks that are left out of a message of that role, and of results in it;
    with the role if messages of another one may have them.
    """
    read = _READ_AS[role]
    for block in blocks:
        if not isinstance(block, dict):
            continue
        kind = _kind(block)
        if kind not in read:
            yield f"{role}: {kind}" if any(kind in one for one in _READ_AS.values()) else kind
        elif kind in CHANGES and (unread := unread_change(block)) is not None:
            yield unread
        elif kind == _RESULT and isinstance(inner := block.get("content"), list):
            yield from _unread("user", inner)


def _kind(block: Block) -> str:
    return str(kind_of(block))


def _blocks(message: MessageParam) -> Sequence[Block]:
    return message.content if isinstance(message.content, list) else ()


def _changed_blocks(message: MessageParam) -> Iterator[Block]:
    """The blocks of the message, and the changes of tools that a compaction has kept."""
    for block in _blocks(message):
        yield block
        if block.get("type") == _COMPACTION:
            yield from changes_in(block)


def _chat_of(typed: MessagesBody, signer: Signer) -> tuple[dict[str, Any], EditedContext]:
    """The chat, and what was edited in it."""
    messages, context = _conversation(typed, signer)
    chat: dict[str, Any] = {"model": typed.model, "messages": messages}
    for name in ("temperature", "top_p", "top_k", "seed"):
        if (value := getattr(typed, name)) is not None:
            chat[name] = value
    if typed.max_tokens is not None:
        chat["max_tokens"] = max(1, typed.max_tokens)
    if typed.stream:
        chat |= {"stream": True, "stream_options": {"include_usage": True}}
    if stops := [stop for stop in typed.stop_sequences or () if stop]:
        chat["stop"] = stops[:MAX_STOPS]
    tools = _tools_of(typed)
    if (
        not (typed.tools or tools)
        and typed.tool_choice is not None
        and typed.tool_choice.type in FORCED
    ):
        raise invalid("tool_choice", "'tool_choice' asks for a call, but there are no tools.")
    if tools:
        chat["tools"] = cached_tools(tools)
        chat |= tool_choice_fields(typed.tool_choice)
    return chat | _output(typed), context


def _tools_of(typed: MessagesBody) -> list[Block]:
    """The tools of the request and those that messages define. One that is defined before the
    conversation takes the place of one with its name.
    """
    tools = functions_of(typed.tools or ())
    num_first = _num_first(typed)
    for at, message in enumerate(typed.messages):
        blocks, is_first = _changed_blocks(message), at < num_first
        defined = [*defined_tools(blocks, f"messages[{at}].content", may_defer=not is_first)]
        names = {tool["function"]["name"] for tool in defined} if is_first else ()
        tools = [*(tool for tool in tools if tool["function"]["name"] not in names), *defined]
    return tools


def _conversation(
    typed: MessagesBody, signer: Signer
) -> tuple[list[dict[str, Any]], EditedContext]:
    system, tokens_left = _system(typed.system)
    messages: list[dict[str, Any]] = []
    num_first = _num_first(typed)
    last = max((at for at, one in enumerate(typed.messages) if one.role == "user"), default=-1)
    for at, message in enumerate(typed.messages):
        if message.role not in _ROLES:
            where, said = f"messages[{at}].role", message.role
            raise invalid(where, f"'{where}' must be user, assistant or system, not {said!r}.")
        if (summary := _compacted(message)) is not None:
            messages = [{"role": "user", "content": _SUMMARY.format(summary)}]
            messages += _told("system", filter(None, map(part_of_change, _kept(message))))
        if not _is_for_servers(message):
            place = _Place(at, is_first=at < num_first, is_over=at < last)
            messages += _messages(message, place, signer)
    context = edited_context(messages, typed.context_management)
    messages = list(context.messages)
    if system:
        messages.insert(0, {"role": "system", "content": system})
    if tokens_left and messages:
        _append(messages[-1], tokens_left)
    return messages, context


def _output(typed: MessagesBody) -> dict[str, Any]:
    """The fields for the effort and the form of the answer."""
    fields: dict[str, Any] = {}
    config = typed.output_config or OutputConfig()
    if typed.thinking is not None:
        thinks = typed.thinking.type != "disabled"
        fields["thinking"] = {"type": "enabled" if thinks else "disabled"}
    if (effort := _effort(typed)) is not None:
        fields["reasoning_effort"] = effort
    form = typed.output_format if config.format is None else config.format
    if form is not None and form.get("type") == "json_schema":
        schema = {"name": "answer", "schema": form.get("schema")}
        fields["response_format"] = {"type": "json_schema", "json_schema": schema}
    elif form is not None:
        fields["response_format"] = form
    return fields


def _compacted(message: MessageParam) -> str | None:
    """The summary that replaces all earlier messages, if a server has compacted the
    conversation.
    """
    blocks = _blocks(message)
    texts = [block.get("content") for block in blocks if block.get("type") == "compaction"]
    return next((text for text in reversed(texts) if isinstance(text, str) and text), None)


def _template_kwargs(typed: MessagesBody) -> dict[str, Any]:
    """Variables that switch thinking in the template; each upstream gets its own switch.
    Clients that do not ask for thinking take the first block for the answer.
    """
    thinks = typed.thinking is not None and typed.thinking.type != "disabled"
    kwargs: dict[str, Any] = {"enable_thinking": thinks, "thinking": thinks}
    if (effort := _effort(typed)) is not None:
        kwargs["reasoning_effort"] = effort
    return kwargs


def _effort(typed: MessagesBody) -> str | None:
    """The effort of the coming turn: what a system message says since the user last spoke, else the
    request.
    """
    for message in reversed(typed.messages):
        config = message.output_config
        if message.role == "system" and config is not None and config.effort is not None:
            return config.effort
        are_results = all(block.get("type") == _RESULT for block in _blocks(message))
        if message.role == "user" and not (_blocks(message) and are_results):
            break
    return None if typed.output_config is None else typed.output_config.effort


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


class _Place(NamedTuple):
    """Where a message stands: `is_first`, before the conversation; `is_over`, the user has said
    something since.
    """

    at: int
    is_first: bool
    is_over: bool


def _messages(message: MessageParam, place: _Place, signer: Signer) -> list[dict[str, Any]]:
    """The messages of a chat for one."""
    role, content, at = message.role, message.content, place.at
    if role in _INSTRUCTING:
        return _instructions(message, place)
    if content is UNSET:
        raise invalid(f"messages[{at}].content", f"'messages[{at}].content' is missing.")
    if isinstance(content, str):
        return [{"role": role, "content": content}]
    if role == "assistant":
        return [_assistant(content, at, signer)]
    return list(user_messages(content, f"messages[{at}].content", _parts))


def _instructions(message: MessageParam, place: _Place) -> list[dict[str, Any]]:
    """What a system message says, in order, unless that held for a turn that is over, and its
    changes of tools, which stay.
    """
    is_cleared = place.is_over and message.clear_at == _ONE_TURN
    if isinstance(message.content, str):
        return [] if is_cleared else [{"role": message.role, "content": message.content}]
    parts = []
    for block in _blocks(message):
        if _kind(block) in CHANGES:
            if not (place.is_first and defines(block)):
                parts.append(part_of_change(block))
        elif not is_cleared:
            parts += map(_text, texts_of([block]))
    return _told(message.role, filter(None, parts))


def _told(role: str, given: Iterable[Block]) -> list[dict[str, Any]]:
    """A message with these parts, none if there are none; as one text if all are texts."""
    parts = list(given)
    if any(part["type"] != "text" for part in parts):
        return [{"role": role, "content": parts}]
    text = "\n\n".join(part["text"] for part in parts)
    return [{"role": role, "content": text}] if parts else []


def _text(text: str) -> Block:
    return {"type": "text", "text": text}


def _is_for_servers(message: MessageParam) -> bool:
    """Whether the message is no turn: it has only what a server wrote for itself."""
    blocks = _blocks(message)
    is_turn = message.role == "assistant" and _compacted(message) is not None
    return bool(blocks) and not is_turn and all(_kind(block) in _ANYWHERE for block in blocks)


def _num_first(typed: MessagesBody) -> int:
    """How many system messages come before the conversation. Tools that they define are treated
    like tools of the request.
    """
    return len(list(takewhile(lambda one: one.role in _INSTRUCTING, typed.messages)))


def _kept(message: MessageParam) -> Iterator[Block]:
    """The changes of tools that its compaction has kept."""
    return (one for block in _blocks(message) for one in changes_in(block))


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
    if _kind(block) in CHANGES:
        part = part_of_change(block)
        return [] if part is None else [part]
    if block.get("type") == "text":
        raise invalid(f"{where}.text", f"'{where}.text' must be a string.")
    return []
