"""Content of an answer -> the items of OpenAI's Responses API.

Owns the items, and the events of a stream that make each. A whole answer has the items that its
stream would end with: both are made by the same steps. Must not know the response object.
"""

from collections.abc import Iterator
from typing import Any, Final, Literal, assert_never

import msgspec

from gateway.api import client_items
from gateway.api.compaction import sealed_summary
from gateway.api.custom_tools import input_of
from gateway.api.errors import ApiError
from gateway.api.events import (
    Annotation,
    ChoiceFinished,
    ContentEvent,
    ReasoningDelta,
    TextDelta,
    TokenLogprob,
    ToolCallArguments,
    ToolCallEnd,
    ToolCallStart,
)
from gateway.api.responses_parser import Responses
from gateway.api.responses_tools import ToolName
from gateway.api.signatures import Signer
from protocol.reading import FAULTS

ID_PREFIX: Final = "resp_"

Status = Literal["queued", "in_progress", "completed", "incomplete", "failed", "cancelled"]
Fields = dict[str, Any]
Event = tuple[str, Fields]

_PREFIXES: Final = {
    "reasoning": "rs_",
    "message": "msg_",
    "function_call": "fc_",
    "custom_tool_call": "ctc_",
    "tool_search_call": "tsc_",
    "shell_call": "sh_",
    "local_shell_call": "lsh_",
    "apply_patch_call": "apc_",
    "compaction": "cmp_",
}
_NO_SUMMARY: Final = "The model wrote no summary of the conversation; nothing was compacted."


class _Open:
    """The item that is being written; `texts` are its content so far."""

    __slots__ = ("annotations", "fields", "index", "is_refusal", "kind", "logprobs", "texts")

    def __init__(self, kind: str, index: int, fields: Fields) -> None:
        self.kind = kind
        self.index = index
        self.fields = fields
        self.texts: list[str] = []
        self.logprobs: list[TokenLogprob] = []
        self.annotations: list[Annotation] = []
        self.is_refusal = False

    @property
    def place(self) -> Fields:
        """The fields that every event of the item has."""
        return {"item_id": self.fields["id"], "output_index": self.index}


