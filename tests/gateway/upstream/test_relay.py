"""What of a provider's stream is passed on, and what it is taken for."""

import json

import pytest

from gateway.upstream.relay import MAX_HELD_BYTES, BadStream, StreamRelay
from gateway.upstream.sse import EventKind, kind_of, kind_within
from gateway.upstream.usage import StreamUsage


def event(**fields: object) -> bytes:
    return b"data: " + json.dumps(fields).encode() + b"\n\n"


def chunk(finish_reason: str | None = None, **delta: object) -> bytes:
    return event(choices=[{"index": 0, "delta": delta, "finish_reason": finish_reason}])


ROLE = chunk(role="assistant", content="")
HELLO = chunk(content="Hello")
DONE = b"data: [DONE]\n\n"


def relay_into(passed: list[bytes], *, in_time: bool = True) -> StreamRelay:
    usage = StreamUsage(lambda _: None, is_ours=False)
    return StreamRelay(passed.append, usage, lambda: in_time)


@pytest.mark.parametrize("hollow", [b"data: \n\n", b"event: ping\n\n", b"retry: 3000\r\n\r\n"])
def test_events_without_data_are_not_passed_on(hollow: bytes) -> None:
    """Events without data are not passed on, because clients read them as JSON. A comment is passed
    on and keeps the connection alive.
    """
    passed: list[bytes] = []
    relay = relay_into(passed)
    for events in (hollow, HELLO, hollow, b": here\n\n" + hollow + HELLO):
        assert not relay.pass_single(hollow)
        relay.take(events)
    assert b"".join(passed) == HELLO + b": here\n\n" + HELLO


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        (b": thinking\n\n", EventKind.COMMENT),
        (b": one\n: two\r\n\r\n", EventKind.COMMENT),
        (b"\n\n", EventKind.COMMENT),
        (b"data: \n\n", EventKind.HOLLOW),
        (b"data\n\n", EventKind.HOLLOW),
        (b"retry: 3000\n\n", EventKind.HOLLOW),
        (b": a\nevent: ping\r\n\r\n", EventKind.HOLLOW),
        (ROLE, EventKind.EMPTY),
        (event(choices=[]), EventKind.EMPTY),
        (event(choices=None), EventKind.EMPTY),
        (event(id="x"), EventKind.EMPTY),
        (HELLO, EventKind.CONTENT),
        (chunk(reasoning_content="so"), EventKind.CONTENT),
        (chunk(tool_calls=[{"index": 0}]), EventKind.CONTENT),
        (chunk("stop"), EventKind.CONTENT),
        (event(choices=[{"text": "a"}]), EventKind.CONTENT),
        (event(choices=[7]), EventKind.EMPTY),
        (DONE, EventKind.DONE),
        (event(error={"message": "hot"}), EventKind.ERROR),
        (event(error="hot", choices=[{"finish_reason": "error"}]), EventKind.ERROR),
        (event(error=None, choices=[{"delta": {"content": "a"}}]), EventKind.CONTENT),
        (b'data: {"choices": [\n\n', EventKind.GARBAGE),
        (b"data: <html>\n\n", EventKind.GARBAGE),
        (b"data: 7\n\n", EventKind.GARBAGE),
        (b"data: \xff\n\n", EventKind.GARBAGE),
        (b'data: {"choices": "\xff"}\n\n', EventKind.GARBAGE),
        (b'data: {"choices": [' + b"[" * 5000 + b"\n\n", EventKind.GARBAGE),
        (b'data:{"choices": [{"delta": {"content": "\xc3\xa9"}}]}\n\n', EventKind.CONTENT),
        (b'data: {"choices":\r\ndata: []}\r\n\r\n', EventKind.EMPTY),
    ],
)
def test_kinds_of_events(text: bytes, kind: EventKind) -> None:
    """Content makes an answer; roles, empty deltas and comments do not."""
    assert kind_of(text) is kind
    # Within an answer nothing depends on what is said.
    within = EventKind.CONTENT if kind is EventKind.EMPTY else kind
    assert kind_within(text) is within


def test_nothing_is_passed_on_before_the_first_content() -> None:
    """The role is held until it comes, comments are dropped; then all passes unchanged."""
    passed: list[bytes] = []
    relay = relay_into(passed)
    relay.take(b": wait\n\n" + ROLE)
    assert not passed
    assert not relay.has_begun
    relay.take(HELLO)
    relay.take(b": wait\n\n" + chunk("stop") + DONE)
    assert b"".join(passed) == ROLE + HELLO + b": wait\n\n" + chunk("stop") + DONE


