"""Usage in other people's answers."""

import json
from typing import Any

import pytest

from gateway.api import TurnEvent, UpstreamChunk
from gateway.api.events import Usage
from gateway.upstream import ChatEvents, UsageTail
from gateway.upstream.usage import StreamUsage, usage_in, usage_of, with_usage_requested
from tests.fakes.provider import FakeProvider, open_provider
from tests.gateway.upstream.test_provider import RAW, provider_of

COUNTED = {"prompt_tokens": 100, "completion_tokens": 20, "total_tokens": 120}


def body(usage: object) -> bytes:
    return json.dumps({"choices": [{"index": 0}], "usage": usage}).encode()


@pytest.mark.parametrize(
    ("told", "usage"),
    [
        (COUNTED, Usage(100, 0, 20)),
        ({**COUNTED, "prompt_tokens_details": {"cached_tokens": 64}}, Usage(100, 64, 20)),
        ({**COUNTED, "prompt_tokens_details": None}, Usage(100, 0, 20)),
        ({**COUNTED, "prompt_cache_hit_tokens": 64}, Usage(100, 64, 20)),
        ({**COUNTED, "prompt_tokens_details": {"cached_tokens": 900}}, Usage(100, 100, 20)),
        ({**COUNTED, "total_tokens": 170}, Usage(100, 0, 70)),
        ({"prompt_tokens": 100}, Usage(100, 0, 0)),
        ({"prompt_tokens": 0, "completion_tokens": 0}, None),
        ({"prompt_tokens": -1, "completion_tokens": 5}, None),
        ({"prompt_tokens": 1.5}, None),
        ({"prompt_tokens": 100.0, "completion_tokens": 20.0}, Usage(100, 0, 20)),
        ({"prompt_tokens": "100", "completion_tokens": "20"}, Usage(100, 0, 20)),
        ({"input_tokens": 100, "output_tokens": 20}, Usage(100, 0, 20)),
        (
            # As Anthropic counts, which has cached tokens beside the input.
            {
                "input_tokens": 3,
                "cache_read_input_tokens": 90,
                "cache_creation_input_tokens": 7,
                "output_tokens": 20,
            },
            Usage(100, 90, 20),
        ),
        ({"input_tokens": 0, "cache_read_input_tokens": 9, "output_tokens": 2}, Usage(9, 9, 2)),
        ({**COUNTED, "cache_read_input_tokens": 90}, Usage(100, 90, 20)),  # LiteLLM's
        ({**COUNTED, "completion_tokens": None}, Usage(100, 0, 20)),
        ({**COUNTED, "prompt_tokens_details": {"cached_tokens": -1}}, Usage(100, 0, 20)),
        ({**COUNTED, "prompt_tokens_details": []}, Usage(100, 0, 20)),
        ({**COUNTED, "total_tokens": "many"}, Usage(100, 0, 20)),
        ({**COUNTED, "cached_tokens": 64}, Usage(100, 64, 20)),
        ({"prompt_tokens": 100, "completion_tokens": None}, None),
        ({"prompt_tokens": 100, "completion_tokens": -5}, None),
        ({"prompt_tokens": True, "completion_tokens": 5}, None),
        ({}, None),
        (None, None),
        ("many", None),
    ],
)
def test_usage_is_read_or_it_is_not(told: object, usage: Usage | None) -> None:
    """What cannot be read is no usage: the worst case counts then, and never zero."""
    assert usage_of(body(told)) == usage
    assert usage_in(json.loads(body(told))) == usage


def test_usage_may_stand_in_a_choice() -> None:
    """Moonshot's streams have it there."""
    chunk = {"choices": [{"index": 0, "finish_reason": "stop", "usage": COUNTED}]}
    told: list[Usage] = []
    event = b"data: " + json.dumps(chunk).encode() + b"\n\n"
    assert StreamUsage(told.append, is_ours=True).take(event) == event
    assert told == [Usage(100, 0, 20)]


def test_reasoning_outside_of_the_output_is_paid_for() -> None:
    """Some providers count them in the total only."""
    assert usage_of(body({**COUNTED, "total_tokens": 1120})) == Usage(100, 0, 1020)