class AnswerItems:
    """The items of one answer, one open at a time. Each step returns its events."""

    def __init__(self, response_id: str, asked: Responses, signer: Signer) -> None:
        self._suffix = response_id.removeprefix(ID_PREFIX)
        self._asked = asked
        self._signer = signer
        self._open: _Open | None = None
        self.done: list[Fields] = []

    def take(self, event: ContentEvent) -> list[Event]:
        """The events of the stream for `event`, except `ChoiceFinished`, which is for `close`."""
        if self._asked.compacts:
            return self._summary(event)
        match event:
            case TextDelta(is_refusal=True):
                return self._refusal(event.text)
            case TextDelta():
                events = self._text(event) if event.text or event.logprobs else []
                return [*events, *self._annotated(event.annotations)]
            case ReasoningDelta():
                return self._reasoning(event.text)
            case ToolCallStart():
                return self._call(event)
            case ToolCallArguments():
                return self._arguments(event.text)
            case ToolCallEnd():
                return self.close("completed" if event.is_whole else "incomplete")
            case ChoiceFinished():
                return []
            case _:
                assert_never(event)

    def end_status(self, *, is_cut: bool) -> Status:
        """The status of the open item when the answer ends. A summary that was cut short still
        counts as a summary.
        """
        return "incomplete" if is_cut and not self._asked.compacts else "completed"

    def missing(self) -> ApiError | None:
        """Why the answer has failed although the model has ended well."""
        if self._asked.compacts and not self.done:
            return ApiError(502, _NO_SUMMARY, code="no_summary")
        return None

    def close(self, status: Status) -> list[Event]:
        """End the open item, if there is one."""
        item, self._open = self._open, None
        if item is None:
            return []
        text = "".join(item.texts)
        match item.kind:
            case "compaction":
                item.fields["encrypted_content"] = sealed_summary(text.strip(), self._signer)
                item.fields.pop("status")
                self.done.append(item.fields)
                return [_item_done(item)]
            case "message" if item.is_refusal:
                item.fields["content"] = [part := _refusal_part(text)]
                place = {**item.place, "content_index": 0}
                said = {**place, "refusal": text}
                events = [("response.refusal.done", said), _part_event("done", place, part)]
            case "message":
                part = _text_part(text, item.logprobs, item.annotations)
                item.fields["content"] = [part]
                place = {**item.place, "content_index": 0}
                said = {**place, "text": text, "logprobs": item.logprobs}
                events = [("response.output_text.done", said), _part_event("done", place, part)]
            case "reasoning":
                part = {"type": "reasoning_text", "text": text}
                item.fields["content"] = [part]
                if self._asked.sealed:
                    item.fields["encrypted_content"] = self._signer.sealed(text)
                place = {**item.place, "content_index": 0}
                said = {**place, "text": text}
                events = [("response.reasoning_text.done", said), _part_event("done", place, part)]
            case "custom_tool_call":
                item.fields["input"] = given = input_of(text)
                delta = {**item.place, "delta": given}
                done = {**item.place, "input": given}
                kind = "response.custom_tool_call_input"
                events = [(f"{kind}.delta", delta), (f"{kind}.done", done)]
            case "tool_search_call":
                item.fields["arguments"] = _json_of(text)
                events = []
            case kind if kind in client_items.CALLS:
                item.fields |= client_items.fields_of(kind, text)
                events = [_item_added(item), *_commands(item)]
            case _:
                item.fields["arguments"] = text
                done = {**item.place, "name": item.fields["name"], "arguments": text}
                events = [("response.function_call_arguments.done", done)]
        item.fields["status"] = status
        self.done.append(item.fields)
        return [*events, _item_done(item)]

    def _summary(self, event: ContentEvent) -> list[Event]:
        """The events of a compaction: the text of the answer is the summary, and all other content
        is dropped.
        """
        if not isinstance(event, TextDelta) or not event.text or event.is_refusal:
            return []
        events: list[Event] = []
        item = self._open
        if item is None:
            if not event.text.strip():
                return []
            item, events = self._begin("compaction", {"encrypted_content": ""})
        item.texts.append(event.text)
        return events

    def _message(self) -> tuple[_Open, list[Event]]:
        """The open message, and the events that opened it if none was."""
        item = self._open
        if item is not None and item.kind == "message" and not item.is_refusal:
            return item, []
        fields = {"role": "assistant", "content": []}
        return self._begin("message", fields, _text_part("", [], []))

    def _text(self, event: TextDelta) -> list[Event]:
        item, opening = self._message()
        item.texts.append(event.text)
        logprobs = event.logprobs or ()
        item.logprobs += logprobs
        delta = {**item.place, "content_index": 0, "delta": event.text, "logprobs": logprobs}
        return [*opening, ("response.output_text.delta", delta)]

    def _refusal(self, text: str) -> list[Event]:
        """The events for more of a refusal, which is a message of its own."""
        item, opening = self._open, list[Event]()
        if item is None or not item.is_refusal:
            fields = {"role": "assistant", "content": []}
            item, opening = self._begin("message", fields, _refusal_part(""))
            item.is_refusal = True
        item.texts.append(text)
        delta = {**item.place, "content_index": 0, "delta": text}
        return [*opening, ("response.refusal.delta", delta)]

    def _annotated(self, annotations: tuple[Annotation, ...]) -> list[Event]:
        """The events for the sources that the open text refers to. In this API a source has a place
        in the text; a source without a place refers to the end of the text. A source that comes
        behind a call gets a message without text.
        """
        if not annotations:
            return []
        item, events = self._message()
        for given in annotations:
            end = sum(map(len, item.texts))
            place = {"title": "", "start_index": end, "end_index": end}
            annotation = {**place, **given} if given["type"] == "url_citation" else given
            index = {"content_index": 0, "annotation_index": len(item.annotations)}
            item.annotations.append(annotation)
            fields = {**item.place, **index, "annotation": annotation}
            events.append(("response.output_text.annotation.added", fields))
        return events

    def _reasoning(self, text: str) -> list[Event]:
        opening: list[Event] = []
        item = self._open
        if item is None or item.kind != "reasoning":
            fields: Fields = {"summary": [], "content": [], "encrypted_content": None}
            item, opening = self._begin("reasoning", fields, {"type": "reasoning_text", "text": ""})
        item.texts.append(text)
        delta = {**item.place, "content_index": 0, "delta": text}
        return [*opening, ("response.reasoning_text.delta", delta)]

    def _call(self, event: ToolCallStart) -> list[Event]:
        name = self._asked.names.get(event.name) or ToolName("function", event.name)
        fields: Fields = {"call_id": event.id, "name": name.name}
        if name.namespace is not None:
            fields["namespace"] = name.namespace
        if name.kind == "custom":
            return self._begin("custom_tool_call", {**fields, "input": ""})[1]
        if name.kind == "tool_search":
            fields = {"call_id": event.id, "execution": "client", "arguments": {}}
            return self._begin("tool_search_call", fields)[1]
        if (kind := client_items.CALL_OF.get(name.kind)) is not None:
            return self._begin_held(kind, {"call_id": event.id})
        return self._begin("function_call", {**fields, "arguments": ""})[1]

    def _arguments(self, text: str) -> list[Event]:
        """The events for more arguments of the open call. A custom tool's text is sent when its
        JSON is complete, because it is known only then.
        """
        item = self._open
        if item is None:
            return []
        item.texts.append(text)
        if item.kind != "function_call":
            return []
        return [("response.function_call_arguments.delta", {**item.place, "delta": text})]

    def _begin_held(self, kind: str, fields: Fields) -> list[Event]:
        """Open an item that is sent when it is complete, because an empty item of this type is
        invalid.
        """
        events = self.close("completed")
        self._new(kind, fields)
        return events

    def _new(self, kind: str, fields: Fields) -> _Open:
        index = len(self.done)
        own = {"id": f"{_PREFIXES[kind]}{self._suffix}_{index}", "type": kind}
        self._open = _Open(kind, index, {**own, **fields, "status": "in_progress"})
        return self._open

    def _begin(
        self, kind: str, fields: Fields, part: Fields | None = None
    ) -> tuple[_Open, list[Event]]:
        """Open an item, with its first part if it has parts."""
        events = self.close("completed")
        item = self._new(kind, fields)
        events.append(_item_added(item))
        if part is not None:
            events.append(_part_event("added", {**item.place, "content_index": 0}, part))
        return item, events


