"""Turn events -> the bytes of OpenAI's Responses API.

Owns the response object, its states, and the numbers of its events. Must not know sockets or when
to send; `answer_items.py` has the items.
"""

from collections.abc import Callable, Iterable
from typing import Any, Final, Literal, Protocol

import msgspec
from msgspec import UNSET, UnsetType

from gateway.api.answer_items import ID_PREFIX, AnswerItems, Event, Fields, Status
from gateway.api.api_format import AnswerHead, ApiFormat, HermaObject
from gateway.api.errors import OVERFLOW, ApiError
from gateway.api.events import (
    ChoiceEvent,
    ChoiceFinished,
    ContentEvent,
    Started,
    Usage,
)
from gateway.api.responses_parser import Responses
from gateway.api.signatures import Signer

_NUM_OPENING: Final = 2
"""How many events precede the first item; they are written with the response head."""

_CODES: Final = {
    "busy": "rate_limit_exceeded",
    "spending_limit_reached": "insufficient_quota",
    OVERFLOW: OVERFLOW,
}
_CUTS: Final = {"length": "max_output_tokens", "content_filter": "content_filter"}
"""Why a response is incomplete, by the reason for which its only choice ended."""

_encode = msgspec.json.Encoder().encode


class InputDetails(msgspec.Struct):
    """Parts of the prompt's tokens."""

    cached_tokens: int
    cache_write_tokens: int = 0


class OutputDetails(msgspec.Struct):
    """Parts of the answer's tokens."""

    reasoning_tokens: int


class ResponseUsage(msgspec.Struct):
    """The tokens of a response. `is_estimate`: the upstream has counted nothing."""

    input_tokens: int
    input_tokens_details: InputDetails
    output_tokens: int
    output_tokens_details: OutputDetails
    total_tokens: int
    is_estimate: bool | UnsetType = UNSET

    @staticmethod
    def of(usage: Usage) -> "ResponseUsage":
        return ResponseUsage(
            usage.prompt_tokens,
            InputDetails(usage.cached_tokens),
            usage.completion_tokens,
            OutputDetails(usage.reasoning_tokens),
            usage.prompt_tokens + usage.completion_tokens,
            usage.is_estimate or UNSET,
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
        self._items = AnswerItems(response.id, response.asked, signer)
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
        self._items = AnswerItems(response.id, response.asked, signer)
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
        self._items = AnswerItems(head.id, asked, signer)

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
