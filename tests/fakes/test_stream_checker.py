"""The checker of streams can fail: every rule has a stream that breaks it, and ours break none."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.api.api_format import AnswerHead
from gateway.api.chat_formatter import ChunkFormatter, CompletionBuilder
from gateway.api.events import (
    ChoiceEvent,
    ChoiceFinished,
    ReasoningDelta,
    TextDelta,
    ToolCallArguments,
    ToolCallStart,
    Usage,
)
from tests.fakes.stream_checker import StreamChecker, StreamFault, check_stream, whole_answers

Chunk = dict[str, Any]
USAGE = {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}
ROLE = {"role": "assistant", "content": ""}
CALL = {"index": 0, "id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}}


def chunk(delta: Chunk, reason: str | None = None, index: int = 0, **envelope: Any) -> Chunk:
    choice = {"index": index, "delta": delta, "logprobs": None, "finish_reason": reason}
    return {**_envelope(**envelope), "choices": [choice]}


def _envelope(**changes: Any) -> Chunk:
    kind = "chat.completion.chunk"
    return {"id": "chatcmpl-1", "object": kind, "created": 1, "model": "m", **changes}


def usage(**changes: Any) -> Chunk:
    return {**_envelope(), "choices": [], "usage": {**USAGE, **changes}}


def sse(*events: Chunk | str) -> bytes:
    texts = [event if isinstance(event, str) else json.dumps(event) for event in events]
    return b"".join(b"data: %s\n\n" % text.encode() for text in texts)


BEGIN = chunk(ROLE)
WORD = chunk({"content": "a"})
STOP = chunk({}, "stop")
DONE = "[DONE]"
ERROR = {"error": {"message": "upstream connection lost"}}

GOOD = {
    "text": sse(BEGIN, WORD, STOP, DONE),
    "usage": sse(BEGIN, WORD, STOP, usage(), DONE),
    "an error": sse(BEGIN, WORD, ERROR),
    "an error and nothing else": sse(ERROR),
    "keep-alives": sse(BEGIN, chunk({"content": ""}), WORD, STOP, DONE),
    "a call": sse(BEGIN, chunk({"tool_calls": [CALL]}), chunk({}, "tool_calls"), DONE),
    "two choices": sse(BEGIN, chunk(ROLE, index=1), STOP, chunk({}, "length", index=1), DONE),
    "a provider's": b": wait\n\n" + sse({"id": "gen-1", "choices": []}, "anything", DONE),
}

BAD = {
    "nothing": (b"", "neither"),
    "no end": (sse(BEGIN, WORD, STOP), "neither"),
    "half an event": (sse(BEGIN, WORD, STOP) + b"data: [DO", "within an event"),
    "no finish": (sse(BEGIN, WORD, DONE), r"choices \[0\] without a finish"),
    "two finishes": (sse(BEGIN, STOP, STOP, DONE), "behind its finish"),
    "text behind the finish": (sse(BEGIN, STOP, WORD, DONE), "behind its finish"),
    "a keep-alive behind it": (sse(BEGIN, STOP, chunk({"content": ""}), DONE), "behind its finish"),
    "two ends": (sse(BEGIN, STOP, DONE, DONE), "behind the end"),
    "an end behind an error": (sse(BEGIN, ERROR, DONE), "behind the end"),
    "an empty error": (sse({"error": {}}), "without a message"),
    "no role": (sse(WORD, STOP, DONE), "role None"),
    "two roles": (sse(BEGIN, BEGIN, STOP, DONE), "role 'assistant'"),
    "another role": (sse(chunk({"role": "user"}), STOP, DONE), "a role 'user'"),
    "another id": (sse(BEGIN, chunk({}, "stop", id="chatcmpl-2"), DONE), "behind"),
    "another model": (sse(BEGIN, chunk({}, "stop", model="x"), DONE), "behind"),
    "another time": (sse(BEGIN, chunk({}, "stop", created=2), DONE), "behind"),
    "another kind": (sse(chunk(ROLE, object="chat.completion"), STOP, DONE), "of kind"),
    "a strange reason": (sse(BEGIN, chunk({}, "abort"), DONE), "finish_reason 'abort'"),
    "usage early": (sse(BEGIN, usage(), STOP, DONE), "without a finish"),
    "usage twice": (sse(BEGIN, STOP, usage(), usage(), DONE), "behind the usage"),
    "usage beside a choice": (sse(BEGIN, {**STOP, "usage": USAGE}, DONE), "that has choices"),
    "usage that is no sum": (sse(BEGIN, STOP, usage(total_tokens=6), DONE), "no sum"),
    "no choices": (sse(BEGIN, {**_envelope(), "choices": []}, STOP, DONE), "no usage in it"),
    "a missing choice": (sse(chunk(ROLE, index=1), chunk({}, "stop", index=1), DONE), r"\[1\]"),
    "no choice at all": (sse(DONE), "choices"),
    "a comment first": (b": hi\n\n" + sse(BEGIN, STOP, DONE), "comment"),
    "a comment within": (sse(BEGIN) + b": hi\n\n" + sse(STOP, DONE), "one data line"),
    "two lines": (b"data: {}\ndata: {}\n\n", "one data line"),
    "no JSON": (sse("{"), "no JSON"),
    "a thought under one name": (
        sse(BEGIN, chunk({"reasoning": "x"}), STOP, DONE),
        "one of its names",
    ),
    "a thought behind text": (
        sse(BEGIN, WORD, chunk({"reasoning": "x", "reasoning_content": "x"}), STOP, DONE),
        "thinks behind",
    ),
    "calls announced, none made": (sse(BEGIN, chunk({}, "tool_calls"), DONE), "has none"),
    "arguments cut": (
        sse(
            BEGIN,
            chunk({"tool_calls": [{**CALL, "function": {"name": "f", "arguments": '{"a'}}]}),
            chunk({}, "tool_calls"),
            DONE,
        ),
        "no JSON object",
    ),
    "a call that begins at 1": (
        sse(BEGIN, chunk({"tool_calls": [{**CALL, "index": 1}]}), STOP, DONE),
        "begins as number 0",
    ),
    "arguments before their call": (
        sse(BEGIN, chunk({"tool_calls": [{"index": 0, "function": {"arguments": "{"}}]})),
        "while call -1 is open",
    ),
    "one id for two calls": (
        sse(
            BEGIN,
            chunk({"tool_calls": [CALL]}),
            chunk({"tool_calls": [{**CALL, "index": 1}]}),
            chunk({}, "tool_calls"),
        ),
        "two calls of one id",
    ),
    "a call without a name": (
        sse(BEGIN, chunk({"tool_calls": [{**CALL, "function": {"arguments": ""}}]})),
        "without id or name",
    ),
    "a name twice": (
        sse(
            BEGIN,
            chunk({"tool_calls": [CALL]}),
            chunk({"tool_calls": [{"index": 0, "function": {"name": "f", "arguments": ""}}]}),
        ),
        "a name that comes twice",
    ),
}


@pytest.mark.parametrize("name", GOOD)
def test_a_right_stream_passes(name: str) -> None:
    """Whole and byte by byte."""
    check_stream(GOOD[name])
    checker = StreamChecker()
    for at in range(len(GOOD[name])):
        checker.feed(GOOD[name][at : at + 1])
    checker.end()


@pytest.mark.parametrize("name", BAD)
def test_a_wrong_stream_is_told(name: str) -> None:
    """Each rule is broken by one stream, and the fault says which."""
    data, fault = BAD[name]
    with pytest.raises(StreamFault, match=fault):
        check_stream(data)


TEXTS = st.text(max_size=5)
ARGUMENTS = st.dictionaries(TEXTS, TEXTS, max_size=2).map(json.dumps)


@st.composite
def choice_events(draw: st.DrawFn, index: int) -> list[ChoiceEvent]:
    """What one choice can be told: thoughts, text, calls in pieces, the finish."""
    events: list[ChoiceEvent] = [ReasoningDelta(index, text) for text in draw(st.lists(TEXTS))]
    events += [TextDelta(index, text) for text in draw(st.lists(TEXTS))]
    all_arguments = draw(st.lists(ARGUMENTS, max_size=3))
    for number, arguments in enumerate(all_arguments):
        events.append(ToolCallStart(index, number, f"call_{index}_{number}", "f"))
        cut = draw(st.integers(0, len(arguments)))
        pieces = (arguments[:cut], arguments[cut:])
        events += [ToolCallArguments(index, number, piece) for piece in pieces]
    events.append(ChoiceFinished(index, "tool_calls" if all_arguments else "stop"))
    return events


@given(st.integers(1, 3).flatmap(lambda n: st.tuples(*map(choice_events, range(n)))), st.data())
def test_what_the_formatter_writes_is_right_and_joins_to_the_whole(
    choices: tuple[list[ChoiceEvent], ...], data: st.DataObject
) -> None:
    """Any answer, its choices interleaved: no fault, and the same as the answer in one piece."""
    formatter, builder = (
        ChunkFormatter(AnswerHead("chatcmpl-1", 1, "m", include_usage=True)),
        _builder(),
    )
    stream = formatter.head(len(choices))
    waiting = [list(events) for events in choices]
    while left := [events for events in waiting if events]:
        event = data.draw(st.sampled_from(left)).pop(0)
        stream += formatter.format(event)
        builder.add(event)
    stream += formatter.format(Usage(1, 0, 2)) + formatter.done()
    assert check_stream(stream).answers() == whole_answers(json.loads(builder.body()))


def _builder() -> CompletionBuilder:
    return CompletionBuilder(AnswerHead("chatcmpl-1", 1, "m"))
