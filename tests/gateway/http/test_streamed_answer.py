"""Streams, in virtual time."""

import gc
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from gateway.api.errors import ApiError, connection_lost
from gateway.api.events import (
    ChoiceFinished,
    Failed,
    TextDelta,
    TurnEvent,
    UpstreamBody,
    UpstreamChunk,
)
from gateway.http.edge import Emit
from gateway.http.response_writer import MAX_PENDING_BYTES
from gateway.http.routes import edge_app
from gateway.http.streamed_answer import StreamedAnswer
from tests.fakes.asgi import ANSWER, STARTED, USAGE, Exchange, Script, chat_body, scripted_edge


def _stream(script: Script, **fields: Any) -> Exchange:
    return Exchange(edge_app(scripted_edge(script)), body=chat_body(**fields))


async def _answer(*steps: Any, **fields: Any) -> tuple[Exchange, float]:
    """The exchange of a scripted turn, and when the request came."""
    came_at = trio.current_time()
    return await _stream(Script(*steps), **fields).run(), came_at


def _texts(events: list[Any]) -> list[str]:
    return [event["choices"][0]["delta"].get("content") for event in events if event != "[DONE]"]


async def test_headers_tell_what_is_known_when_the_head_leaves(autojump_clock: MockClock) -> None:
    """The x-herma headers name the worker, the cache hit, the reason and who serves."""
    exchange, _ = await _answer(*ANSWER)
    assert exchange.head["x-herma-worker"] == "gpu0"
    assert exchange.head["x-herma-cached-tokens"] == "64"
    assert exchange.head["x-herma-route"] == "prefix 64 of 70"
    assert exchange.head["x-herma-served-by"] == "worker"
    assert exchange.head["content-type"].startswith("text/event-stream")


async def test_a_silent_stream_is_kept_alive_at_exact_times(autojump_clock: MockClock) -> None:
    """Head and role chunk leave after the hold, then one empty delta per ten silent seconds."""
    exchange, came_at = await _answer(35.0, *ANSWER)
    bodies = [(at - came_at, events) for at, events in exchange.timed_bodies]
    assert sorted({at for at, _ in bodies}) == [10.0, 20.0, 30.0, 35.0]
    for _, (event,) in bodies[:3]:
        assert event["choices"][0]["delta"]["content"] == ""
        assert event["choices"][0]["finish_reason"] is None
    assert "x-herma-worker" not in exchange.head


async def test_content_restarts_the_silence(autojump_clock: MockClock) -> None:
    """A keep-alive comes ten seconds after the last chunk, not ten after the last keep-alive."""
    words = (TextDelta(0, "a"), 7.0, TextDelta(0, "b"), 11.0)
    exchange, came_at = await _answer(STARTED, *words, ChoiceFinished(0, "stop"))
    assert [at - came_at for at, _ in exchange.timed_bodies] == [0.0, 7.0, 17.0, 18.0]


async def test_usage_is_streamed_only_when_asked_for(autojump_clock: MockClock) -> None:
    """The usage chunk, with `choices: []`, is the last before [DONE] and comes on request."""
    plain, _ = await _answer(*ANSWER)
    asked, _ = await _answer(*ANSWER, stream_options={"include_usage": True})
    assert all(event == "[DONE]" or event["choices"] for event in plain.events)
    assert asked.events[-2]["choices"] == []
    assert asked.events[-2]["usage"]["prompt_tokens_details"]["cached_tokens"] == 64


@pytest.mark.parametrize("as_event", [True, False])
async def test_an_error_before_the_head_is_a_status(
    as_event: bool, autojump_clock: MockClock
) -> None:
    """While the head is withheld a failure is a JSON error with its status and Retry-After."""
    error = ApiError(429, "All places are taken.", code="busy", retry_after_s=7)
    exchange, came_at = await _answer(5.0, Failed(error) if as_event else error)
    assert exchange.status == 429
    assert exchange.head["retry-after"] == "7"
    assert exchange.head["content-type"] == "application/json"
    assert exchange.json["error"]["code"] == "busy"
    assert exchange.writes[-1][0] - came_at == 5.0


