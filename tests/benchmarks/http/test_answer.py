"""What the client of `herma bench http` reads in a stream."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.http.answer import HttpAnswer


def event(**fields: Any) -> bytes:
    return f"data: {json.dumps(fields)}\n\n".encode()


def content(text: str, field: str = "content") -> bytes:
    return event(choices=[{"index": 0, "delta": {field: text}, "finish_reason": None}])


USAGE = {
    "prompt_tokens": 9,
    "completion_tokens": 3,
    "prompt_tokens_details": {"cached_tokens": 4},
}
DONE = b"data: [DONE]\n\n"
STREAM = b"".join(
    (
        b": a comment\n\n",
        event(id="x", choices=[{"index": 0, "delta": {"role": "assistant", "content": ""}}]),
        content("thought", "reasoning_content"),
        content("idea", "reasoning"),
        content('a "content":"x" ünd\n\n'),
        event(choices=[{"index": 0, "delta": {"tool_calls": [{"index": 0, "function": {}}]}}]),
        event(choices=[{"index": 0, "delta": {"content": ""}, "finish_reason": "length"}]),
        event(choices=[], usage=USAGE),
        DONE,
    )
)


@given(cuts=st.lists(st.integers(0, len(STREAM))), has_returns=st.booleans())
def test_pieces_of_any_size_say_the_same(cuts: list[int], *, has_returns: bool) -> None:
    """Reads end anywhere; content counts when its event is complete."""
    stream = STREAM.replace(b"\n", b"\r\n") if has_returns else STREAM
    answer = HttpAnswer(0.0)
    ends = [*sorted(cuts), len(stream)]
    for number, (start, end) in enumerate(zip([0, *ends], ends, strict=False)):
        answer.feed(stream[start:end], float(number))
    answer.end()
    assert (answer.error_kind, answer.num_events, answer.finish_reason) == (None, 4, "length")
    assert answer.usage is not None
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (9, 3)
    assert answer.usage.cached_tokens == 4
    assert sorted(answer.content_at) == answer.content_at


def test_content_has_the_time_of_its_read() -> None:
    """Several events of a read have one time; reads without content have none."""
    answer = HttpAnswer(1.0)
    assert answer.last_at == 1.0
    answer.feed(content(" a") + content(" b"), 2.0)
    answer.feed(b": still here\n\n", 3.0)
    answer.feed(content(" c"), 4.0)
    assert (answer.content_at, answer.events, answer.last_at) == ([2.0, 4.0], [2, 1], 4.0)


@pytest.mark.parametrize(
    ("stream", "kind", "detail"),
    [
        (content(" a"), "cut", "without [DONE]"),
        (DONE, "empty", "no content"),
        (content(" a") + b"data: {oops\n\n" + DONE, "garbage", "oops"),
        (content(" a") + event(choices="none") + DONE, "garbage", "choices"),
        (event(error={"message": "died"}) + DONE, "error event", "died"),
    ],
)
def test_what_is_wrong_has_a_kind(stream: bytes, kind: str, detail: str) -> None:
    """Each fault of a stream has a kind, and a detail that names it."""
    answer = HttpAnswer(0.0)
    answer.feed(stream, 1.0)
    answer.end()
    assert answer.error_kind == kind
    assert detail in answer.error_detail


def test_answers_that_are_no_stream_have_a_kind() -> None:
    """An answer that is no stream has the kind of its status; the first failure is kept."""
    refused, plain = HttpAnswer(0.0), HttpAnswer(0.0)
    refused.reject(429, b' {"error": "full"}\n')
    refused.fail("cut", "later")
    plain.reject(200, b"{}")
    assert (refused.error_kind, refused.error_detail) == ("HTTP 429", '{"error": "full"}')
    assert plain.error_kind == "no stream"
