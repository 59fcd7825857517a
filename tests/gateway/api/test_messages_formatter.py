"""Turn events as messages: every stream is well-formed, and says what the whole answer says."""

from typing import Any

import jiter
import msgspec
import pytest
from hypothesis import given

from gateway.api.api_format import AnswerHead
from gateway.api.errors import ApiError, context_length_exceeded
from gateway.api.events import (
    ChoiceFinished,
    ReasoningDelta,
    Started,
    TextDelta,
    ToolCallArguments,
    ToolCallDelta,
    ToolCallEnd,
    ToolCallStart,
    TurnEvent,
    Usage,
)
from gateway.api.messages_formatter import MessageObject, messages_format
from gateway.api.signatures import Signer
from tests.fakes.messages_checker import MessagesChecker, check_messages
from tests.fakes.model_outputs import STARTED, USAGE, model_outputs

SIGNER = Signer(bytes(32))
HEAD = AnswerHead("msg_1", 1_800_000_000, "alpha")
FORMAT = messages_format(SIGNER, "req_1")


def streamed(events: list[TurnEvent]) -> MessagesChecker:
    formatter = FORMAT.streamed(HEAD)
    parts = [formatter.format(events[0]), formatter.head(1)]  # type: ignore[arg-type]
    for event in events[1:]:
        parts += [formatter.format(event), formatter.keep_alive()]  # type: ignore[arg-type]
    return check_messages(b"".join([*parts, formatter.done()]))


def whole_of(events: list[TurnEvent]) -> dict[str, Any]:
    builder = FORMAT.whole(HEAD)
    for event in events:
        if isinstance(event, TextDelta | ReasoningDelta | ToolCallDelta | ChoiceFinished):
            builder.add(event)
    body = builder.body(STARTED, USAGE)
    msgspec.json.decode(body, type=MessageObject)
    decoded: dict[str, Any] = msgspec.json.decode(body)
    return decoded


@given(model_outputs())
def test_any_output_makes_a_sound_stream_that_equals_the_whole(events: list[TurnEvent]) -> None:
    """Order, nesting and numbering are the checker's; the sums of the deltas are the message. Of a
    call that was cut short the whole message has a part of what the official client has of the
    stream.
    """
    checker = streamed(events)
    message = checker.message
    assert message is not None
    body = whole_of(events)
    body.pop("herma")
    for place, (block, told) in enumerate(zip(message["content"], body["content"], strict=True)):
        if block.get("input", {}) is None:
            assert checker.inputs[place].keys() >= told["input"].keys()
            block["input"] = told["input"]
    assert message == body


@pytest.mark.parametrize(
    ("arguments", "whole"),
    [
        ('{"a": 1, "b": "x', {"a": 1}),
        ('{"a": "x, y}", "b": [1, {"c": "\\"', {"a": "x, y}", "b": [1, {}]}),
        ('{"a": {"b": 1}', {"a": {"b": 1}}),
        ('{"a": 12', {}),
        ('{"a": "\\', {}),
        ("{", {}),
    ],
)
def test_of_a_call_that_was_cut_the_whole_members_stay(
    arguments: str, whole: dict[str, object]
) -> None:
    """Half a value never does; the last block shows the call, and the reason that it was cut."""
    events: list[TurnEvent] = [
        ToolCallStart(0, 0, "x", "f"),
        ToolCallArguments(0, 0, arguments),
        ToolCallEnd(0, 0),
        ChoiceFinished(0, "length"),
    ]
    body = whole_of(events)
    assert body["stop_reason"] == "max_tokens"
    assert body["content"][-1]["input"] == whole
    assert whole.items() <= jiter.from_json(arguments.encode(), partial_mode=True).items()


def test_thinking_is_signed_once_before_its_end() -> None:
    """The signature is of the whole thought; the prompt's tokens are in the first event."""
    checked = streamed([STARTED, ReasoningDelta(0, "h"), ReasoningDelta(0, "m"), TextDelta(0, "!")])
    assert checked.message is not None
    thought, text = checked.message["content"]
    assert SIGNER.is_signed("hm", thought["signature"])
    assert text["text"] == "!"
    assert checked.kinds.count("content_block_delta") == 4
    assert checked.message["usage"]["cache_read_input_tokens"] == 0  # no usage came at the end


def test_a_call_without_arguments_is_an_empty_object() -> None:
    """Fragments join to one object in any case."""
    events: list[TurnEvent] = [STARTED, ToolCallStart(0, 0, "x", "f"), ToolCallEnd(0, 0)]
    checked = streamed([*events, ChoiceFinished(0, "tool_calls"), USAGE])
    assert checked.message is not None
    (call,) = checked.message["content"]
    assert (call["id"], call["name"], call["input"]) == ("toolu_x", "f", {})
    assert checked.message["stop_reason"] == "tool_use"


def test_input_tokens_leave_the_cached_ones_out() -> None:
    """The three counts of the prompt add up to its tokens."""
    started = Started("worker", "w", 30, "r", "m", prompt_tokens=100)
    formatter = FORMAT.streamed(HEAD)
    formatter.format(started)
    first = msgspec.json.decode(formatter.head(1).split(b"data: ")[1])["message"]["usage"]
    assert (first["input_tokens"], first["cache_read_input_tokens"]) == (70, 30)
    formatter.format(Usage(100, 40, 7))
    last = msgspec.json.decode(formatter.done().split(b"\n\n")[0].split(b"data: ")[1])
    assert last["usage"]["input_tokens"] == 60
    assert last["usage"]["output_tokens"] == 7


def test_errors_have_this_api_s_shape() -> None:
    """Type by status; a full window in the words on which Claude Code compacts."""
    error = msgspec.json.decode(FORMAT.error_body(ApiError(429, "Full.")))
    assert error == {
        "type": "error",
        "error": {"type": "rate_limit_error", "message": "Full."},
        "request_id": "req_1",
    }
    full = msgspec.json.decode(FORMAT.error_body(context_length_exceeded(4096, 5000)))
    assert full["error"]["message"] == "prompt is too long: 5000 tokens > 4096 maximum"
    stream = FORMAT.streamed(HEAD)
    assert check_messages(stream.head(1) + stream.error(ApiError(502, "Lost."))).error == {
        "type": "api_error",
        "message": "Lost.",
    }
