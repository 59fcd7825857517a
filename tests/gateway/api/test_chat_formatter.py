"""The bytes of the API, read by the official client's types."""

import json
from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from gateway.api.api_format import AnswerHead
from gateway.api.chat_formatter import ChunkFormatter, CompletionBuilder
from gateway.api.errors import ApiError, connection_lost
from gateway.api.events import (
    ChoiceFinished,
    ReasoningDelta,
    Started,
    TextDelta,
    TokenLogprob,
    ToolCallArguments,
    ToolCallEnd,
    ToolCallStart,
    TopLogprob,
    Usage,
)

STARTED = Started("worker", "w1", 32, "prefix", "m")
USAGE = Usage(100, 64, 7)
SCORED = (TokenLogprob("é", -0.5, [0xC3, 0xA9], (TopLogprob("é", -0.5, [0xC3, 0xA9]),)),)
CALL = (
    ToolCallStart(0, 0, "call_1", "f"),
    ToolCallArguments(0, 0, '{"a"'),
    ToolCallArguments(0, 0, ": 1}"),
    ToolCallEnd(0, 0),
)


def formatter(*, include_usage: bool = True) -> ChunkFormatter:
    return ChunkFormatter(AnswerHead("chatcmpl-1", 1_700_000_000, 'm"x', include_usage))


def payloads(data: bytes) -> list[Any]:
    *events, rest = data.split(b"\n\n")
    assert rest == b""
    assert all(event.startswith(b"data: ") and b"\n" not in event for event in events)
    return [json.loads(event.removeprefix(b"data: ")) for event in events]


def chunks(data: bytes) -> list[ChatCompletionChunk]:
    """The chunks of SSE bytes, strictly validated."""
    return [ChatCompletionChunk.model_validate(payload, strict=True) for payload in payloads(data)]


def test_the_head_gives_every_choice_its_role() -> None:
    """The role chunk has role assistant and empty content, once per choice."""
    heads = chunks(formatter().head(2))
    assert [chunk.choices[0].index for chunk in heads] == [0, 1]
    assert all(chunk.choices[0].delta.role == "assistant" for chunk in heads)
    assert all(chunk.choices[0].delta.content == "" for chunk in heads)
    assert {(chunk.id, chunk.model, chunk.created) for chunk in heads} == {
        ("chatcmpl-1", 'm"x', 1_700_000_000)
    }


@given(st.text(), st.integers(0, 3))
def test_any_text_survives_the_wire(text: str, index: int) -> None:
    """A delta's text comes back exactly, in one SSE event, at its choice."""
    (chunk,) = chunks(formatter().format(TextDelta(index, text)))
    assert (chunk.choices[0].index, chunk.choices[0].delta.content) == (index, text)
    assert chunk.choices[0].finish_reason is None


@given(st.lists(st.tuples(st.sampled_from([TextDelta, ReasoningDelta]), st.text()), max_size=8))
def test_templates_write_what_an_encoder_writes(deltas: list[tuple[Any, str]]) -> None:
    """A filled template equals the whole chunk encoded at once, for text and reasoning."""
    one = formatter()
    for at, (kind, text) in enumerate(deltas):
        both = {"reasoning_content": text, "reasoning": text}
        choice = {
            "index": at % 3,
            "delta": {"content": text} if kind is TextDelta else both,
            "logprobs": None,
            "finish_reason": None,
        }
        whole = {
            "id": "chatcmpl-1",
            "object": "chat.completion.chunk",
            "created": 1_700_000_000,
            "model": 'm"x',
            "choices": [choice],
        }
        expected = b"data: " + msgspec.json.encode(whole) + b"\n\n"
        assert one.format(kind(at % 3, text)) == expected


def test_a_keep_alive_has_a_choice_with_an_empty_delta() -> None:
    """Clients that index choices[0] survive a keep-alive."""
    (chunk,) = chunks(formatter().keep_alive())
    assert chunk.choices[0].delta.content == ""


def test_a_call_streams_as_clients_join_it() -> None:
    """First index, id, type and name with empty arguments; then index and arguments alone."""
    data = [formatter().format(event) for event in CALL]
    assert data[-1] == b""
    deltas = [chunk.choices[0].delta for chunk in chunks(b"".join(data))]
    calls = [delta.tool_calls[0] for delta in deltas if delta.tool_calls]
    assert [call.index for call in calls] == [0, 0, 0]
    assert [call.id for call in calls] == ["call_1", None, None]
    assert [call.type for call in calls] == ["function", None, None]
    functions = [call.function for call in calls if call.function]
    assert [function.name for function in functions] == ["f", None, None]
    assert [function.arguments for function in functions] == ["", '{"a"', ": 1}"]


