"""Answers in one piece, in virtual time."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from gateway.api.errors import busy, connection_lost, stopping
from gateway.api.events import ChoiceFinished, Failed, Restarted, Started, TextDelta, UpstreamBody
from gateway.http.routes import edge_app
from tests.fakes.asgi import ANSWER, STARTED, USAGE, Exchange, Script, chat_body, scripted_edge


def _ask(script: Script) -> Exchange:
    return Exchange(edge_app(scripted_edge(script)), body=chat_body(stream=False))


async def test_the_answer_is_one_body(autojump_clock: MockClock) -> None:
    """Text, finish reason, usage and the x-herma headers come once the turn is over."""
    exchange = await _ask(Script(60.0, *ANSWER)).run()
    assert exchange.status == 200
    choice = exchange.json["choices"][0]
    assert choice["message"]["content"] == "Hello you"
    assert choice["finish_reason"] == "stop"
    assert exchange.json["usage"]["total_tokens"] == 72
    assert exchange.json["created"] == 1_800_000_000
    assert exchange.head["x-herma-worker"] == "gpu0"
    assert exchange.head["x-request-id"] == exchange.json["id"]
    assert exchange.head["content-length"] == str(len(exchange.content))


@pytest.mark.parametrize("step", [busy("Full.", 3), Failed(busy("Full.", 3))])
async def test_an_error_is_a_status(step: Any, autojump_clock: MockClock) -> None:
    """A turn that fails, at any time, is a JSON error with its status and Retry-After."""
    exchange = await _ask(Script(*ANSWER[:2], step)).run()
    assert exchange.status == 429
    assert exchange.head["retry-after"] == "3"
    assert exchange.head["x-request-id"].startswith("chatcmpl-")


async def test_leaving_cancels_the_turn_at_once(autojump_clock: MockClock) -> None:
    """A disconnect cancels a turn that is not streamed, too, and nothing is sent."""
    script = Script(STARTED, 100.0)
    exchange = _ask(script)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(exchange.run)
        await trio.sleep(3.0)
        left_at = trio.current_time()
        exchange.disconnect()
    assert script.cancelled_at == left_at
    assert not exchange.writes


async def test_a_provider_answer_passes_unchanged(autojump_clock: MockClock) -> None:
    """A provider's body keeps its status, its bytes and its unknown fields. No worker is named."""
    body = b'{"id": "x", "unknown": {"deep": [1, 2]}}'
    started = Started("cloud:far", "", 0, "no worker is ready", "large", ((b"x-their", b"own"),))
    exchange = await _ask(Script(started, UpstreamBody(200, body))).run()
    assert exchange.content == body
    assert exchange.head["x-herma-served-by"] == "cloud:far"
    assert exchange.head["x-their"] == "own"
    assert "x-herma-worker" not in exchange.head
    assert exchange.head["x-request-id"].startswith("chatcmpl-")


async def test_a_provider_s_id_of_the_request_stays(autojump_clock: MockClock) -> None:
    """A provider's id of the request stays, because the provider's support asks for it."""
    theirs = ((b"x-request-id", b"req_far"),)
    started = Started("cloud:far", "", 0, "no worker is ready", "large", theirs)
    exchange = await _ask(Script(started, UpstreamBody(200, b"{}"))).run()
    assert exchange.head["x-request-id"] == "req_far"


@pytest.mark.parametrize("ends", [True, False])
async def test_an_answer_that_a_provider_begins_again_has_nothing_of_before(
    ends: bool, autojump_clock: MockClock
) -> None:
    """If a provider begins an answer again, neither the text nor the end of the first try
    counts.
    """
    before = (ChoiceFinished(0, "length"),) if ends else ()
    steps = (STARTED, TextDelta(0, "Lost"), *before, Restarted(), *ANSWER)
    exchange = await _ask(Script(*steps)).run()
    (choice,) = exchange.json["choices"]
    assert (choice["message"]["content"], choice["finish_reason"]) == ("Hello you", "stop")


@pytest.mark.parametrize("step", [1.0, connection_lost()])
async def test_nothing_is_never_a_success(step: Any, autojump_clock: MockClock) -> None:
    """A turn without any event is an error."""
    assert (await _ask(Script(step)).run()).status == 502


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("as_event", [False, True])
async def test_an_answer_cut_by_a_stop_before_anything_was_sent_is_503(
    stream: bool, as_event: bool, autojump_clock: MockClock
) -> None:
    """Clients ask the next gateway, as with a request that came after the stop began. While the
    gateway goes on, the same cut is the server's.
    """
    cut = stopping(has_begun=True)
    steps = (STARTED, Failed(cut) if as_event else cut)
    for is_draining, status in ((False, 502), (True, 503)):
        edge = replace(scripted_edge(Script(1.0, *steps)), draining=_after_taking(is_draining))
        exchange = await Exchange(edge_app(edge), body=chat_body(stream=stream)).run()
        assert exchange.status == status
        assert ("retry-after" in exchange.head) == is_draining


def _after_taking(is_draining: bool) -> Callable[[], bool]:
    """A stop that begins once the request is taken."""
    answers = iter((False,))
    return lambda: next(answers, is_draining)


async def test_an_end_that_nobody_began_is_never_a_success(autojump_clock: MockClock) -> None:
    """Though it has all that the end of an answer has."""
    app = edge_app(scripted_edge(Script(*ANSWER[1:])))
    exchange = Exchange(app, body=chat_body(stream=False))
    assert (await exchange.run()).status == 502


async def test_an_answer_that_is_told_does_not_wait_for_its_turn(autojump_clock: MockClock) -> None:
    """A whole answer is pushed with the last event, and does not wait for what the turn has to do
    then.
    """
    app = edge_app(scripted_edge(Script(1.0, *ANSWER, 60.0)))
    exchange = Exchange(app, body=chat_body(stream=False))
    await exchange.run()
    assert [at for at, _ in exchange.writes] == [exchange.writes[0][0]] * 2
    assert trio.current_time() - exchange.writes[0][0] == pytest.approx(60.0)
    assert exchange.json["usage"]["total_tokens"] == 72


async def test_usage_before_the_last_end_is_no_answer_yet(autojump_clock: MockClock) -> None:
    """Both of two choices are in the answer, though a usage came between their ends."""
    first, second = (
        (ChoiceFinished(0, "stop"), USAGE),
        (TextDelta(1, "More"), ChoiceFinished(1, "length")),
    )
    app = edge_app(scripted_edge(Script(*ANSWER[:3], *first, 1.0, *second, USAGE)))
    exchange = Exchange(app, body=chat_body(stream=False, n=2))
    await exchange.run()
    assert [each["finish_reason"] for each in exchange.json["choices"]] == ["stop", "length"]


async def test_a_turn_that_fails_after_its_answer_has_answered(autojump_clock: MockClock) -> None:
    """Nothing can follow a whole response."""
    app = edge_app(scripted_edge(Script(*ANSWER, ValueError("in the books"))))
    exchange = Exchange(app, body=chat_body(stream=False))
    await exchange.run()
    assert exchange.status == 200
    assert len(exchange.writes) == 2
