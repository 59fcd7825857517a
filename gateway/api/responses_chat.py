"""Items of the Responses API -> the messages and tools of a chat.

Owns the meaning of each item and part. Items and parts that Herma cannot serve are dropped and
named. No history makes a request fail, whatever the arguments of its calls. Must not know the other
fields of a request.
"""

from collections.abc import Iterable, Iterator
from typing import Any, Final

import msgspec

from gateway.api import client_items
from gateway.api.compaction import summary_text
from gateway.api.content_parts import parts_of
from gateway.api.custom_tools import arguments_of
from gateway.api.deferred_tools import DEFER, reference
from gateway.api.errors import invalid
from gateway.api.request import text_of_result
from gateway.api.responses_tools import SEARCH, TOOLS, ToolName, flat_name, kind_of
from gateway.api.signatures import Signer
from protocol.reading import objects_in

_ROLES: Final = frozenset({"user", "assistant", "system", "developer"})
_RESULTS: Final = frozenset({"function_call_output", "custom_tool_call_output"})
_MAX_KIND: Final = 64
_PLAIN: Final = ("input_text", "output_text", "text", "refusal")
"""Types of parts that are left out if they have no text."""
_SOUND: Final = "input_audio"
"""The type of a part that is left out, and named."""
_WITHOUT_TEXT: Final = frozenset({"compaction_trigger", "item_reference"})
_COMPACTIONS: Final = frozenset({"compaction", "compaction_summary", "context_compaction"})

_encode: Final = msgspec.json.Encoder().encode

Item = dict[str, Any]


class ResponsesChat:
    """The messages and tools of a chat, item by item. All output of the model between two inputs is
    one message. `names` are the tools by the names that the model knows. Without `may_defer` all
    tools of the request are shown from the beginning. `dropped` are the types of the items and
    parts that were left out, in their order; `doubled` names tools whose name another kind of tool
    has already. `effort` and `form` are what the last updates of the configuration say of reasoning
    and of the form of answers; None without any.
    """

    def __init__(self, signer: Signer) -> None:
        self.signer = signer
        self.messages: list[dict[str, Any]] = []
        self.names: dict[str, ToolName] = {}
        self.tools: list[dict[str, Any]] = []
        self.may_defer = True
        self.has_references = False
        self.compacts = False
        self.dropped: dict[str, None] = {}
        self.doubled: dict[str, None] = {}
        self.effort: str | None = None
        self.form: Item | None = None

    def take_tools(
        self, given: object, where: str, *, are_found: bool = False, may_defer: bool = True
    ) -> list[str]:
        """Add the tools that the client runs, as functions under names of their own; returns those
        names. Tools that `are_found` stand where they were found.
        """
        found: list[str] = []
        for at, tool in enumerate(given if isinstance(given, list | tuple) else ()):
            write = TOOLS.get(kind_of(tool)) if isinstance(tool, dict) else None
            if write is None:
                continue  # a server would run it
            for name, function in write(tool, f"{where}[{at}]"):
                is_deferred = function.pop(DEFER, False) or tool.get(DEFER) is True
                flat = name.name if name.namespace is None else flat_name(name.namespace, name.name)
                found.append(flat)
                if flat in self.names:
                    if self.names[flat] != name:
                        self.doubled[f"tools ({flat}, twice)"] = None
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
        if kind is not None and not isinstance(kind, str):
            raise invalid(f"{where}.type", f"'{where}.type' must be a string.")
        # Only the last item asks for a compaction; an earlier one was answered, or has failed.
        self.compacts = kind == "compaction_trigger"
        if kind == "message" and item.get("role") != "assistant":
            self.messages.append(self._message(item, where))
        elif kind in _RESULTS:
            self.messages += self._result(item)
        elif kind in _WRITTEN:
            self._add_written(item, kind)
        elif kind == "tool_search_output":
            content = self._found(item, where) or "No tools were found."
            self._add_result(_search_id(item), content)
        elif kind == "additional_tools":
            self._add_tools(item, where)
        elif kind in client_items.RESULTS:
            self._add_result(client_items.id_of(item), client_items.result_of(item))
        else:
            self._add_other(item, kind)

    def _add_written(self, item: Item, kind: str) -> None:
        """Go on with what the model wrote."""
        if not self.messages or self.messages[-1]["role"] != "assistant":
            self.messages.append({"role": "assistant", "content": ""})
        _WRITTEN[kind](item, self.messages[-1], self.signer)
        for part in objects_in(item.get("content")) if kind == "message" else ():
            if part.get("type") not in _PLAIN and _text_of(part) is None:
                self._drop(f"assistant: {part.get('type')}")

    def _add_other(self, item: Item, kind: str | None) -> None:
        """Go on with a summary; items of any other type are dropped."""
        if kind in _COMPACTIONS:
            text = summary_text(item.get("encrypted_content"), self.signer)
            if text is not None:
                self.messages.append({"role": "user", "content": text})
        elif kind == "configuration_update":
            self._configure(item)
        elif kind not in _WITHOUT_TEXT:
            self._drop(kind)

    def _configure(self, item: Item) -> None:
        reasoning, text = item.get("reasoning"), item.get("text")
        effort = reasoning.get("effort") if isinstance(reasoning, dict) else None
        form = text.get("format") if isinstance(text, dict) else None
        self.effort = effort if isinstance(effort, str) else self.effort
        self.form = form if isinstance(form, dict) else self.form

    def _add_result(self, call_id: str, content: str | list[dict[str, str]]) -> None:
        self.messages.append({"role": "tool", "tool_call_id": call_id, "content": content})

    def _drop(self, kind: object) -> None:
        self.dropped[str(kind or "no type")[:_MAX_KIND]] = None

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

    def _message(self, item: Item, where: str) -> dict[str, Any]:
        role, content = item.get("role"), item.get("content")
        if not isinstance(role, str) or role not in _ROLES:
            known = ", ".join(sorted(_ROLES))
            raise invalid(f"{where}.role", f"'{where}.role' must be one of {known}, not {role!r}.")
        if isinstance(content, str):
            return {"role": role, "content": content}
        if not isinstance(content, list):
            raise invalid(f"{where}.content", f"'{where}.content' must be text or a list of parts.")
        parts = self._parts(content)
        are_texts = all(part["type"] == "text" for part in parts)
        if role == "user" and not (are_texts and len(parts) < 2):
            return {"role": role, "content": parts}
        for part in parts:
            if part["type"] != "text":  # instructions have none
                self._drop(f"{role}: {part['type']}")
        return {"role": role, "content": "\n".join(_texts(parts))}

    def _parts(self, content: Iterable[object]) -> list[Item]:
        """Parts of a chat message; unknown ones are dropped."""
        parts: list[Item] = []
        for given in content:
            is_sound = isinstance(given, dict) and given.get("type") == _SOUND
            read = None if is_sound else parts_of(given)
            if read is not None:
                parts += read
            elif isinstance(given, dict) and given.get("type") not in _PLAIN:
                self._drop(given.get("type"))
        return parts

    def _result(self, item: Item) -> Iterator[dict[str, Any]]:
        """The result of a call; images in it follow as a message of the user."""
        output = item.get("output")
        parts = self._parts(output) if isinstance(output, list) else []
        text = "\n".join(_texts(parts)) if isinstance(output, list) else text_of_result(output)
        yield {"role": "tool", "tool_call_id": str(item.get("call_id") or ""), "content": text}
        if others := [part for part in parts if part["type"] != "text"]:
            yield {"role": "user", "content": others}


