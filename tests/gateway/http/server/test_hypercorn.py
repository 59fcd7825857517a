"""hypercorn behind our seam: it speaks the same, and what it leaves undone is done."""

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from gateway.__main__ import _config, _parser
from gateway.api.events import TextDelta
from gateway.http.edge import Emit
from gateway.http.routes import edge_app
from gateway.http.server import hypercorn, server_named, serving
from gateway.http.server.hypercorn import Patient
from gateway.http.server.limits import Deadlines
from gateway.http.server.lingering_close import LingeringClose
from tests.fakes.asgi import STARTED, Exchange, Script, chat_body, scripted_edge
from tests.fakes.served import ask, connected, served

SILENCE_S = Deadlines().body_silence_s
LINGER_S = Deadlines().linger_s


CHAT = "/v1/chat/completions"
HELLO = TextDelta(0, "Hello")


async def _wait_forever(_emit: Emit) -> None:
    await trio.sleep_forever()


async def test_it_serves_the_same_app() -> None:
    """Whole and streamed answers, errors, HEAD, one after the other on one connection."""
    app = edge_app(scripted_edge(Script()))
    async with served(app, server="hypercorn") as url, connected(url) as client:
        for _ in range(2):
            assert (await client.ask("POST", CHAT, chat_body())).body.endswith(b"[DONE]\n\n")
            assert (await client.ask("POST", CHAT, chat_body(stream=False))).status == 200
            assert (await client.ask("POST", CHAT, b"{")).status == 400
            assert (await client.ask("GET", "/nothing")).status == 404
    async with served(app, server="hypercorn") as url:
        head = await ask(url, "HEAD", "/version")
        assert (head.status, head.body) == (200, b"")
        large = await ask(url, "POST", "/nothing", bytes(5_000_000))
        assert large.status == 404


@pytest.mark.parametrize("stream", [True, False])
async def test_leaving_cancels_the_turn(stream: bool) -> None:
    """A client that closes its connection has its turn cancelled, streamed or not."""
    script = Script(STARTED, HELLO, _wait_forever)
    async with served(edge_app(scripted_edge(script)), server="hypercorn") as url:
        async with connected(url) as client:
            await client.post(CHAT, chat_body(stream=stream))
            await script.started.wait()
            if stream:
                await client.stream.receive_some(1)
        await script.cancelled.wait()


async def test_a_closed_connection_leaves_nothing_behind() -> None:
    """Its task is gone soon, not after the keep-alive time, nor never after an offered upgrade."""

    def num_tasks() -> int:
        return trio.lowlevel.current_statistics().tasks_living

    async with served(edge_app(scripted_edge(Script())), server="hypercorn") as url:
        await ask(url, "GET", "/version")
        await wait_all_tasks_blocked(0.05)
        idle = num_tasks()
        for _ in range(5):
            await ask(url, "POST", CHAT, chat_body())
            async with connected(url) as client:
                await client.send(b"GET / HTTP/1.1\r\nhost: x\r\nupgrade: h2c\r\n\r\n")
        while num_tasks() > idle:
            await trio.lowlevel.checkpoint()


async def test_a_stalled_body_is_408(autojump_clock: MockClock) -> None:
    """A client that stops sending is answered, then left after the lingering time."""
    came_at = trio.current_time()
    app = LingeringClose(Patient(edge_app(scripted_edge(Script()))))
    exchange = Exchange(app, body=b"{", more_body=True)
    await exchange.run()
    assert exchange.status == 408
    assert exchange.writes[1][0] - came_at == SILENCE_S
    assert exchange.writes[-1][0] - came_at == SILENCE_S + LINGER_S


async def test_an_early_answer_is_whole_before_the_rest_is_read(autojump_clock: MockClock) -> None:
    """A refusal does not wait for the rest of the body."""
    came_at = trio.current_time()
    app = LingeringClose(edge_app(scripted_edge(Script())))
    exchange = Exchange(app, path="/nothing", more_body=True)
    await exchange.run()
    assert exchange.writes[1][0] == came_at
    assert exchange.json["error"]["message"]


async def test_a_whole_body_ends_the_answer_at_once(autojump_clock: MockClock) -> None:
    """Nobody lingers when there is nothing left to read."""
    came_at = trio.current_time()
    app = LingeringClose(edge_app(scripted_edge(Script())))
    await Exchange(app, path="/nothing", body=chat_body()).run()
    assert trio.current_time() == came_at


def test_the_command_line_chooses_the_server() -> None:
    """`--server` goes before the file, whose default is our own."""
    for words, meant in ([], serving.serve), (["--server", "hypercorn"], hypercorn.serve):
        gateway = _config(_parser().parse_args(words)).gateway
        assert server_named(gateway.server) is meant
