"""The parser of responses, without sockets."""

import gzip
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.errors import RemoteProtocolError
from protocol.transport.http_response import (
    MAX_HEAD_BYTES,
    MAX_INFLATED_BYTES,
    ResponseParser,
)

HINTS = b"HTTP/1.1 103 Early Hints\r\nLink: <x>\r\n\r\n"
HEAD = b"HTTP/1.1 200 OK\r\nX-One: a  \r\nx-Two:\r\nTransfer-Encoding: chunked\r\n\r\n"
HEADERS = [(b"x-one", b"a"), (b"x-two", b""), (b"transfer-encoding", b"chunked")]
CHUNKED = HEAD + b"3\r\nabc\r\n2;x=y\r\nde\r\n0\r\nX-Trailer: t\r\n\r\n"
FULL_LENGTH = b"HTTP/1.1 404 Not Found\r\nContent-Length: 5\r\n\r\nabcde"


def body_of(parser: ResponseParser, *pieces: bytes) -> bytes:
    """What `parser` makes of them."""
    body = b""
    for piece in pieces:
        parser.feed(piece)
        while data := parser.take():
            body += data
    return body


@pytest.mark.parametrize("response", [CHUNKED, HINTS + CHUNKED, HINTS * 2 + FULL_LENGTH])
def test_a_response_that_is_split_anywhere(response: bytes) -> None:
    """A response that is split anywhere, once at every place and everywhere, gives the same head
    and body.
    """
    splits = [[response[:at], response[at:]] for at in range(1, len(response))]
    for pieces in [[response], [bytes([byte]) for byte in response], *splits]:
        parser = ResponseParser("POST")
        assert body_of(parser, *pieces) == b"abcde"
        assert parser.status == (404 if response.endswith(FULL_LENGTH) else 200)
        assert parser.is_complete
        assert parser.can_reuse
        if parser.status == 200:
            assert parser.headers == HEADERS


@pytest.mark.parametrize("behind", [b"HTTP/1.1 200 OK\r\n\r\n", b"garbage", b"\0"])
@pytest.mark.parametrize("response", [CHUNKED, FULL_LENGTH])
def test_bytes_behind_a_response(response: bytes, behind: bytes) -> None:
    """Bytes behind a response are not part of it and no error, and its connection is not used
    again.
    """
    for pieces in ([response + behind], [response, behind]):
        parser = ResponseParser("POST")
        assert body_of(parser, *pieces) == b"abcde"
        assert parser.is_complete
        assert not parser.can_reuse