@pytest.mark.parametrize("bad", [event(error="hot"), b"data: {\n\n"])
@pytest.mark.parametrize("begun", [True, False])
def test_good_events_before_a_bad_one_are_passed_on(bad: bytes, begun: bool) -> None:
    """The bad one never is; before the first content nothing is."""
    passed: list[bytes] = []
    relay = relay_into(passed)
    with pytest.raises(BadStream):
        relay.take((HELLO if begun else ROLE) + bad + HELLO)
    assert passed == ([HELLO] if begun else [])
    assert relay.has_begun is begun


def test_an_end_without_content_is_no_answer() -> None:
    """[DONE] right after the role: another provider may still be asked."""
    passed: list[bytes] = []
    with pytest.raises(BadStream, match="without an answer"):
        relay_into(passed).take(ROLE + DONE)
    assert not passed


def test_what_comes_too_late_is_not_passed_on() -> None:
    """Another provider may have been asked by then."""
    passed: list[bytes] = []
    relay = relay_into(passed, in_time=False)
    relay.take(ROLE + HELLO)
    assert not passed
    assert not relay.has_begun


def test_what_is_held_is_bounded() -> None:
    """What is held is bounded: with endless empty chunks the answer has begun."""
    passed: list[bytes] = []
    relay = relay_into(passed)
    count = MAX_HELD_BYTES // len(ROLE) + 1
    for _ in range(count):
        relay.take(ROLE)
    assert relay.has_begun
    assert b"".join(passed) == ROLE * count


USAGE = {"prompt_tokens": 3, "completion_tokens": 2}
PLAIN = [
    HELLO,
    ROLE,
    event(choices=[]),
    event(choices=[], usage=None),
    event(choices=[{"delta": {"content": 'say "usage": { or [DONE]'}}]),
    'data: {"choices": [{"delta": {"content": "\u00e9"}}]}\n\n'.encode(),
    event(error=None),
]
NOT_PLAIN = [
    event(choices=[], usage=USAGE),
    event(error={"message": "hot"}),
    DONE,
    b": thinking\n\n",
    b'data: {"choices": [\n\n',
    b'data: {"choices": "\xff"}\n\n',
    b'data: {"choices": []} trailing\n\n',
    b"data: 7\n\n",
    b'data:{"choices": []}\n\n',
    b'id: 7\ndata: {"choices": []}\n\n',
    b'data: {"choices": []}\r\n\r\n',
    b'data: {"choices": []}\r\n\n',
    b'data: {"choices":\ndata: []}\n\n',
    HELLO * 2,
    HELLO + DONE,
    HELLO[:-1],
    HELLO + b"data",
    b"",
]


def heard_of(text: bytes, *, is_plain_first: bool) -> tuple[bool, list[bytes], str, list[int]]:
    """What an answer that has begun makes of `text`."""
    passed: list[bytes] = []
    told: list[int] = []
    usage = StreamUsage(lambda usage: told.append(usage.prompt_tokens), is_ours=True)
    relay, problem, is_plain = StreamRelay(passed.append, usage, lambda: True), "", False
    relay.take(HELLO)
    try:
        is_plain = is_plain_first and relay.pass_single(text)
        if not is_plain:
            relay.take(text)
    except BadStream as error:
        problem = str(error)
    return is_plain, passed, problem, told


@pytest.mark.parametrize("text", PLAIN + NOT_PLAIN)
def test_the_short_way_passes_the_same(text: bytes) -> None:
    """What is passed unread would have been passed, all alone, and would have told nothing."""
    is_plain, *heard = heard_of(text, is_plain_first=True)
    assert heard == list(heard_of(text, is_plain_first=False)[1:])
    assert is_plain is (text in PLAIN)
    if is_plain:
        assert heard == [[HELLO, text], "", []]


def test_nothing_takes_the_short_way_before_the_first_content() -> None:
    """Roles are held, and the deadline is asked."""
    passed: list[bytes] = []
    relay = relay_into(passed)
    assert not relay.pass_single(ROLE)
    assert not relay.pass_single(HELLO)
    assert passed == []
