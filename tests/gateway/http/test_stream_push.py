"""Streams that are pushed, in virtual time."""

import gc
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st
from trio.testing import MockClock

from gateway.api.errors import ApiError, connection_lost
from gateway.api.events import Failed, Finished, ReasoningDelta, TextDelta, UpstreamBody
from gateway.http.edge import Emit
from gateway.http.response_writer import MAX_PENDING_BYTES
from gateway.http.routes import edge_app
from gateway.http.streamed_answer import StreamedAnswer
from tests.fakes.asgi import ANSWER, STARTED, USAGE, Exchange, Script, chat_body, scripted_edge
from tests.fakes.pushed import FakePush, pushed_exchange

WORDS = ["Hello", " you", " 🙂", "\n", ""]


def _pushed(*steps: Any, **fields: Any) -> tuple[Exchange, FakePush]:
    return pushed_exchange(edge_app(scripted_edge(Script(*steps))), chat_body(**fields))


async def _timed(*steps: Any, **fields: Any) -> tuple[Exchange, list[tuple[float, list[Any]]]]:
    """The exchange of a scripted turn, and its events by seconds since the request came."""
    came_at = trio.current_time()
    exchange, _ = _pushed(*steps, **fields)
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
    """Whatever the turn has to do then is nobody's delay, and a failure of it nobody's concern."""
    for last in (60.0, ValueError("in the books")):
        exchange, bodies = await _timed(STARTED, 1.0, *ANSWER[1:], last)
        assert exchange.events[-1] == "[DONE]"
        assert not exchange.writes[-1][1]["more_body"]
        assert {at for at, _ in bodies} == {1.0}


async def test_an_end_that_nobody_began_is_never_a_success(autojump_clock: MockClock) -> None:
    """Though it has all that the end of an answer has."""
    exchange, _ = _pushed(Finished(0, "stop"), USAGE)
    await exchange.run()
    assert exchange.status == 502


async def test_of_two_choices_one_end_is_none(autojump_clock: MockClock) -> None:
    """The usage so far between them ends nothing."""
    more = (Finished(0, "stop"), USAGE, 1.0, TextDelta(1, "more"), Finished(1, "stop"), USAGE)
    exchange, _ = await _timed(*ANSWER[:3], *more, n=2)
    assert exchange.events[-1] == "[DONE]"
    assert b"more" in exchange.content


async def test_silence_is_filled_at_exact_times(autojump_clock: MockClock) -> None:
    """Head and role after the hold, then an empty delta ten seconds after whatever came last."""
    _, bodies = await _timed(
        STARTED, 13.0, TextDelta(0, "a"), 7.0, TextDelta(0, "b"), 21.0, *ANSWER[3:]
    )
    assert [at for at, _ in bodies[:5]] == [10.0, 13.0, 20.0, 30.0, 40.0]
    _, early = await _timed(STARTED, 1.0, TextDelta(0, "a"), 25.0, Finished(0, "stop"), USAGE)
    assert [at for at, _ in early[:3]] == [1.0, 11.0, 21.0]


async def test_a_keep_alive_speaks_for_a_choice_that_goes_on(autojump_clock: MockClock) -> None:
    """Nothing follows the finish of a choice; when all have theirs, silence is silence."""
    steps = (STARTED, TextDelta(0, "a"), TextDelta(1, "b"), Finished(0, "stop"), 12.0)
    _, bodies = await _timed(*steps, Finished(1, "stop"), 12.0, USAGE, n=2)
    kept = [events[0]["choices"][0]["index"] for at, events in bodies if at == 10.0]
    assert kept == [1]
    assert [at for at, _ in bodies if at > 12.0] == [24.0]


@pytest.mark.parametrize("as_event", [True, False])
async def test_an_error_before_the_head_is_a_status(
    as_event: bool, autojump_clock: MockClock
) -> None:
    """While the head is withheld a failure is a JSON error, sent and not pushed."""
    error = ApiError(429, "All places are taken.", code="busy", retry_after_s=7)
    exchange, _ = await _timed(5.0, Failed(error) if as_event else error)
    assert (exchange.status, exchange.head["retry-after"]) == (429, "7")
    assert exchange.json["error"]["code"] == "busy"


