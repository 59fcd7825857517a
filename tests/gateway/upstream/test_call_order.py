"""The calls of a stream reach clients one after the other, however a server mixes their parts."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.upstream import call_order
from gateway.upstream.relay import BadStream, StreamRelay
from gateway.upstream.sse import split_events
from gateway.upstream.stream_end import StreamEnd
from gateway.upstream.usage import StreamUsage

DONE = b"data: [DONE]\n\n"
Parts = list[tuple[int, str]]


def chunk(finish: str | None = None, **delta: object) -> bytes:
    choice = {"index": 0, "delta": delta, "finish_reason": finish}
    return b"data: " + json.dumps({"id": "x", "choices": [choice]}).encode() + b"\n\n"


def chunks_of(parts: Parts) -> list[bytes]:
    """The chunks of a server that sends each part of a call by itself."""
    begun: set[int] = set()
    chunks = []
    for index, arguments in parts:
        part: dict[str, object] = {"index": index, "function": {"arguments": arguments}}
        if index not in begun:
            begun.add(index)
            function = {"name": f"f{index}", "arguments": arguments}
            part |= {"id": f"call_{index}", "type": "function", "function": function}
        chunks.append(chunk(tool_calls=[part]))
    return chunks


def relay_into(found: list[bytes]) -> StreamRelay:
    usage = StreamUsage(lambda _: None, is_ours=False)
    return StreamRelay(found.append, usage, lambda: True, StreamEnd({}), is_chat=True)


def passed(events: list[bytes]) -> list[bytes]:
    found: list[bytes] = []
    relay = relay_into(found)
    for event in events:
        if not relay.pass_single(event):
            relay.take(event)
    return split_events(b"".join(found))


def parts_in(events: list[bytes]) -> Parts:
    return [
        (part["index"], part["function"]["arguments"])
        for event in events
        if event != DONE
        for choice in json.loads(event[6:])["choices"]
        for part in choice["delta"].get("tool_calls", ())
    ]


def as_one_after_the_other(events: list[bytes]) -> list[str]:
    """The arguments as a client reads them that adds each part to the call that began last."""
    calls: list[str] = []
    for event in events[:-1]:
        for part in json.loads(event[6:])["choices"][0]["delta"].get("tool_calls", ()):
            if part.get("id"):
                calls.append("")
            calls[-1] += part["function"]["arguments"]
    return calls


ARGUMENTS = [
    '{"x": [{"y": "}"}]}',
    '{"text": "a\\"}{b \\u00e9"}',
    "{}",
    '{"text": "' + "ä" * 9 + '"}',
]


@st.composite
def mixed(draw: st.DrawFn) -> tuple[list[str], Parts]:
    """The arguments of some calls, and their parts in any order that keeps those of each call."""
    whole = draw(st.lists(st.sampled_from(ARGUMENTS), min_size=1, max_size=4))
    left = []
    for index, text in enumerate(whole):
        cuts = sorted(draw(st.sets(st.integers(0, len(text)), max_size=3)))
        edges = zip([0, *cuts], [*cuts, len(text)], strict=True)
        left.append([(index, text[begin:end]) for begin, end in edges])
    parts: Parts = []
    num_begun = 0
    while any(left):
        may_go_on = [at for at in range(num_begun + 1) if at < len(left) and left[at]]
        at = draw(st.sampled_from(may_go_on or [num_begun]))
        num_begun = max(num_begun, at + 1)
        parts.append(left[at].pop(0))
    return whole, parts


@pytest.mark.parametrize("reason", ["tool_calls", "stop", "length"])
@given(case=mixed())
def test_a_client_that_knows_no_index_reads_each_call(
    case: tuple[list[str], Parts], reason: str
) -> None:
    """No part of a call comes behind the beginning of the next, and nothing is lost."""
    whole, parts = case
    found = passed([*chunks_of(parts), chunk(reason), DONE])
    assert as_one_after_the_other(found) == whole
    numbers = [number for number, _ in parts_in(found)]
    assert numbers == sorted(numbers)
    assert json.loads(found[-2][6:])["choices"][0]["finish_reason"] == (
        "length" if reason == "length" else "tool_calls"
    )


@given(case=mixed())
def test_calls_in_order_do_not_wait(case: tuple[list[str], Parts]) -> None:
    """What a server sends one after the other passes unchanged, part by part."""
    _, parts = case
    events = [*chunks_of(sorted(parts, key=lambda part: part[0])), chunk("tool_calls"), DONE]
    assert passed(events) == events


def test_the_second_call_goes_on_as_it_comes_behind_the_first() -> None:
    """The second call waits only until the arguments of the first are whole."""
    parts = [(0, ""), (1, ""), (0, '{"x":'), (1, '{"y":'), (0, "1}"), (1, "[2"), (1, "]}")]
    found: list[bytes] = []
    relay = relay_into(found)
    seen = []
    for event in chunks_of(parts):
        found.clear()
        relay.take(event)
        assert relay.has_news, "an answer that waits is no silent one"
        seen.append(parts_in(split_events(b"".join(found))))
    assert seen == [
        [(0, "")],
        [],
        [(0, '{"x":')],
        [],
        [(0, "1}"), (1, '{"y":')],
        [(1, "[2")],
        [(1, "]}")],
    ]
    relay.take(b": still here\n\n")
    assert not relay.has_news


def test_a_call_without_arguments_has_them_before_the_next_begins() -> None:
    """Whether its arguments are to come shows at the end of the answer."""
    found = passed([*chunks_of([(0, ""), (1, '{"y":'), (1, "2}")]), chunk("tool_calls"), DONE])
    assert parts_in(found) == [(0, ""), (0, "{}"), (1, '{"y":2}')]


def test_calls_whose_end_comes_before_their_parts() -> None:
    """Some servers send the end of an answer early; the parts come before it all the same."""
    first, second, late = (
        chunks_of([(0, '{"x":'), (1, '{"y":2}'), (0, "1}")])[at] for at in (0, 1, 2)
    )
    found = passed([first, second, chunk("tool_calls"), late, DONE])
    assert as_one_after_the_other(found) == ['{"x":1}', '{"y":2}']
    assert json.loads(found[-2][6:])["choices"][0]["finish_reason"] == "tool_calls"


def test_a_call_that_never_ends_is_a_failure() -> None:
    """The calls that waited for it are not passed on."""
    found: list[bytes] = []
    relay = relay_into(found)
    for event in [*chunks_of([(0, '{"x":'), (1, '{"y":2}')]), chunk("tool_calls")]:
        relay.take(event)
    with pytest.raises(BadStream, match="cut a tool call"):
        relay.take(DONE)
    assert parts_in(split_events(b"".join(found))) == [(0, '{"x":')]


def test_what_waits_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond the bound parts come as the server sends them."""
    monkeypatch.setattr(call_order, "MAX_WAITING_CHARS", 9)
    parts = [(0, '{"x":'), (1, '{"y":'), (1, '"abcdef'), (0, "1}"), (1, '"}')]
    found = passed([*chunks_of(parts), chunk("tool_calls"), DONE])
    assert parts_in(found) == [(0, '{"x":'), (1, '{"y":"abcdef'), (0, "1}"), (1, '"}')]


