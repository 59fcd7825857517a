"""A provider's answer as events."""

import json
from typing import Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.api import (
    ChoiceFinished,
    Failed,
    ReasoningDelta,
    Started,
    TextDelta,
    TokenLogprob,
    ToolCallArguments,
    ToolCallEnd,
    ToolCallStart,
    TopLogprob,
    TurnEvent,
    UpstreamBody,
    UpstreamChunk,
    Usage,
)
from gateway.upstream import ChatEvents

DONE = b"data: [DONE]\n\n"
USAGE = {"prompt_tokens": 9, "completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": 4}}


def chunk(finish: str | None = None, **delta: Any) -> bytes:
    choice = {"index": 0, "delta": delta, "finish_reason": finish}
    return b"data: " + json.dumps({"id": "x", "choices": [choice]}).encode() + b"\n\n"


def scored_chunk(text: str, scores: dict[str, Any]) -> bytes:
    choice = {"index": 0, "delta": {"content": text}, "logprobs": scores}
    return b"data: " + json.dumps({"id": "x", "choices": [choice]}).encode() + b"\n\n"


def part(index: int, arguments: str | None = None, **more: Any) -> dict[str, Any]:
    function = {
        k: v for k, v in {"arguments": arguments, "name": more.pop("name", None)}.items() if v
    }
    return {"index": index, "function": function, **more}


def read(*events: bytes | TurnEvent, needs_objects: bool = False) -> list[TurnEvent]:
    found: list[TurnEvent] = []
    reader = ChatEvents(found.append, needs_objects=needs_objects)
    for event in events:
        reader.take(UpstreamChunk(event) if isinstance(event, bytes) else event)
    return found


def test_a_stream_is_read_to_its_usage() -> None:
    """Reasoning under either name, text, the finish, and the usage last; several in one piece."""
    usage = b"data: " + json.dumps({"choices": [], "usage": USAGE}).encode() + b"\n\n"
    found = read(
        chunk(role="assistant", content="") + chunk(reasoning_content="Hm"),
        chunk(reasoning="."),
        chunk(content="Yes") + chunk("stop") + usage,
        b": still here\n\n" + DONE,
    )
    assert found == [
        ReasoningDelta(0, "Hm"),
        ReasoningDelta(0, "."),
        TextDelta(0, "Yes"),
        ChoiceFinished(0, "stop"),
        Usage(9, 4, 2),
    ]


SCORED: Final = {"token": "Yés", "logprob": -0.5, "bytes": [89]}
SCORES: Final = (TokenLogprob("Yés", -0.5, [89], (TopLogprob("é", -1, [195, 169]),)),)


@pytest.mark.parametrize("late", [False, True])
def test_the_scores_of_a_text_come_with_it(late: bool) -> None:
    """The log-probabilities of a text come with it, also of a text that waits behind a call.
    Without bytes they are those of the token; log-probabilities of an unknown form are left out.
    """
    scored = {**SCORED, "top_logprobs": [{"token": "é", "logprob": -1}]}
    call = [chunk(tool_calls=[part(0, "{}", id="a", name="f")])] if late else []
    texts = [
        scored_chunk("Yés", {"content": [scored]}),
        scored_chunk(".", {"content": [{**scored, "logprob": "high"}]}),
    ]
    found = [one for one in read(*call, *texts, chunk("stop"), DONE) if isinstance(one, TextDelta)]
    apart = [TextDelta(0, "Yés", SCORES), TextDelta(0, ".")]
    assert found == ([TextDelta(0, "Yés.", SCORES)] if late else apart)


@pytest.mark.parametrize("name", ["stop_reason", "matched_stop"])
def test_the_stop_string_that_ended_an_answer(name: str) -> None:
    """The stop string that ended an answer is read by the names of vLLM and SGLang; a number names
    a token and no string.
    """
    for stop, told in (("END", "END"), (2, None)):
        choice = {"index": 0, "delta": {}, "finish_reason": "stop", name: stop}
        end = b"data: " + json.dumps({"id": "x", "choices": [choice]}).encode() + b"\n\n"
        assert read(chunk(content="Yes"), end, DONE)[-1] == ChoiceFinished(0, "stop", told)


