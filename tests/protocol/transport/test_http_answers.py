"""67 kinds of answers over real sockets: our client and httpx make the same of them."""

import gzip
import ssl
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest
import trio

from protocol.errors import HttpError
from protocol.transport import HttpClient, inline_reads
from tests.fakes.certificates import certificate_for
from tests.fakes.scripted_http import ScriptedServer, open_server
from tests.fakes.worker import PATIENCE_S

POLL_S = 0.001

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


ONLY_OURS_TAKES = {"a blank line first", "a long size"}
ONLY_HTTPX_TAKES = {"one length, twice", "extensions", "a folded line"}
"""llhttp and h11 judge these differently: docs/decisions/0019-one-http-client.md."""


@dataclass(frozen=True)
class Heard:
    """What a client makes of two exchanges, and over how many connections."""

    answers: tuple[object, ...]
    num_connections: int


async def ask_ours(client: HttpClient, method: str, *, inline: bool) -> tuple[object, bytes]:
    """The status, or the name of the error; and the body, as far as it came."""
    body = bytearray()

    def take(data: bytes) -> bool:
        body.extend(data)
        return False

    try:
        async with client.exchange(method, "/v1", body=b"{}") as response:
            if inline:
                await response.body.pass_to(take)
            else:
                async for data in response.body:
                    body += data
    except HttpError as error:
        return type(error).__name__, bytes(body)
    return response.status, bytes(body)


async def ask_httpx(client: httpx.AsyncClient, method: str) -> tuple[object, bytes]:
    """What httpx makes of the answer."""
    body = b""
    try:
        async with client.stream(method, "/v1", content=b"{}") as response:
            async for data in response.aiter_bytes():
                body += data
    except httpx.HTTPError as error:
        return type(error).__name__, body
    return response.status_code, body


async def heard(
    server: ScriptedServer, method: str = "POST", tls: ssl.SSLContext | None = None
) -> tuple[Heard, Heard]:
    """What our client and httpx make of two exchanges each; of ours, the second is read inline."""
    inline_reads.enable_inline_reads()
    ways = iter((False, True))
    with trio.fail_after(PATIENCE_S):
        async with open_server(server):
            client = HttpClient(server.url, tls=tls or ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT))
            ours = await _two_exchanges(server, lambda: ask_ours(client, method, inline=next(ways)))
            client.close()
            async with httpx.AsyncClient(
                verify=tls or ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT),
                base_url=server.url.removesuffix("/v1"),
                trust_env=False,
            ) as usual:
                theirs = await _two_exchanges(server, lambda: ask_httpx(usual, method))
    return ours, theirs


async def _two_exchanges(
    server: ScriptedServer, ask: Callable[[], Awaitable[tuple[object, bytes]]]
) -> Heard:
    before, answers = server.num_connections, list[object]()
    for _ in range(2):
        answers.append(await ask())
        while server.ends and server.num_closed < server.num_connections:  # noqa: ASYNC110
            await trio.sleep(POLL_S)
    return Heard(tuple(answers), server.num_connections - before)


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
@pytest.mark.parametrize("case", [case for case in GOOD if case not in ONLY_HTTPX_TAKES])
async def test_good_answers(case: str, how: str) -> None:
    """Both clients get the same status and body of a good answer, and use the connection again or
    not.
    """
    ours, theirs = await heard(ScriptedServer(pieces_of(GOOD[case], how)))
    assert ours == theirs
    assert ours.num_connections == (2 if case == "the last of a connection" else 1)


@pytest.mark.parametrize("how", ["at once", "byte by byte"])
@pytest.mark.parametrize("case", [*UNTIL_CLOSE, *CUT, *sorted(set(GARBAGE) - ONLY_OURS_TAKES)])
async def test_answers_that_end_with_their_connection(case: str, how: str) -> None:
    """Answers that end with their connection, in order, too early, or in nonsense, give both
    clients the same bytes, or the same kind of error.
    """
    data = {**UNTIL_CLOSE, **CUT, **GARBAGE}[case]
    ours, theirs = await heard(ScriptedServer(pieces_of(data, how), ends=True))
    if case == "a huge size":  # httpx reads on to the end of the connection
        assert ours.answers == (("RemoteProtocolError", b""),) * 2
    else:
        assert ours == theirs
    assert ours.num_connections == 2


@pytest.mark.parametrize("case", sorted(ONLY_HTTPX_TAKES | ONLY_OURS_TAKES))
async def test_answers_that_are_judged_differently(case: str) -> None:
    """Refused by one, taken by the other; the next exchange has a connection of its own."""
    data = {**GOOD, **GARBAGE}[case]
    ours, theirs = await heard(ScriptedServer([data], ends=True))
    good, bad = (ours, theirs) if case in ONLY_OURS_TAKES else (theirs, ours)
    assert [status for status, _ in good.answers] == [200, 200]  # type: ignore[misc]
    assert [kind for kind, _ in bad.answers] == ["RemoteProtocolError"] * 2  # type: ignore[misc]
    assert ours.num_connections == 2


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
        "one length", "no length at all", "chunks", "trailers", "204", "a refusal",
        "big chunks", "no chunks", "tiny chunks", "leading zeros", "big chunks and trailers",
    ],
)  # fmt: skip
async def test_bytes_behind_an_answer_do_not_become_the_next(case: str) -> None:
    """httpx takes them for it; our connections are shared among clients."""
    another = with_length(b"of another")
    ours, _ = await heard(ScriptedServer([GOOD[case] + another]))
    alone, _ = await heard(ScriptedServer([GOOD[case]]))
    assert ours.answers == alone.answers
    assert ours.num_connections == 2


async def test_a_connection_that_is_reset() -> None:
    """A connection that is reset in the middle of a body."""
    server = ScriptedServer([CHUNKED, chunk(EVENT)], resets=True)
    kinds = [[kind for kind, _ in one.answers] for one in await heard(server)]  # type: ignore[misc]
    assert kinds == [["ReadError"] * 2] * 2


TLS_CASES = ["chunks", "big chunks", "one length", "until the end", "half a chunk", "a page"]


@pytest.mark.parametrize("is_ragged", [True, False])
@pytest.mark.parametrize("case", TLS_CASES)
@pytest.mark.parametrize("ends", [True, False])
async def test_through_tls(case: str, is_ragged: bool, ends: bool, tmp_path: Path) -> None:
    """Both clients agree through TLS, whether the end of a connection is announced or not."""
    authority, context = certificate_for("localhost", tmp_path)
    server = ScriptedServer(
        pieces_of({**GOOD, **UNTIL_CLOSE, **CUT, **GARBAGE}[case], "head and body"),
        ends=ends or case not in GOOD,
        tls=context,
        is_ragged=is_ragged,
    )
    trusted = ssl.create_default_context(cafile=str(authority))
    ours, theirs = await heard(server, tls=trusted)
    assert ours == theirs
    assert ours.num_connections == (2 if server.ends else 1)
