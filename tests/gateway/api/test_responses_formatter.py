"""Turn events as responses: every stream is well-formed, and says what the whole answer says."""

from typing import Any

import msgspec
from hypothesis import given

from gateway.api.api_format import AnswerHead
from gateway.api.errors import ApiError, busy, context_length_exceeded
from gateway.api.events import (
    ChoiceFinished,
    ReasoningDelta,
    TextDelta,
    TokenLogprob,
    ToolCallArguments,
    ToolCallDelta,
    ToolCallEnd,
    ToolCallStart,
    TurnEvent,
)
from gateway.api.responses_formatter import ResponseObject, responses_format
from gateway.api.responses_parser import parse_responses
from gateway.api.signatures import Signer
from tests.fakes.model_outputs import STARTED, USAGE, model_outputs
from tests.fakes.responses_checker import ResponsesChecker, check_responses

SIGNER = Signer(bytes(32))
HEAD = AnswerHead("resp_1", 1_800_000_000, "alpha")
BODY: dict[str, Any] = {
    "model": "alpha",
    "input": "Hi",
    "include": ["reasoning.encrypted_content"],
    "tools": [
        {"type": "function", "name": "book"},
        {"type": "custom", "name": "patch"},
        {"type": "namespace", "name": "mcp", "tools": [{"type": "function", "name": "look_up"}]},
        {"type": "shell"},
        {"type": "local_shell"},
        {"type": "apply_patch"},
    ],
}
ASKED = parse_responses(msgspec.json.encode(BODY), SIGNER)
FORMAT = responses_format(ASKED, SIGNER)
NAMES = (
    "book", "patch", "mcp__look_up", "invented", "shell", "local_shell", "apply_patch",
)  # fmt: skip


def streamed(events: list[TurnEvent], error: ApiError | None = None) -> ResponsesChecker:
    """As the edge writes it: the head leaves when the first content has been formatted."""
    formatter = FORMAT.streamed(HEAD)
    first: Any = events[0]
    begun = formatter.format(first)
    parts = [formatter.head(1), begun]
    for event in events[1:]:
        parts += [formatter.format(event), formatter.keep_alive()]  # type: ignore[arg-type]
    last = formatter.done() if error is None else formatter.error(error)
    return check_responses(b"".join([*parts, last]))


def test_what_comes_behind_a_call_has_a_message_of_its_own() -> None:
    """Pages that a server names at the end of an answer whose last part is a call."""
    page = {"type": "url_citation", "url": "https://a.example"}
    events: list[TurnEvent] = [
        ToolCallStart(0, 0, "call_1", "book"),
        ToolCallArguments(0, 0, "{}"),
        ToolCallEnd(0, 0),
        TextDelta(0, "", annotations=(page,)),
        ChoiceFinished(0, "tool_calls"),
    ]
    call, message = streamed(events).items
    assert (call["type"], message["type"]) == ("function_call", "message")
    (part,) = message["content"]
    place = {"title": "", "start_index": 0, "end_index": 0}
    assert (part["text"], part["annotations"]) == ("", [{**place, **page}])
    assert whole(events)["output"] == [call, message]


def whole(events: list[TurnEvent]) -> dict[str, Any]:
    builder = FORMAT.whole(HEAD)
    for event in events:
        if isinstance(event, TextDelta | ReasoningDelta | ToolCallDelta | ChoiceFinished):
            builder.add(event)
    body = builder.body(STARTED, USAGE)
    msgspec.json.decode(body, type=ResponseObject)
    decoded: dict[str, Any] = msgspec.json.decode(body)
    return decoded


@given(model_outputs(NAMES))
def test_any_output_makes_a_sound_stream_that_equals_the_whole(events: list[TurnEvent]) -> None:
    """Order, nesting, numbering and sums are the checker's; the last state is the whole answer."""
    checked = streamed(events)
    assert checked.response == whole(events)
    assert checked.response is not None
    is_cut = isinstance(events[-2], ChoiceFinished) and events[-2].reason == "length"
    assert checked.response["status"] == ("incomplete" if is_cut else "completed")
    assert bool(checked.response["incomplete_details"]) == is_cut


def test_calls_have_the_client_s_names_and_forms() -> None:
    """A namespace is split back; a custom tool's input is its text; ids are of their kinds."""
    events: list[TurnEvent] = [STARTED]
    for at, (name, arguments) in enumerate(
        [("mcp__look_up", '{"q":1}'), ("patch", '{"input":"*** Begin"}'), ("book", "{}")]
    ):
        events += [
            ToolCallStart(0, at, f"call_{at}", name),
            ToolCallArguments(0, at, arguments),
            ToolCallEnd(0, at),
        ]
    found = streamed([*events, ChoiceFinished(0, "tool_calls"), USAGE]).items
    spaced, custom, plain = found
    assert (spaced["namespace"], spaced["name"], spaced["call_id"]) == ("mcp", "look_up", "call_0")
    assert (custom["type"], custom["name"], custom["input"]) == (
        "custom_tool_call",
        "patch",
        "*** Begin",
    )
    assert (plain["name"], plain["arguments"], "namespace" in plain) == ("book", "{}", False)


def test_reasoning_is_sealed_only_if_asked_for() -> None:
    """The blob holds the whole thought."""
    events: list[TurnEvent] = [STARTED, ReasoningDelta(0, "h"), ReasoningDelta(0, "m")]
    (item,) = streamed(events).items
    assert item["content"] == [{"type": "reasoning_text", "text": "hm"}]
    assert SIGNER.unsealed(item["encrypted_content"]) == "hm"
    plain = parse_responses(msgspec.json.encode({**BODY, "include": None}), SIGNER)
    formatter = responses_format(plain, SIGNER).streamed(HEAD)
    data = formatter.head(1) + formatter.format(ReasoningDelta(0, "hm")) + formatter.done()
    assert check_responses(data).items[0]["encrypted_content"] is None


def test_logprobs_are_in_the_delta_and_in_the_part() -> None:
    """Log-probabilities are in the delta and in the part, in the order of their tokens."""
    one = TokenLogprob("a", -0.5, [97])
    checked = streamed([STARTED, TextDelta(0, "a", (one,)), TextDelta(0, "b", (one,))])
    (item,) = checked.items
    assert [entry["token"] for entry in item["content"][0]["logprobs"]] == ["a", "a"]


def test_a_failure_keeps_what_came_and_has_a_known_code() -> None:
    """Clients read the code, and the seconds from the text."""
    text: list[TurnEvent] = [STARTED, TextDelta(0, "Half")]
    for error, code in (
        (busy("Full.", 3), "rate_limit_exceeded"),
        (context_length_exceeded(10, 20), "context_length_exceeded"),
        (ApiError(502, "Lost."), "server_error"),
    ):
        checked = streamed(text, error)
        assert checked.error is not None
        assert checked.error["code"] == code
        assert checked.text == "Half"
        waits = "try again in 3s" in checked.error["message"]
        assert waits == (code == "rate_limit_exceeded")
