"""The body of POST /v1/responses (OpenAI's API) -> `ChatRequest`, and what its answer repeats.

Owns the shape of the body and its translation into a chat, which providers get too. Items, parts
and tools that Herma cannot serve are dropped (the request names such tools), and no history makes a
request fail, whatever arguments its calls have. The items that a response continues or refers to
are arguments. Must not know HTTP, nor where items are stored.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Annotated, Any, Final, Literal

import msgspec
import xxhash
from msgspec import Meta

from gateway.api.chat_parser import Rewrite, translated_chat
from gateway.api.compaction import SUMMARISE, summary_text
from gateway.api.custom_tools import arguments_of, custom_function
from gateway.api.deferred_tools import DEFER, reference
from gateway.api.errors import invalid
from gateway.api.output_grammar import GRAMMAR_FIELDS
from gateway.api.request import (
    ChatRequest,
    OutputCap,
    cached_tools,
    decode_object,
    session_of,
    typed_body,
)
from gateway.api.signatures import Signer
from gateway.api.text_files import text_of_file
from protocol.sampling import MAX_LOGPROBS

NAMESPACE_SEPARATOR: Final = "__"
ENCRYPTED: Final = "reasoning.encrypted_content"
LOGPROBS: Final = "message.output_text.logprobs"

_FINGERPRINT_SEED: Final = 2
"""Distinguishes these requests from those of other APIs with the same bytes."""

_ROLES: Final = frozenset({"user", "assistant", "system", "developer"})
_RESULTS: Final = frozenset({"function_call_output", "custom_tool_call_output"})
SEARCH: Final = "tool_search"
"""The function that stands for a search of tools by the client."""
_COMPACTIONS: Final = frozenset({"compaction", "compaction_summary", "context_compaction"})
_NOT_SERVED: Final = ("prompt", "max_tool_calls", "context_management")
"""Fields on which an answer would depend."""
_NO_PARAMETERS: Final = {"type": "object", "properties": {}}

_encode: Final = msgspec.json.Encoder().encode

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


class ResponsesBody(msgspec.Struct, kw_only=True):
    """The fields of the request that Herma reads; null counts as absent."""

    model: Annotated[str, Meta(min_length=1)]
    input: str | list[dict[str, Any]] | None = None
    instructions: str | None = None
    stream: bool | None = None
    max_output_tokens: OutputCap | None = None
    temperature: Annotated[float, Meta(ge=0, le=100)] | None = None
    top_p: Annotated[float, Meta(ge=0, le=1)] | None = None
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
    seed: Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)] | None = None


class ToolName(msgspec.Struct, frozen=True):
    """A tool as the client knows it."""

    kind: Literal["function", "custom", "tool_search"]
    name: str
    namespace: str | None = None


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
        raise invalid("input", text)
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
    said = _Conversation(signer)
    chat = _chat_of(typed, said, history)
    for name in GRAMMAR_FIELDS & raw.keys():
        chat[name] = raw[name]
    if rewrite is not None:
        chat = rewrite(chat)
    fingerprint = xxhash.xxh3_128_digest(draft.body, seed=_FINGERPRINT_SEED)
    given = chat, fingerprint, len(draft.body), "text.format"
    request = translated_chat(*given, may_load=said.has_references)
    if said.compacts:
        request = _compacting(request)
    return Responses(
        request=msgspec.structs.replace(
            request,
            session=session_of(raw) or draft.conversation_id,
            translated_from="input",
            ignored=_ignored(typed, raw),
        ),
        names=said.names,
        echo={**_echo(typed, raw), **_stored_fields(draft, is_stored=is_stored)},
        sealed=ENCRYPTED in (typed.include or ()),
        is_background=bool(typed.background),
        compacts=said.compacts,
    )


def _compacting(request: ChatRequest) -> ChatRequest:
    """`request` for a summary: its prompt begins as before, with the tools, but none may be called,
    and the answer has no form.
    """
    raw = {name: value for name, value in request.raw.items() if name != "response_format"}
    if "tools" in raw:
        raw["tool_choice"] = "none"
    return msgspec.structs.replace(
        request,
        raw=raw,
        tools=(),
        tool_choice="none",
        shown_tools=request.prompt_tools,
        grammar=None,
    )


def _ignored(typed: ResponsesBody, raw: Mapping[str, Any]) -> tuple[str, ...]:
    """What the client asked for and does not get."""
    tools = [
        f"tools[{at}] ({tool.get('type')})"
        for at, tool in enumerate(typed.tools or ())
        if tool.get("type") not in _KNOWN_TOOLS
    ]
    return (*tools, *(name for name in _NOT_SERVED if raw.get(name)))


def check_items(items: Iterable[Item], signer: Signer) -> None:
    """Raise `ApiError` 400 for an item that no request could hold."""
    said = _Conversation(signer)
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


def _echo(typed: ResponsesBody, raw: dict[str, Any]) -> dict[str, Any]:
    """The fields of the request that every response object repeats."""
    effort = typed.reasoning.effort if typed.reasoning is not None else None
    text = typed.text.format if typed.text is not None else None
    return {
        "frequency_penalty": 0.0,
        "instructions": typed.instructions,
        "max_output_tokens": typed.max_output_tokens,
        "max_tool_calls": None,
        "metadata": raw.get("metadata") if isinstance(raw.get("metadata"), dict) else {},
        "parallel_tool_calls": typed.parallel_tool_calls is not False,
        "presence_penalty": 0.0,
        "prompt_cache_key": _text_or_none(raw.get("prompt_cache_key")),
        "reasoning": {"effort": effort, "summary": None},
        "safety_identifier": _text_or_none(raw.get("safety_identifier")),
        "service_tier": "default",
        "temperature": typed.temperature,
        "text": {"format": text or {"type": "text"}},
        "tool_choice": "auto" if typed.tool_choice is None else typed.tool_choice,
        "tools": [tool for tool in typed.tools or () if tool.get("type") in _KNOWN_TOOLS],
        "top_logprobs": typed.top_logprobs or 0,
        "top_p": typed.top_p,
        "truncation": "disabled",
        "user": _text_or_none(raw.get("user")),
    }


def _text_or_none(value: object) -> str | None:
    return value if isinstance(value, str) else None


def _chat_of(
    typed: ResponsesBody, said: "_Conversation", history: Iterable[Item]
) -> dict[str, Any]:
    """The chat; `said` gets its messages and tools."""
    said.may_defer = not any(map(_is_search_by_server, typed.tools or ()))
    said.take_tools(typed.tools or (), "tools")
    if typed.instructions:
        said.messages.append({"role": "system", "content": typed.instructions})
    for item in history:
        said.add(item, "history")
    for at, item in enumerate(_given_items(typed)):
        said.add(item, f"input[{at}]")
    messages = said.messages
    if said.compacts:
        messages.append({"role": "user", "content": SUMMARISE})
    if all(message["role"] in {"system", "developer"} for message in messages):
        # A probe of the client, without a question.
        messages.append({"role": "user", "content": ""})
    given: dict[str, Any] = {
        "max_tokens": typed.max_output_tokens,
        "temperature": typed.temperature,
        "top_p": typed.top_p,
        "seed": typed.seed,
        "reasoning_effort": typed.reasoning.effort if typed.reasoning is not None else None,
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
        **_response_format(typed.text),
    }


def _tool_fields(typed: ResponsesBody, said: "_Conversation") -> dict[str, Any]:
    """The tools, and which of them may be called."""
    tools = said.tools
    choice, allowed = _tool_choice(typed.tool_choice)
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


def _response_format(text: TextParam | None) -> dict[str, Any]:
    form = text.format if text is not None else None
    if form is None or form.get("type") == "text":
        return {}
    if form.get("type") != "json_schema":
        return {"response_format": form}
    wrapped = {name: value for name, value in form.items() if name != "type"}
    return {"response_format": {"type": "json_schema", "json_schema": wrapped}}


def _flat(namespace: str, name: str) -> str:
    return f"{namespace}{NAMESPACE_SEPARATOR}{name}"


def _name(tool: Item, where: str) -> str:
    name = tool.get("name")
    if not isinstance(name, str) or not name:
        raise invalid(f"{where}.name", f"'{where}.name' must be a string.")
    return name


def _function(tool: Item, where: str) -> Iterator[tuple[ToolName, dict[str, Any]]]:
    given = tool.get("parameters")
    function: dict[str, Any] = {"parameters": given if isinstance(given, dict) else _NO_PARAMETERS}
    if isinstance(tool.get("description"), str):
        function["description"] = tool["description"]
    function |= {mark: True for mark in ("strict", DEFER) if tool.get(mark) is True}
    yield ToolName("function", _name(tool, where)), function


def _namespace(tool: Item, where: str) -> Iterator[tuple[ToolName, dict[str, Any]]]:
    space, inner = _name(tool, where), tool.get("tools")
    for at, one in enumerate(inner if isinstance(inner, list) else ()):
        if isinstance(one, dict) and one.get("type", "function") == "function":
            for name, function in _function(one, f"{where}.tools[{at}]"):
                yield ToolName("function", name.name, space), function


def _custom(tool: Item, where: str) -> Iterator[tuple[ToolName, dict[str, Any]]]:
    yield ToolName("custom", _name(tool, where)), custom_function(tool)


def _search(tool: Item, where: str) -> Iterator[tuple[ToolName, dict[str, Any]]]:  # noqa: ARG001
    """A search by the client; there is none by the server."""
    if tool.get("execution") != "client":
        return
    given, text = tool.get("parameters"), tool.get("description")
    function: dict[str, Any] = {"parameters": given if isinstance(given, dict) else _NO_PARAMETERS}
    if isinstance(text, str):
        function["description"] = text
    yield ToolName("tool_search", SEARCH), function


def _is_search_by_server(tool: Item) -> bool:
    """Whether the server would run the search. None runs here, so that the tools which it would
    find are shown from the beginning.
    """
    return tool.get("type") == SEARCH and tool.get("execution") != "client"


_TOOLS: Final = {"function": _function, "namespace": _namespace, "custom": _custom, SEARCH: _search}
_KNOWN_TOOLS: Final = _TOOLS.keys()


def _tool_choice(
    given: str | dict[str, Any] | None,
) -> tuple[str | dict[str, Any], set[str] | None]:
    """The choice of a chat, and the tools that may be called if not all."""
    if given is None or isinstance(given, str):
        return given or "auto", None
    kind = given.get("type")
    if kind == "allowed_tools":
        listed = given.get("tools")
        tools = listed if isinstance(listed, list) else []
        mode = given.get("mode")
        return mode if isinstance(mode, str) else "auto", {
            str(one.get("name")) for one in tools if isinstance(one, dict)
        }
    if kind == SEARCH:
        return {"type": "function", "function": {"name": SEARCH}}, None
    if kind not in {"function", "custom"}:
        return "auto", None  # of a tool that a server would run
    name = given.get("name")
    if isinstance(space := given.get("namespace"), str):
        name = _flat(space, str(name))
    return {"type": "function", "function": {"name": name}}, None


class _Conversation:
    """The messages and tools of a chat, item by item. All output of the model between two inputs is
    one message. `names` are the tools by the names that the model knows. Without `may_defer` all
    tools of the request are shown from the beginning.
    """

    def __init__(self, signer: Signer) -> None:
        self.signer = signer
        self.messages: list[dict[str, Any]] = []
        self.names: dict[str, ToolName] = {}
        self.tools: list[dict[str, Any]] = []
        self.may_defer = True
        self.has_references = False
        self.compacts = False

    def take_tools(
        self, given: object, where: str, *, are_found: bool = False, may_defer: bool = True
    ) -> list[str]:
        """Add the tools that the client runs, as functions under names of their own; returns those
        names. Tools that `are_found` stand where they were found.
        """
        found: list[str] = []
        for at, tool in enumerate(given if isinstance(given, list | tuple) else ()):
            write = _TOOLS.get(str(tool.get("type"))) if isinstance(tool, dict) else None
            if write is None:
                continue  # a server would run it
            for name, function in write(tool, f"{where}[{at}]"):
                is_deferred = function.pop(DEFER, False) or tool.get(DEFER) is True
                flat = name.name if name.namespace is None else _flat(name.namespace, name.name)
                found.append(flat)
                if flat in self.names:
                    continue
                self.names[flat] = name
                entry: dict[str, Any] = {"type": "function", "function": {"name": flat, **function}}
                if are_found or (is_deferred and may_defer and self.may_defer):
                    entry[DEFER] = True
                self.tools.append(entry)
        return found

    def add(self, item: Item, where: str) -> None:
        """Go on with `item`. Raises `ApiError` 400."""
        kind = item.get("type") or ("message" if "role" in item else None)
        if kind == "message" and item.get("role") != "assistant":
            self.messages.append(_message(item, where))
        elif kind in _RESULTS:
            self.messages += _result(item)
        elif kind in _WRITTEN:
            if not self.messages or self.messages[-1]["role"] != "assistant":
                self.messages.append({"role": "assistant", "content": ""})
            _WRITTEN[kind](item, self.messages[-1], self.signer)
        elif kind == "tool_search_output":
            parts = self._found(item, where)
            content = parts or "No tools were found."
            call_id = _search_id(item)
            self.messages.append({"role": "tool", "tool_call_id": call_id, "content": content})
        elif kind == "additional_tools":
            self._add_tools(item, where)
        elif kind in _COMPACTIONS:
            text = summary_text(item.get("encrypted_content"), self.signer)
            if text is not None:
                self.messages.append({"role": "user", "content": text})
        elif kind == "compaction_trigger":
            self.compacts = True

    def _add_tools(self, item: Item, where: str) -> None:
        """Tools that come with an item: before the conversation they are like those of the
        request, later they stand there.
        """
        given, place = item.get("tools"), f"{where}.tools"
        if all(message["role"] in {"system", "developer"} for message in self.messages):
            self.take_tools(given, place, may_defer=False)
        elif parts := self._found(item, where):
            self.messages.append({"role": "developer", "content": parts})

    def _found(self, item: Item, where: str) -> list[dict[str, str]]:
        names = self.take_tools(item.get("tools"), f"{where}.tools", are_found=True)
        self.has_references = self.has_references or bool(names)
        return [reference(name) for name in names]


def _search_id(item: Item) -> str:
    """The id of a search's call. A server's own searches have none."""
    return str(item.get("call_id") or SEARCH)


def _message(item: Item, where: str) -> dict[str, Any]:
    role, content = item.get("role"), item.get("content")
    if role not in _ROLES:
        known = ", ".join(sorted(_ROLES))
        raise invalid(f"{where}.role", f"'{where}.role' must be one of {known}, not {role!r}.")
    if isinstance(content, str):
        return {"role": role, "content": content}
    if not isinstance(content, list):
        raise invalid(f"{where}.content", f"'{where}.content' must be text or a list of parts.")
    parts = _parts(content)
    are_texts = all(part["type"] == "text" for part in parts)
    if role == "user" and not (are_texts and len(parts) < 2):
        return {"role": role, "content": parts}
    return {"role": role, "content": "\n".join(_texts(parts))}


def _parts(content: Iterable[object]) -> list[Item]:
    """Parts of a chat message; unknown ones are left out."""
    parts: list[Item] = []
    for part in content:
        if not isinstance(part, dict):
            continue
        match part.get("type"):
            case "input_text" | "output_text" | "text" | "refusal" as kind:
                text = part.get("refusal" if kind == "refusal" else "text")
                if isinstance(text, str):
                    parts.append({"type": "text", "text": text})
            case "input_image":
                parts.append({"type": "image_url", "image_url": {"url": part.get("image_url")}})
            case "input_file" if (
                text := text_of_file(part.get("file_data"), part.get("filename"))
            ) is not None:
                parts.append({"type": "text", "text": text})
            case "input_file":
                named = {name: value for name, value in part.items() if name != "type"}
                parts.append({"type": "file", "file": named})
            case _:
                pass
    return parts


def _texts(parts: Iterable[Item]) -> list[str]:
    return [part["text"] for part in parts if part["type"] == "text"]


def _result(item: Item) -> Iterator[dict[str, Any]]:
    """The result of a call; images in it follow as a message of the user."""
    output = item.get("output")
    parts = _parts(output) if isinstance(output, list) else []
    text = output if isinstance(output, str) else "\n".join(_texts(parts))
    yield {"role": "tool", "tool_call_id": str(item.get("call_id") or ""), "content": text}
    if others := [part for part in parts if part["type"] != "text"]:
        yield {"role": "user", "content": others}


def _add_text(item: Item, message: dict[str, Any], signer: Signer) -> None:  # noqa: ARG001
    content = item.get("content")
    if isinstance(content, list):
        content = "".join(_texts(_parts(content)))
    if isinstance(content, str):
        message["content"] += content


def _add_reasoning(item: Item, message: dict[str, Any], signer: Signer) -> None:
    blob, content = item.get("encrypted_content"), item.get("content")
    text = signer.unsealed(blob) if isinstance(blob, str) else None
    if text is None and isinstance(content, list):
        parts = (part.get("text") for part in content if isinstance(part, dict))
        text = "".join(part for part in parts if isinstance(part, str))
    if text:
        message["reasoning_content"] = message.get("reasoning_content", "") + text


def _add_call(item: Item, message: dict[str, Any], signer: Signer) -> None:  # noqa: ARG001
    """Add a call with its original arguments, even if they are not JSON."""
    name = item.get("name")
    is_search = item.get("type") == "tool_search_call"
    if is_search:
        name = SEARCH
    if not isinstance(name, str) or not name:
        return
    if isinstance(space := item.get("namespace"), str) and space:
        name = _flat(space, name)
    arguments = item.get("arguments")
    if item.get("type") == "custom_tool_call":
        arguments = arguments_of(item.get("input"))
    elif not isinstance(arguments, str):
        arguments = _encode(arguments or {}).decode()
    function = {"name": name, "arguments": arguments}
    call_id = _search_id(item) if is_search else str(item.get("call_id") or "")
    call = {"id": call_id, "type": "function", "function": function}
    message.setdefault("tool_calls", []).append(call)


_WRITTEN: Final = {
    "message": _add_text,
    "reasoning": _add_reasoning,
    "function_call": _add_call,
    "custom_tool_call": _add_call,
    "tool_search_call": _add_call,
}
"""Items of the model, by their type."""
