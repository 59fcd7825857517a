"""The end of a stream: which ends are none, and the calls in it as clients can read them."""

import json
from typing import Any

import pytest

from gateway.upstream.answer import NotAnAnswer, check_answer
from gateway.upstream.relay import BadStream, StreamRelay
from gateway.upstream.sse import split_events
from gateway.upstream.stream_end import StreamEnd
from gateway.upstream.usage import StreamUsage

DONE = b"data: [DONE]\n\n"


def chunk(finish: str | None = None, index: int = 0, **delta: Any) -> bytes:
    choice = {"index": index, "delta": delta, "finish_reason": finish}
    return b"data: " + json.dumps({"id": "x", "choices": [choice]}).encode() + b"\n\n"


def part(index: int | None = 0, arguments: str | None = None, **more: Any) -> dict[str, Any]:
    function = {"name": more.pop("name", None), "arguments": arguments}
    given = {key: value for key, value in function.items() if value is not None}
    return {**({} if index is None else {"index": index}), "function": given, **more}


def passed(
    *events: bytes, raw: dict[str, Any] | None = None
) -> tuple[list[bytes], BadStream | None]:
    """What reaches the client, event by event as a provider reads them, and the failure."""
    found: list[bytes] = []
    usage = StreamUsage(lambda _: None, is_ours=False)
    relay = StreamRelay(found.append, usage, lambda: True, StreamEnd(raw))
    try:
        for event in events:
            if not relay.pass_single(event):
                relay.take(event)
    except BadStream as error:
        return found, error
    return found, None


def calls_in(events: list[bytes]) -> list[dict[str, Any]]:
    """The calls as a client joins them: by index."""
    calls: dict[int, dict[str, Any]] = {}
    for event in split_events(b"".join(events)):
        if b"[DONE]" in event:
            continue
        for choice in json.loads(event[6:])["choices"]:
            for one in choice["delta"].get("tool_calls", []):
                call = calls.setdefault(one["index"], {"id": "", "name": "", "arguments": ""})
                call["id"] += one.get("id") or ""
                call["name"] += one["function"].get("name") or ""
                arguments = one["function"].get("arguments")
                call["arguments"] += "" if arguments is None else arguments
    return list(calls.values())


@pytest.mark.parametrize(
    "reason",
    [
        "error",
        "insufficient_system_resource",
        "abort",
        "network_error",
        "function_call_filter: MALFORMED_FUNCTION_CALL",
        "banana",
    ],
)
@pytest.mark.parametrize("begun", [True, False])
def test_a_failure_of_the_server_is_no_end(reason: str, begun: bool) -> None:
    """A failure of the server is no end and is not passed on; before the first content nothing is
    passed on, so that another server is asked.
    """
    words = [chunk(content="Half")] if begun else []
    found, error = passed(chunk(role="assistant"), *words, chunk(reason), DONE)
    assert error is not None
    assert repr(reason) in str(error)
    assert b"".join(found) == (chunk(role="assistant") + words[0] if begun else b"")


@pytest.mark.parametrize("reason", ["stop", "length", "tool_calls", "model_length", "STOP"])
def test_an_end_is_passed_on_unchanged(reason: str) -> None:
    """An end is passed on unchanged, whatever the server calls it."""
    calls = [part(0, "{}", id="a", name="write", type="function")]
    said = chunk(tool_calls=calls) if reason == "tool_calls" else chunk(content="All")
    events = said, chunk(reason), DONE
    assert passed(*events) == (list(events), None)


@pytest.mark.parametrize("reason", ["tool_calls", "tool_use"])
def test_a_text_that_says_that_it_calls_a_tool_is_a_text(reason: str) -> None:
    """Some agents ask again and again while an answer ends with calls, and there are none."""
    found, error = passed(chunk(content="All"), chunk(reason), DONE)
    assert error is None
    ends = [json.loads(event[6:])["choices"][0]["finish_reason"] for event in found[:-1]]
    assert ends == [None, "stop"]


def test_a_stream_without_an_end_is_cut() -> None:
    """[DONE] alone proves nothing; the same for one choice of two."""
    found, error = passed(chunk(content="Half"), DONE)
    assert error is not None
    assert found == [chunk(content="Half")]
    two = [chunk(content="a"), chunk(index=1, content="b"), chunk("stop")]
    found, error = passed(*two, DONE, raw={"n": 2})
    assert error is not None
    assert found == two
    assert passed(*two, chunk("stop", 1), DONE, raw={"n": 2})[1] is None