def test_reasoning_beside_the_output_is_paid_for() -> None:
    """Some name it in the details alone; where it is a part of the output, it counts once."""
    apart = {"prompt_tokens": 100, "completion_tokens": 20}
    details = {"completion_tokens_details": {"reasoning_tokens": 1000}}
    assert usage_of(body({**apart, **details})) == Usage(100, 0, 1020)
    assert usage_of(body({**COUNTED, **details, "total_tokens": 1120})) == Usage(100, 0, 1020)
    assert usage_of(body({**apart, **details, "completion_tokens": 1020})) == Usage(100, 0, 1020)


PROMPT = {"prompt_tokens": 100, "completion_tokens": 0, "total_tokens": 100}
ANSWER = {"prompt_tokens": 0, "completion_tokens": 20, "total_tokens": 20}
IN_PARTS = [
    ([PROMPT, ANSWER], Usage(100, 0, 20)),
    ([{"prompt_tokens": 100}, {"completion_tokens": 20}], Usage(100, 0, 20)),
    ([{"input_tokens": 100, "output_tokens": 1}, {"output_tokens": 20}], Usage(100, 0, 20)),
    (
        [{**PROMPT, "prompt_tokens_details": {"cached_tokens": 64}}, ANSWER],
        Usage(100, 64, 20),
    ),
    ([COUNTED, {"prompt_tokens": 0, "completion_tokens": 0}], Usage(100, 0, 20)),
    ([{**COUNTED, "completion_tokens": 1, "total_tokens": 101}, COUNTED], Usage(100, 0, 20)),
    ([PROMPT], None),
    ([{"prompt_tokens": 100}], None),
    ([{**COUNTED, "completion_tokens": -5, "total_tokens": 95}], None),
    ([ANSWER], None),
]  # fmt: skip


@pytest.mark.parametrize(("parts", "usage"), IN_PARTS)
async def test_a_stream_may_count_in_parts(
    parts: list[dict[str, Any]], usage: Usage | None
) -> None:
    """The prompt in the first chunk, the answer in the last: both are paid for, also of a stream in
    place of an answer in one piece. A count of no tokens for an answer that says something is none.
    """
    fake = FakeProvider()
    first, *rest = fake.events("m")
    counts = [b"data: %s\n\n" % json.dumps({"choices": [], "usage": one}).encode() for one in parts]
    events = [counts[0], first, *counts[1:], *rest]
    fake.events = lambda *_: events  # type: ignore[method-assign]
    fake.whole = lambda *_: b"".join(events)  # type: ignore[method-assign]
    streamed: list[Usage] = []
    whole: list[Usage] = []
    async with open_provider(fake):
        provider = provider_of(fake)
        await provider.stream({**RAW, "stream": True}, "m", lambda _: None, streamed.append)
        await provider.complete({**RAW, "stream": False}, "m", whole.append)
        await provider.aclose()
    expected = [] if usage is None else [usage]
    assert [streamed[-1:], whole] == [expected, expected]


def test_other_apis_get_the_parts_as_one() -> None:
    """Messages and Responses have one usage, at the end."""
    found: list[TurnEvent] = []
    reader = ChatEvents(found.append)
    for part in (PROMPT, ANSWER):
        reader.take(UpstreamChunk(b"data: %s\n\n" % body(part)))
    reader.take(UpstreamChunk(b"data: [DONE]\n\n"))
    assert found[-1] == Usage(100, 0, 20)


async def test_an_answer_of_no_words_may_have_no_tokens() -> None:
    """Then the count of none is one."""
    told: list[Usage] = []
    end = b'data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}\n\n'
    count = b'data: {"choices":[],"usage":%s}\n\n' % json.dumps(PROMPT).encode()
    for late in (False, True):
        fake = FakeProvider(words=())
        done = b"data: [DONE]\n\n"
        events = [end, done, count] if late else [end, count, done]
        fake.events = lambda *_, events=events: events  # type: ignore[method-assign,misc]
        async with open_provider(fake):
            provider = provider_of(fake)
            await provider.stream({**RAW, "stream": True}, "m", lambda _: None, told.append)
            await provider.aclose()
    fake = FakeProvider(words=(), usage=PROMPT)
    async with open_provider(fake):
        provider = provider_of(fake)
        await provider.complete({**RAW, "stream": False}, "m", told.append)
        await provider.aclose()
    assert told == [Usage(100, 0, 0)] * 3


