"""Plain chunks past the parser, held against the parser."""

from collections.abc import Sequence

import h11
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.upstream.chunks import MAX_CHUNK_BYTES, PlainChunks

HEAD = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"
contents = st.binary(min_size=1, max_size=40)
extensions = st.sampled_from([b"", b"", b";a=b", b"; ", b" \t", b';q="\xff"'])
odd = st.sampled_from(
    [b"", b"0\r\n\r\n", b"0;x\r\nA: b\r\n\r\n", b"zz", b"\r\n", b"2\r\nabc", b"3 4\r\n", b"5\n"]
)


@st.composite
def bodies(draw: st.DrawFn) -> bytes:
    chunks = [
        b"%x%s\r\n%s\r\n" % (len(content), draw(extensions), content)
        for content in draw(st.lists(contents, max_size=5))
    ]
    return b"".join(chunks) + draw(odd)


def by_parser(pieces: Sequence[bytes]) -> tuple[bytes, str]:
    """What the parser finds in the pieces and then the end: the content, and how it ends."""
    parser = h11.Connection(h11.CLIENT, max_incomplete_event_size=1000)
    parser.send(h11.Request(method="GET", target="/", headers=[("host", "x")]))
    parser.send(h11.EndOfMessage())
    parser.receive_data(HEAD)
    assert isinstance(parser.next_event(), h11.Response)
    content, waiting = b"", [*pieces, b""]
    while True:
        try:
            event = parser.next_event()
        except h11.RemoteProtocolError as error:
            return content, str(error).partition(":")[0]
        if event is h11.NEED_DATA:
            parser.receive_data(waiting.pop(0))
        elif isinstance(event, h11.Data):
            content += bytes(event.data)
        else:
            return content, type(event).__name__


def past_parser(pieces: Sequence[bytes]) -> tuple[bytes, str]:
    """The same with plain chunks taken out before."""
    chunks, content = PlainChunks(), b""
    for at, piece in enumerate(pieces):
        content += chunks.push(piece)
        if chunks.rest is not None:
            more, end = by_parser([chunks.rest, *pieces[at + 1 :]])
            return content + more, end
    assert chunks.push(b"") == b""
    assert chunks.rest is not None
    more, end = by_parser([chunks.rest] if chunks.rest else [])
    return content + more, end


@given(bodies(), st.lists(st.integers(0, 250), max_size=4))
def test_the_parser_finds_the_same(body: bytes, cuts: list[int]) -> None:
    """Whatever comes, and wherever it is cut: the same content and the same end."""
    ends = sorted({min(cut, len(body)) for cut in cuts} | {len(body)})
    pieces = [body[a:b] for a, b in zip([0, *ends], ends, strict=False) if a < b]
    assert past_parser(pieces) == by_parser(pieces)


def test_whole_chunks_need_no_parser() -> None:
    """One or several in a read, and one in two reads."""
    chunks = PlainChunks()
    assert chunks.push(b"2\r\nab\r\n") == b"ab"
    assert chunks.push(b"1\r\nc\r\n2;x\r\nde\r\n") == b"cde"
    assert chunks.push(b"3\r\nfg") == b""
    assert chunks.push(b"h\r\n") == b"fgh"
    assert chunks.rest is None


@pytest.mark.parametrize("size", [MAX_CHUNK_BYTES + 1, 2**40])
def test_a_large_chunk_is_not_held(size: int) -> None:
    """It is the parser's from its beginning."""
    chunks, begin = PlainChunks(), b"%x\r\nabc" % size
    assert chunks.push(b"2\r\nab\r\n" + begin) == b"ab"
    assert chunks.rest == begin


def test_an_endless_size_is_not_held() -> None:
    """Nor a line that may never end."""
    chunks = PlainChunks()
    chunks.push(b"2;" + b"a" * 300)
    assert chunks.rest == b"2;" + b"a" * 300
