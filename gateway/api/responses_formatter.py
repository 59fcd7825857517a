"""Turn events -> the bytes of OpenAI's Responses API.

Owns its events and their order, its items, and the response object. A whole answer has the items
that its stream would end with: both are made by the same steps. Must not know sockets or when to
send.
"""

from collections.abc import Callable, Iterable
from typing import Any, Final, Literal, Protocol, assert_never

import msgspec
from msgspec import UNSET, UnsetType

from gateway.api.api_format import AnswerHead, ApiFormat, HermaObject
from gateway.api.compaction import sealed_summary
from gateway.api.custom_tools import input_of
from gateway.api.errors import ApiError
from gateway.api.events import (
    ChoiceEvent,
    ChoiceFinished,
    ContentEvent,
    ReasoningDelta,
    Started,
    TextDelta,
    TokenLogprob,
    ToolCallArguments,
    ToolCallEnd,
    ToolCallStart,
    Usage,
)
from gateway.api.responses_parser import Responses
from gateway.api.responses_tools import ToolName
from gateway.api.signatures import Signer
from protocol.reading import FAULTS

ID_PREFIX: Final = "resp_"

Status = Literal["queued", "in_progress", "completed", "incomplete", "failed", "cancelled"]
Fields = dict[str, Any]
Event = tuple[str, Fields]

_NUM_OPENING: Final = 2
"""How many events precede the first item; they are written with the response head."""

_CODES: Final = {
    "busy": "rate_limit_exceeded",
    "spending_limit_reached": "insufficient_quota",
    "context_length_exceeded": "context_length_exceeded",
}
_CUTS: Final = {"length": "max_output_tokens", "content_filter": "content_filter"}
"""Why a response is incomplete, by why its only choice ended."""
_PREFIXES: Final = {
    "reasoning": "rs_",
    "message": "msg_",
    "function_call": "fc_",
    "custom_tool_call": "ctc_",
    "tool_search_call": "tsc_",
    "compaction": "cmp_",
}
_NO_SUMMARY: Final = "The model wrote no summary of the conversation; nothing was compacted."

_encode = msgspec.json.Encoder().encode


class InputDetails(msgspec.Struct):
    """Parts of the prompt's tokens."""

    cached_tokens: int
    cache_write_tokens: int = 0


class OutputDetails(msgspec.Struct):
    """Parts of the answer's tokens."""

    reasoning_tokens: int


class ResponseUsage(msgspec.Struct):
    """The tokens of a response."""

    input_tokens: int
    input_tokens_details: InputDetails
    output_tokens: int
    output_tokens_details: OutputDetails
    total_tokens: int

    @staticmethod
    def of(usage: Usage) -> "ResponseUsage":
        return ResponseUsage(
            usage.prompt_tokens,
            InputDetails(usage.cached_tokens),
            usage.completion_tokens,
            OutputDetails(usage.reasoning_tokens),
            usage.prompt_tokens + usage.completion_tokens,
        )


class ResponseObject(msgspec.Struct, kw_only=True):
    """A response; the fields of the request are repeated in it."""

    id: str
    object: Literal["response"]
    created_at: int
    completed_at: int | None
    status: Status
    model: str
    output: list[dict[str, Any]]
    usage: ResponseUsage | None
    error: dict[str, Any] | None
    incomplete_details: dict[str, str] | None
    conversation: dict[str, str] | None
    frequency_penalty: float
    instructions: str | None
    max_output_tokens: int | None
    max_tool_calls: int | None
    metadata: dict[str, Any]
    parallel_tool_calls: bool
    presence_penalty: float
    previous_response_id: str | None
    prompt_cache_key: str | None
    reasoning: dict[str, Any]
    safety_identifier: str | None
    service_tier: str
    store: bool
    background: bool
    temperature: float | None
    text: dict[str, Any]
    tool_choice: str | dict[str, Any]
    tools: list[dict[str, Any]]
    top_logprobs: int
    top_p: float | None
    truncation: str
    user: str | None
    herma: HermaObject | UnsetType = UNSET


class CompactedResponse(msgspec.Struct, kw_only=True):
    """A conversation as the only item that replaces it."""

    id: str
    object: Literal["response.compaction"]
    created_at: int
    output: list[dict[str, Any]]
    usage: ResponseUsage | None
    error: dict[str, Any] | UnsetType = UNSET
    herma: HermaObject | UnsetType = UNSET


