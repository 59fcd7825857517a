"""Our transport beside the client's own, over real sockets: whatever a server does, both say the
same.
"""

import gzip
import ssl
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import httpcore
import httpx
import pytest
import trio

from gateway.upstream.client import LIMITS, RequestBody, client_for
from gateway.upstream.reading import read_body
from gateway.upstream.transport import Body, Transport, _translated
from tests.fakes.scripted_http import ScriptedServer, open_server
from tests.fakes.worker import PATIENCE_S
from tests.gateway.upstream.test_provider import certificate_for

SETTLED_S = 0.01
"""The end of a connection has come by then."""

OK = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"
CHUNKED = OK + b"Transfer-Encoding: chunked\r\n\r\n"
EVENT = b'data: {"choices":[{"delta":{"content":"word"}}]}\n\n'
PACKED = gzip.compress(EVENT * 3)


def chunk(data: bytes, extension: bytes = b"") -> bytes:
    return b"%x%s\r\n%s\r\n" % (len(data), extension, data)


def with_length(data: bytes, more: bytes = b"") -> bytes:
    return OK + more + b"Content-Length: %d\r\n\r\n%s" % (len(data), data)


GOOD = {
    "one length": with_length(EVENT),
    "one length, twice": OK + b"Content-Length: 3, 3\r\nContent-Length: 3\r\n\r\n{ }",
    "no length at all": with_length(b""),
    "chunks": CHUNKED + chunk(EVENT) * 3 + b"0\r\n\r\n",
    "no chunks": CHUNKED + b"0\r\n\r\n",
    "big chunks": CHUNKED + chunk(EVENT * 5000) + chunk(EVENT) + chunk(b"x" * 65536) + b"0\r\n\r\n",
    "big chunks and trailers": CHUNKED
    + chunk(b"\n0\r\n\r\n0" + b"x" * 70_000)
    + chunk(EVENT)
    + b"0\r\nDigest: abc\r\n\r\n",
    "tiny chunks": CHUNKED + b"".join(chunk(bytes([byte])) for byte in EVENT) + b"0\r\n\r\n",
    "large hexadecimal digits": CHUNKED + b"2F\r\n" + b"y" * 47 + b"\r\n0\r\n\r\n",
    "leading zeros": CHUNKED + b"0000A\r\n" + b"z" * 10 + b"\r\n000\r\n\r\n",
    "extensions": CHUNKED + chunk(EVENT, b';a=b;c="d;\t e"') + chunk(EVENT, b";") + b"0;x\r\n\r\n",
    "blanks after the size": CHUNKED + chunk(EVENT, b" \t ") + b"0  \r\n\r\n",
    "trailers": CHUNKED + chunk(EVENT) + b"0\r\nDigest: abc\r\nX-More: d\r\n\r\n",
    "lower case": b"HTTP/1.1 200 OK\r\ntransfer-encoding: CHUNKED\r\n\r\n"
    + chunk(EVENT)
    + b"0\r\n\r\n",
    "both framings": OK
    + b"Content-Length: 3\r\n"
    + CHUNKED[len(OK) :]
    + chunk(EVENT)
    + b"0\r\n\r\n",
    "blank lines in the body": CHUNKED + chunk(b"\r\n\r\n\n\n\r\n") * 2 + b"0\r\n\r\n",
    "an answer after hints": b"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n" * 2
    + CHUNKED
    + chunk(EVENT)
    + b"0\r\n\r\n",
    "an answer after 100": b"HTTP/1.1 100 Continue\r\n\r\n" + with_length(EVENT),
    "204": b"HTTP/1.1 204 No Content\r\nTransfer-Encoding: chunked\r\n\r\n",
    "304": b"HTTP/1.1 304 Not Modified\r\nTransfer-Encoding: chunked\r\n\r\n",
    "a refusal": b"HTTP/1.1 404 Not Found\r\nContent-Length: 2\r\n\r\n{}",
    "lines without returns": CHUNKED.replace(b"\r\n", b"\n") + chunk(EVENT) + b"0\r\n\r\n",
    "no reason": b"HTTP/1.1 200\r\nContent-Length: 1\r\n\r\nx",
    "a folded line": OK
    + b"X-Long: a\r\n  b\r\n"
    + CHUNKED[len(OK) :]
    + chunk(EVENT)
    + b"0\r\n\r\n",
    "packed": with_length(PACKED, b"Content-Encoding: gzip\r\n"),
    "packed chunks": OK
    + b"Content-Encoding: gzip\r\n"
    + CHUNKED[len(OK) :]
    + chunk(PACKED[:9])
    + chunk(PACKED[9:])
    + b"0\r\n\r\n",
    "packed by its own word": OK
    + b"Content-Encoding: identity\r\n"
    + CHUNKED[len(OK) :]
    + chunk(EVENT)
    + b"0\r\n\r\n",
    "the last of a connection": OK
    + b"Connection: close\r\n"
    + CHUNKED[len(OK) :]
    + chunk(EVENT)
    + b"0\r\n\r\n",
}
UNTIL_CLOSE = {
    "until the end": OK + b"\r\n" + EVENT * 3,
    "until the end, by 1.0": b"HTTP/1.0 200 OK\r\n\r\n" + EVENT,
    "nothing until the end": OK + b"\r\n",
    "an unannounced end": CHUNKED + chunk(EVENT) + b"0\r\n\r\n",
}
CUT = {
    "nothing": b"",
    "half a head": OK[:-7],
    "a head only": CHUNKED,
    "half a size": CHUNKED + chunk(EVENT) + b"2",
    "a size only": CHUNKED + chunk(EVENT) + b"2f\r\n",
    "half a chunk": CHUNKED + chunk(EVENT) + chunk(EVENT)[:20],
    "half a big chunk": CHUNKED + chunk(EVENT) + chunk(EVENT * 5000)[:100_000],
    "no end of a chunk": CHUNKED + chunk(EVENT)[:-2],
    "half an end of a chunk": CHUNKED + chunk(EVENT)[:-1],
    "no last chunk": CHUNKED + chunk(EVENT),
    "half a last chunk": CHUNKED + chunk(EVENT) + b"0\r\n",
    "half a trailer": CHUNKED + chunk(EVENT) + b"0\r\nDigest: a",
    "less than its length": with_length(EVENT)[:-1],
    "half a packing": with_length(PACKED, b"Content-Encoding: gzip\r\n")[:-5],
}
GARBAGE = {
    "no HTTP": b"SSH-2.0-OpenSSH_9.2\r\n\r\n",
    "a page": b"<html>Bad gateway</html>" * 100,
    "zeros": bytes(5000),
    "a blank line first": b"\r\n" + with_length(EVENT),
    "a bad header": OK + b"no colon\r\n\r\n",
    "an endless head": OK + b"X-Long: " + b"a" * 200_000,
    "many headers": OK + b"X-Many: a\r\n" * 20_000 + b"\r\n",
    "no size": CHUNKED + b"\r\nabc\r\n",
    "a word for a size": CHUNKED + chunk(EVENT) + b"word\r\n",
    "a sign before a size": CHUNKED + chunk(EVENT) + b"-2\r\nab\r\n",
    "a prefix before a size": CHUNKED + chunk(EVENT) + b"0x2\r\nab\r\n0\r\n\r\n",
    "a blank before a size": CHUNKED + chunk(EVENT) + b" 2\r\nab\r\n0\r\n\r\n",
    "a long size": CHUNKED + b"0" * 21 + b"2\r\nab\r\n0\r\n\r\n",
    "a huge size": CHUNKED + b"f" * 20 + b"\r\n" + b"a" * 100_000,
    "sizes without returns": CHUNKED + b"2\nab\n0\n\n",
    "an endless size": CHUNKED + b"2;" + b"a" * 200_000,
    "another end of a chunk": CHUNKED + chunk(EVENT) + b"2\r\nabcd2\r\nab\r\n0\r\n\r\n",
    "half another end": CHUNKED + chunk(EVENT) + b"2\r\nab\rx",
    "a bad trailer": CHUNKED + chunk(EVENT) + b"0\r\nno colon\r\n\r\n",
    "an endless trailer": CHUNKED + chunk(EVENT) + b"0\r\nX: " + b"a" * 200_000,
    "an unknown encoding": OK + b"Transfer-Encoding: gzip, chunked\r\n\r\n" + chunk(EVENT),
    "two lengths": OK + b"Content-Length: 1\r\nContent-Length: 2\r\n\r\nab",
}


