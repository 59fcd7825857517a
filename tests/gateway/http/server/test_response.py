"""What leaves as a response, as an independent reader sees it."""

from collections.abc import Callable

import h11
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.http.server.response import Framing
from tests.fakes.wired import parsed

DATE = b"date: Thu, 01 Jan 1970 00:00:00 GMT\r\n"


def _response(framing: Framing, parts: list[bytes], **fields: bytes) -> bytes:
    headers = [(name.replace("_", "-").encode(), value) for name, value in fields.items()]
    whole = parts[0] if len(parts) == 1 else None
    head = framing.head(200, headers, DATE, whole)
    last = len(parts) - 1
    return head + b"".join(framing.body(p, is_last=i == last) for i, p in enumerate(parts))


@given(
    parts=st.lists(st.binary(max_size=40), min_size=1, max_size=6),
    is_declared=st.booleans(),
    version=st.sampled_from(["1.0", "1.1"]),
    method=st.sampled_from(["GET", "POST", "HEAD"]),
)
def test_h11_reads_what_was_said(
    parts: list[bytes], is_declared: bool, version: str, method: str
) -> None:
    """Whole or in parts, with or without its length: the body arrives, and its end is seen."""
    framing = Framing(method, version, keeps_alive=True)
    fields = {"content_length": b"%d" % len(b"".join(parts))} if is_declared else {}
    data = _response(framing, parts, **fields)
    body = b"" if method == "HEAD" else b"".join(parts)
    assert parsed(data, method) == [(200, body)]
    if framing.keeps_alive:
        twice = data + _response(Framing(method, version, keeps_alive=False), [b"next"])
        assert parsed(twice, method, method)[0] == (200, body)


@pytest.mark.parametrize("status", [204, 304])
def test_some_answers_have_no_body(status: int) -> None:
    """204 and 304 have neither a body nor a framing, whatever the app gives."""
    framing = Framing("GET", "1.1", keeps_alive=True)
    data = framing.head(status, [], DATE, b"body") + framing.body(b"body", is_last=True)
    assert data.endswith(b"\r\n\r\n")
    assert b"content-length" not in data
    assert b"chunked" not in data


@pytest.mark.parametrize(
    "header",
    [(b"a", b"b\r\nc: d"), (b"a", b"b\nc"), (b"a", b"b\rc"), (b"a\r\nb", b"c"), (b"a", b"\0")],
)
def test_a_header_cannot_begin_another(header: tuple[bytes, bytes]) -> None:
    """Line breaks and NUL in a header are an error of the app."""
    with pytest.raises(ValueError, match="line break"):
        Framing("GET", "1.1", keeps_alive=True).head(200, [header], DATE)


@pytest.mark.parametrize("status", [100, 103, 199, 600, 0])
def test_only_final_statuses_are_taken(status: int) -> None:
    """An informational status would be followed by another head."""
    with pytest.raises(ValueError, match="no final status"):
        Framing("GET", "1.1", keeps_alive=True).head(status, [], DATE)


def test_more_than_was_declared_is_an_error() -> None:
    """Bytes beyond Content-Length would be taken for the next response."""
    framing = Framing("GET", "1.1", keeps_alive=True)
    framing.head(200, [(b"content-length", b"3")], DATE)
    with pytest.raises(ValueError, match="longer than"):
        framing.body(b"abcd", is_last=True)


def test_less_than_was_declared_ends_the_connection() -> None:
    """The peer must not wait for the rest, nor take the next response for it."""
    framing = Framing("GET", "1.1", keeps_alive=True)
    framing.head(200, [(b"content-length", b"3")], DATE)
    framing.body(b"ab", is_last=True)
    assert not framing.keeps_alive


def test_the_app_can_close() -> None:
    """`connection: close` from the app is told once and kept to; its own framing is not."""
    framing = Framing("GET", "1.1", keeps_alive=True)
    data = _response(framing, [b"a", b"b"], Connection=b"close", transfer_encoding=b"chunked")
    assert not framing.keeps_alive
    assert data.count(b"onnection: close") == 1
    assert data.count(b"chunked") == 1
    client = h11.Connection(h11.CLIENT)
    client.receive_data(data)


@given(
    status=st.sampled_from([200, 204, 304, 404, 599]),
    names=st.lists(st.sampled_from([b"content-type", b"x-herma-route", b"x-a", b"Connection"])),
    value=st.sampled_from([b"a", b"close", b"b\r\nc: d", b"\0", b"e\n"]),
    body=st.binary(max_size=20),
    method=st.sampled_from(["POST", "HEAD"]),
    keeps_alive=st.booleans(),
)
def test_in_one_piece_it_is_the_same(
    status: int, names: list[bytes], value: bytes, body: bytes, method: str, *, keeps_alive: bool
) -> None:
    """A whole response has the bytes, the end and the errors of its head and its body."""

    def outcome(framing: Framing, write: Callable[[Framing], bytes]) -> tuple[bytes | str, bool]:
        try:
            written: bytes | str = write(framing)
        except ValueError as error:
            written = str(error)
        return written, framing.keeps_alive

    headers = [(name, value) for name in names]
    pieces, whole = (Framing(method, "1.1", keeps_alive=keeps_alive) for _ in range(2))
    assert outcome(whole, lambda it: it.whole(status, headers, DATE, body)) == outcome(
        pieces,
        lambda it: it.head(status, headers, DATE, body) + it.body(body, is_last=True),
    )
    assert whole.leaves_as is pieces.leaves_as