class Recorder(Protocol):
    """Records an answer while it is formatted."""

    def state(self, response: Fields) -> None:
        """Record the state of the response: first `in_progress` or `queued`, last its end."""
        ...

    def events(self, first: int, data: bytes) -> None:
        """Record events of the stream, from the number `first` on. The opening may come later."""
        ...


class _Nothing:
    """A `Recorder` that records nothing."""

    def state(self, response: Fields) -> None:
        pass

    def events(self, first: int, data: bytes) -> None:
        pass


def _no_time() -> float:
    return 0.0


def responses_format(
    asked: Responses,
    signer: Signer,
    recorder: Recorder | None = None,
    unix_time: Callable[[], float] = _no_time,
) -> ApiFormat:
    """The format of the Responses API for one request, recorded by `recorder`."""
    kept = recorder or _Nothing()
    return ApiFormat(
        name="responses",
        id_prefix=ID_PREFIX,
        streamed=lambda head: ResponseStream(_Response(head, asked, unix_time), signer, kept),
        whole=lambda head: ResponseBuilder(_Response(head, asked, unix_time), signer, kept),
    )


def compaction_format(asked: Responses, signer: Signer) -> ApiFormat:
    """The format of a compaction alone."""
    nothing = _Nothing()

    def whole(head: AnswerHead) -> CompactionBuilder:
        return CompactionBuilder(head, asked, signer)

    def streamed(head: AnswerHead) -> ResponseStream:
        return ResponseStream(_Response(head, asked, _no_time), signer, nothing)

    return ApiFormat("responses", ID_PREFIX, streamed, whole)


class _Open:
    """The item that is being written; `texts` are its content so far."""

    __slots__ = ("call", "fields", "index", "kind", "logprobs", "name", "texts")

    def __init__(self, kind: str, index: int, fields: Fields) -> None:
        self.kind = kind
        self.index = index
        self.fields = fields
        self.texts: list[str] = []
        self.logprobs: list[TokenLogprob] = []

    @property
    def place(self) -> Fields:
        """The fields that every event of the item has."""
        return {"item_id": self.fields["id"], "output_index": self.index}


class _Items:
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
            case TextDelta():
                return self._text(event) if event.text or event.logprobs else []
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
        """The status at the end. A summary that was cut short is one."""
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
                return [_item_event("done", item)]
            case "message":
                part = _text_part(text, item.logprobs)
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
            case _:
                item.fields["arguments"] = text
                done = {**item.place, "name": item.fields["name"], "arguments": text}
                events = [("response.function_call_arguments.done", done)]
        item.fields["status"] = status
        self.done.append(item.fields)
        return [*events, _item_event("done", item)]

    def _summary(self, event: ContentEvent) -> list[Event]:
        """The text is the summary, and all other content is no part of the answer."""
        if not isinstance(event, TextDelta) or not event.text:
            return []
        events: list[Event] = []
        item = self._open
        if item is None:
            if not event.text.strip():
                return []
            item, events = self._begin("compaction", {"encrypted_content": ""})
        item.texts.append(event.text)
        return events

    def _text(self, event: TextDelta) -> list[Event]:
        opening: list[Event] = []
        item = self._open
        if item is None or item.kind != "message":
            fields = {"role": "assistant", "content": []}
            item, opening = self._begin("message", fields, _text_part("", []))
        item.texts.append(event.text)
        logprobs = event.logprobs or ()
        item.logprobs += logprobs
        delta = {**item.place, "content_index": 0, "delta": event.text, "logprobs": logprobs}
        return [*opening, ("response.output_text.delta", delta)]

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
        if name.kind == "custom":
            return self._begin("custom_tool_call", {**fields, "input": ""})[1]
        if name.kind == "tool_search":
            fields = {"call_id": event.id, "execution": "client", "arguments": {}}
            return self._begin("tool_search_call", fields)[1]
        if name.namespace is not None:
            fields["namespace"] = name.namespace
        return self._begin("function_call", {**fields, "arguments": ""})[1]

    def _arguments(self, text: str) -> list[Event]:
        """The text of a custom tool is known when its JSON is complete."""
        item = self._open
        if item is None:
            return []
        item.texts.append(text)
        if item.kind in {"custom_tool_call", "tool_search_call"}:
            return []
        return [("response.function_call_arguments.delta", {**item.place, "delta": text})]

    def _begin(
        self, kind: str, fields: Fields, part: Fields | None = None
    ) -> tuple[_Open, list[Event]]:
        """Open an item, with its first part if it has parts."""
        events = self.close("completed")
        index = len(self.done)
        own = {"id": f"{_PREFIXES[kind]}{self._suffix}_{index}", "type": kind}
        item = self._open = _Open(kind, index, {**own, **fields, "status": "in_progress"})
        added = {"output_index": index, "item": {**item.fields}}
        events.append(("response.output_item.added", added))
        if part is not None:
            events.append(_part_event("added", {**item.place, "content_index": 0}, part))
        return item, events


