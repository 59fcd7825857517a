"""Requests that were damaged: whatever comes is answered or refused, and ends.

`make fuzz` tries a hundred times as many.
"""

from typing import Final

import h11
import trio
from hypothesis import given
from hypothesis import strategies as st
from trio.testing import MockClock

from gateway.http.server.parser import ParserLimits, RequestParser
from gateway.http.server.read_deadlines import Deadlines
from tests.fakes.wired import Echo, statuses, wired

NUM_AT_ONCE: Final = 50
"""Connections in one event loop, whose start and whose idle time cost more than a request."""

_GET: Final = b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n"
_OLD_GET: Final = b"GET http://x/ HTTP/1.0\r\nconnection: keep-alive\r\n\r\n"
_POST: Final = b"POST /a?b=c HTTP/1.1\r\nhost: x\r\n"
_CHUNKED: Final = b"Transfer-Encoding: chunked\r\nExpect: 100-continue\r\n\r\n"
_CHUNKS: Final = b"5\r\nhello\r\nA;x=y\r\n0123456789\r\n0\r\nchecked: yes\r\n\r\n"
_UPGRADE: Final = b"connection: upgrade\r\nupgrade: h2c\r\ncontent-length: 3\r\n\r\nabc"
ORIGINALS: Final = (
    _POST + b"content-length: 10\r\n\r\n0123456789" + _GET,
    _POST + _CHUNKED + _CHUNKS + _GET,
    _POST + _UPGRADE + _OLD_GET,
)
DEADLINES: Final = Deadlines(idle_s=4, head_s=4, body_silence_s=4, body_grace_s=4, linger_s=1)
"""Short, since each second of virtual time has its sweep."""
TOKENS: Final = (
    b"\r", b"\n", b"\r\n", b"\r\n\r\n", b" ", b"\t", b"\0", b"\xff", b":", b",", b";", b"%",
    b"0", b"1", b"-", b"+", b"0x", b"G", b"99999999999999999999", b"HTTP/1.1", b"HTTP/1.0",
    b"content-length: 3\r\n", b"transfer-encoding: chunked\r\n", b"transfer-encoding: x\r\n",
    b"connection: close\r\n", b"connection: upgrade\r\nupgrade: x\r\n", b"host: y\r\n",
    b"0\r\n\r\n", b"3\r\nabc\r\n", b"chunked", b"GET / HTTP/1.1\r\nhost: x\r\n\r\n",
)  # fmt: skip


_originals = st.sampled_from(ORIGINALS)
_tokens = st.sampled_from(TOKENS)
_few = st.integers(1, 4)
_ways = st.sampled_from(("token", "cut", "double", "insert"))


@st.composite
def damaged(draw: st.DrawFn) -> bytes:
    """A request of the originals with a few bytes replaced, inserted, cut out or doubled."""
    data = draw(_originals)
    for _ in range(draw(_few)):
        start = draw(st.integers(0, len(data)))
        end = min(len(data), start + draw(st.integers(0, 12)))
        old, token, way = data[start:end], draw(_tokens), draw(_ways)
        put = {"token": token, "cut": b"", "double": old * 2, "insert": token + old}[way]
        data = data[:start] + put + data[end:]
    return data


@given(
    cases=st.lists(
        st.tuples(damaged(), st.integers(0, 200)), min_size=NUM_AT_ONCE, max_size=NUM_AT_ONCE
    )
)
def test_damage_is_answered_or_refused(cases: list[tuple[bytes, int]]) -> None:
    """No 500, no crash, no hang: within the deadlines the connection has ended, and every answer
    but the last is for a request that was whole.
    """

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            for data, cut in cases:
                nursery.start_soon(_send_damaged, data, cut)

    trio.run(main, clock=MockClock(autojump_threshold=0))


async def _send_damaged(data: bytes, cut: int) -> None:
    echo = Echo()
    async with wired(echo, deadlines=DEADLINES) as peer:
        await peer.send(data[:cut])
        await peer.send(data[cut:])
        told = statuses(await peer.rest())
    final = [status for status in told if status != 100]
    assert set(final) <= {200, 400, 408, 414, 417, 431, 501, 505}, (told, data, cut)
    assert final.count(200) == len(echo.asked), (told, data, cut)
    assert set(final[:-1]) <= {200}, (told, data, cut)


@given(data=damaged())
def test_nothing_is_read_otherwise_than_by_h11(data: bytes) -> None:
    """Where both of two independent parsers take a request, it is the same one, at the same place:
    none can be smuggled past the other.
    """
    parser = RequestParser(ParserLimits())
    parser.feed(data)
    ours = [
        (request.method.encode(), request.take())
        for request in parser.waiting
        if request.is_complete
    ]
    theirs = _read_by_h11(data)
    num_both = min(len(ours), len(theirs))
    assert ours[:num_both] == theirs[:num_both]


def _read_by_h11(data: bytes) -> list[tuple[bytes, bytes]]:
    server = h11.Connection(h11.SERVER)
    server.receive_data(data)
    found: list[tuple[bytes, bytes]] = []
    method, body = b"", b""
    try:
        while True:
            event = server.next_event()
            if isinstance(event, h11.Request):
                method, body = event.method, b""
            elif isinstance(event, h11.Data):
                body += bytes(event.data)
            elif isinstance(event, h11.EndOfMessage):
                found.append((method, body))
                server.send(h11.Response(status_code=200, headers=[("content-length", "0")]))
                server.send(h11.EndOfMessage())
                server.start_next_cycle()
            else:
                return found
    except (h11.RemoteProtocolError, h11.LocalProtocolError):
        return found
