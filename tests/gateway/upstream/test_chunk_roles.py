"""A client gets the role of a choice once, whether or not the server repeats it in each chunk."""

import json
from typing import Any

import pytest

from gateway.upstream.relay import StreamRelay
from gateway.upstream.sse import split_events
from gateway.upstream.stream_end import StreamEnd
from gateway.upstream.usage import StreamUsage

DONE = b"data: [DONE]\n\n"
COMPACT = (",", ":")
SPACED = (", ", ": ")
MIXED = (",", ": ")
ROLE = {"role": "assistant"}


def event(delta: dict[str, Any], finish: str | None = None, index: int = 0) -> dict[str, Any]:
    choice = {"index": index, "delta": delta, "finish_reason": finish}
    return {"id": "x", "choices": [choice]}


def written(chunk: dict[str, Any], separators: tuple[str, str]) -> bytes:
    return b"data: " + json.dumps(chunk, separators=separators).encode() + b"\n\n"


def passed(events: list[bytes], *, n: int = 1) -> tuple[list[bytes], list[bool]]:
    """What the client gets, and which events took the short way."""
    found: list[bytes] = []
    usage = StreamUsage(lambda _: None, is_ours=False)
    relay = StreamRelay(found.append, usage, lambda: True, StreamEnd({"n": n}), is_chat=True)
    short = []
    for one in events:
        short.append(relay.pass_single(one))
        if not short[-1]:
            relay.take(one)
    return split_events(b"".join(found)), short


def joined(events: list[bytes]) -> dict[int, dict[str, str]]:
    """The messages as a client reads them that joins every text of a delta."""
    messages: dict[int, dict[str, str]] = {}
    for one in events:
        if one == DONE:
            continue
        for choice in json.loads(one[6:])["choices"]:
            message = messages.setdefault(choice["index"], {})
            for name, value in choice["delta"].items():
                if isinstance(value, str):
                    message[name] = message.get(name, "") + value
    return messages


STREAMS: dict[str, list[dict[str, Any]]] = {
    "first of the delta": [
        event(ROLE | {"content": ""}),
        *(event(ROLE | {"content": text}) for text in ("hel", "l", "o")),
        event(ROLE | {"content": ""}, "stop"),
    ],
    "from the first word on": [
        *(event(ROLE | {"content": text}) for text in ("hel", "l", "o")),
        event(ROLE, "stop"),
    ],
    "behind the text": [
        *(event({"content": text} | ROLE) for text in ("hel", "l", "o")),
        event({"content": ""} | ROLE, "stop"),
    ],
    "in thoughts": [
        *(event(ROLE | {"reasoning_content": text}) for text in ("s", "o")),
        *(event(ROLE | {"content": text}) for text in ("hell", "o")),
        event(ROLE, "stop"),
    ],
    "in some chunks": [
        *(event(ROLE | {"content": text}) for text in ("h", "e")),
        event({"content": "l"}),
        *(event(ROLE | {"content": text}) for text in ("l", "o")),
        event({}, "stop"),
    ],
}


@pytest.mark.parametrize("separators", [COMPACT, SPACED, MIXED])
@pytest.mark.parametrize("chunks", STREAMS.values(), ids=list(STREAMS))
def test_a_role_that_is_repeated_is_said_once(
    chunks: list[dict[str, Any]], separators: tuple[str, str]
) -> None:
    """Nothing else of the chunks is lost."""
    found, _ = passed([*(written(chunk, separators) for chunk in chunks), DONE])
    assert found[-1] == DONE
    assert len(found) == len(chunks) + 1
    message = joined(found)[0]
    assert (message["role"], message["content"]) == ("assistant", "hello")


@pytest.mark.parametrize("separators", [COMPACT, SPACED])
def test_words_of_a_server_that_repeats_it_take_the_short_way(separators: tuple[str, str]) -> None:
    """Two chunks show that it does."""
    chunks = [event(ROLE | {"content": f" {at}"}) for at in range(6)]
    _, short = passed([written(chunk, separators) for chunk in chunks])
    assert short == [False, False, True, True, True, True]


def test_a_role_that_is_said_once_passes_unchanged() -> None:
    """A role that is sent once passes unchanged, alone or with the first word."""
    words = [written(event({"content": text}), COMPACT) for text in "abc"]
    end = written(event({}, "stop"), COMPACT)
    alone = written(event(ROLE | {"content": ""}), COMPACT)
    beside = written(event(ROLE | {"content": "so"}), COMPACT)
    for first, expected in ((alone, [False, False, True, True]), (beside, [False, False, True])):
        events = [first, *words, end, DONE]
        found, short = passed(events)
        assert found == events
        assert short[: len(expected)] == expected


def test_each_choice_has_its_role() -> None:
    """Each choice of a stream of several has its role once."""
    chunks = [event(ROLE | {"content": text}, None, at) for text in ("a", "b") for at in (0, 1)]
    ends = [event(ROLE, "stop", at) for at in (0, 1)]
    found, _ = passed([*(written(chunk, COMPACT) for chunk in [*chunks, *ends]), DONE], n=2)
    assert joined(found) == {at: ROLE | {"content": "ab"} for at in (0, 1)}


def test_a_role_within_an_answer_stays() -> None:
    """A role within an answer stays, in a text and in the arguments of a call."""
    text = '{"delta":{"role":"assistant","content":1}} "role"'
    arguments = '{"role":"assistant","delta":{"role":"assistant","x":1}}'
    call = {"index": 0, "id": "a", "type": "function"}
    call |= {"function": {"name": "f", "arguments": arguments}}
    chunks = [event(ROLE | {"content": text}) for _ in range(3)]
    chunks += [event(ROLE | {"tool_calls": [call]}), event(ROLE, "tool_calls")]
    found, _ = passed([*(written(chunk, COMPACT) for chunk in chunks), DONE])
    assert joined(found)[0] == ROLE | {"content": text * 3}
    (given,) = (
        one["function"]["arguments"]
        for chunk in found[:-1]
        for one in json.loads(chunk[6:])["choices"][0]["delta"].get("tool_calls", ())
    )
    assert given == arguments