def test_white_space_in_front_of_a_call_is_no_text() -> None:
    """White space in front of a call is no text; in front of a text it is, in one piece with it; an
    answer of nothing else is that.
    """
    call = chunk(tool_calls=[part(0, "{}", id="a", name="f")])
    kinds = [type(one) for one in read(chunk(content="\n"), chunk(content="\n"), call, DONE)]
    assert kinds == [ToolCallStart, ToolCallArguments, ToolCallEnd, ChoiceFinished]
    said = read(chunk(content="\n"), chunk(content=" I"), chunk(content="\n"), call, DONE)
    assert said[:2] == [TextDelta(0, "\n I"), TextDelta(0, "\n")]
    assert read(chunk(content="\n"), chunk("stop"), DONE)[0] == TextDelta(0, "\n")


def test_calls_that_are_written_at_once_come_one_after_the_other() -> None:
    """The first as it comes; the rest, and late text, at the end."""
    found = read(
        chunk(tool_calls=[part(0, id="a", name="f")]),
        chunk(tool_calls=[part(1, "{}", id="b", name="g"), part(0, '{"x":')]),
        chunk(content="Wait."),
        chunk("tool_calls", tool_calls=[part(0, "1}")]),
        DONE,
    )
    assert found == [
        ToolCallStart(0, 0, "a", "f"),
        ToolCallArguments(0, 0, '{"x":'),
        ToolCallArguments(0, 0, "1}"),
        ToolCallEnd(0, 0),
        ToolCallStart(0, 1, "b", "g"),
        ToolCallArguments(0, 1, "{}"),
        ToolCallEnd(0, 1),
        TextDelta(0, "Wait."),
        ChoiceFinished(0, "tool_calls"),
    ]


CITED = {"type": "url_citation", "url": "https://a.example", "title": "A", "start_index": 0}
NESTED = {"type": "url_citation", "url_citation": {k: v for k, v in CITED.items() if k != "type"}}
FILE = {"type": "file_citation", "file_id": "f", "index": 2}
PAGE = {"type": "url_citation", "url": "https://b.example"}


def _with(event: bytes, **more: Any) -> bytes:
    """The chunk with fields beside its choices."""
    return b"data: " + json.dumps({**json.loads(event[6:]), **more}).encode() + b"\n\n"


@pytest.mark.parametrize(
    ("chunks", "annotations"),
    [
        ([chunk(content="Yes"), chunk(annotations=[NESTED, FILE])], (CITED, FILE)),
        ([chunk(content="Yes", annotations=[NESTED]), chunk(annotations=[NESTED])], (CITED,)),
        ([chunk(annotations=[CITED]), chunk(content="Yes")], (CITED,)),
        ([_with(chunk(content="Yes"), citations=[PAGE["url"]])] * 2, (PAGE,)),
        (
            [
                _with(
                    chunk(content="Yes"),
                    citations=[PAGE["url"]],
                    search_results=[{"url": PAGE["url"], "title": "B", "date": None}],
                )
            ],
            ({**PAGE, "title": "B"},),
        ),
        ([chunk(content="Yes", annotations=None)], ()),
        ([chunk(content="Yes", annotations=[None, 7, {"type": None}, {}])], ()),
        ([_with(chunk(content="Yes"), citations={"a": 1})], ()),
        ([_with(chunk(content="Yes"), citations=[None, 7, {"url": 7}])], ()),
    ],
)
def test_what_a_text_refers_to_comes_once_behind_it(
    chunks: list[bytes], annotations: tuple[Any, ...]
) -> None:
    """Streamed, and whole; servers repeat it in each chunk."""
    found = read(*chunks, chunk("stop"), DONE)
    assert [one.annotations for one in found if isinstance(one, TextDelta)][-1] == annotations
    assert isinstance(found[-1], ChoiceFinished)
    fields = json.loads(chunks[-1][6:])
    said = [json.loads(one[6:])["choices"][0]["delta"] for one in chunks]
    message = {"role": "assistant", **said[0], **said[-1], "content": "Yes"}
    body = {**fields, "choices": [{"index": 0, "message": message, "finish_reason": "stop"}]}
    told = read(UpstreamBody(200, json.dumps(body).encode()))
    texts = [one for one in told if isinstance(one, TextDelta)]
    assert "".join(one.text for one in texts) == "Yes"
    assert texts[-1].annotations == annotations


