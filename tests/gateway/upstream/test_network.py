"""Reads below the HTTP client, over real sockets."""

import shutil
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpcore
import pytest
import trio
import trio.testing
from trio.testing import MockClock

from gateway.upstream.network import Connection, Network

PATIENCE_S = 10.0


@asynccontextmanager
async def connected() -> AsyncIterator[tuple[httpcore.AsyncNetworkStream, trio.SocketStream]]:
    """Our stream, and the peer's end of it."""
    (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
    port = listener.socket.getsockname()[1]
    with trio.fail_after(PATIENCE_S):
        ours = await Network().connect_tcp("127.0.0.1", port, timeout=5.0)
        theirs = await listener.accept()
        async with theirs, listener:
            yield ours, theirs
        await ours.aclose()


@pytest.mark.parametrize("timeout_s", [None, 5.0])
async def test_bytes_come_as_they_were_sent(timeout_s: float | None) -> None:
    """With and without a timeout: bytes, then nothing once the peer has closed."""
    async with connected() as (ours, theirs):
        await theirs.send_all(b"hello")
        assert await ours.read(100, timeout_s) == b"hello"
        await ours.write(b"you", timeout_s)
        assert await theirs.receive_some(100) == b"you"
        await theirs.aclose()
        assert await ours.read(100, timeout_s) == b""


async def test_a_broken_connection_is_the_clients_error() -> None:
    """What the client above translates is its own error, never one of trio's."""
    async with connected() as (ours, _):
        await ours.aclose()
        with pytest.raises(httpcore.ReadError):
            await ours.read(100)


async def test_a_timeout_that_is_given_holds(autojump_clock: MockClock) -> None:
    """Heads are still awaited with a bound of their own."""
    async with connected() as (ours, _):
        start = trio.current_time()
        with pytest.raises(httpcore.ReadTimeout):
            await ours.read(100, 3.0)
        assert trio.current_time() - start == 3.0


@pytest.mark.skipif(shutil.which("openssl") is None, reason="nothing here makes certificates")
async def test_reads_through_tls(tmp_path: Path) -> None:
    """The stream after a handshake has the same reads, and bytes come out in clear."""
    key, cert = tmp_path / "key.pem", tmp_path / "cert.pem"
    subject = ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost"]
    form = ["-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    command = ["openssl", "req", *form, *subject, "-keyout", str(key), "-out", str(cert)]
    await trio.run_process(command, capture_stdout=True, capture_stderr=True)
    server = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    server.load_cert_chain(cert, key)
    client = ssl.create_default_context(cafile=str(cert))
    async with connected() as (ours, theirs), trio.open_nursery() as nursery:
        peer = trio.SSLStream(theirs, server, server_side=True)
        nursery.start_soon(peer.send_all, b"secret")
        secured = await ours.start_tls(client, "localhost", 5.0)
        assert await secured.read(100) == b"secret"
        assert secured.get_extra_info("ssl_object") is not None
        assert secured.get_extra_info("is_readable") is False


HEADS = b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\nA: b\n\n"


@pytest.mark.parametrize("cut", range(1, len(HEADS)))
async def test_a_parser_gets_nothing_from_behind_a_head(cut: int) -> None:
    """Wherever the network cuts: two heads end where reads end, and the body comes untouched."""
    body = b"data: 1\n\ndata: 2\n\n"
    sent, read = HEADS + body, b""
    async with connected() as (ours, theirs):
        assert isinstance(ours, Connection)
        await ours.write(b"GET / HTTP/1.1\r\n\r\n")
        await theirs.send_all(sent[:cut])
        ends: list[int] = []
        while len(read) < cut:
            read += await ours.read(4096)
            ends.append(len(read))
        await theirs.send_all(sent[cut:])
        while len(read) < len(HEADS):
            read += await ours.read(4096)
            ends.append(len(read))
        assert read == HEADS
        assert HEADS.index(b"HTTP/1.1 200") in ends
        assert ours.get_extra_info("is_readable")
        ours.expect_body(len(body) - 1)
        assert await ours.read(4) == body[:4]
        assert await ours.read(4096) == body[4:-1]
        ours.unread(body[4:-1])
        assert await ours.receive() == body[4:]


async def test_a_write_that_the_peer_does_not_take(autojump_clock: MockClock) -> None:
    """It waits for the time it has; a peer that is gone is an error."""
    async with connected() as (ours, theirs):
        start = trio.current_time()
        with pytest.raises(httpcore.WriteTimeout):
            await ours.write(bytes(2**26), 2.0)
        assert trio.current_time() - start == 2.0
        await theirs.aclose()
        with pytest.raises(httpcore.WriteError):
            await ours.write(bytes(2**20), 2.0)


async def test_whoever_reads_learns_of_the_close() -> None:
    """By the client's own error; nothing hangs on a number that is used again."""
    async with connected() as (ours, _), trio.open_nursery() as nursery:

        async def read() -> None:
            with pytest.raises(httpcore.ReadError):
                await ours.read(100)

        nursery.start_soon(read)
        await trio.testing.wait_all_tasks_blocked()
        await ours.aclose()