QUOTED = json.dumps('{"x": "a \\"b\\" é", "y": [1]}')


@pytest.mark.parametrize("size", [1, 2, 7, len(QUOTED)])
@pytest.mark.parametrize("has_other", [True, False])
def test_arguments_in_a_json_string_are_its_object(size: int, has_other: bool) -> None:
    """Arguments in a JSON string are its object, as in whole answers: some servers encode them
    twice. A call behind them waits.
    """
    pieces = [QUOTED[at : at + size] for at in range(0, len(QUOTED), size)]
    parts = [(0, ""), *((0, piece) for piece in pieces)]
    parts += [(1, ""), (1, '"{'), (1, '}"')] if has_other else []
    for mine in (parts, parts[1:]):
        found = passed([*chunks_of(mine), chunk("tool_calls"), DONE])
        texts = as_one_after_the_other(found)
        assert texts == [json.loads(QUOTED), "{}"][: len(texts)]
        assert len(texts) == 1 + has_other


@pytest.mark.parametrize("text", ['"no object"', '"{', '""', '"a" b'])
def test_a_string_that_is_no_object_stays_as_it_is(text: str) -> None:
    """All that the model wrote reaches the client."""
    for mine in ([(0, ""), (0, text)], [(0, text)], [(0, letter) for letter in text]):
        found = passed([*chunks_of(mine), chunk("tool_calls"), DONE])
        assert as_one_after_the_other(found) == [text]


def test_arguments_that_wait_are_no_silence() -> None:
    """A server that sends a long text within its quotes is alive."""
    relay = relay_into([])
    for event in chunks_of([(0, ""), (0, '"{'), (0, "a"), (0, "b")]):
        relay.take(event)
        assert relay.has_news
    relay.take(b": still here\n\n")
    assert not relay.has_news
