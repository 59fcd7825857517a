"""Responses -> bytes: the pure core of the server's writing side.

Owns response heads, the framing of bodies and the check of header values. Must not know sockets,
the clock or the app.
"""

from collections.abc import Callable, Iterable, Sequence
from email.utils import formatdate
from http import HTTPStatus
from typing import Final

from gateway.http.server.response_state import CHUNK, PIECE, STRETCH, ResponseEvent

CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"

_STATUS_LINES: Final = {
    status.value: f"HTTP/1.1 {status.value} {status.phrase}\r\n".encode() for status in HTTPStatus
}
_BODILESS: Final = frozenset({204, 304})
_PLAIN: Final = frozenset(
    {
        b"content-type", b"cache-control", b"retry-after", b"www-authenticate", b"allow",
        b"x-herma-served-by", b"x-herma-worker", b"x-herma-cached-tokens", b"x-herma-route",
        b"x-request-id",
    }
)  # fmt: skip
"""Headers that do not affect the framing."""


class Framing:
    """The bytes of one response: `head` once, then `body` for every part, the last one with
    `is_last`. `keeps_alive`: whether another response can follow on the connection.

    Raises `ValueError` for an invalid response of the app.
    """

    __slots__ = ("_is_chunked", "_is_silent", "_num_left", "_takes_chunks", "keeps_alive")

    def __init__(self, method: str, version: str, *, keeps_alive: bool) -> None:
        self.keeps_alive = keeps_alive
        self._is_silent = method == "HEAD"
        self._takes_chunks = version == "1.1"
        self._is_chunked = False
        self._num_left: int | None = None

    @property
    def leaves_as(self) -> ResponseEvent:
        """The event by which a part of the body leaves."""
        if self._is_silent or self._num_left is not None:
            return PIECE
        return CHUNK if self._is_chunked else STRETCH

    def head(
        self,
        status: int,
        headers: Iterable[tuple[bytes, bytes]],
        date: bytes,
        whole_body: bytes | None = None,
    ) -> bytes:
        """The head. `whole_body` only gives the Content-Length; the caller sends it by `body`.
        Raises `ValueError` for an interim status.
        """
        if not 200 <= status <= 599:
            raise ValueError(f"{status} is no final status of a response")
        lines = [_STATUS_LINES.get(status, b"HTTP/1.1 %d \r\n" % status), date]
        is_bodiless = status in _BODILESS
        length: int | None = None
        for name, value in headers:
            lines.append(b"%b: %b\r\n" % (name, value))
            lowered = name.lower()
            if lowered == b"content-length":
                length = int(value)
            elif lowered == b"connection" and b"close" in value.lower():
                self.keeps_alive = False
                lines.pop()
            elif lowered == b"transfer-encoding":
                # The server frames the body, whatever the app says.
                lines.pop()
        if length is None and not is_bodiless:
            length = self._frame(whole_body, lines)
        if not self.keeps_alive:
            lines.append(b"connection: close\r\n")
        self._is_silent = self._is_silent or is_bodiless
        self._num_left = None if self._is_silent else length
        head = b"".join(lines)
        _check_lines(head, len(lines))
        return head + b"\r\n"

    def body(self, part: bytes, *, is_last: bool) -> bytes:
        """`part` with its framing. Raises `ValueError` beyond the announced Content-Length."""
        if self._is_silent:
            return b""
        if self._is_chunked:
            framed = b"%x\r\n%b\r\n" % (len(part), part) if part else b""
            return framed + b"0\r\n\r\n" if is_last else framed
        if self._num_left is not None:
            self._num_left -= len(part)
            if self._num_left < 0:
                raise ValueError("the response is longer than its Content-Length")
            if is_last and self._num_left:
                # The body is too short: end the connection, so that the peer stops waiting.
                self.keeps_alive = False
        return part

    def whole(
        self, status: int, headers: Sequence[tuple[bytes, bytes]], date: bytes, body: bytes
    ) -> bytes:
        """`head` and `body` of a response in one piece."""
        line = _STATUS_LINES.get(status)
        is_plain = _PLAIN.issuperset(dict(headers))
        if line is None or not is_plain or self._is_silent or status in _BODILESS:
            return self.head(status, headers, date, body) + self.body(body, is_last=True)
        self._num_left = 0
        lines = b"".join([b"%b: %b\r\n" % header for header in headers])
        _check_lines(lines, len(headers))
        end = b"\r\n" if self.keeps_alive else b"connection: close\r\n\r\n"
        return b"%b%b%bcontent-length: %d\r\n%b%b" % (line, date, lines, len(body), end, body)

    def _frame(self, whole_body: bytes | None, lines: list[bytes]) -> int | None:
        if whole_body is not None:
            lines.append(b"content-length: %d\r\n" % len(whole_body))
            return len(whole_body)
        if self._takes_chunks:
            lines.append(b"transfer-encoding: chunked\r\n")
            self._is_chunked = True
        else:
            self.keeps_alive = False
        return None


def _check_lines(head: bytes, num_lines: int) -> None:
    if head.count(b"\n") != num_lines or head.count(b"\r") != num_lines or head.count(b"\0"):
        raise ValueError("a response header holds a line break or a NUL")


class HttpDate:
    """The `Date` line of a response, made once a second."""

    def __init__(self, unix_time: Callable[[], float]) -> None:
        self._unix_time = unix_time
        self._second = -1
        self._line = b""

    def __call__(self) -> bytes:
        second = int(self._unix_time())
        if second != self._second:
            self._second = second
            self._line = f"date: {formatdate(second, usegmt=True)}\r\n".encode()
        return self._line