@dataclass(frozen=True)
class Heard:
    """What a client has heard of two exchanges, and over how many connections."""

    answers: tuple[object, ...]
    num_connections: int


@asynccontextmanager
async def both_clients(
    url: str, trusted: ssl.SSLContext | None = None, **timeouts: float
) -> AsyncIterator[list[httpx.AsyncClient]]:
    """Ours and the usual one."""
    timeout = httpx.Timeout(PATIENCE_S, **timeouts)
    context = trusted or ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    transport = Transport(httpx.URL(url), context, LIMITS)
    async with (
        httpx.AsyncClient(transport=transport, timeout=timeout) as ours,
        httpx.AsyncClient(
            verify=context, timeout=timeout, limits=LIMITS, trust_env=False
        ) as theirs,
    ):
        yield [ours, theirs]


async def exchange(client: httpx.AsyncClient, url: str, method: str) -> object:
    """One exchange, as a provider does it."""
    body = bytearray()

    def take(data: bytes) -> bool:
        body.extend(data)
        return False

    try:
        request = client.build_request(method, url, content=b"{}")
        request.stream = RequestBody(b"{}")
        response = await client.send(request, stream=True)
        try:
            await read_body(response, take, PATIENCE_S)
        finally:
            await response.aclose()
    except httpx.HTTPError as error:
        # Behind the colon stands what was there instead, as much of it as one read has brought.
        return type(error), str(error).partition(":")[0], bytes(body)
    return response.status_code, response.http_version, response.headers.raw, bytes(body)


