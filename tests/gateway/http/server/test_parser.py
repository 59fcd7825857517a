"""What is taken for a request, what is refused, and how much is kept."""

import itertools

import h11
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.http.server.parser import ParserLimits, RequestParser

HEAD = b"POST /a HTTP/1.1\r\nhost: x\r\n"
CHUNKED = HEAD + b"transfer-encoding: chunked\r\n\r\n"

REFUSED: dict[str, tuple[int, bytes]] = {
    "two lengths": (400, HEAD + b"content-length: 3\r\ncontent-length: 4\r\n\r\nabcd"),
    "the same length twice": (400, HEAD + b"content-length: 3\r\ncontent-length: 3\r\n\r\nabc"),
    "a list of lengths": (400, HEAD + b"content-length: 3, 3\r\n\r\nabc"),
    "a length with a sign": (400, HEAD + b"content-length: +3\r\n\r\nabc"),
    "a length in hex": (400, HEAD + b"content-length: 0x3\r\n\r\nabc"),
    "a length with a gap": (400, HEAD + b"content-length: 1 3\r\n\r\nabc"),
    "no length": (400, HEAD + b"content-length:\r\n\r\nabc"),
    "a length beyond 64 bits": (400, HEAD + b"content-length: 99999999999999999999\r\n\r\n"),
    "length, then chunked": (
        400,
        HEAD + b"content-length: 3\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
    ),
    "chunked, then length": (
        400,
        HEAD + b"transfer-encoding: chunked\r\ncontent-length: 3\r\n\r\n0\r\n\r\n",
    ),
    "chunked twice": (400, HEAD + b"transfer-encoding: chunked\r\n" * 2 + b"\r\n0\r\n\r\n"),
    "chunked, chunked": (400, HEAD + b"transfer-encoding: chunked, chunked\r\n\r\n0\r\n\r\n"),
    "chunked, not last": (400, HEAD + b"transfer-encoding: chunked, gzip\r\n\r\n0\r\n\r\n"),
    "another coding": (501, HEAD + b"transfer-encoding: gzip\r\n\r\n"),
    "another coding first": (501, HEAD + b"transfer-encoding: gzip, chunked\r\n\r\n0\r\n\r\n"),
    "nearly chunked": (501, HEAD + b"transfer-encoding: xchunked\r\n\r\n0\r\n\r\n"),
    "chunked behind a control": (400, HEAD + b"transfer-encoding: \x0bchunked\r\n\r\n0\r\n\r\n"),
    "no coding": (400, HEAD + b"transfer-encoding:\r\n\r\n0\r\n\r\n"),
    "chunked in 1.0": (
        400,
        b"POST / HTTP/1.0\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
    ),
    "a folded header": (400, HEAD + b"a: b\r\n c\r\n\r\n"),
    "a folded length": (400, HEAD + b"content-length:\r\n 3\r\n\r\nabc"),
    "space before a colon": (400, HEAD + b"content-length : 3\r\n\r\nabc"),
    "space before a name": (400, b"GET / HTTP/1.1\r\n host: x\r\n\r\n"),
    "bare LF": (400, b"GET / HTTP/1.1\nhost: x\n\n"),
    "bare LF after a header": (400, b"GET / HTTP/1.1\r\nhost: x\na: b\r\n\r\n"),
    "bare CR in a value": (400, HEAD + b"a: b\rc: d\r\n\r\n"),
    "NUL in a value": (400, HEAD + b"a: b\0c\r\n\r\n"),
    "NUL in a name": (400, HEAD + b"a\0: b\r\n\r\n"),
    "NUL in the target": (400, b"GET /\0 HTTP/1.1\r\nhost: x\r\n\r\n"),
    "bytes in the target": (400, b"GET /\xff HTTP/1.1\r\nhost: x\r\n\r\n"),
    "a fragment": (400, b"GET /a#b HTTP/1.1\r\nhost: x\r\n\r\n"),
    "no path": (400, b"OPTIONS x HTTP/1.1\r\nhost: x\r\n\r\n"),
    "a star": (400, b"GET * HTTP/1.1\r\nhost: x\r\n\r\n"),
    "a name of none": (400, HEAD + b": b\r\n\r\n"),
    "a name with brackets": (400, HEAD + b"a(b): c\r\n\r\n"),
    "no host": (400, b"GET / HTTP/1.1\r\n\r\n"),
    "two hosts": (400, HEAD + b"host: y\r\n\r\n"),
    "a chunk size with a sign": (400, CHUNKED + b"+3\r\nabc\r\n0\r\n\r\n"),
    "a chunk size below zero": (400, CHUNKED + b"-3\r\nabc\r\n0\r\n\r\n"),
    "a chunk size as hex literal": (400, CHUNKED + b"0x3\r\nabc\r\n0\r\n\r\n"),
    "a chunk size with a gap": (400, CHUNKED + b"3 \r\nabc\r\n0\r\n\r\n"),
    "a chunk size of none": (400, CHUNKED + b"\r\nabc\r\n0\r\n\r\n"),
    "a chunk size beyond 64 bits": (400, CHUNKED + b"10000000000000003\r\nabc\r\n0\r\n\r\n"),
    "bare LF after a chunk size": (400, CHUNKED + b"3\nabc\r\n0\r\n\r\n"),
    "bare LF after a chunk": (400, CHUNKED + b"3\r\nabc\n0\r\n\r\n"),
    "a chunk longer than its size": (400, CHUNKED + b"3\r\nabcd\r\n0\r\n\r\n"),
    "a length in the trailers": (400, CHUNKED + b"0\r\ncontent-length: 3\r\n\r\n"),
    "an unknown method": (501, b"BREW / HTTP/1.1\r\nhost: x\r\n\r\n"),
    "a small method": (501, b"get / HTTP/1.1\r\nhost: x\r\n\r\n"),
    "a proxy's method": (501, b"CONNECT x:1 HTTP/1.1\r\nhost: x\r\n\r\n"),
    "HTTP/0.9": (505, b"GET /\r\n\r\n"),
    "HTTP/2": (505, b"GET / HTTP/2.0\r\nhost: x\r\n\r\n"),
    "HTTP/2 by preface": (400, b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"),
    "HTTP/1.2": (400, b"GET / HTTP/1.2\r\nhost: x\r\n\r\n"),
    "another expectation": (417, HEAD + b"expect: tea\r\n\r\n"),
    "TLS": (501, bytes.fromhex("16030100f1010000ed0303") + bytes(40)),
    "a long target": (414, b"GET /" + b"a" * 9_000 + b" HTTP/1.1\r\nhost: x\r\n\r\n"),
    "many headers": (431, HEAD + b"a: b\r\n" * 101 + b"\r\n"),
    "many headers and no end": (431, HEAD + b"a: b\r\n" * 1000),
    "a large head": (431, HEAD + b"a: " + b"b" * 80_000),
    "a head without end": (431, b"\r\n" * 40_000),
    "a chunk header without end": (431, CHUNKED + b"3;" + b"a" * 80_000),
    "trailers without end": (431, CHUNKED + b"0\r\n" + b"a: b\r\n" * 150),
    "a trailer without end": (431, CHUNKED + b"0\r\na: " + b"b" * 80_000),
}


def parse(*pieces: bytes, limits: ParserLimits | None = None) -> RequestParser:
    parser = RequestParser(limits or ParserLimits())
    for piece in pieces:
        parser.feed(piece)
    return parser


@pytest.mark.parametrize("name", REFUSED)
@pytest.mark.parametrize("num_bytes", [1, 7, 100_000])
def test_what_may_be_read_in_two_ways_is_refused(name: str, num_bytes: int) -> None:
    """However the bytes arrive, the connection ends in one error, and what follows is not read."""
    status, data = REFUSED[name]
    data += b"GET /smuggled HTTP/1.1\r\nhost: x\r\n\r\n"
    parser = parse(*(data[i : i + num_bytes] for i in range(0, len(data), num_bytes)))
    assert parser.error is not None
    assert parser.error.status == status, parser.error.message
    assert parser.error.type == "invalid_request_error"
    assert parser.is_over
    assert not any(b"smuggled" in request.target for request in parser.waiting)
    assert not any(request.is_complete for request in parser.waiting)


def test_a_head_at_its_limits_is_taken() -> None:
    """Everything just below the limits is a request."""
    parser = parse(HEAD + b"a: b\r\n" * 99 + b"\r\n")
    assert len(parser.waiting) == 1
    parser = parse(HEAD + b"a: " + b"b" * 60_000 + b"\r\n\r\n")
    assert len(parser.waiting) == 1
    parser = parse(b"GET /" + b"a" * 8_000 + b" HTTP/1.1\r\nhost: x\r\n\r\n")
    assert len(parser.waiting) == 1


def test_the_space_around_a_value_is_none_of_it() -> None:
    """RFC 9110 5.5. A length behind which it stands is one, and who writes the value again, as for
    a provider, may not write it.
    """
    parser = RequestParser(ParserLimits())
    parser.feed(HEAD + b"content-length: \t3 \t\r\na:\t b \t c \t \r\nd: \t\r\n\r\nabc")
    request = parser.take()
    assert request is not None
    assert request.headers[1:] == [(b"content-length", b"3"), (b"a", b"b \t c"), (b"d", b"")]
    assert request.take() == b"abc"


def test_a_packet_of_requests_stops_soon_after_the_bound() -> None:
    """What is pipelined beyond the bound stays unread until there is room, and is not lost."""
    parser = parse(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n" * 2_000)
    assert parser.is_full
    most = 0
    for _ in range(2_000):
        most = max(most, len(parser.waiting))
        assert parser.take() is not None
    assert most < 200
    assert parser.take() is None
    assert parser.is_idle


def test_a_body_ahead_of_the_app_is_bounded() -> None:
    """The parser is full while more of a body waits than the limits allow."""
    parser = parse(HEAD + b"content-length: 300000\r\n\r\n", bytes(270_000))
    assert parser.is_full
    request = parser.take()
    assert request is not None
    assert len(request.take()) == 270_000
    assert not parser.is_full


def test_nothing_follows_a_last_request() -> None:
    """Nothing is read behind a last request: after `Connection: close`, and in HTTP/1.0, the rest
    is no error either.
    """
    last = b"GET / HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n"
    for data in (last, b"GET / HTTP/1.0\r\nconnection: keep-alive\r\n\r\n"):
        parser = parse(data + data)
        assert len(parser.waiting) == 1
        assert parser.is_over
        assert parser.error is None


@pytest.mark.parametrize("framing", [b"content-length: 3\r\n\r\nabc", b""])
def test_an_offered_upgrade_does_not_hide_the_body(framing: bytes) -> None:
    """An upgrade is ignored: the body is the request's, and what follows is the next one."""
    framing = framing or b"transfer-encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n"
    data = HEAD + b"connection: upgrade\r\nupgrade: h2c\r\n" + framing
    for pieces in ([data * 2], [bytes([byte]) for byte in data * 2]):
        parser = parse(*pieces)
        assert [request.take() for request in parser.waiting] == [b"abc", b"abc"]
        assert parser.error is None


def test_an_absolute_target_is_its_path() -> None:
    """What proxies send is taken as RFC 9112 3.2.2 asks for."""
    parser = parse(b"GET http://x?q=1 HTTP/1.1\r\nhost: x\r\n\r\n")
    assert parser.waiting[0].path_and_query() == (b"/", "/", b"q=1")


@pytest.mark.parametrize(
    "target",
    ["http://other/", "https://a@x/", "http://x:81/", "http:///", "http://[/", "http://[::1"],
)
def test_an_absolute_target_names_the_host_of_its_header(target: str) -> None:
    """RFC 9112 lets one of the two count, and servers choose different ones."""
    parser = parse(f"GET {target} HTTP/1.1\r\nhost: x\r\n\r\n".encode())
    assert parser.error is not None
    assert (parser.error.status, parser.waiting) == (400, [])
    assert "target" in parser.error.message


@given(
    bodies=st.lists(st.binary(max_size=300), min_size=1, max_size=5),
    is_chunked=st.lists(st.booleans(), min_size=5, max_size=5),
    cuts=st.lists(st.integers(0, 4_000), max_size=12),
)
def test_what_h11_writes_is_read_however_it_is_split(
    bodies: list[bytes], is_chunked: list[bool], cuts: list[int]
) -> None:
    """Pipelined requests of an independent client arrive whole over any split of their bytes."""
    data = b"".join(map(_written_by_h11, bodies, is_chunked))
    edges = sorted({0, len(data), *(cut % (len(data) + 1) for cut in cuts)})
    parser = parse(*(data[a:b] for a, b in itertools.pairwise(edges)))
    assert parser.error is None
    assert [request.take() for request in parser.waiting] == bodies
    assert all(request.is_complete for request in parser.waiting)
    assert not parser.is_in_head


def _written_by_h11(body: bytes, is_chunked: bool) -> bytes:
    client = h11.Connection(h11.CLIENT)
    framing = ("transfer-encoding", "chunked") if is_chunked else ("content-length", str(len(body)))
    request = h11.Request(method="POST", target="/a?b", headers=[("host", "x"), framing])
    parts = [request, h11.Data(data=body[:7]), h11.Data(data=body[7:]), h11.EndOfMessage()]
    return b"".join(client.send(part) or b"" for part in parts)