@pytest.mark.parametrize("reason", ["stop", "tool_calls", "length"])
def test_a_call_that_breaks_off(reason: str) -> None:
    """A call that breaks off may be cut in its arguments only at the limit of tokens."""
    events = [
        chunk(tool_calls=[part(0, "", id="a", name="write", type="function")]),
        chunk(tool_calls=[part(0, '{"text": "ha')]),
        chunk(tool_calls=[part(0, "lf")]),
        chunk(reason),
    ]
    found, error = passed(*events, DONE)
    assert (error is None) is (reason == "length")
    assert found == ([*events, DONE] if reason == "length" else events[:3])


def test_a_filter_before_the_first_content() -> None:
    """The whole stream is kept for the client, should nobody else answer; later it is the end."""
    role, end = chunk(role="assistant", content=""), chunk("content_filter")
    found, error = passed(role, end, DONE)
    assert error is not None
    assert error.filtered == role + end + DONE
    assert not found
    events = [chunk(content="Half"), end, DONE]
    assert passed(*events) == (events, None)


@pytest.mark.parametrize("rest", [b"data: {\n\n", chunk(content="more"), b"data: [DONE]\n\n"])
def test_what_follows_the_end_is_ignored(rest: bytes) -> None:
    """What follows the end, in one piece with it or later, is ignored."""
    events = chunk(content="All"), chunk("stop"), DONE
    assert passed(*events, rest) == (list(events), None)
    assert b"".join(passed(events[0], events[1] + DONE + rest, rest)[0]) == b"".join(events)


CALLS: list[tuple[str, list[list[dict[str, Any]]], list[tuple[str, str]]]] = [
    (
        "one index for both",
        [
            [part(0, "", id="a", name="f")],
            [part(0, '{"x":1}')],
            [part(0, "", id="b", name="g")],
            [part(0, '{"y":2}')],
        ],
        [("f", '{"x":1}'), ("g", '{"y":2}')],
    ),
    (
        "no index",
        [
            [part(None, "", id="a", name="f")],
            [part(None, '{"x":1}')],
            [part(None, '{"y":2}', id="b", name="g")],
        ],
        [("f", '{"x":1}'), ("g", '{"y":2}')],
    ),
    (
        "two in one chunk without index and id",
        [[part(None, '{"x":1}', name="f"), part(None, '{"y":2}', name="f")]],
        [("f", '{"x":1}'), ("f", '{"y":2}')],
    ),
    (
        "the id in every part",
        [
            [part(0, '{"x"', id="a", name="f")],
            [part(0, ":1}", id="a")],
            [part(0, "{}", id="b", name="f")],
        ],
        [("f", '{"x":1}'), ("f", "{}")],
    ),
    (
        "the name in every part",
        [[part(0, '{"x"', id="a", name="f")], [part(0, ":1}", id="a", name="f")]],
        [("f", '{"x":1}')],
    ),
    (
        "the name behind the arguments",
        [[part(0, '{"x"', id="a")], [part(0, ":1}")], [part(0, None, name="f")]],
        [("f", '{"x":1}')],
    ),
    ("no arguments", [[part(0, None, id="a", name="f")]], [("f", "{}")]),
    ("empty arguments", [[part(0, "", id="a", name="f")], [part(0, "")]], [("f", "{}")]),
    (
        "one id for two indexes",
        [[part(0, "{}", id="a", name="f")], [part(1, "{}", id="a", name="g")]],
        [("f", "{}"), ("g", "{}")],
    ),
    (
        "empty ids",
        [[part(0, "{}", id="", name="f")], [part(1, "{}", id="", name="g")]],
        [("f", "{}"), ("g", "{}")],
    ),
    (
        "interleaved",
        [
            [part(0, '{"x"', id="a", name="f")],
            [part(1, '{"y"', id="b", name="g")],
            [part(0, ":1}")],
            [part(1, ":2}")],
        ],
        [("f", '{"x":1}'), ("g", '{"y":2}')],
    ),
]