def _search_id(item: Item) -> str:
    """The id of a search's call. A server's own searches have none."""
    return str(item.get("call_id") or SEARCH)


def _text_of(part: Item) -> str | None:
    """The text of a part that has one, or its refusal."""
    text = part.get("refusal" if part.get("type") == "refusal" else "text")
    return text if isinstance(text, str) else None


def _texts(parts: Iterable[Item]) -> list[str]:
    return [part["text"] for part in parts if part["type"] == "text"]


def _add_text(item: Item, message: dict[str, Any], signer: Signer) -> None:  # noqa: ARG001
    content = item.get("content")
    if isinstance(content, list):
        content = "".join(_text_of(part) or "" for part in content if isinstance(part, dict))
    if isinstance(content, str):
        message["content"] += content


def _add_reasoning(item: Item, message: dict[str, Any], signer: Signer) -> None:
    blob, content = item.get("encrypted_content"), item.get("content")
    text = signer.unsealed(blob) if isinstance(blob, str) else None
    if text is None and isinstance(content, list):
        text = _joined(content)
    if not text and not blob:  # LiteLLM writes the thinking of Messages into this field
        text = _joined(item.get("summary"))
    if text:
        message["reasoning_content"] = message.get("reasoning_content", "") + text


def _joined(parts: object) -> str:
    """The texts of the parts of an item."""
    return "".join(part["text"] for part in objects_in(parts) if isinstance(part.get("text"), str))


def _add_call(item: Item, message: dict[str, Any], signer: Signer) -> None:  # noqa: ARG001
    """Add a call with its original arguments, even if they are not JSON."""
    name = item.get("name")
    is_search = item.get("type") == "tool_search_call"
    if is_search:
        name = SEARCH
    if not isinstance(name, str) or not name:
        return
    if isinstance(space := item.get("namespace"), str) and space:
        name = flat_name(space, name)
    arguments = item.get("arguments")
    if item.get("type") == "custom_tool_call":
        arguments = arguments_of(item.get("input"))
    elif not isinstance(arguments, str):
        arguments = _encode(arguments or {}).decode()
    function = {"name": name, "arguments": arguments}
    call_id = _search_id(item) if is_search else str(item.get("call_id") or "")
    call = {"id": call_id, "type": "function", "function": function}
    message.setdefault("tool_calls", []).append(call)


def _add_client_call(item: Item, message: dict[str, Any], signer: Signer) -> None:  # noqa: ARG001
    name, arguments = client_items.call_of(item)
    function = {"name": name, "arguments": arguments}
    call = {"id": client_items.id_of(item), "type": "function", "function": function}
    message.setdefault("tool_calls", []).append(call)


_WRITTEN: Final = {
    **dict.fromkeys(client_items.CALLS, _add_client_call),
    "message": _add_text,
    "reasoning": _add_reasoning,
    "function_call": _add_call,
    "custom_tool_call": _add_call,
    "tool_search_call": _add_call,
}
"""Items of the model, by their type."""