@pytest.mark.parametrize("parts", [[PROMPT, ANSWER], [ANSWER, PROMPT]])
def test_a_response_that_passes_through_may_count_in_parts(parts: list[dict[str, Any]]) -> None:
    """As the streams of raw completions do."""
    tail = UsageTail()
    for part in parts:
        tail.add(b"data: %s\n\n" % body(part))
    assert tail.usage(is_stream=True) == Usage(100, 0, 20)


@pytest.mark.parametrize("options", [None, {}, {"include_usage": False, "x": 1}])
def test_we_ask_where_the_client_did_not(options: dict[str, Any] | None) -> None:
    """The client's other options stay, and its own dict too."""
    raw = {"model": "m", "stream_options": options}
    asked = with_usage_requested(raw)
    assert asked["stream_options"] == {**(options or {}), "include_usage": True}
    assert raw["stream_options"] == options
    assert with_usage_requested(asked) is asked


@pytest.mark.parametrize("end", ["\n\n", "\r\n\r\n"])
def test_the_chunk_that_only_we_wanted_is_kept_back(end: str) -> None:
    """Among others in one piece; a chunk with choices is passed on without the field."""
    told: list[Usage] = []
    text = 'data: {"choices":[{"delta":{"content":"\\"usage\\":{"}}],"usage":null}' + end
    both = 'data: {"choices":[{"index":0}],"usage":{"prompt_tokens":1}}' + end
    only = 'data: {"choices":[],"usage":{"prompt_tokens":7,"completion_tokens":2}}' + end
    done = "data: [DONE]" + end
    events = f": hm{end}{text}{both}{only}{done}".encode()
    assert StreamUsage(told.append, is_ours=True).take(events) == (
        f': hm{end}{text}data: {{"choices":[{{"index":0}}]}}\n\n{done}'.encode()
    )
    assert told == [Usage(7, 0, 2)]
    assert StreamUsage(told.append, is_ours=False).take(events) == events


def test_a_chunk_that_only_we_wanted_is_kept_back_though_it_cannot_be_read() -> None:
    """Many clients look at the first choice of every chunk."""
    told: list[Usage] = []
    only = b'data: {"choices":[],"usage":{"prompt_tokens":7,"completion_tokens":null}}\n\n'
    done = b"data: [DONE]\n\n"
    assert StreamUsage(told.append, is_ours=True).take(only + done) == done
    assert StreamUsage(told.append, is_ours=False).take(only + done) == only + done
    assert told == []


@pytest.mark.parametrize("asked", [True, False])
async def test_the_client_gets_what_it_asked_for(asked: bool) -> None:
    """Through the real client: the usage chunk only if the client wanted it."""
    told: list[Usage] = []
    got: list[bytes] = []
    raw = {**RAW, "stream_options": {"include_usage": True}} if asked else RAW
    async with open_provider(FakeProvider(usage=COUNTED)) as fake:
        provider = provider_of(fake)
        await provider.stream(raw, "large", got.append, told.append)
        await provider.aclose()
        assert b"".join(got) == b"".join(fake.events("large", COUNTED if asked else None))
    assert told == [Usage(100, 0, 20)]


async def test_usage_behind_the_end_is_billed_and_not_shown() -> None:
    """Some servers count only when they are done. What else comes there is ignored."""
    late = b'data: {"choices": [], "usage": %s}\n\n' % json.dumps(COUNTED).encode()
    other = b'data: {"choices": [{"index": 0, "delta": {"content": "x"}}]}\n\n'
    fake = FakeProvider()
    events = fake.events("m")
    fake.events = lambda *_: [*events, other + late, b"data: {\n\n"]  # type: ignore[method-assign]
    told: list[Usage] = []
    passed: list[bytes] = []
    async with open_provider(fake):
        provider = provider_of(fake)
        await provider.stream({**RAW, "stream": True}, "m", passed.append, told.append)
        await provider.aclose()
    assert told[-1] == Usage(100, 0, 20)
    assert b"".join(passed).endswith(b"[DONE]\n\n")
    assert b"prompt_tokens" not in b"".join(passed)
