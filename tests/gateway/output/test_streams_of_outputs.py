"""Whatever a model writes, the streams of Responses and Messages are sound, and say what the whole
answer says: 25 outputs in `make test`, 20,000 in `make fuzz`.
"""

import json
from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from gateway.api import (
    AnswerHead,
    ApiFormat,
    Signer,
    ToolCallArguments,
    TurnEvent,
    messages_format,
    parse_responses,
    responses_format,
)
from gateway.output.answer_format import answer_format
from gateway.output.reasoning import ReasoningSplitter
from gateway.output.sequence_output import OutputPipeline, Reason
from gateway.output.stop_strings import StopMatcher
from gateway.output.tools import TOOL_FORMATS, ToolParser
from gateway.prompt.model_text import ModelText
from tests.fakes.messages_checker import check_messages
from tests.fakes.model_outputs import STARTED, USAGE
from tests.fakes.responses_checker import check_responses
from tests.fakes.text_files import make_text_files
from tests.fakes.tool_answers import ANSWERS, TOOLS

TEXT = ModelText(make_text_files())
SIGNER = Signer(bytes(32))
ASKED: dict[str, Any] = {
    "model": "alpha",
    "input": "Hi",
    "include": ["reasoning.encrypted_content"],
    "tools": [
        {"type": "custom" if at else "function", **tool["function"]}
        for at, tool in enumerate(TOOLS)
    ],
}
RESPONSES = responses_format(parse_responses(msgspec.json.encode(ASKED), SIGNER), SIGNER)
MESSAGES = messages_format(SIGNER, "req_1")

PIECES = st.lists(
    st.one_of(
        st.sampled_from(
            [
                "<think>", "</think>", "STOP", "🙂", "\n", " ", "<", "<tool_call>", "{", '"',
                "</tool_call>", '{"name": "f", "arguments": ', "[TOOL_CALLS]", "</think>text",
                *(answer.text for answer in ANSWERS),
            ]
        ),
        st.text(max_size=8),
    ),
    max_size=7,
)  # fmt: skip


def _events(form: str, ids: list[int], sizes: list[int], reason: Reason) -> list[TurnEvent]:
    """The events of an answer whose tokens come in steps of those sizes."""
    parts = answer_format("", form)
    assert parts.tools
    drawn = iter(range(1, 1000))
    out = OutputPipeline(
        TEXT.decoder(parts),
        StopMatcher(("STOP",)),
        ToolParser(parts.tools, lambda n: next(drawn).to_bytes(n, "little"), TOOLS),
        reasoning=ReasoningSplitter(parts.reasoning, enders=parts.enders),
    )
    events: list[TurnEvent] = [STARTED]
    at = 0
    for size in [*sizes, len(ids)]:
        events += out.push(ids[at : at + size])
        at += size
    return [*events, *out.finish(reason), USAGE]


def _streamed(api: ApiFormat, prefix: str, events: list[TurnEvent], quiet: set[int]) -> bytes:
    """As the edge writes it: the head behind the first content, life in each silence."""
    formatter = api.streamed(AnswerHead(prefix + "1", 1_800_000_000, "alpha"))
    parts = [formatter.format(events[0]), formatter.format(events[1])]  # type: ignore[arg-type]
    parts.insert(0, formatter.head(1))
    for at, event in enumerate(events[2:]):
        parts.append(formatter.format(event))  # type: ignore[arg-type]
        if at in quiet:
            parts.append(formatter.keep_alive())
    return b"".join([*parts, formatter.done()])


def _whole(api: ApiFormat, prefix: str, events: list[TurnEvent]) -> Any:
    builder = api.whole(AnswerHead(prefix + "1", 1_800_000_000, "alpha"))
    for event in events[1:-1]:
        builder.add(event)  # type: ignore[arg-type]
    return json.loads(builder.body(STARTED, USAGE))


def _has_broken_call(events: list[TurnEvent]) -> bool:
    calls: dict[int, str] = {}
    for event in events:
        if isinstance(event, ToolCallArguments):
            calls[event.call_index] = calls.get(event.call_index, "") + event.text
    for arguments in calls.values():
        try:
            msgspec.json.decode(arguments, type=dict[str, Any])
        except msgspec.MsgspecError:
            return True
    return False


@given(
    st.sampled_from(sorted(TOOL_FORMATS)),
    PIECES,
    st.lists(st.integers(1, 40), max_size=20),
    st.sampled_from(["stop", "length"]),
    st.sets(st.integers(0, 30)),
)
def test_any_text_of_a_model_makes_sound_streams(
    form: str, pieces: list[str], sizes: list[int], reason: Reason, quiet: set[int]
) -> None:
    """Order, nesting, numbers and sums are the checkers'; the last state is the whole answer."""
    ids = TEXT.encoder.encode_texts(["".join(pieces)])[0]
    events = _events(form, ids, sizes, reason)
    response = check_responses(_streamed(RESPONSES, "resp_", events, quiet)).response
    assert response == _whole(RESPONSES, "resp_", events)
    if reason == "stop" and _has_broken_call(events):
        return  # a model that ends its answer within a call: Messages has no word for that
    message = check_messages(_streamed(MESSAGES, "msg_", events, quiet)).message
    assert message is not None
    body = _whole(MESSAGES, "msg_", events)
    del body["herma"]
    # Of a call that was cut short the stream has a beginning, which may be no JSON.
    cut = {b["id"] for b in message["content"] if b.get("input", {}) is None}
    for one in (message, body):
        one["content"] = [b for b in one["content"] if b.get("id") not in cut]
    assert message == body