def test_annotations_of_a_text_come_before_the_calls_behind_it() -> None:
    """A client's text has ended where a call begins."""
    found = read(
        chunk(content="Yes", annotations=[CITED]),
        chunk(tool_calls=[part(0, "{}", id="a", name="f")]),
        chunk("tool_calls"),
        DONE,
    )
    assert found[:3] == [
        TextDelta(0, "Yes"),
        TextDelta(0, "", annotations=(CITED,)),
        ToolCallStart(0, 0, "a", "f"),
    ]


def test_the_number_of_annotations_has_a_bound() -> None:
    """The number of annotations is bounded, because they are kept until the end."""
    many = [{"type": "url_citation", "url": f"https://a.example/{n}"} for n in range(3000)]
    found = read(chunk(content="Yes", annotations=many), chunk("stop"), DONE)
    assert isinstance(found[1], TextDelta)
    assert len(found[1].annotations) == 1024


def test_a_reason_of_calls_without_a_call_is_a_stop() -> None:
    """A client would wait for a call that never comes."""
    assert read(chunk(content="Hi"), chunk("tool_calls"), DONE)[-1] == ChoiceFinished(0, "stop")


@pytest.mark.parametrize("arguments", ["x is 1", "[1]", '"x"', '{"x":1}}', "7"])
def test_arguments_that_are_no_object_are_a_failure_where_there_is_no_place_for_them(
    arguments: str,
) -> None:
    """Messages would run the call without any, or break its stream; the others pass them on."""
    said = [chunk(tool_calls=[part(0, id="a", name="f")])]
    said += [chunk(tool_calls=[part(0, char)]) for char in arguments]
    events = *said, chunk("tool_calls"), DONE
    assert isinstance(read(*events, needs_objects=True)[-1], Failed)
    assert read(*events)[-1] == ChoiceFinished(0, "tool_calls")
    two = chunk(tool_calls=[part(0, "{}", id="a", name="f"), part(1, arguments, id="b", name="g")])
    assert isinstance(read(two, chunk("tool_calls"), DONE, needs_objects=True)[-1], Failed)


@pytest.mark.parametrize(
    ("arguments", "seen"),
    [
        ("null", "{}"),
        ("", "{}"),
        ('"{\\"x\\": 1}"', '{"x": 1}'),
        (' {"x": null}', ' {"x": null}'),
    ],
)
def test_what_stands_for_an_object_is_one(arguments: str, seen: str) -> None:
    """Nothing, null, and arguments that were encoded twice stand for an object, in any pieces."""
    first = chunk(tool_calls=[part(0, id="a", name="f")])
    for pieces in ([arguments], list(arguments)):
        more = [chunk(tool_calls=[part(0, piece)]) for piece in pieces]
        found = read(first, *more, chunk("tool_calls"), DONE, needs_objects=True)
        assert [found[0], *found[-2:]] == [
            ToolCallStart(0, 0, "a", "f"),
            ToolCallEnd(0, 0),
            ChoiceFinished(0, "tool_calls"),
        ]
        assert "".join(one.text for one in found if isinstance(one, ToolCallArguments)) == seen


@pytest.mark.parametrize("arguments", ["", '{"x":', '{"x":1}'])
def test_a_call_that_the_limit_cut_stays_cut(arguments: str) -> None:
    """A call that the limit cut stays cut: its beginning is passed on, and the reason is the
    limit.
    """
    said = chunk(tool_calls=[part(0, arguments, id="a", name="f")])
    found = read(said, chunk("length"), DONE, needs_objects=True)
    assert found[-2:] == [ToolCallEnd(0, 0, is_whole=False), ChoiceFinished(0, "length")]


