"""Answers in one piece over plain ASGI, in virtual time."""

from typing import Any

import pytest
import trio
from trio.testing import MockClock

from gateway.core.errors import busy, connection_lost
from gateway.core.events import Failed, UpstreamBody
from gateway.http.routes import edge_app
from tests.fakes.asgi import ANSWER, STARTED, Exchange, Script, chat_body, scripted_edge


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
    assert exchange.head["content-length"] == str(len(exchange.content))


@pytest.mark.parametrize("step", [busy("Full.", 3), Failed(busy("Full.", 3))])
async def test_an_error_is_a_status(step: Any, autojump_clock: MockClock) -> None:
    """A turn that fails, at any time, is a JSON error with its status and Retry-After."""
    exchange = await _ask(Script(*ANSWER[:2], step)).run()
    assert exchange.status == 429
    assert exchange.head["retry-after"] == "3"


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
    """A provider's body keeps its status, its bytes and its unknown fields."""
    body = b'{"id": "x", "unknown": {"deep": [1, 2]}}'
    exchange = await _ask(Script(STARTED, UpstreamBody(200, body))).run()
    assert exchange.content == body


@pytest.mark.parametrize("step", [1.0, connection_lost()])
async def test_nothing_is_never_a_success(step: Any, autojump_clock: MockClock) -> None:
    """A turn without any event is an error."""
    assert (await _ask(Script(step)).run()).status == 502
