"""Many connections on real sockets: abuse, shared ports, failures to accept."""

import errno
import functools
import resource
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import replace
from typing import Any

import pytest
import trio

from gateway.http.response_writer import EXTENSION
from gateway.http.routes import edge_app
from gateway.http.server import serve
from gateway.http.server.read_deadlines import Deadlines
from gateway.http.server.serving import listen
from tests.fakes.asgi import Script, chat_body, scripted_edge
from tests.fakes.ports import free_ports
from tests.fakes.served import PATIENCE_S, ask, connected
from tests.fakes.wired import Echo, statuses

CHAT = "/v1/chat/completions"
NUM_SLOW = 500
QUICK = Deadlines(idle_s=2, head_s=1, body_silence_s=1, body_grace_s=1, linger_s=0.1)


@pytest.fixture(autouse=True)
def _descriptors_for_both_ends() -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 4 * NUM_SLOW
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, max(soft, wanted)), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@asynccontextmanager
async def _served(app: Any, **options: Any) -> AsyncIterator[str]:
    with trio.fail_after(PATIENCE_S):
        async with trio.open_nursery() as nursery:
            start = functools.partial(serve, app, host="127.0.0.1", port=0, **options)
            url: str = await nursery.start(start)
            yield url
            nursery.cancel_scope.cancel()


@pytest.mark.parametrize(
    ("beginning", "told"),
    [
        (b"GET / HTTP/1.1\r\nhost: x\r\n", [408]),
        (
            b"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: 9\r\n\r\n{",
            [408],
        ),
        (b"", []),
    ],
)
async def test_slow_clients_do_not_keep_others_out(beginning: bytes, told: list[int]) -> None:
    """Beside 500 connections that begin a head or a body, or nothing, and stop, requests are
    answered, and the 500 are ended by their deadlines.
    """
    ends: list[list[int]] = []

    async def hold(stream: trio.SocketStream) -> None:
        received = b""
        while part := await stream.receive_some(4_096):
            received += part
        ends.append(statuses(received))

    # A server that lags must not take what it has not read yet for idleness.
    deadlines = replace(QUICK, idle_s=60) if beginning else QUICK
    async with _served(edge_app(scripted_edge(Script())), deadlines=deadlines) as url:
        port = int(url.rsplit(":", 1)[1])
        async with AsyncExitStack() as stack, trio.open_nursery() as nursery:
            for _ in range(NUM_SLOW):
                stream = await trio.open_tcp_stream("127.0.0.1", port)
                await stack.enter_async_context(stream)
                await stream.send_all(beginning)
                nursery.start_soon(hold, stream)
            for _ in range(5):
                assert (await ask(url, "POST", CHAT, chat_body())).status == 200
    assert ends == [told] * NUM_SLOW


async def test_a_storm_of_connections_is_served() -> None:
    """More connections at once than are accepted per turn are all answered."""
    answered: list[int] = []

    async with _served(edge_app(scripted_edge(Script()))) as url:

        async def one() -> None:
            answered.append((await ask(url, "POST", CHAT, chat_body())).status)

        async with trio.open_nursery() as nursery:
            for _ in range(200):
                nursery.start_soon(one)
    assert answered == [200] * 200


async def test_without_a_limit_of_descriptors_all_are_accepted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """No limit is a negative number."""
    none = (resource.RLIM_INFINITY, resource.RLIM_INFINITY)
    monkeypatch.setattr(resource, "getrlimit", lambda _: none)
    async with _served(Echo()) as url, connected(url) as client:
        assert (await client.ask("GET", "/")).status == 200