def test_a_whole_answer_is_read_at_once() -> None:
    """Calls of a whole answer have no index."""
    message = {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": "a", "function": {"name": "f", "arguments": {"x": 1}}}],
    }
    answer = {"choices": [{"message": message, "finish_reason": "tool_calls"}], "usage": USAGE}
    started = Started("cloud:p", "", 0, "r", "m")
    found = read(started, UpstreamBody(200, json.dumps(answer).encode()))
    assert found == [
        started,
        ToolCallStart(0, 0, "a", "f"),
        ToolCallArguments(0, 0, '{"x":1}'),
        ToolCallEnd(0, 0),
        ChoiceFinished(0, "tool_calls"),
        Usage(9, 4, 2),
    ]


LEGACY = {"name": "f", "arguments": '{"x":1}'}


def calls_of(found: list[TurnEvent]) -> tuple[str, str, str]:
    """The id, the name and the arguments of the only call."""
    (start,) = [one for one in found if isinstance(one, ToolCallStart)]
    arguments = "".join(one.text for one in found if isinstance(one, ToolCallArguments))
    assert found[-1] == ChoiceFinished(0, "tool_calls")
    return start.id, start.name, arguments


def test_a_legacy_call_of_a_stream_is_a_call() -> None:
    """Servers from before `tool_calls` send `function_call`, some with the name in every part."""
    parts = [
        {"name": "f", "arguments": ""},
        {"arguments": '{"x"'},
        {"name": "f", "arguments": ":1}"},
    ]
    found = read(*[chunk(function_call=one) for one in parts], chunk("function_call"), DONE)
    call_id, name, arguments = calls_of(found)
    assert (name, arguments) == ("f", LEGACY["arguments"])
    assert call_id.startswith("call_")


def test_a_legacy_call_of_a_whole_answer_is_a_call_with_an_id_of_its_own() -> None:
    ids = set()
    for answer_id in ("one", "two"):
        choice = {"message": {"content": None, "function_call": LEGACY}, "finish_reason": "stop"}
        answer = {"id": answer_id, "choices": [choice]}
        call_id, *said = calls_of(read(UpstreamBody(200, json.dumps(answer).encode())))
        assert said == list(LEGACY.values())
        ids.add(call_id)
    assert len(ids) == 2


def test_a_call_in_both_forms_is_one() -> None:
    call = {"id": "a", "index": 0, "function": LEGACY}
    found = read(chunk(tool_calls=[call], function_call=LEGACY), chunk("tool_calls"), DONE)
    assert calls_of(found) == ("a", *LEGACY.values())


def test_a_refusal_is_an_error_with_its_words() -> None:
    """The status is the provider's."""
    (failed,) = read(UpstreamBody(400, b'{"error":{"message":"no","code":"y"}}'))
    assert isinstance(failed, Failed)
    assert (failed.error.status, failed.error.message, failed.error.code) == (400, "no", "y")
    (other,) = read(UpstreamBody(422, b'{"detail":"no"}'))
    assert isinstance(other, Failed)
    assert other.error.status == 422


ANY = st.recursive(
    st.none() | st.integers() | st.text(max_size=4),
    lambda inner: (
        st.lists(inner, max_size=2)
        | st.dictionaries(
            st.sampled_from(
                ["index", "function", "name", "arguments", "content", "tool_calls", "text"]
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=8,
)


@given(st.lists(ANY, max_size=6))
def test_no_shape_raises(deltas: list[Any]) -> None:
    """Events are emitted from a callback that must not raise; there is one finish, last."""
    chunks = [
        b"data: " + json.dumps({"choices": [{"delta": delta}]}).encode() + b"\n\n"
        for delta in deltas
    ]
    found = read(*chunks, DONE, DONE)
    assert [type(event) for event in found].count(ChoiceFinished) == bool(deltas)