def _part_event(verb: str, place: Fields, part: Fields) -> Event:
    return f"response.content_part.{verb}", {**place, "part": part}


def _text_part(text: str, logprobs: list[TokenLogprob]) -> Fields:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": logprobs}


def _item_event(verb: str, item: _Open) -> Event:
    return f"response.output_item.{verb}", {"output_index": item.index, "item": item.fields}


def _json_of(arguments: str) -> object:
    """The arguments as JSON; as text, if they were cut short."""
    try:
        return msgspec.json.decode(arguments or "{}")
    except FAULTS:
        return arguments


class _Response:
    """The response object as it is now."""

    def __init__(self, head: AnswerHead, asked: Responses, unix_time: Callable[[], float]) -> None:
        self.id = head.id
        self.asked = asked
        self._unix_time = unix_time
        self._fields: Fields = {
            "id": head.id,
            "object": "response",
            "created_at": head.created,
            "model": head.model,
            **asked.echo,
        }

    def at(
        self,
        status: Status,
        output: list[Fields],
        usage: Usage | None = None,
        *,
        started: Started | None = None,
        error: ApiError | None = None,
        reason: str = "max_output_tokens",
    ) -> Fields:
        """The object in that state; `reason` is why it is incomplete."""
        rest: Fields = {
            "completed_at": int(self._unix_time()) if status == "completed" else None,
            "status": status,
            "output": output,
            "usage": None if usage is None else ResponseUsage.of(usage),
            "error": None if error is None else _error(error),
            "incomplete_details": {"reason": reason} if status == "incomplete" else None,
        }
        if started is not None:
            rest["herma"] = HermaObject.of(started, usage)
        return {**self._fields, **rest}


def _error(error: ApiError) -> Fields:
    """The error object; its text has the seconds to wait, which clients read from there."""
    message = error.message
    if error.wait_s is not None:
        message = f"{message} Please try again in {error.wait_s}s."
    return {"code": _CODES.get(error.code or "", "server_error"), "message": message}