@pytest.mark.parametrize(("deltas", "calls"), [c[1:] for c in CALLS], ids=[c[0] for c in CALLS])
def test_calls_as_servers_send_them(
    deltas: list[list[dict[str, Any]]], calls: list[tuple[str, str]]
) -> None:
    """A client that joins parts by index reads each call, with an id of its own."""
    events = [chunk(tool_calls=delta) for delta in deltas]
    found, error = passed(*events, chunk("tool_calls"), DONE)
    assert error is None
    read = calls_in(found)
    assert [(call["name"], call["arguments"]) for call in read] == calls
    assert len({call["id"] for call in read}) == len(read)
    assert all(call["id"] for call in read)


@pytest.mark.parametrize(
    "events",
    [
        [chunk(tool_calls=[part(0, "{}", id="a", name="f"), part(1, "{}", id="b", name="g")])],
        [
            chunk(tool_calls=[part(0, "", id="a", name="f")]),
            chunk(tool_calls=[part(0, "{")]),
            chunk(tool_calls=[part(0, "}"), part(1, "{}", id="b", name="g")]),
        ],
        [
            chunk(tool_calls=[part(0, None, id="a", name="f")]),
            chunk(tool_calls=[part(1, None, id="b", name="g")]),
        ],
    ],
    ids=["two that begin", "the end of one and another", "none with arguments"],
)
@pytest.mark.parametrize("has_own_end", [True, False])
def test_a_chunk_has_a_part_of_one_call_or_the_end(events: list[bytes], has_own_end: bool) -> None:
    """Some clients read only the first part of a chunk, others take a call as never done whose end
    comes with its last part."""
    if has_own_end:
        events = [*events, chunk("tool_calls")]
    else:
        events = [*events[:-1], events[-1].replace(b"null", b'"tool_calls"')]
    found, error = passed(*events, DONE)
    assert error is None
    assert found.pop() == DONE
    choices = [json.loads(event[6:])["choices"][0] for event in split_events(b"".join(found))]
    parts = [len(choice["delta"].get("tool_calls", [])) for choice in choices]
    reasons = [choice["finish_reason"] for choice in choices]
    assert parts == [1] * (len(parts) - 1) + [0]
    assert reasons == [None] * (len(parts) - 1) + ["tool_calls"]
    assert [(call["name"], call["arguments"]) for call in calls_in(found)] == [
        ("f", "{}"),
        ("g", "{}"),
    ]
    for at, choice in enumerate(choices[:-1]):
        (one,) = choice["delta"]["tool_calls"]
        before = [past["delta"]["tool_calls"][0]["index"] for past in choices[:at]]
        assert bool(one.get("id")) is (one["index"] not in before)


FIRST = part(0, "{", name="f", id="a")
REST = part(0, '"x": 1}')
BARE = part(0, None, name="f", id="a")


@pytest.mark.parametrize("reason", ["stop", "end_turn"])
@pytest.mark.parametrize("again", [None, "stop", "tool_calls"])
@pytest.mark.parametrize(
    ("parts", "arguments"),
    [([FIRST, REST], '{"x": 1}'), ([BARE], "{}")],
    ids=["in pieces", "without arguments"],
)
@pytest.mark.parametrize("n", [1, 2])
def test_a_call_behind_the_end_of_a_text_has_an_end_of_its_own(
    reason: str, again: str | None, parts: list[dict[str, Any]], arguments: str, n: int
) -> None:
    """Agents that look at the last end would not make the call."""
    events = [chunk(content="Hm"), chunk(reason), *(chunk(tool_calls=[one]) for one in parts)]
    events += [] if again is None else [chunk(again)]
    events += [chunk("stop", 1, content="Oh")] * (n - 1)
    found, error = passed(*events, DONE, raw={"n": n})
    assert error is None
    assert found[-1].endswith(DONE)
    assert [one["arguments"] for one in calls_in(found)] == [arguments]
    lines = [one for one in split_events(b"".join(found)) if b"[DONE]" not in one]
    choices = [json.loads(one[6:])["choices"][0] for one in lines]
    ends = [one["finish_reason"] for one in choices if one["index"] == 0]
    assert [one for one in ends if one] == [reason, "tool_calls"]
    assert ends[-1] == "tool_calls"


def test_a_call_behind_the_end_of_a_text_that_breaks_off_is_cut() -> None:
    _, error = passed(chunk(content="Hm"), chunk("stop"), chunk(tool_calls=[FIRST]), DONE)
    assert error is not None