async def test_a_refusal_is_not_disturbed(autojump_clock: MockClock) -> None:
    """A client that takes its refusal slowly gets that alone, however long it takes."""
    exchange, _ = _pushed(5.0, Failed(ApiError(429, "All places are taken.", code="busy")))
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
    """Its request, with the whole prompt, goes with it and waits for no collector."""
    gc.collect()
    gc.disable()
    try:
        await _timed(*steps)
        await trio.sleep(60)  # the fake's own look at it
        left = [thing for thing in gc.get_objects() if type(thing) is StreamedAnswer]
    finally:
        gc.enable()
    assert not left


async def test_an_error_after_the_head_ends_the_stream(autojump_clock: MockClock) -> None:
    """What is out is out: the failure is an event, and no [DONE] follows."""
    exchange, _ = await _timed(STARTED, TextDelta(0, "Hel"), Failed(connection_lost()))
    assert exchange.status == 200
    assert exchange.events[-1]["error"]["message"] == "upstream connection lost"
    assert "[DONE]" not in exchange.events


async def test_a_refusal_of_a_provider_keeps_its_status(autojump_clock: MockClock) -> None:
    """A provider's whole answer to a streamed request passes with status and bytes."""
    exchange, _ = await _timed(STARTED, UpstreamBody(422, b'{"error": {"message": "x"}}'))
    assert (exchange.status, exchange.content) == (422, b'{"error": {"message": "x"}}')


async def test_a_peer_that_is_gone_is_no_slow_one(autojump_clock: MockClock) -> None:
    """Writes to nobody are no error of the turn: the server cancels it."""
    texts = [TextDelta(0, text) for text in "abc"]
    exchange, push = _pushed(STARTED, texts[0], 1.0, texts[1], 1.0, texts[2], *ANSWER[3:])
    async with trio.open_nursery() as nursery:
        nursery.start_soon(exchange.run)
        await trio.sleep(0.5)
        push.is_gone = True
    assert push.num_refused == 2
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
    pairs = [_pushed(talk(20_000 if at == 17 else 20), *ANSWER[3:]) for at in range(64)]
    slow, push = pairs[17]
    slow.reads = False
    async with trio.open_nursery() as nursery:
        for exchange, _ in pairs:
            nursery.start_soon(exchange.run)
    assert slow.events[-1]["error"]["code"] == "client_too_slow"
    assert push.num_refused == 1
    assert len(slow.content) < MAX_PENDING_BYTES + 1000
    for exchange, _ in (*pairs[:17], *pairs[18:]):
        times = [round(at - came_at, 6) for at, _ in exchange.timed_bodies]
        assert times == [round(0.02 * at, 6) for at in range(60)] + [1.2] * (len(times) - 60)
        assert exchange.events[-1] == "[DONE]"


PAUSES_S = st.sampled_from([0.0, 4.1234, 9.3771, 11.7013, 25.9127])
"""No sum of them is a keep-alive's time, where the order of two tasks would be chance."""


def _deltas(kind: type) -> st.SearchStrategy[list[Any]]:
    return st.lists(st.builds(kind, st.just(0), st.sampled_from(WORDS)) | PAUSES_S, max_size=5)


@settings(deadline=None)
@given(_deltas(ReasoningDelta), _deltas(TextDelta))
def test_what_is_pushed_is_what_would_be_sent(thoughts: list[Any], text: list[Any]) -> None:
    """For any turn, the bytes of the two ways are equal, and each comes at the same time."""

    async def both() -> None:
        script = (STARTED, *thoughts, *text, Finished(0, "stop"), USAGE)
        pushed, _ = _pushed(*script)
        sent = Exchange(edge_app(scripted_edge(Script(*script))), body=chat_body())
        async with trio.open_nursery() as nursery:
            nursery.start_soon(pushed.run)
            nursery.start_soon(sent.run)
        assert pushed.content == sent.content
        assert pushed.head == sent.head
        assert _bytes_by_time(pushed) == _bytes_by_time(sent)

    trio.run(both, clock=MockClock(autojump_threshold=0))


def _bytes_by_time(exchange: Exchange) -> dict[float, bytes]:
    joined: dict[float, bytes] = {}
    for at, message in exchange.writes:
        joined[at] = joined.get(at, b"") + message.get("body", b"")
    return {at: body for at, body in joined.items() if body}