class ResponseStream:
    """A `StreamFormatter`. Its only choice is the first. A background response is queued first."""

    def __init__(self, response: _Response, signer: Signer, recorder: Recorder) -> None:
        self._response = response
        self._recorder = recorder
        self._items = _Items(response.id, response.asked, signer)
        self._started: Started | None = None
        self._usage: Usage | None = None
        self._cut_by: str | None = None
        # The first content is formatted before the head is written.
        self._num_events = _NUM_OPENING
        self._status: Status = "queued" if response.asked.is_background else "in_progress"
        self._recorder.state(self._state(self._status)["response"])

    def head(self, num_choices: int = 1) -> bytes:  # noqa: ARG002 - this API has one choice
        """The response without content."""
        status: Status = "queued" if self._response.asked.is_background else "in_progress"
        opening = {"response": self._response.at(status, [])}
        data = _event("response.created", opening, 0) + _event(f"response.{status}", opening, 1)
        self._recorder.events(0, data)
        return data

    def keep_alive(self) -> bytes:
        """An event with the state: SSE comments do not keep clients from timing out."""
        return self._written([(f"response.{self._status}", self._state(self._status))])

    def format(self, event: ChoiceEvent) -> bytes:
        """See `StreamFormatter`. `ChoiceFinished` and the usage are written by `done`."""
        match event:
            case Started():
                self._started = event
                return self._leave_queue()
            case Usage():
                self._usage = event
            case ChoiceFinished():
                self._cut_by = _CUTS.get(event.reason)
            case _:
                return self._written(self._items.take(event))
        return b""

    def error(self, error: ApiError) -> bytes:
        """See `StreamFormatter`."""
        output = self._items.done
        return self._end([], self._response.at("failed", output, self._usage, error=error))

    def done(self) -> bytes:
        """The end of the open item, and of the response."""
        status = self._items.end_status(is_cut=self._cut_by is not None)
        closing = self._items.close(status)
        if (error := self._items.missing()) is not None:
            return self.error(error)
        return self._end(closing, self._state(status)["response"])

    def cancel(self) -> bytes:
        """The end of a response that its client has cancelled. The API has no event for that, so
        the event is that of an incomplete response.
        """
        closing = self._items.close("incomplete")
        return self._end(closing, self._state("cancelled")["response"])

    def _leave_queue(self) -> bytes:
        if self._status != "queued":
            return b""
        self._status = "in_progress"
        state = self._state("in_progress")
        self._recorder.state(state["response"])
        return self._written([("response.in_progress", state)])

    def _end(self, closing: list[Event], response: Fields) -> bytes:
        kind = "incomplete" if response["status"] == "cancelled" else response["status"]
        data = self._written([*closing, (f"response.{kind}", {"response": response})])
        self._recorder.state(response)
        return data

    def _state(self, status: Status) -> Fields:
        is_over = status not in {"queued", "in_progress"}
        output, started = (self._items.done, self._started) if is_over else ([], None)
        reason = self._cut_by or "max_output_tokens"
        found = self._response.at(status, output, self._usage, started=started, reason=reason)
        return {"response": found}

    def _written(self, events: Iterable[Event]) -> bytes:
        parts, first = [], self._num_events
        for kind, fields in events:
            parts.append(_event(kind, fields, self._num_events))
            self._num_events += 1
        data = b"".join(parts)
        if data:
            self._recorder.events(first, data)
        return data


def _event(kind: str, fields: Fields, number: int) -> bytes:
    data = _encode({"type": kind, **fields, "sequence_number": number})
    return b"event: %b\ndata: %b\n\n" % (kind.encode(), data)


class ResponseBuilder:
    """A `BodyBuilder`: the response in one piece."""

    def __init__(self, response: _Response, signer: Signer, recorder: Recorder) -> None:
        self._response = response
        self._recorder = recorder
        self._items = _Items(response.id, response.asked, signer)
        self._cut_by: str | None = None
        self._recorder.state(response.at("in_progress", []))

    def add(self, event: ContentEvent) -> None:
        """See `BodyBuilder`."""
        self._items.take(event)
        if isinstance(event, ChoiceFinished):
            self._cut_by = _CUTS.get(event.reason)

    def body(self, started: Started | None = None, usage: Usage | None = None) -> bytes:
        """See `BodyBuilder`."""
        status = self._items.end_status(is_cut=self._cut_by is not None)
        self._items.close(status)
        error = self._items.missing()
        response = self._response.at(
            status if error is None else "failed",
            self._items.done,
            usage,
            started=started,
            error=error,
            reason=self._cut_by or "max_output_tokens",
        )
        self._recorder.state(response)
        return _encode(response)


class CompactionBuilder:
    """A `BodyBuilder`: a compaction alone."""

    def __init__(self, head: AnswerHead, asked: Responses, signer: Signer) -> None:
        self._head = head
        self._items = _Items(head.id, asked, signer)

    def add(self, event: ContentEvent) -> None:
        """See `BodyBuilder`."""
        self._items.take(event)

    def body(self, started: Started | None = None, usage: Usage | None = None) -> bytes:
        """See `BodyBuilder`."""
        self._items.close("completed")
        error = self._items.missing()
        return _encode(
            CompactedResponse(
                id=self._head.id,
                object="response.compaction",
                created_at=self._head.created,
                output=self._items.done,
                usage=None if usage is None else ResponseUsage.of(usage),
                error=UNSET if error is None else _error(error),
                herma=UNSET if started is None else HermaObject.of(started, usage),
            )
        )