async def heard(
    server: ScriptedServer, method: str = "POST", trusted: ssl.SSLContext | None = None
) -> tuple[Heard, Heard]:
    """What our client and the usual one hear of two exchanges each."""
    results = []
    with trio.fail_after(PATIENCE_S):
        async with open_server(server), both_clients(server.url, trusted) as clients:
            for client in clients:
                before = server.num_connections
                answers = []
                for _ in range(2):
                    answers.append(await exchange(client, server.url, method))
                    await trio.sleep(SETTLED_S if server.ends else 0)
                results.append(Heard(tuple(answers), server.num_connections - before))
    return results[0], results[1]


def pieces_of(data: bytes, how: str) -> Sequence[bytes]:
    match how:
        case "at once":
            return [data]
        case "head and body":
            head, blank, body = data.partition(b"\r\n\r\n")
            return [piece for piece in (head + blank, body) if piece]
        case _:
            # Every byte by itself as far as that takes no minute.
            return [data[i : i + 1] for i in range(min(len(data), 700))] + [data[700:]]


@pytest.mark.parametrize("how", ["at once", "head and body", "byte by byte"])
@pytest.mark.parametrize("case", GOOD)
async def test_good_answers(case: str, how: str) -> None:
    """The same head and body, and a connection that is used again, or not."""
    ours, theirs = await heard(ScriptedServer(pieces_of(GOOD[case], how)))
    assert ours == theirs
    assert ours.num_connections == (2 if case == "the last of a connection" else 1)
    assert [type(answer[0]) for answer in ours.answers] == [int, int]  # type: ignore[index]


@pytest.mark.parametrize("how", ["at once", "byte by byte"])
@pytest.mark.parametrize("case", {**UNTIL_CLOSE, **CUT, **GARBAGE})
async def test_answers_that_end_with_their_connection(case: str, how: str) -> None:
    """In order, too early, or in nonsense: the same bytes, the same exception and text."""
    data = {**UNTIL_CLOSE, **CUT, **GARBAGE}[case]
    ours, theirs = await heard(ScriptedServer(pieces_of(data, how), ends=True))
    assert ours == theirs
    assert ours.num_connections == 2
    assert all((answer[0] == 200) is (case in UNTIL_CLOSE) for answer in ours.answers)  # type: ignore[index]


@pytest.mark.parametrize("case", ["one length", "chunks", "no chunks", "304"])
async def test_heads_alone(case: str) -> None:
    """No body follows an answer to HEAD, whatever it announces."""
    head = GOOD[case].partition(b"\r\n\r\n")[0] + b"\r\n\r\n"
    ours, theirs = await heard(ScriptedServer([head]), "HEAD")
    assert ours == theirs
    assert ours.num_connections == 1


@pytest.mark.parametrize(
    "case",
    [
        *("one length", "no length at all", "chunks", "extensions", "trailers", "204", "a refusal"),
        *("big chunks", "no chunks", "tiny chunks", "leading zeros", "big chunks and trailers"),
    ],
)
async def test_nothing_behind_an_answer_is_taken_for_the_next(case: str) -> None:
    """The client's own transport does that; ours shares its connections among clients."""
    another = with_length(b"of another")
    server = ScriptedServer([GOOD[case] + another])
    alone = ScriptedServer([GOOD[case]])
    ours, _ = await heard(server)
    assert ours.answers == (await heard(alone))[0].answers
    assert ours.num_connections == 2


async def test_a_connection_that_is_reset() -> None:
    """In the middle of a body; the text is the system's, so only the kind must be the same."""
    server = ScriptedServer([CHUNKED, chunk(EVENT)], resets=True)
    kinds = [[answer[0] for answer in one.answers] for one in await heard(server)]  # type: ignore[index]
    assert kinds == [[httpx.ReadError] * 2] * 2


async def test_nobody_listens() -> None:
    """A port without a server."""
    async with open_server(ScriptedServer([])) as server:
        url = server.url
    async with both_clients(url) as clients:
        kinds = [(await exchange(client, url, "POST"))[0] for client in clients]  # type: ignore[index]
    assert kinds == [httpx.ConnectError] * 2