@pytest.mark.parametrize("as_event", [True, False])
async def test_an_error_after_the_head_ends_the_stream(
    as_event: bool, autojump_clock: MockClock
) -> None:
    """After the head a failure is an SSE error, without [DONE] and without a finish reason."""
    lost = [Failed(connection_lost()), *ANSWER[-2:]] if as_event else [connection_lost()]
    exchange, _ = await _answer(STARTED, TextDelta(0, "Hel"), 1.0, *lost)
    assert exchange.status == 200
    assert exchange.events[-1]["error"]["message"] == "upstream connection lost"
    assert "[DONE]" not in exchange.events
    assert all(event["choices"][0]["finish_reason"] is None for event in exchange.events[:-1])
    assert not exchange.writes[-1][1]["more_body"]


async def test_an_unexpected_exception_tells_nothing_of_the_inside(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    """A bug becomes a 500 without its text, and is logged once."""
    exchange, _ = await _answer(RuntimeError("secret /etc/path"))
    assert exchange.status == 500
    assert b"secret" not in exchange.content
    assert len(caplog.records) == 1
    assert "secret" in (caplog.records[0].exc_text or "")


async def test_a_turn_that_says_nothing_is_an_error(autojump_clock: MockClock) -> None:
    """A turn that ends without any event is never a silent success."""
    exchange, _ = await _answer(1.0)
    assert exchange.status == 502


async def test_errors_in_groups_keep_their_status(autojump_clock: MockClock) -> None:
    """An error that crossed a nursery is told like any other."""
    group = ExceptionGroup("nursery", [ExceptionGroup("inner", [ApiError(503, "Nobody serves.")])])
    exchange, _ = await _answer(group)
    assert exchange.status == 503


async def test_leaving_cancels_the_turn_at_once(autojump_clock: MockClock) -> None:
    """A disconnect cancels the turn in the same instant, before and after the head."""
    for first in ((), (STARTED, TextDelta(0, "a"))):
        script = Script(*first, 100.0)
        exchange = _stream(script)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(exchange.run)
            await trio.sleep(3.0)
            left_at = trio.current_time()
            exchange.disconnect()
        assert script.cancelled_at == left_at
        assert trio.current_time() == left_at


async def test_bytes_of_a_provider_pass_unchanged(autojump_clock: MockClock) -> None:
    """A provider's stream has no chunk of ours in it, and its own [DONE]."""
    parts = [b'data: {"id":"x","extra":{"a":[1]}}\n\n', b": note\n\n", b"data: [DONE]\n\n"]
    chunks: list[TurnEvent] = [UpstreamChunk(part) for part in parts]
    exchange, _ = await _answer(STARTED, chunks[0], 1.0, *chunks[1:])
    assert exchange.content == b"".join(parts)


async def test_a_provider_that_fails_midway_ends_in_an_error(autojump_clock: MockClock) -> None:
    """A cut provider stream gets our error event and no [DONE]."""
    exchange, _ = await _answer(UpstreamChunk(b"data: {}\n\n"), 1.0, connection_lost())
    assert exchange.events[-1]["error"]["message"] == "upstream connection lost"


async def test_a_provider_refusal_passes_with_its_status(autojump_clock: MockClock) -> None:
    """A provider's whole answer to a streamed request keeps status and bytes."""
    exchange, _ = await _answer(STARTED, UpstreamBody(422, b'{"error": {"x": 1}}'))
    assert exchange.status == 422
    assert exchange.content == b'{"error": {"x": 1}}'


async def test_a_provider_refusal_after_the_head_is_an_event(autojump_clock: MockClock) -> None:
    """With the head gone the provider's body is the last event of the stream."""
    exchange, _ = await _answer(12.0, UpstreamBody(422, b'{"error":\n {"message": "x"}}'))
    assert exchange.status == 200
    assert exchange.events[-1] == {"error": {"message": "x"}}


async def test_every_choice_gets_a_role(autojump_clock: MockClock) -> None:
    """With n = 2 there are two role chunks and two finish reasons."""
    answer = (STARTED, TextDelta(1, "b"), TextDelta(0, "a"), ChoiceFinished(0, "stop"))
    exchange, _ = await _answer(*answer, ChoiceFinished(1, "length"), USAGE, n=2)
    choices = [event["choices"][0] for event in exchange.events[:-1]]
    assert [c["index"] for c in choices if c["delta"].get("role")] == [0, 1]
    assert {c["index"]: c["finish_reason"] for c in choices if c["finish_reason"]} == {
        0: "stop",
        1: "length",
    }


def _stream_of(*steps: Any, **fields: Any) -> Exchange:
    return _stream(Script(*steps), **fields)


async def _timed(*steps: Any, **fields: Any) -> tuple[Exchange, list[tuple[float, list[Any]]]]:
    """The exchange of a scripted turn, and its events by seconds since the request came."""
    came_at = trio.current_time()
    exchange = _stream_of(*steps, **fields)
    await exchange.run()
    return exchange, [(at - came_at, events) for at, events in exchange.timed_bodies]


async def test_the_head_leaves_with_the_first_content(autojump_clock: MockClock) -> None:
    """Head, role and content in one moment; the headers know the worker."""
    exchange, bodies = await _timed(STARTED, 9.0, *ANSWER[1:])
    assert exchange.status == 200
    assert exchange.head["x-herma-worker"] == "gpu0"
    first_at, (role, hello) = bodies[0]
    assert (first_at, role["choices"][0]["delta"]["role"]) == (9.0, "assistant")
    assert hello["choices"][0]["delta"]["content"] == "Hello"
    assert exchange.events[-1] == "[DONE]"
    assert not exchange.writes[-1][1]["more_body"]


async def test_the_end_leaves_with_the_last_event(autojump_clock: MockClock) -> None:
    """The end of a stream is sent with the last event: work of the turn after it delays no client,
    and its failure reaches none.
    """
    for last in (60.0, ValueError("in the books")):
        exchange, bodies = await _timed(STARTED, 1.0, *ANSWER[1:], last)
        assert exchange.events[-1] == "[DONE]"
        assert not exchange.writes[-1][1]["more_body"]
        assert {at for at, _ in bodies} == {1.0}


async def test_an_end_that_nobody_began_is_never_a_success(autojump_clock: MockClock) -> None:
    """Though it has all that the end of an answer has."""
    exchange = _stream_of(ChoiceFinished(0, "stop"), USAGE)
    await exchange.run()
    assert exchange.status == 502


async def test_of_two_choices_one_end_is_none(autojump_clock: MockClock) -> None:
    """The usage so far between them ends nothing."""
    more = (
        ChoiceFinished(0, "stop"),
        USAGE,
        1.0,
        TextDelta(1, "more"),
        ChoiceFinished(1, "stop"),
        USAGE,
    )
    exchange, _ = await _timed(*ANSWER[:3], *more, n=2)
    assert exchange.events[-1] == "[DONE]"
    assert b"more" in exchange.content


async def test_silence_is_filled_at_exact_times(autojump_clock: MockClock) -> None:
    """Head and role after the hold, then an empty delta ten seconds after whatever came last."""
    _, bodies = await _timed(
        STARTED, 13.0, TextDelta(0, "a"), 7.0, TextDelta(0, "b"), 21.0, *ANSWER[3:]
    )
    assert [at for at, _ in bodies[:5]] == [10.0, 13.0, 20.0, 30.0, 40.0]
    _, early = await _timed(STARTED, 1.0, TextDelta(0, "a"), 25.0, ChoiceFinished(0, "stop"), USAGE)
    assert [at for at, _ in early[:3]] == [1.0, 11.0, 21.0]


async def test_a_keep_alive_speaks_for_a_choice_that_goes_on(autojump_clock: MockClock) -> None:
    """Nothing follows the finish of a choice; when all have theirs, silence is silence."""
    steps = (STARTED, TextDelta(0, "a"), TextDelta(1, "b"), ChoiceFinished(0, "stop"), 12.0)
    _, bodies = await _timed(*steps, ChoiceFinished(1, "stop"), 12.0, USAGE, n=2)
    kept = [events[0]["choices"][0]["index"] for at, events in bodies if at == 10.0]
    assert kept == [1]
    assert [at for at, _ in bodies if at > 12.0] == [24.0]


async def test_a_refusal_is_not_disturbed(autojump_clock: MockClock) -> None:
    """A client that takes its refusal slowly gets that alone, however long it takes."""
    exchange = _stream_of(5.0, Failed(ApiError(429, "All places are taken.", code="busy")))
    exchange.reads = False
    async with trio.open_nursery() as nursery:
        nursery.start_soon(exchange.run)
        await trio.sleep(60)
        exchange.resume_reading()
    assert (exchange.status, exchange.json["error"]["code"]) == (429, "busy")


@pytest.mark.parametrize("steps", [ANSWER, (Failed(connection_lost()),)])
async def test_a_stream_that_is_over_leaves_no_circle(
    steps: tuple[Any, ...], autojump_clock: MockClock
) -> None:
    """A stream that is over leaves no reference cycle: its request, with the whole prompt, is freed
    without the garbage collector.
    """
    gc.collect()
    gc.disable()
    try:
        await _timed(*steps)
        await trio.sleep(60)  # the fake's own look at it
        left = [thing for thing in gc.get_objects() if type(thing) is StreamedAnswer]
    finally:
        gc.enable()
    assert not left


async def test_a_peer_that_is_gone_is_no_slow_one(autojump_clock: MockClock) -> None:
    """Writes to nobody are no error of the turn: the server cancels it."""
    texts = [TextDelta(0, text) for text in "abc"]
    exchange = _stream_of(STARTED, texts[0], 1.0, texts[1], 1.0, texts[2], *ANSWER[3:])
    async with trio.open_nursery() as nursery:
        nursery.start_soon(exchange.run)
        await trio.sleep(0.5)
        exchange.writer.is_gone = True
    assert exchange.writer.num_refused == 2
    assert b"client_too_slow" not in exchange.content


async def test_one_slow_reader_of_64_is_cut_and_nobody_waits(autojump_clock: MockClock) -> None:
    """A client that reads nothing fills its bound and is given up; the others get every chunk in
    the moment in which it comes.
    """

    def talk(num_chars: int) -> Callable[[Emit], Awaitable[None]]:
        async def talk(emit: Emit) -> None:
            emit(STARTED)
            for at in range(60):
                emit(TextDelta(0, f"{at} " + "x" * num_chars))
                await trio.sleep(0.02)

        return talk

    came_at = trio.current_time()
    pairs = [_stream_of(talk(20_000 if at == 17 else 20), *ANSWER[3:]) for at in range(64)]
    slow = pairs[17]
    slow.reads = False
    async with trio.open_nursery() as nursery:
        for exchange in pairs:
            nursery.start_soon(exchange.run)
    assert slow.events[-1]["error"]["code"] == "client_too_slow"
    assert slow.writer.num_refused == 1
    assert len(slow.content) < MAX_PENDING_BYTES + 1000
    for exchange in (*pairs[:17], *pairs[18:]):
        times = [round(at - came_at, 6) for at, _ in exchange.timed_bodies]
        assert times == [round(0.02 * at, 6) for at in range(60)] + [1.2] * (len(times) - 60)
        assert exchange.events[-1] == "[DONE]"