def _part_event(verb: str, place: Fields, part: Fields) -> Event:
    return f"response.content_part.{verb}", {**place, "part": part}


def _text_part(text: str, logprobs: list[TokenLogprob], annotations: list[Annotation]) -> Fields:
    said = {"text": text, "annotations": annotations, "logprobs": logprobs}
    return {"type": "output_text", **said}


def _refusal_part(text: str) -> Fields:
    return {"type": "refusal", "refusal": text}


def _item_added(item: _Open) -> Event:
    return "response.output_item.added", {"output_index": item.index, "item": {**item.fields}}


def _commands(item: _Open) -> Iterator[Event]:
    """The commands of a shell, one by one."""
    if item.kind != "shell_call":
        return
    for at, command in enumerate(item.fields["action"]["commands"]):
        place = {"output_index": item.index, "command_index": at}
        yield "response.shell_call_command.added", {**place, "command": ""}
        yield "response.shell_call_command.delta", {**place, "delta": command}
        yield "response.shell_call_command.done", {**place, "command": command}


def _item_done(item: _Open) -> Event:
    return "response.output_item.done", {"output_index": item.index, "item": item.fields}


def _json_of(arguments: str) -> object:
    """The arguments as JSON; as text, if they were cut short."""
    try:
        return msgspec.json.decode(arguments or "{}")
    except FAULTS:
        return arguments