async def test_a_silent_server() -> None:
    """The head has the client's own bound."""
    async with (
        open_server(ScriptedServer([])) as server,
        both_clients(server.url, read=0.05) as two,
    ):
        kinds = [(await exchange(client, server.url, "POST"))[0] for client in two]  # type: ignore[index]
    assert kinds == [httpx.ReadTimeout] * 2


async def test_a_connection_that_has_ended_while_it_was_idle() -> None:
    """The next request gets a new one; nothing is sent twice."""
    server = ScriptedServer([GOOD["chunks"]], ends=True)
    async with open_server(server), both_clients(server.url) as clients:
        for client in clients:
            for _ in range(3):
                answer = await exchange(client, server.url, "POST")
                assert answer[0] == 200  # type: ignore[index]
                await trio.sleep(0.02)
    assert server.num_connections == len(server.requests) == 6


TLS_CASES = ["chunks", "big chunks", "one length", "until the end", "half a chunk", "a page"]


@pytest.mark.parametrize("is_ragged", [True, False])
@pytest.mark.parametrize("case", TLS_CASES)
@pytest.mark.parametrize("ends", [True, False])
async def test_through_tls(case: str, is_ragged: bool, ends: bool, tmp_path: Path) -> None:
    """The same, whether a connection's end is announced or not."""
    authority, context = certificate_for("localhost", tmp_path)
    server = ScriptedServer(
        pieces_of({**GOOD, **UNTIL_CLOSE, **CUT, **GARBAGE}[case], "head and body"),
        ends=ends or case not in GOOD,
        tls=context,
        is_ragged=is_ragged,
    )
    trusted = ssl.create_default_context(cafile=str(authority))
    ours, theirs = await heard(server, trusted=trusted)
    assert ours == theirs
    assert ours.num_connections == (2 if server.ends else 1)
    assert (ours.answers[0][0] == 200) is (case not in {"half a chunk", "a page"})  # type: ignore[index]


async def test_no_tls_where_it_is_due() -> None:
    """A server in clear, and one that hangs up at the greeting: neither can be reached."""
    for pieces in ([b"HTTP/1.1 400 Bad Request\r\n\r\n"], []):
        (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
        url = f"https://localhost:{listener.socket.getsockname()[1]}/v1"

        async def greet(stream: trio.SocketStream, pieces: list[bytes] = pieces) -> None:
            async with stream:
                await stream.receive_some(4096)
                for piece in pieces:
                    await stream.send_all(piece)

        async with trio.open_nursery() as nursery, both_clients(url) as clients:
            nursery.start_soon(trio.serve_listeners, greet, [listener])
            kinds = [(await exchange(client, url, "POST"))[0] for client in clients]  # type: ignore[index]
            assert kinds == [httpx.ConnectError] * 2
            nursery.cancel_scope.cancel()


async def test_a_refusal_before_the_request_is_read() -> None:
    """The write fails or stands still; the answer is heard all the same."""
    (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
    url = f"http://localhost:{listener.socket.getsockname()[1]}/v1"
    large = bytes(2**24)

    async def refuse(stream: trio.SocketStream) -> None:
        async with stream:
            await stream.receive_some(4096)
            await stream.send_all(b"HTTP/1.1 413 Too Large\r\nContent-Length: 2\r\n\r\n{}")
            await stream.send_eof()
            await trio.sleep(0.05)

    async with trio.open_nursery() as nursery, both_clients(url) as clients:
        nursery.start_soon(trio.serve_listeners, refuse, [listener])
        for client in clients:
            request = client.build_request("POST", url, content=large)
            request.stream = RequestBody(large)
            assert (await client.send(request)).status_code == 413
        nursery.cancel_scope.cancel()


async def test_a_body_that_is_left_closes_its_connection() -> None:
    """Half-read bodies cannot be followed by another answer."""
    server = ScriptedServer([CHUNKED, chunk(EVENT)])
    async with open_server(server):
        client = client_for(httpx.URL(server.url), httpx.Timeout(PATIENCE_S))
        for _ in range(2):
            response = await client.send(client.build_request("POST", server.url), stream=True)
            body = response.extensions["body"]
            assert isinstance(body, Body)
            while await anext(body) != EVENT:
                pass
            await response.aclose()
            await response.aclose()
        assert server.num_connections == 2
        assert client._transport.pool.num_idle == 0  # type: ignore[attr-defined]
        await client.aclose()


def test_every_exception_has_a_namesake() -> None:
    """What the layer below can raise, the client can."""
    names = {name for name in httpcore.__all__ if name.endswith(("Error", "Timeout", "Protocol"))}
    assert len(names) > 10
    for name in names - {"ProxyError"}:
        with pytest.raises(getattr(httpx, name), match=r"^why$"), _translated():
            raise getattr(httpcore, name)("why")