@pytest.mark.parametrize(
    ("response", "can_reuse"),
    [
        (b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 0\r\n\r\n", False),
        (b"HTTP/1.0 200 OK\r\nConnection: keep-alive\r\nContent-Length: 0\r\n\r\n", False),
        (b"HTTP/1.1 101 Switching\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\nother", False),
        (b"HTTP/1.1 101 Switching\r\n\r\n", False),
        (
            b"HTTP/1.1 200 OK\r\nConnection: upgrade\r\nUpgrade: h2c\r\nContent-Length: 0\r\n\r\n",
            True,
        ),
        (b"HTTP/1.1 204 No Content\r\n\r\n", True),
    ],
)
def test_which_connections_can_be_reused(response: bytes, can_reuse: bool) -> None:
    """Connections of HTTP/1.1 can be reused, unless either side says that it ends or becomes
    another one.
    """
    parser = ResponseParser("POST")
    assert body_of(parser, response) == b""
    assert (parser.is_complete, parser.can_reuse) == (True, can_reuse)


@pytest.mark.parametrize(
    "length", [b"Content-Length: 7\r\n", b"Transfer-Encoding: chunked\r\n", b""]
)
def test_a_response_to_head_has_no_body(length: bytes) -> None:
    """A response to HEAD has no body, whatever its head says."""
    parser = ResponseParser("HEAD")
    assert body_of(parser, b"HTTP/1.1 200 OK\r\n" + length + b"\r\n\r\n") == b""
    assert parser.is_complete


@pytest.mark.parametrize("coding", ["gzip", "x-gzip", "deflate"])
def test_a_compressed_body(coding: str) -> None:
    """A compressed body is decompressed as it comes; invalid data is an error."""
    data = bytes(range(256)) * 40
    packed = zlib.compress(data) if coding == "deflate" else gzip.compress(data)
    head = f"HTTP/1.1 200 OK\r\nContent-Encoding: {coding}\r\n\r\n".encode()
    parser = ResponseParser("POST")
    assert body_of(parser, head, *(bytes([byte]) for byte in packed), b"") == data
    assert parser.is_complete
    with pytest.raises(RemoteProtocolError, match="decompressed"):
        body_of(ResponseParser("POST"), head + b"nonsense")


@pytest.mark.parametrize("behind", [b"", b"\0\0", b"words"])
@pytest.mark.parametrize("is_whole", [True, False])
def test_a_body_of_several_members(behind: bytes, is_whole: bool) -> None:
    """Some servers compress each event alone, which gzip allows; what is no member is none."""
    events = [b"data: %d\n\n" % number for number in range(5)]
    packed = b"".join(map(gzip.compress, events)) + behind
    head = b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\n\r\n"
    pieces = [packed] if is_whole else [bytes([byte]) for byte in packed]
    assert body_of(ResponseParser("POST"), head, *pieces, b"") == b"".join(events)


@pytest.mark.parametrize("is_whole", [True, False])
@pytest.mark.parametrize("form", ["bare", "zlib", "gzip"])
def test_what_servers_call_deflate(form: str, is_whole: bool) -> None:
    """The standard means zlib's format; some send the bare stream, as all browsers take it."""
    data = bytes(range(256)) * 40
    bits = {"bare": -15, "zlib": 15, "gzip": 31}[form]
    packer = zlib.compressobj(wbits=bits)
    packed = packer.compress(data) + packer.flush()
    head = b"HTTP/1.1 200 OK\r\nContent-Encoding: deflate\r\n\r\n"
    pieces = [packed] if is_whole else [bytes([byte]) for byte in packed]
    assert body_of(ResponseParser("POST"), head, *pieces, b"") == data


@pytest.mark.parametrize("coding", ["br", "zstd", "compress", "gzip, gzip", "gzip, br", "BR"])
def test_a_coding_that_cannot_be_read(coding: str) -> None:
    """Its head, with the status, is read; its body is an error, and no bytes for the client."""
    parser = ResponseParser("POST")
    parser.feed(f"HTTP/1.1 503 Busy\r\nContent-Encoding: {coding}\r\n\r\n".encode())
    parser.feed(gzip.compress(gzip.compress(b"abc")))
    assert (parser.has_head, parser.status) == (True, 503)
    with pytest.raises(RemoteProtocolError, match="coding is not supported"):
        parser.take()


@pytest.mark.parametrize("coding", ["identity", "utf-8", "none", ""])
def test_a_coding_that_is_none(coding: str) -> None:
    """Some servers name others' words here; the body is as it is."""
    head = f"HTTP/1.1 200 OK\r\nContent-Encoding: {coding}\r\n\r\n".encode()
    assert body_of(ResponseParser("POST"), head, b"abc", b"") == b"abc"


@pytest.mark.parametrize("members", [1, 40])
def test_a_body_that_explodes(members: int) -> None:
    """What one read becomes has a bound: it would hold up all other requests."""
    packed = gzip.compress(bytes(MAX_INFLATED_BYTES // members + 1)) * members
    assert len(packed) < 2**16
    head = b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\n\r\n"
    with pytest.raises(RemoteProtocolError, match="more than"):
        body_of(ResponseParser("POST"), head, packed, b"")
    less = gzip.compress(bytes(2**20))
    assert len(body_of(ResponseParser("POST"), head, *[less] * 20, b"")) == 20 * 2**20


@pytest.mark.parametrize(
    "response",
    [
        b"SSH-2.0-OpenSSH_9.2\r\n",
        b"\x15\x03\x01",
        b"HTTP/2.0 200 OK\r\n\r\n",
        b"HTTP/1.1 99 \r\n",
        HEAD.replace(b"chunked", b"gzip, chunked"),
        HEAD.replace(b"chunked", b"chunked\r\nTransfer-Encoding: chunked"),
        HEAD.replace(b"a  ", b"a\rb"),
        HEAD.replace(b"a  ", b"a\0b"),
        HEAD + b"-1\r\n",
        HEAD + b"word\r\n",
        HEAD + b"3\r\nabcd\r\n",
        FULL_LENGTH.replace(b"5", b"5\r\nContent-Length: 6"),
    ],
)
def test_what_is_no_response(response: bytes) -> None:
    """One kind of error, whatever is wrong."""
    with pytest.raises(RemoteProtocolError):
        body_of(ResponseParser("POST"), response)


@pytest.mark.parametrize("cut", range(1, len(CHUNKED)))
def test_a_connection_that_ends_early(cut: int) -> None:
    """What came is taken before the error is."""
    parser = ResponseParser("POST")
    body = body_of(parser, CHUNKED[:cut])
    assert b"abcde".startswith(body)
    with pytest.raises(RemoteProtocolError, match="ended"):
        body_of(parser, b"")


def test_a_body_before_an_error_is_taken() -> None:
    """Though both came together."""
    parser = ResponseParser("POST")
    parser.feed(HEAD + b"3\r\nabc\r\nword\r\n")
    assert parser.take() == b"abc"
    with pytest.raises(RemoteProtocolError):
        parser.take()


@pytest.mark.parametrize(
    "beginning",
    [
        b"HTTP/1.1 200 OK\r\nX-Long: ",
        HEAD + b"3;",
        HEAD + b"0\r\nX-Trailer: ",
    ],
)
def test_what_is_not_body_has_a_bound(beginning: bytes) -> None:
    """A head, the extensions of a chunk, trailers; interim responses count together."""
    parser = ResponseParser("POST")
    parser.feed(beginning)
    with pytest.raises(RemoteProtocolError, match="over"):
        body_of(parser, *[b"x" * 1000] * (MAX_HEAD_BYTES // 1000 + 1))
    with pytest.raises(RemoteProtocolError, match="over"):
        body_of(ResponseParser("POST"), *[HINTS] * (MAX_HEAD_BYTES // len(HINTS) + 1))


@given(st.lists(st.binary(max_size=40), max_size=20), st.booleans())
def test_garbage(pieces: list[bytes], has_head: bool) -> None:
    """Garbage gives a body of at most the received bytes, or the one error."""
    parser = ResponseParser("POST")
    if has_head:
        parser.feed(HEAD)
    try:
        body = body_of(parser, *pieces, b"")
    except RemoteProtocolError:
        return
    assert len(body) <= sum(map(len, pieces))
