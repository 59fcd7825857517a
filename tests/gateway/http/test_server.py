"""The server on real sockets."""

import errno
import functools
import socket
from dataclasses import replace

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from gateway.api.events import TextDelta
from gateway.http.edge import Emit
from gateway.http.routes import edge_app
from gateway.http.server import serve
from gateway.http.server.serving import explain_bind_error
from protocol.errors import ConfigError
from tests.fakes.asgi import ANSWER, STARTED, Script, chat_body, scripted_edge
from tests.fakes.checked_http import checked_async_client
from tests.fakes.served import PATIENCE_S, ask, connected, served

CHAT = "/v1/chat/completions"
HELLO = TextDelta(0, "Hello")


async def _wait_forever(_emit: Emit) -> None:
    await trio.sleep_forever()


async def test_a_taken_port_is_one_clear_line() -> None:
    """A port that another program holds is a ConfigError that names it."""
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(ConfigError, match=f"port {port} on 127.0.0.1 is taken") as caught:
            await serve(edge_app(scripted_edge(Script())), host="127.0.0.1", port=port)
    assert "\n" not in str(caught.value)


async def test_a_host_of_another_machine_is_one_clear_line() -> None:
    """An address that is not ours cannot be bound and is named."""
    with pytest.raises(ConfigError, match=r"192\.0\.2\.1 is no address of this machine"):
        await serve(edge_app(scripted_edge(Script())), host="192.0.2.1", port=0)


@pytest.mark.parametrize("host", ["no such host", "a" * 300, "..", ""])
async def test_an_unknown_host_is_one_clear_line(host: str) -> None:
    """A host that cannot be resolved is named."""
    with pytest.raises(ConfigError, match="unknown host"):
        await serve(edge_app(scripted_edge(Script())), host=host, port=0)


def test_every_bind_error_is_explained() -> None:
    """A privileged port and anything unforeseen become one line too."""
    denied = explain_bind_error(OSError(errno.EACCES, "Permission denied"), "127.0.0.1", 80)
    other = explain_bind_error(OSError(errno.ENOBUFS, "No buffer space"), "127.0.0.1", 80)
    assert "port 80 needs privileges" in str(denied)
    assert "cannot listen on 127.0.0.1 port 80: No buffer space" in str(other)


async def test_a_connection_serves_many_requests() -> None:
    """Keep-alive: after answers of every kind the same connection takes the next request."""
    async with served(edge_app(scripted_edge(Script()))) as url, connected(url) as client:
        for _ in range(3):
            assert (await client.ask("GET", "/version")).json == {"version": "1.2.3"}
            assert (await client.ask("POST", CHAT, chat_body())).body.endswith(b"[DONE]\n\n")
            assert (await client.ask("POST", CHAT, chat_body(stream=False))).status == 200
            assert (await client.ask("GET", "/nothing")).status == 404
            assert (await client.ask("POST", CHAT, b"{")).status == 400


async def test_pipelined_requests_are_answered_in_order() -> None:
    """Two requests in one packet get two answers."""
    async with served(edge_app(scripted_edge(Script()))) as url, connected(url) as client:
        request = b"GET /version HTTP/1.1\r\nhost: herma\r\n\r\n"
        await client.send(request + request.replace(b"version", b"health"))
        received = b""
        while b'"status"' not in received:
            received += await client.stream.receive_some(65_536)
        assert received.index(b'"version"') < received.index(b'"status"')


@pytest.mark.parametrize("stream", [True, False])
async def test_leaving_cancels_the_turn(stream: bool) -> None:
    """A client that closes its connection has its turn cancelled, streamed or not."""
    script = Script(STARTED, HELLO, _wait_forever)
    async with served(edge_app(scripted_edge(script))) as url:
        async with connected(url) as client:
            await client.post(CHAT, chat_body(stream=stream))
            await script.started.wait()
            if stream:
                await client.stream.receive_some(1)
            assert not script.cancelled.is_set()
        await script.cancelled.wait()


async def test_a_flood_of_leavers_leaves_the_server_well() -> None:
    """After 50 clients that left in mid-stream the next one is answered."""
    script = Script(STARTED, HELLO, _wait_forever)
    async with served(edge_app(scripted_edge(script))) as url:
        for _ in range(50):
            async with connected(url) as client:
                await client.post(CHAT, chat_body())
                await client.stream.receive_some(1)
        script.steps = ANSWER
        assert (await ask(url, "POST", CHAT, chat_body())).status == 200


