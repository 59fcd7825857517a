"""What the completions API says."""

import json
from typing import Any

import msgspec

from gateway.api.api_format import AnswerHead
from gateway.api.completions_formatter import Echo, completions_format
from gateway.api.errors import busy
from gateway.api.events import (
    ChoiceEvent,
    ChoiceFinished,
    Started,
    TextDelta,
    TokenLogprob,
    TopLogprob,
    Usage,
)

HEAD = AnswerHead("cmpl-1", 1_800_000_000, "alpha", include_usage=True)
ENVELOPE = {
    "id": "cmpl-1",
    "object": "text_completion",
    "created": 1_800_000_000,
    "model": "alpha",
}


def _scored(token: str) -> TokenLogprob:
    return TokenLogprob(token, -0.5, list(token.encode()), (TopLogprob("x", -2.0, [120]),))


EVENTS: tuple[ChoiceEvent, ...] = (
    Started("worker", "gpu0", 3, "because", "alpha"),
    TextDelta(0, "Hel", (_scored("Hel"),)),
    TextDelta(1, 'quote " and \n'),
    TextDelta(0, "lo", (_scored("l"), _scored("o"))),
    ChoiceFinished(0, "stop"),
    ChoiceFinished(1, "length"),
    Usage(5, 3, 4),
)


def _chunks(data: bytes) -> list[Any]:
    return [json.loads(part.removeprefix(b"data: ")) for part in data.split(b"\n\n") if part]


def test_deltas_and_the_whole_are_the_same_answer() -> None:
    """Streamed texts, ends, log-probabilities and usage add up to the body in one piece."""
    dialect = completions_format([Echo("A: "), Echo("B: ")])
    stream, whole = dialect.streamed(HEAD), dialect.whole(HEAD)
    data = stream.head(2)
    for event in EVENTS:
        data += stream.format(event)
        if isinstance(event, Started):
            started = event
        elif isinstance(event, Usage):
            usage = event
        else:
            whole.add(event)
    body = json.loads(whole.body(started, usage))
    chunks = _chunks(data)
    assert all(ENVELOPE.items() <= chunk.items() for chunk in (*chunks, body))
    *told, last = chunks
    assert last["choices"] == []
    assert last["usage"] == body["usage"]
    assert last["herma"] == body["herma"]
    for choice in body["choices"]:
        parts = [c for chunk in told for c in chunk["choices"] if c["index"] == choice["index"]]
        assert "".join(part["text"] for part in parts) == choice["text"]
        assert [p["finish_reason"] for p in parts if p["finish_reason"]] == [
            choice["finish_reason"]
        ]
        for name in ("tokens", "token_logprobs", "top_logprobs", "text_offset"):
            joined = [x for part in parts if part["logprobs"] for x in part["logprobs"][name]]
            assert joined == (choice["logprobs"] or {name: []})[name]
    first = body["choices"][0]
    assert first["text"] == "A: Hello"
    assert first["logprobs"]["text_offset"] == [3, 6, 7]
    assert first["logprobs"]["top_logprobs"][0] == {"Hel": -0.5, "x": -2.0}


def test_of_tokens_with_one_text_the_likeliest_counts() -> None:
    """Parts of characters are all spelled U+FFFD; the token itself counts before all."""
    part, other = "\ufffd", TopLogprob("x", -1.0, [120])
    tops = (TopLogprob(part, -0.5, [0xE2]), other, TopLogprob(part, -9.0, [0xE3]))
    whole = completions_format().whole(HEAD)
    scored = (TokenLogprob("x", -1.0, [120], tops), TokenLogprob(part, -9.0, [0xE3], tops))
    for event in (TextDelta(0, "x", scored), ChoiceFinished(0, "stop")):
        whole.add(event)
    started = Started("worker", "gpu0", 3, "because", "alpha")
    (choice,) = json.loads(whole.body(started, Usage(5, 3, 4)))["choices"]
    assert choice["logprobs"]["top_logprobs"] == [{"x": -1.0, part: -0.5}, {part: -9.0, "x": -1.0}]


def test_no_choice_opens_with_anything_unasked() -> None:
    """Without echo there is no role or other opening chunk; a keep-alive says nothing."""
    stream = completions_format().streamed(HEAD)
    assert stream.head(3) == b""
    (chunk,) = _chunks(stream.keep_alive())
    assert chunk["choices"] == [{"index": 0, "text": "", "logprobs": None, "finish_reason": None}]


def test_a_keep_alive_speaks_for_a_choice_that_goes_on() -> None:
    """A keep-alive is sent for a choice that goes on; nothing comes after the end of a choice."""
    stream = completions_format().streamed(HEAD)
    stream.head(2)
    stream.format(ChoiceFinished(0, "stop"))
    assert _chunks(stream.keep_alive())[0]["choices"][0]["index"] == 1
    stream.format(ChoiceFinished(1, "stop"))
    assert stream.keep_alive() == b""


def test_usage_that_nobody_asked_for_is_not_told() -> None:
    """Clients that index choices[0] are not given an empty list."""
    stream = completions_format().streamed(msgspec.structs.replace(HEAD, include_usage=False))
    assert stream.format(EVENTS[-1]) == b""


def test_an_error_is_one_event() -> None:
    """An error event has the API's form, and no [DONE] follows."""
    stream = completions_format().streamed(HEAD)
    assert json.loads(stream.error(busy("Full.", 1))[6:])["error"]["code"] == "busy"
    assert stream.done() == b"data: [DONE]\n\n"
