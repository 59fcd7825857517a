"""Streams over plain ASGI, in virtual time."""

from typing import Any

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from gateway.api.errors import ApiError, connection_lost
from gateway.api.events import Failed, Finished, TextDelta, TurnEvent, UpstreamBody, UpstreamChunk
from gateway.http.edge import Emit
from gateway.http.routes import edge_app
from gateway.http.stream import MAX_PENDING_BYTES
from tests.fakes.asgi import ANSWER, STARTED, USAGE, Exchange, Script, chat_body, scripted_edge

HOLD_S = 10.0


def _stream(script: Script, **fields: Any) -> Exchange:
    return Exchange(edge_app(scripted_edge(script)), body=chat_body(**fields))


async def _answer(*steps: Any, **fields: Any) -> tuple[Exchange, float]:
    """The exchange of a scripted turn, and when the request came."""
    came_at = trio.current_time()
    return await _stream(Script(*steps), **fields).run(), came_at


def _texts(events: list[Any]) -> list[str]:
    return [event["choices"][0]["delta"].get("content") for event in events if event != "[DONE]"]


async def test_the_head_waits_for_the_first_content(autojump_clock: MockClock) -> None:
    """Nothing is sent until content is there; then head, role chunk and content leave at once."""
    exchange, came_at = await _answer(STARTED, 9.0, *ANSWER[1:])
    assert exchange.status == 200
    assert {at - came_at for at, _ in exchange.writes} == {9.0}
    assert exchange.events[0]["choices"][0]["delta"]["role"] == "assistant"
    assert _texts(exchange.events)[:3] == ["", "Hello", " you"]
    assert exchange.events[-1] == "[DONE]"


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
    assert [at for at, _ in bodies] == [10.0, 20.0, 30.0, 35.0]
    for _, (event,) in bodies[:3]:
        assert event["choices"][0]["delta"]["content"] == ""
        assert event["choices"][0]["finish_reason"] is None
    assert "x-herma-worker" not in exchange.head


async def test_content_restarts_the_silence(autojump_clock: MockClock) -> None:
    """A keep-alive comes ten seconds after the last chunk, not ten after the last keep-alive."""
    words = (TextDelta(0, "a"), 7.0, TextDelta(0, "b"), 11.0)
    exchange, came_at = await _answer(STARTED, *words, Finished(0, "stop"))
    assert [at - came_at for at, _ in exchange.timed_bodies] == [0.0, 7.0, 17.0, 18.0]


async def test_chunks_that_wait_together_leave_together(autojump_clock: MockClock) -> None:
    """Events emitted in one go become one write."""
    many = [TextDelta(0, f"word{i} ") for i in range(100)]
    exchange, _ = await _answer(STARTED, TextDelta(0, "first"), 1.0, *many, 1.0, *ANSWER[3:])
    assert [len(events) for _, events in exchange.timed_bodies] == [2, 100, 2]


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


async def test_an_error_right_behind_content_is_still_a_status(autojump_clock: MockClock) -> None:
    """Content that was never sent is dropped for a clean error."""
    exchange, _ = await _answer(STARTED, TextDelta(0, "Hel"), connection_lost())
    assert exchange.status == 502


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


async def test_a_client_that_stops_reading_is_given_up(autojump_clock: MockClock) -> None:
    """Over the bound the turn is cancelled; what waited is intact and ends in an error."""
    num_sent = 0

    async def flood(emit: Emit) -> None:
        nonlocal num_sent
        while True:
            emit(TextDelta(0, "x" * 1000))
            num_sent += 1
            await trio.sleep(0.01)

    script = Script(STARTED, flood)
    exchange = _stream(script)
    exchange.reads = False
    async with trio.open_nursery() as nursery:
        nursery.start_soon(exchange.run)
        await script.cancelled.wait()
        await wait_all_tasks_blocked()
        assert num_sent * 1000 < 2 * MAX_PENDING_BYTES
        exchange.resume_reading()
    assert exchange.events[-1]["error"]["code"] == "client_too_slow"
    assert "[DONE]" not in exchange.events
    assert len(exchange.content) < MAX_PENDING_BYTES + 10_000


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
    answer = (STARTED, TextDelta(1, "b"), TextDelta(0, "a"), Finished(0, "stop"))
    exchange, _ = await _answer(*answer, Finished(1, "length"), USAGE, n=2)
    choices = [event["choices"][0] for event in exchange.events[:-1]]
    assert [c["index"] for c in choices if c["delta"].get("role")] == [0, 1]
    assert {c["index"]: c["finish_reason"] for c in choices if c["finish_reason"]} == {
        0: "stop",
        1: "length",
    }
