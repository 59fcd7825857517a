"""Connections of the HTTP client, over real sockets."""

import os
import resource
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, closing, suppress
from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from protocol.errors import (
    ConnectError,
    ConnectTimeout,
    KeptConnectionClosed,
    LocalProtocolError,
    ReadError,
    ReadTimeout,
    RemoteProtocolError,
    WriteTimeout,
)
from protocol.transport import HttpClient
from protocol.transport.http_client import FRESH_S
from tests.fakes.certificates import certificate_for
from tests.fakes.scripted_http import ScriptedServer, open_server
from tests.fakes.worker import PATIENCE_S

EMPTY = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


async def ask(client: HttpClient, **seconds: float) -> bytes:
    """The body of one answer."""
    async with client.exchange("POST", "/v1", body=b"{}", **seconds) as response:
        return b"".join([data async for data in response.body])


async def pass_by(clock: MockClock, seconds: float) -> None:
    """Let the time pass once all tasks wait. A clock that jumps by itself would not see what is
    still on its way through a socket or a thread, and would end the wait for it.
    """
    await wait_all_tasks_blocked()
    clock.jump(seconds)


@asynccontextmanager
async def served_by(
    handle: Callable[[trio.SocketStream], Awaitable[object]],
) -> AsyncIterator[str]:
    """The address of a server that handles each connection so."""
    (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(trio.serve_listeners, handle, [listener])
        yield f"http://127.0.0.1:{listener.socket.getsockname()[1]}"
        nursery.cancel_scope.cancel()


async def test_what_is_sent() -> None:
    """The request line, the host, the headers as they are given, and the length of the body."""
    async with open_server(ScriptedServer([EMPTY])) as server:
        client = HttpClient(server.url)
        async with client.exchange("POST", "/a?b=c", [(b"X-One", b"\xe4")], b"{}"):
            pass
        async with client.exchange("GET", "/"):
            pass
        client.close()
    host = server.url.split("/")[2].encode()
    post = b"POST /a?b=c HTTP/1.1\r\nhost: %b\r\nX-One: \xe4\r\ncontent-length: 2\r\n\r\n{}"
    assert server.requests == [post % host, b"GET / HTTP/1.1\r\nhost: %b\r\n\r\n" % host]


@pytest.mark.parametrize("value", [b"a\r\nb: c", b"a\nb: c", b"a\rb", b"a\0"])
async def test_a_header_cannot_become_two(value: bytes) -> None:
    """A header that would become two is refused before anything is dialled."""
    client = HttpClient("http://127.0.0.1:9")
    with pytest.raises(LocalProtocolError):
        async with client.exchange("GET", "/", [(b"x", value)]):
            pass


@pytest.mark.parametrize("url", ["ftp://a", "//a", "http://", "http://a:b", "http://" + "é" * 99])
def test_an_address_that_is_none(url: str) -> None:
    """An address that is none is refused at once."""
    with pytest.raises(ValueError, match=r".+"):
        HttpClient(url)


async def test_a_body_in_pieces() -> None:
    """A body in pieces is sent in chunks, as it comes."""
    heard = bytearray()

    async def collect(stream: trio.SocketStream) -> None:
        while not heard.endswith(b"0\r\n\r\n"):
            heard.extend(await stream.receive_some())
        await stream.send_all(EMPTY)

    async def pieces() -> AsyncIterator[bytes]:
        for piece in (b"one", b"", b"three"):
            yield piece

    async with served_by(collect) as url:
        with closing(HttpClient(url)) as client:
            async with client.exchange("PUT", "/", body=pieces()) as response:
                assert response.status == 200
    head, _, body = heard.partition(b"\r\n\r\n")
    assert head.endswith(b"transfer-encoding: chunked")
    assert body == b"3\r\none\r\n5\r\nthree\r\n0\r\n\r\n"


async def test_a_unix_socket(tmp_path: Path) -> None:
    """Instead of the host, which is named in the request all the same."""
    listener = trio.socket.socket(trio.socket.AF_UNIX)
    await listener.bind(str(tmp_path / "engine"))
    listener.listen()
    heard: list[bytes] = []

    async def answer() -> None:
        connection, _ = await listener.accept()
        heard.append(await connection.recv(4096))
        await connection.send(CHUNKED + b"2\r\nhi\r\n0\r\n\r\n")
        connection.close()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(answer)
        client = HttpClient("http://engine", uds=str(tmp_path / "engine"))
        assert await ask(client) == b"hi"
        client.close()
    listener.close()
    assert b"\r\nhost: engine\r\n" in heard[0]


async def test_connections_are_reused() -> None:
    """One after the other over one; several at once over several, all of which are kept."""
    async with open_server(ScriptedServer([EMPTY])) as server:
        client = HttpClient(server.url, max_idle=2)
        for _ in range(3):
            await ask(client)
        assert server.num_connections == 1
        async with trio.open_nursery() as nursery:
            for _ in range(3):
                nursery.start_soon(ask, client)
        assert repr(client) == "<HttpClient 0 busy, 2 idle>"
        client.close()
        assert client.num_idle == 0
        await ask(client)
        assert client.num_idle == 0


@pytest.mark.parametrize("bounds", [{"max_idle": 0}, {"keepalive_s": 0.0}])
async def test_no_connection_is_kept_alive(bounds: dict[str, Any]) -> None:
    """Each request has a connection of its own, whose place is free afterwards."""
    async with open_server(ScriptedServer([EMPTY])) as server:
        client = HttpClient(server.url, max_connections=1, **bounds)
        for _ in range(2):
            await ask(client)
            assert repr(client) == "<HttpClient 0 busy, 0 idle>"
        assert server.num_connections == 2
        client.close()


async def test_an_idle_connection_grows_old(mock_clock: MockClock) -> None:
    """An idle connection that is too old is closed by the next request, or by the next connection
    that becomes idle.
    """
    async with open_server(ScriptedServer([EMPTY])) as server:
        client = HttpClient(server.url, keepalive_s=5.0)
        await ask(client)
        mock_clock.jump(4)
        await ask(client)
        assert server.num_connections == 1
        mock_clock.jump(6)
        await ask(client)
        assert (server.num_connections, client.num_idle) == (2, 1)
        client.close()


async def test_a_connection_that_ends_while_it_is_idle() -> None:
    """The next request gets a new one; nothing is sent twice."""
    async with open_server(ScriptedServer([EMPTY], ends=True)) as server:
        client = HttpClient(server.url)
        for _ in range(3):
            await ask(client)
            await trio.sleep(0.02)
        assert server.num_connections == len(server.requests) == 3
        client.close()


@pytest.mark.parametrize("resets", [True, False])
async def test_a_connection_that_ends_as_the_request_goes_out(resets: bool) -> None:
    """A kept-alive connection that ends as the request is sent has an error of its own, and the
    other idle ones are closed.
    """
    async with open_server(ScriptedServer([EMPTY], num_answers=1, resets=resets)) as server:
        client = HttpClient(server.url)
        async with trio.open_nursery() as nursery:
            for _ in range(2):
                nursery.start_soon(ask, client)
        assert client.num_idle == 2
        with pytest.raises(KeptConnectionClosed):
            await ask(client)
        assert repr(client) == "<HttpClient 0 busy, 0 idle>"
        server.num_answers = 0
        with pytest.raises(RemoteProtocolError if not resets else Exception) as caught:
            await ask(client)
        assert not isinstance(caught.value, KeptConnectionClosed)


@pytest.mark.parametrize("resets", [True, False])
async def test_a_kept_connection_that_ends_over_a_request(
    resets: bool, mock_clock: MockClock
) -> None:
    """A kept connection that ends over a request, as balancers end those that are silent while a
    long answer is made, is an error: to send the request again would pay for it twice.
    """
    over = trio.Event()
    server = ScriptedServer([EMPTY], num_answers=1, resets=resets, may_end=over)

    async def end_after_a_minute() -> None:
        await server.heard(2)
        mock_clock.jump(60.0)
        over.set()

    async with open_server(server), trio.open_nursery() as nursery:
        nursery.start_soon(end_after_a_minute)
        client = HttpClient(server.url)
        await ask(client)
        assert client.num_idle == 1
        with pytest.raises((ReadError, RemoteProtocolError)) as caught:
            await ask(client)
        assert not isinstance(caught.value, KeptConnectionClosed)
        assert (server.num_connections, len(server.requests)) == (1, 2)
        client.close()


async def test_without_a_descriptor_a_connection_is_waited_for() -> None:
    """Without a descriptor the client waits, which is no failure of the server unless it takes
    longer than a connection may.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    async with open_server(ScriptedServer([EMPTY])) as server:
        client = HttpClient(server.url.replace("localhost", "127.0.0.1"))
        next_one = os.dup(0)
        resource.setrlimit(resource.RLIMIT_NOFILE, (next_one + 1, hard))
        try:
            with pytest.raises(ConnectTimeout):
                await client.connect(0.2)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(ask, client)
                await trio.sleep(0.2)
                assert not server.requests
                resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
            os.close(next_one)
        assert len(server.requests) == 1
        client.close()


async def test_no_kept_connection_is_used_behind_one_that_ended(mock_clock: MockClock) -> None:
    """For a moment no kept connection is used behind one that ended: those that become idle
    meanwhile may end in the same way.
    """
    async with open_server(ScriptedServer([EMPTY], num_answers=1)) as server:
        client = HttpClient(server.url)
        await ask(client)
        with pytest.raises(KeptConnectionClosed):
            await ask(client)
        for _ in range(3):
            await ask(client)
        assert server.num_connections == 4
        mock_clock.jump(FRESH_S)
        with pytest.raises(KeptConnectionClosed):
            await ask(client)
        client.close()


async def test_a_balancer_that_ends_an_idle_connection_in_words() -> None:
    """A balancer that ends an idle connection with a 408: on a kept connection the 408 is no
    answer, on a new one it is.
    """
    late = b"HTTP/1.1 408 Request Timeout\r\ncontent-length: 0\r\n\r\n"
    async with open_server(ScriptedServer([late])) as server:
        client = HttpClient(server.url)
        await ask(client)
        assert client.num_idle == 1
        with pytest.raises(KeptConnectionClosed):
            await ask(client)
        assert repr(client) == "<HttpClient 0 busy, 0 idle>"
        client.close()


async def test_a_body_that_is_left_closes_its_connection() -> None:
    """A half-read body cannot be followed by another answer."""
    async with open_server(ScriptedServer([CHUNKED, b"3\r\nabc\r\n"])) as server:
        client = HttpClient(server.url)
        for _ in range(2):
            async with client.exchange("GET", "/") as response:
                assert await anext(response.body) == b"abc"
        assert server.num_connections == 2
        assert repr(client) == "<HttpClient 0 busy, 0 idle>"


async def test_the_first_that_waits_is_served_first(mock_clock: MockClock) -> None:
    """Past one that has left; one that waits for too long has sent nothing."""
    order, over = list[str](), trio.Event()
    async with open_server(ScriptedServer([EMPTY])) as server, trio.open_nursery() as nursery:
        client = HttpClient(server.url, max_connections=1)

        async def hold() -> None:
            async with client.exchange("GET", "/"):
                await over.wait()

        async def wait(name: str, scope: trio.CancelScope) -> None:
            with scope:
                await ask(client)
                order.append(name)

        nursery.start_soon(hold)
        await server.heard(1)
        nursery.start_soon(pass_by, mock_clock, 3.0)
        with pytest.raises(ConnectTimeout):
            await ask(client, connect_s=3.0)
        scopes = {name: trio.CancelScope() for name in "abc"}
        for name, scope in scopes.items():
            nursery.start_soon(wait, name, scope)
            await wait_all_tasks_blocked()
        scopes["a"].cancel()
        over.set()
    client.close()
    assert order == ["b", "c"]
    assert repr(client) == "<HttpClient 0 busy, 0 idle>"
    assert len(server.requests) == 3


async def test_silence(mock_clock: MockClock) -> None:
    """Silence before the head, and within it after interim responses."""

    async def pass_once_asked(server: ScriptedServer) -> None:
        await server.heard(1)
        mock_clock.jump(7.0)

    for pieces in ([], [b"HTTP/1.1 102 Processing\r\n\r\n"]):
        async with open_server(ScriptedServer(pieces)) as server, trio.open_nursery() as nursery:
            client = HttpClient(server.url)
            nursery.start_soon(pass_once_asked, server)
            with pytest.raises(ReadTimeout):
                await ask(client, read_s=7.0)
            assert repr(client) == "<HttpClient 0 busy, 0 idle>"


async def test_a_head_that_dribbles(mock_clock: MockClock) -> None:
    """No byte renews the bound."""

    async def dribble(stream: trio.SocketStream) -> None:
        for byte in b"HTTP/1.1 200 OK\r\n" + b"x-more: 1\r\n" * 20:
            await stream.send_all(bytes([byte]))
            await pass_by(mock_clock, 1.0)

    async with served_by(dribble) as url:
        client = HttpClient(url)
        with trio.fail_after(10.0), pytest.raises(ReadTimeout, match="no whole head in 7 s"):
            await ask(client, read_s=7.0)


async def test_a_request_that_is_not_taken(mock_clock: MockClock) -> None:
    """Sending a request that the server does not read has its own time limit."""

    async def read_nothing(_: trio.SocketStream) -> None:
        await pass_by(mock_clock, 2.0)
        await trio.sleep_forever()

    async with served_by(read_nothing) as url:
        with pytest.raises(WriteTimeout):
            async with HttpClient(url).exchange("POST", "/", body=bytes(2**26), write_s=2.0):
                pass


async def test_an_answer_before_the_request_is_read() -> None:
    """Sending it fails; the answer counts."""

    async def refuse(stream: trio.SocketStream) -> None:
        async with stream:
            await stream.receive_some(4096)
            await stream.send_all(b"HTTP/1.1 413 Too Large\r\nContent-Length: 2\r\n\r\n{}")
            await stream.send_eof()
            await trio.sleep(0.05)

    async with served_by(refuse) as url:
        with closing(HttpClient(url)) as client:
            async with client.exchange("POST", "/", body=bytes(2**24)) as response:
                assert response.status == 413
                assert [data async for data in response.body] == [b"{}"]


async def test_servers_that_cannot_be_reached(tmp_path: Path) -> None:
    """Servers that cannot be reached: nothing was sent, with no server, no socket, no such host, no
    TLS.
    """
    async with served_by(lambda stream: stream.send_all(b"HTTP/1.1 400 Bad\r\n\r\n")) as url:
        secure = HttpClient(url.replace("http", "https"))
        with trio.fail_after(PATIENCE_S), pytest.raises(ConnectError):
            await ask(secure)
    nowhere = [
        HttpClient(url),
        HttpClient(url, uds=str(tmp_path / "none")),
        HttpClient("http://a..b"),
    ]
    for client in nowhere:
        with pytest.raises(ConnectError):
            await ask(client)
        assert repr(client) == "<HttpClient 0 busy, 0 idle>"


async def test_a_refused_connection_says_so() -> None:
    """The error of a refused connection says so, and not only that all attempts failed: it is the
    first thing that an operator reads.
    """
    async with served_by(trio.SocketStream.aclose) as url:
        pass
    with pytest.raises(ConnectError, match="connection refused"):
        await ask(HttpClient(url))


async def test_a_server_that_never_shakes_hands(mock_clock: MockClock) -> None:
    """Connecting has one bound, TLS included."""

    async def say_nothing(_: trio.SocketStream) -> None:
        await pass_by(mock_clock, 5.0)
        await trio.sleep_forever()

    async with served_by(say_nothing) as url:
        with pytest.raises(ConnectTimeout):
            await ask(HttpClient(url.replace("http", "https")), connect_s=5.0)


async def test_tls_at_its_limits(tmp_path: Path) -> None:
    """Bodies of many records both ways, and a reused connection."""
    authority, context = certificate_for("localhost", tmp_path)
    large = bytes(range(256)) * 2000
    answer = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(large), large)
    async with open_server(ScriptedServer([answer], tls=context)) as server:
        client = HttpClient(server.url, tls=ssl.create_default_context(cafile=str(authority)))
        for _ in range(2):
            async with client.exchange("POST", "/", body=large) as response:
                assert b"".join([data async for data in response.body]) == large
        client.close()
    assert server.num_connections == 1
    assert all(request.endswith(large) for request in server.requests)


async def test_cancelled_at_any_step() -> None:
    """Waiting, dialling, sending, reading: no slot and no socket is lost."""

    async def slow(stream: trio.SocketStream) -> None:
        with suppress(trio.BrokenResourceError):
            async with stream:
                while await stream.receive_some():
                    for piece in (CHUNKED[:9], CHUNKED[9:], b"3\r\nab", b"c\r\n0\r\n\r\n"):
                        await stream.send_all(piece)
                        await trio.sleep(0.002)

    async with served_by(slow) as url:
        client = HttpClient(url, max_connections=3)
        async with trio.open_nursery() as nursery:
            for number in range(60):

                async def leave(after_s: float = number * 0.0005) -> None:
                    with trio.move_on_after(after_s):
                        await ask(client)

                nursery.start_soon(leave)
        assert client.num_busy == 0
        assert await ask(client) == b"abc"
        client.close()