async def test_a_closed_connection_leaves_nothing_behind() -> None:
    """Tasks and sockets of connections that their clients closed are gone soon, not after the
    keep-alive time, whether they were idle or in the midst of something.
    """
    script = Script(*ANSWER)
    async with served(edge_app(scripted_edge(script))) as url:
        await ask(url, "GET", "/version")
        idle = await _settled_num_tasks()
        for _ in range(20):
            await ask(url, "GET", "/version")
            await ask(url, "POST", CHAT, chat_body())
            async with connected(url) as client:
                await client.post(CHAT, chat_body())
            async with connected(url) as client:
                await client.send(b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 5\r\n\r\n12")
        await _wait_num_tasks(idle)


def _num_tasks() -> int:
    return trio.lowlevel.current_statistics().tasks_living


async def _settled_num_tasks() -> int:
    await wait_all_tasks_blocked(0.05)
    return _num_tasks()


async def _wait_num_tasks(num_tasks: int) -> None:
    while _num_tasks() > num_tasks:
        await trio.lowlevel.checkpoint()


async def test_head_has_no_body() -> None:
    """HEAD answers like GET, without the body."""
    async with served(edge_app(scripted_edge(Script()))) as url:
        for path in ("/v1/models", "/health", "/version", "/metrics"):
            reply = await ask(url, "HEAD", path)
            assert (reply.status, reply.body) == (200, b"")
            assert int(reply.headers["content-length"]) > 0


async def test_chunks_arrive_while_the_turn_runs() -> None:
    """A stream's first chunk is at the client before the turn is over."""
    arrived = trio.Event()

    async def wait_for_client(_emit: Emit) -> None:
        await arrived.wait()

    script = Script(STARTED, HELLO, wait_for_client, *ANSWER[2:])
    async with (
        served(edge_app(scripted_edge(script))) as url,
        checked_async_client() as client,
        client.stream("POST", url + CHAT, content=chat_body()) as reply,
    ):
        async for chunk in reply.aiter_raw():
            if b"Hello" in chunk:
                arrived.set()
    assert chunk.endswith(b"[DONE]\n\n")


async def test_shutdown_lets_answers_end() -> None:
    """After the trigger the health check reports draining on new connections, and no work is taken;
    when the running stream has come to its end, the port closes.
    """
    stop, go_on = trio.Event(), trio.Event()

    async def wait(_emit: Emit) -> None:
        await go_on.wait()

    script = Script(STARTED, HELLO, wait, *ANSWER[2:])
    app = edge_app(replace(scripted_edge(script), draining=stop.is_set))
    with trio.fail_after(PATIENCE_S):
        async with trio.open_nursery() as nursery, checked_async_client() as client:
            start = functools.partial(
                serve, app, host="127.0.0.1", port=0, shutdown_trigger=stop.wait
            )
            url = await nursery.start(start)
            async with client.stream("POST", url + CHAT, content=chat_body()) as reply:
                chunks = reply.aiter_raw()
                await anext(chunks)
                async with connected(url) as idle:
                    assert (await idle.ask("GET", "/health/readiness")).status == 200
                    stop.set()
                    assert await idle.stream.receive_some(1) == b""
                for path in ("/health", "/health/readiness"):
                    async with connected(url) as client_of_check:
                        reply_now = await client_of_check.ask("GET", path)
                        assert (reply_now.status, reply_now.json["status"]) == (503, "draining")
                        assert reply_now.headers["connection"] == "close"
                assert (await ask(url, "GET", "/health/liveness")).status == 200
                refused = await ask(url, "POST", CHAT, chat_body())
                assert (refused.status, refused.headers["retry-after"]) == (503, "5")
                go_on.set()
                assert b"".join([chunk async for chunk in chunks]).endswith(b"[DONE]\n\n")
                await _wait_refused(url)


async def _wait_refused(url: str) -> None:
    while True:
        try:
            async with connected(url):
                await trio.lowlevel.checkpoint()
        except OSError:
            return


async def test_shutdown_cuts_what_does_not_end() -> None:
    """A stream that nobody ends is cut after the grace period."""
    stop = trio.Event()
    script = Script(STARTED, HELLO, _wait_forever)
    app = edge_app(scripted_edge(script))
    with trio.fail_after(PATIENCE_S):
        async with trio.open_nursery() as nursery:
            start = functools.partial(
                serve, app, host="127.0.0.1", port=0, shutdown_trigger=stop.wait, drain_s=0.05
            )
            url = await nursery.start(start)
            async with connected(url) as client:
                await client.post(CHAT, chat_body())
                await script.started.wait()
                stop.set()
                await script.cancelled.wait()


async def test_a_client_that_reads_nothing_cannot_hold_the_server() -> None:
    """The turn of a client that reads nothing is cancelled when the buffer is full, and its
    connection ends by itself, so a shutdown ends too.
    """
    stop, ended = trio.Event(), trio.Event()

    async def flood(emit: Emit) -> None:
        while True:
            emit(TextDelta(0, "x" * 10_000))
            await trio.lowlevel.checkpoint()

    script = Script(STARTED, flood)
    app = edge_app(scripted_edge(script))

    async def run(task_status: trio.TaskStatus[str]) -> None:
        await serve(
            app,
            host="127.0.0.1",
            port=0,
            shutdown_trigger=stop.wait,
            drain_s=0.05,
            silent_peer_s=0.3,
            task_status=task_status,
        )
        ended.set()

    with trio.fail_after(PATIENCE_S):
        async with trio.open_nursery() as nursery:
            url = await nursery.start(run)
            async with connected(url) as client:
                await client.post(CHAT, chat_body())
                await script.cancelled.wait()
                stop.set()
                await ended.wait()


async def test_an_upgrade_is_ignored() -> None:
    """A request that offers another protocol is answered as what it also is."""
    async with served(edge_app(scripted_edge(Script()))) as url:
        async with connected(url) as client:
            await client.send(
                b"GET /v1/models HTTP/1.1\r\nhost: localhost\r\nupgrade: websocket\r\n"
                b"connection: upgrade\r\nsec-websocket-version: 13\r\n"
                b"sec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
            )
            assert b"HTTP/1.1 200 " in await client.stream.receive_some(1000)
        assert (await ask(url, "GET", "/version")).status == 200