async def test_clients_leave_descriptors_to_the_rest_of_the_process(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """However many connect: workers, providers and files need some. Those who left make room."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = 400
    async with _served(Echo()) as url:
        port, clients = int(url.rsplit(":", 1)[1]), []
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
        try:
            # Both ends of a connection are in this process.
            while "cannot accept a connection" not in caplog.text:
                late = socket.socket()
                late.connect(("127.0.0.1", port))
                clients.append(late)
                await trio.sleep(0.001)
            free = socket.socket()
            clients.append(free)
            assert most * 3 // 4 <= free.fileno() < most * 3 // 4 + 16
            for taken in clients[: len(clients) // 2]:
                taken.close()
            async with connected(url) as client:
                assert (await client.ask("GET", "/")).status == 200
            assert "connections are accepted again" in caplog.text
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
            for taken in clients:
                taken.close()


async def test_without_descriptors_the_server_waits(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A process that has no descriptor left says so, goes on serving, and accepts again later."""
    async with _served(Echo()) as url, connected(url) as client:
        assert (await client.ask("GET", "/")).status == 200
        used = [socket.socket()]
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (used[0].fileno() + 3, hard))
        try:
            late = socket.socket()
            late.connect(("127.0.0.1", int(url.rsplit(":", 1)[1])))
            while len(used) < 10:
                try:
                    used.append(socket.socket())
                except OSError as error:
                    assert error.errno == errno.EMFILE
                    break
            while "cannot accept a connection" not in caplog.text:
                await trio.lowlevel.checkpoint()
            assert (await client.ask("GET", "/")).status == 200
            await trio.sleep(0.5)  # several more tries
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
            for taken in used:
                taken.close()
        late.setblocking(False)
        async with trio.SocketStream(trio.socket.from_stdlib_socket(late)) as stream:
            await stream.send_all(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n")
            assert (await stream.receive_some(4_096)).startswith(b"HTTP/1.1 200 OK\r\n")
    assert caplog.text.count("cannot accept a connection: Too many open files; raise") == 1
    assert caplog.text.count("connections are accepted again") == 1


@pytest.mark.parametrize("number", [errno.ECONNABORTED, errno.EPROTO, errno.ENETDOWN, errno.EPERM])
async def test_a_peer_that_is_gone_before_it_is_accepted_is_borne(
    number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A peer that is gone before it is accepted costs nothing, whichever error the kernel reports;
    the next one is served.
    """
    accept = socket.socket.accept
    failures = [OSError(number, "gone")]

    def fail_once(listener: socket.socket) -> Any:
        if failures:
            raise failures.pop()
        return accept(listener)

    async with _served(Echo()) as url:
        monkeypatch.setattr(socket.socket, "accept", fail_once)
        async with connected(url) as client:
            assert (await client.ask("GET", "/")).status == 200
    assert not failures


async def test_a_listener_that_was_off_the_port_serves_again() -> None:
    """The parent of several processes shuts it and has it listen again, on the same socket."""
    made: list[socket.socket] = []

    async def listen_here(host: str, _port: int, **options: Any) -> socket.socket:
        # One that the kernel chose would be another after it.
        made.append(await listen(host, free_ports(1), **options))
        return made[0]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("gateway.http.server.serving.listen", listen_here)
        async with _served(Echo()) as url:
            made[0].shutdown(socket.SHUT_RD)
            with pytest.raises(OSError, match="connect"):
                async with connected(url):
                    pass
            await trio.sleep(0.3)
            made[0].listen(16)
            async with connected(url) as client:
                assert (await client.ask("GET", "/")).status == 200


async def test_a_shared_port_is_shared_only_when_asked() -> None:
    """Processes may share a port; without that a second one is told that it is taken."""
    with await listen("127.0.0.1", 0, silent_peer_s=30, is_shared=True) as first:
        port = first.getsockname()[1]
        with await listen("127.0.0.1", port, silent_peer_s=30, is_shared=True):
            pass
        with pytest.raises(Exception, match="is taken, by another program or"):
            await listen("127.0.0.1", port, silent_peer_s=30)


async def test_leavers_leave_nothing_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    """A client that resets its connection in the midst of an answer is no event."""

    async def endless(scope: Any, receive: Any, send: Callable[..., Awaitable[None]]) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        while True:
            await send({"type": "http.response.body", "body": b"x" * 9_000, "more_body": True})

    async with _served(endless) as url:
        for _ in range(20):
            async with connected(url) as client:
                await client.send(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n")
                await client.stream.receive_some(100)
    assert not caplog.records


async def test_a_look_that_fails_ends_one_connection(caplog: pytest.LogCaptureFixture) -> None:
    """A callback on a response that raises is logged and ends its connection; the server goes on
    with the others.
    """

    def look(_now: float) -> float:
        raise RuntimeError("the inside")

    async def app(scope: Any, receive: Any, send: Any) -> None:
        writer = scope["extensions"][EXTENSION]
        if scope["path"] != "/bad":
            await Echo()(scope, receive, send)
            return
        writer.open(200, ())
        writer.write(b"begun")
        writer.watch(look, trio.current_time())
        await trio.sleep_forever()

    async with _served(app, deadlines=QUICK) as url, connected(url) as good:
        assert (await good.ask("GET", "/")).status == 200
        async with await trio.open_tcp_stream("127.0.0.1", int(url.rsplit(":", 1)[1])) as bad:
            await bad.send_all(b"GET /bad HTTP/1.1\r\nhost: x\r\n\r\n")
            with suppress(trio.BrokenResourceError):
                while await bad.receive_some(4_096):
                    pass
        assert (await good.ask("GET", "/")).status == 200
    assert len(caplog.records) == 1
