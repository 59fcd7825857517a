"""Cutting a byte stream into whole events."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.upstream.sse import (
    MAX_EVENT_BYTES,
    EventTooLarge,
    ProviderEventSplitter,
    data_of,
    split_events,
)

STREAM = b': hi\n\ndata: {"a":1}\n\ndata: {"b":\r\ndata: 2}\r\n\r\ndata: [DONE]\n\n'


@given(st.lists(st.integers(0, len(STREAM)), max_size=8))
def test_events_come_out_whole_wherever_the_stream_is_split(cuts: list[int]) -> None:
    """The parts are the stream, unchanged, and each ends in a blank line."""
    splitter = ProviderEventSplitter()
    edges = [0, *sorted(cuts), len(STREAM)]
    parts = [splitter.push(STREAM[a:b]) for a, b in itertools.pairwise(edges)]
    assert b"".join(parts) + splitter.flush() == STREAM
    assert all(part.endswith((b"\n\n", b"\r\n\r\n")) for part in parts if part)
    assert splitter.is_done


MARK = b"\xef\xbb\xbf"


@given(st.lists(st.integers(0, len(MARK + STREAM)), max_size=8))
def test_a_mark_before_the_stream_is_no_part_of_it(cuts: list[int]) -> None:
    """Wherever it is split; only one at the very beginning is one."""
    splitter, marked = ProviderEventSplitter(), MARK + STREAM
    edges = [0, *sorted(cuts), len(marked)]
    parts = [splitter.push(marked[a:b]) for a, b in itertools.pairwise(edges)]
    assert b"".join(parts) == STREAM
    assert splitter.push(MARK + b"data: 1\n\n") == MARK + b"data: 1\n\n"


def test_half_a_mark_is_no_event() -> None:
    """A stream may end anywhere."""
    splitter = ProviderEventSplitter()
    assert splitter.push(MARK[:2]) == splitter.flush() == b""


LINE_ENDS = st.sampled_from([b"\n", b"\r\n", b"\r"])
LINES = st.sampled_from([b"data: a", b"data:b", b"data: ", b": note", b"event: x", b"data: c: d"])


@given(st.lists(st.tuples(st.lists(LINES, min_size=1, max_size=3), LINE_ENDS), max_size=4))
def test_events_are_told_apart_by_any_line_end(events: list[tuple[list[bytes], bytes]]) -> None:
    """Each event comes out alone and unchanged, with its data, whatever ends its lines."""
    texts = [b"".join(line + end for line in lines) + end for lines, end in events]
    assert split_events(b"".join(texts)) == texts
    for (lines, _), text in zip(events, texts, strict=True):
        datas = [line[5:].removeprefix(b" ") for line in lines if line.startswith(b"data:")]
        assert data_of(text) == b"\n".join(datas)


@given(st.lists(st.integers(0, 30), max_size=4))
def test_a_blank_line_may_end_in_another_way(cuts: list[int]) -> None:
    """The standard allows each line its own end."""
    stream = b'data: {"a":1}\n\r\ndata: [DONE]\n\r\n'
    splitter = ProviderEventSplitter()
    edges = [0, *sorted(cuts), len(stream)]
    whole = b"".join(splitter.push(stream[a:b]) for a, b in itertools.pairwise(edges))
    assert whole == stream
    assert [data_of(event) for event in split_events(whole)] == [b'{"a":1}', b"[DONE]"]
    assert splitter.is_done


def test_a_broken_event_is_held_back() -> None:
    """What was not finished is never passed on."""
    splitter = ProviderEventSplitter()
    assert splitter.push(b"data: 1\n\ndata: {") == b"data: 1\n\n"
    assert splitter.flush() == b""
    assert not splitter.is_done


def test_a_last_event_without_its_blank_line_counts() -> None:
    """Some providers end right after [DONE]."""
    splitter = ProviderEventSplitter()
    splitter.push(b"data: 1\n\ndata: [DONE]")
    assert splitter.flush() == b"data: [DONE]\n\n"
    assert splitter.is_done


def test_an_endless_event_is_refused() -> None:
    """One event may not fill the memory."""
    with pytest.raises(EventTooLarge):
        ProviderEventSplitter().push(b"x" * (MAX_EVENT_BYTES + 1))


@pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\r"])
@pytest.mark.parametrize("fill", [b"", b": x"])
def test_a_read_full_of_comments_and_blank_lines_is_few_events(fill: bytes, end: bytes) -> None:
    """Each would cost as much as a part of an answer. What stands between them stays."""
    part = b'data: {"a":1}' + 2 * end
    blank = (fill + 2 * end) * 10_000
    splitter = ProviderEventSplitter()
    events = split_events(splitter.push(part + blank + part + blank) + splitter.push(part))
    assert [data for event in events if (data := data_of(event))] == [b'{"a":1}'] * 3
    assert len(events) < 20


def test_comment_lines_within_an_event_stay_within_it() -> None:
    """An event with many comment lines is one event."""
    event = b"data: [1,\n" + b": x\n" * 5000 + b"data: 2]\n\n"
    (found,) = split_events(ProviderEventSplitter().push(event))
    assert data_of(found) == b"[1,\n2]"


def test_done_inside_text_is_not_the_end() -> None:
    """A model that says [DONE] does not end its stream."""
    splitter = ProviderEventSplitter()
    splitter.push(b'data: {"content":"data: [DONE]"}\n\n')
    assert not splitter.is_done