def test_thoughts_go_out_under_both_names() -> None:
    """Clients read `reasoning_content` or `reasoning`; neither is part of the content."""
    (chunk,) = payloads(formatter().format(ReasoningDelta(1, "hm")))
    assert chunk["choices"][0]["delta"] == {"reasoning_content": "hm", "reasoning": "hm"}
    thoughts = (ReasoningDelta(0, "h"), ReasoningDelta(0, "m"))
    _, body = built(*thoughts, TextDelta(0, "yes"), ChoiceFinished(0, "stop"))
    message = body["choices"][0]["message"]
    assert (message["content"], message["reasoning"]) == ("yes", "hm")
    assert message["reasoning_content"] == "hm"


def test_the_finish_says_why() -> None:
    """The last chunk of a choice has an empty delta and the reason."""
    (chunk,) = chunks(formatter().format(ChoiceFinished(0, "tool_calls")))
    assert chunk.choices[0].finish_reason == "tool_calls"
    assert chunk.choices[0].delta.content is None


def test_logprobs_have_the_apis_shape() -> None:
    """Log-probabilities are read by the client's types."""
    (chunk,) = chunks(formatter().format(TextDelta(0, "é", SCORED)))
    assert chunk.choices[0].logprobs
    (entry,) = chunk.choices[0].logprobs.content or []
    assert (entry.token, entry.bytes, entry.top_logprobs[0].logprob) == ("é", [195, 169], -0.5)


def test_usage_is_the_last_chunk_and_says_who_answered() -> None:
    """The usage chunk has no choices, the cached tokens, and a herma object."""
    chunk_formatter = formatter()
    assert chunk_formatter.format(STARTED) == b""
    data = chunk_formatter.format(USAGE)
    (chunk,) = chunks(data)
    assert chunk.choices == []
    assert chunk.usage
    assert chunk.usage.total_tokens == 107
    assert chunk.usage.prompt_tokens_details
    assert chunk.usage.prompt_tokens_details.cached_tokens == 64
    assert chunk.usage.completion_tokens_details
    assert chunk.usage.completion_tokens_details.reasoning_tokens == 0
    assert payloads(data)[0]["herma"] == {
        "worker": "w1",
        "cached_tokens": 64,
        "route": "prefix",
        "served_by": "worker",
    }


def test_usage_that_nobody_asked_for_is_not_sent() -> None:
    """Without include_usage there is no usage chunk."""
    assert formatter(include_usage=False).format(USAGE) == b""


def test_an_error_is_an_event_of_its_own() -> None:
    """A failure after the head is the error object as an SSE event."""
    data = formatter().error(connection_lost())
    assert payloads(data)[0]["error"]["message"] == "upstream connection lost"


def test_done_is_the_apis_word() -> None:
    """The stream ends as clients expect."""
    assert formatter().done() == b"data: [DONE]\n\n"


def built(*events: Any) -> tuple[ChatCompletion, Any]:
    builder = CompletionBuilder(AnswerHead("chatcmpl-1", 1_700_000_000, "m"))
    for event in events:
        if event not in (STARTED, USAGE):
            builder.add(event)
    started = STARTED if STARTED in events else None
    payload = json.loads(builder.body(started, USAGE if USAGE in events else None))
    return ChatCompletion.model_validate(payload, strict=True), payload


def test_a_completion_joins_the_deltas_of_each_choice() -> None:
    """Choices are in order, with their text, reason, usage and worker."""
    completion, payload = built(
        STARTED,
        TextDelta(1, "b"),
        TextDelta(0, "a"),
        TextDelta(0, "a", SCORED),
        ChoiceFinished(0, "stop"),
        ChoiceFinished(1, "length"),
        USAGE,
    )
    assert [choice.message.content for choice in completion.choices] == ["aa", "b"]
    assert [choice.finish_reason for choice in completion.choices] == ["stop", "length"]
    assert completion.choices[0].logprobs
    assert completion.usage
    assert completion.usage.completion_tokens == 7
    assert payload["herma"]["worker"] == "w1"


def test_a_completion_has_a_fingerprint_that_says_nothing() -> None:
    """OpenRouter's SDKs refuse a whole answer without the field, and take null."""
    assert built(TextDelta(0, "a"), ChoiceFinished(0, "stop"))[1]["system_fingerprint"] is None


def test_only_tool_calls_means_null_content() -> None:
    """Content is null beside calls, and text where there is some."""
    completion, _ = built(*CALL, ChoiceFinished(0, "tool_calls"))
    assert completion.choices[0].message.content is None
    (call,) = completion.choices[0].message.tool_calls or []
    assert (call.id, call.function.arguments) == ("call_1", '{"a": 1}')
    assert (
        built(TextDelta(0, "x"), *CALL, ChoiceFinished(0, "tool_calls"))[0]
        .choices[0]
        .message.content
        == "x"
    )


def test_an_empty_answer_has_empty_content() -> None:
    """No text and no call is an empty string, as clients expect."""
    assert built(ChoiceFinished(0, "stop"))[0].choices[0].message.content == ""


def test_an_error_keeps_its_repr() -> None:
    """Logs show status, text and field of an error."""
    assert repr(ApiError(400, "x", param="n")) == "ApiError(400, 'x', code=None, param='n')"
