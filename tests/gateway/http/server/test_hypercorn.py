"""hypercorn behind our seam: it speaks the same, and what it leaves undone is done."""

import functools

import pytest
import trio
from trio.testing import MockClock

from config import ServerName
from gateway.http.routes import edge_app
from gateway.http.server import server_named
from gateway.http.server.hypercorn import Patient
from gateway.http.server.limits import Deadlines
from gateway.http.server.politeness import PoliteEnd
from tests.fakes.asgi import Exchange, Script, chat_body, scripted_edge
from tests.fakes.served import PATIENCE_S, connected

SILENCE_S = Deadlines().body_silence_s
LINGER_S = Deadlines().linger_s


@pytest.mark.parametrize("name", ["herma", "hypercorn"])
async def test_both_servers_answer(name: ServerName) -> None:
    """Whichever is chosen serves the same app, keeps a connection and cancels a leaver's turn."""
    script = Script()
    serve = functools.partial(
        server_named(name), edge_app(scripted_edge(script)), host="127.0.0.1", port=0
    )
    with trio.fail_after(PATIENCE_S):
        async with trio.open_nursery() as nursery:
            url = await nursery.start(serve)
            async with connected(url) as client:
                for _ in range(2):
                    reply = await client.ask("POST", "/v1/chat/completions", chat_body())
                    assert reply.body.endswith(b"[DONE]\n\n")
            nursery.cancel_scope.cancel()


async def test_a_stalled_body_is_408(autojump_clock: MockClock) -> None:
    """A client that stops sending is answered, then left after the lingering time."""
    came_at = trio.current_time()
    app = PoliteEnd(Patient(edge_app(scripted_edge(Script()))))
    exchange = Exchange(app, body=b"{", more_body=True)
    await exchange.run()
    assert exchange.status == 408
    assert exchange.writes[1][0] - came_at == SILENCE_S
    assert exchange.writes[-1][0] - came_at == SILENCE_S + LINGER_S


async def test_an_early_answer_is_whole_before_the_rest_is_read(autojump_clock: MockClock) -> None:
    """A refusal does not wait for the rest of the body."""
    came_at = trio.current_time()
    app = PoliteEnd(edge_app(scripted_edge(Script())))
    exchange = Exchange(app, path="/nothing", more_body=True)
    await exchange.run()
    assert exchange.writes[1][0] == came_at
    assert exchange.json["error"]["message"]


async def test_a_whole_body_ends_the_answer_at_once(autojump_clock: MockClock) -> None:
    """Nobody lingers when there is nothing left to read."""
    came_at = trio.current_time()
    app = PoliteEnd(edge_app(scripted_edge(Script())))
    await Exchange(app, path="/nothing", body=chat_body()).run()
    assert trio.current_time() == came_at