@pytest.mark.parametrize("reason", [5, 0, {"type": "stop"}, ["stop"], True, "", "null"])
def test_what_is_no_text_says_no_end(reason: Any) -> None:
    """Clients with types fail at it. A whole answer is whole without; a stream is not."""
    message = {"role": "assistant", "content": "Hm"}
    choice = {"index": 0, "message": message, "finish_reason": reason}
    answer = check_answer(200, json.dumps({"choices": [choice]}).encode(), {})
    assert json.loads(answer.body)["choices"][0]["finish_reason"] is None
    found, error = passed(chunk(content="Hm"), chunk(reason), DONE)
    assert error is not None
    assert all(b'"finish_reason":null' in one.replace(b" ", b"") for one in found)


def test_text_beside_calls_comes_before_them() -> None:
    """The chunk is taken apart, and nothing of it is lost or said twice."""
    both = [part(0, "{}", id="a", name="f"), part(1, "{}", id="b", name="g")]
    found, error = passed(chunk("tool_calls", content="So", tool_calls=both), DONE)
    assert error is None
    deltas = [
        json.loads(event[6:])["choices"][0]["delta"] for event in split_events(b"".join(found))[:-1]
    ]
    assert [delta.get("content") for delta in deltas] == ["So", None, None]
    assert [len(delta.get("tool_calls", [])) for delta in deltas] == [1, 1, 0]


def test_sound_calls_are_passed_on_unchanged() -> None:
    """Sound calls are passed on unchanged, with fields that are not known."""
    signed = {"google": {"thought_signature": "s"}}
    events = [
        chunk(content="So"),
        chunk(tool_calls=[part(0, "", id="a", name="f", type="function", extra_content=signed)]),
        chunk(tool_calls=[part(0, '{"x":')]),
        chunk(tool_calls=[part(0, "1}")]),
        chunk(tool_calls=[part(1, "{}", id="b", name="g", type="function")]),
        chunk("tool_calls"),
        DONE,
    ]
    assert passed(*events) == (events, None)


@pytest.mark.parametrize(
    ("given", "taken", "own"),
    [
        ("call_0", ["call_0"], None),
        ("", [], None),
        ("functions.f:0", ["functions.g:0", "functions.f:1"], "functions.f:0"),
        ("functions.f:0", ["functions.f:0", "functions.g:1"], "functions.f:2"),
    ],
)
def test_an_id_is_that_of_one_call_in_all_turns(
    given: str, taken: list[str], own: str | None
) -> None:
    """Streamed and whole, and the same for the same request."""
    history = [{"role": "assistant", "tool_calls": [{"id": one} for one in taken]}]
    raw = {"messages": history}
    events = chunk(tool_calls=[part(0, "{}", id=given, name="f")]), chunk("tool_calls"), DONE
    (streamed,) = calls_in(passed(*events, raw=raw)[0])
    whole = {"message": {"tool_calls": [part(None, "{}", id=given, name="f")]}}
    answer = check_answer(200, json.dumps({"choices": [whole]}).encode(), raw)
    (call,) = json.loads(answer.body)["choices"][0]["message"]["tool_calls"]
    assert call["id"] == streamed["id"]
    assert call["id"] not in taken
    assert call["id"] == own or own is None


def whole(finish: str | None = "stop", **message: Any) -> bytes:
    choice = {"index": 0, "message": message, "finish_reason": finish}
    return json.dumps({"choices": [choice]}).encode()


def test_whole_answers_are_held_to_the_same() -> None:
    """Failures, calls that break off, a filter; arguments that are missing or an object."""
    for reason in ("error", "insufficient_system_resource", "abort", "banana"):
        with pytest.raises(NotAnAnswer, match=reason):
            check_answer(200, whole(reason, content="Half"))
    cut = [part(None, '{"x": "ha', id="a", name="f")]
    with pytest.raises(NotAnAnswer, match="arguments"):
        check_answer(200, whole("stop", tool_calls=cut))
    assert check_answer(200, whole("length", tool_calls=cut)).body
    assert check_answer(200, whole("content_filter", content="")).is_filtered
    for arguments in (None, "", "null", '"{}"'):
        body = whole("tool_calls", tool_calls=[part(None, arguments, id="a", name="f")])
        (call,) = json.loads(check_answer(200, body).body)["choices"][0]["message"]["tool_calls"]
        assert call["function"]["arguments"] == "{}"
    sound = whole("tool_calls", tool_calls=[part(None, '{"x":1}', id="a", name="f")])
    assert check_answer(200, sound).body == sound
