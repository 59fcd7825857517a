"""Parses one HTTP/1.1 response.

Owns what is accepted as a response: llhttp's rules, relaxed where common servers break them. Does
no I/O and must not know connections.
"""

import zlib
from collections.abc import Callable
from typing import Final, final

import httptools

from protocol.errors import RemoteProtocolError

Header = tuple[bytes, bytes]

MAX_HEAD_BYTES: Final = 100 * 1024
"""The bound on a head with the interim responses before it, on trailers, and on the size line of a
chunk.
"""

_NO_BODY: Final = frozenset({101, 204, 304})
_VERSIONS: Final = frozenset({"1.0", "1.1"})
_COMPRESSED: Final = frozenset({b"gzip", b"x-gzip", b"deflate"})
_UNREADABLE: Final = frozenset({b"br", b"compress", b"dcb", b"dcz", b"x-compress", b"zstd"})
_MEMBER: Final = b"\x1f"
"""Begins a member of gzip."""
MAX_INFLATED_BYTES: Final = 2**24
"""The bound on the decompressed bytes of one read: 256 times a read of 64 KiB. No text of a model
compresses that much.
"""


_ZLIB_HEAD: Final = 2


@final
class _Inflater:
    """Decompresses a body in pieces. One of gzip may have several members, as of servers that
    compress each event alone; what follows the last one and is none is left out.
    """

    def __init__(self, *, may_lack_head: bool) -> None:
        self._member = zlib.decompressobj(zlib.MAX_WBITS | 32)
        self._has_begun = not may_lack_head
        self._begun = b""

    def decompress(self, data: bytes) -> bytes:
        """The decompressed bytes that `data` adds. Raises `zlib.error`."""
        if not self._has_begun:
            data = self._begun = self._begun + data
            if len(data) < _ZLIB_HEAD:
                return b""
            self._has_begun = True
            if not _begins_zlib(data):
                self._member = zlib.decompressobj(-zlib.MAX_WBITS)
        found: list[bytes] = []
        left = MAX_INFLATED_BYTES
        while data:
            if self._member.eof:
                if not data.startswith(_MEMBER):
                    break
                self._member = zlib.decompressobj(zlib.MAX_WBITS | 32)
            found.append(self._member.decompress(data, left))
            left -= len(found[-1])
            if self._member.unconsumed_tail or not left:
                raise zlib.error(f"it becomes more than {MAX_INFLATED_BYTES} bytes at once")
            data = self._member.unused_data
        return b"".join(found)


def _begins_zlib(data: bytes) -> bool:
    """Whether `data` begins as zlib's format, or gzip's, which some servers call deflate."""
    return data.startswith(_MEMBER) or (
        data[0] & 0x0F == zlib.DEFLATED and (data[0] << 8 | data[1]) % 31 == 0
    )


def _unreadable(_: bytes) -> bytes:
    raise zlib.error("its content coding is not supported")


@final
class ResponseParser:
    """`feed` takes the bytes of the connection, `take` gives the body. Interim responses are
    skipped. `can_reuse`: the response is complete, nothing followed it, and the server keeps the
    connection open.
    """

    def __init__(self, method: str) -> None:
        self._is_head_request = method == "HEAD"
        self._llhttp = httptools.HttpResponseParser(self)
        # Accept bare line feeds, blanks after a chunk's size, and a Content-Length with chunks,
        # which is then ignored.
        self._llhttp.set_dangerous_leniencies(
            lenient_optional_cr_before_lf=True,
            lenient_spaces_after_chunk_size=True,
            lenient_chunked_length=True,
        )
        self._pieces: list[bytes] = []
        self._decode: Callable[[bytes], bytes] | None = None
        self._ends_with_connection = False
        self._num_bytes_beside_body = 0
        self._error: RemoteProtocolError | None = None
        self.status = 0
        self.headers: list[Header] = []
        self.has_head = False
        self.is_complete = False
        self.can_reuse = False

    def feed(self, data: bytes) -> None:
        """Parse `data`; b"" is the end of the connection. `take` raises the error, if any."""
        if not data:
            self._end()
            return
        self._num_bytes_beside_body += len(data)
        try:
            self._llhttp.feed_data(data)
        except httptools.HttpParserUpgrade:
            pass  # the head of a 101 response, which is complete
        except httptools.HttpParserError as error:
            self._fail(str(error.__context__ or error))
        if self._num_bytes_beside_body > MAX_HEAD_BYTES:
            self._fail(f"a head, trailers or a chunk's size have over {MAX_HEAD_BYTES} bytes")

    def take(self) -> bytes:
        """The part of the body that was fed since the last call, decompressed; b"" if none.

        Raises `RemoteProtocolError` after all bytes before the error were taken.
        """
        pieces = self._pieces
        if not pieces:
            if self._error is not None:
                raise self._error
            return b""
        data = pieces[0] if len(pieces) == 1 else b"".join(pieces)
        pieces.clear()
        if self._decode is None:
            return data
        try:
            return self._decode(data)
        except zlib.error as error:
            raise RemoteProtocolError(f"the body cannot be decompressed: {error}") from error

    def _end(self) -> None:
        if self.has_head and self._ends_with_connection:
            self.is_complete = True
        self._fail("the connection ended before the response was complete")

    def _fail(self, text: str) -> None:
        self.can_reuse = False
        if self._error is None and not self.is_complete:
            self._error = RemoteProtocolError(text)

    # Called by llhttp.

    def on_message_begin(self) -> None:
        if self.is_complete:
            self.can_reuse = False
        elif not self.has_head:
            self.headers = []

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self.has_head:  # later headers are trailers
            self.headers.append((name.lower(), value.rstrip(b" \t")))

    def on_headers_complete(self) -> None:
        status = self._llhttp.get_status_code()
        if self.is_complete or (status < 200 and status != 101):
            return
        if self._llhttp.get_http_version() not in _VERSIONS:
            raise RemoteProtocolError("the response is not HTTP/1.0 or 1.1")
        codings = self._values(b"transfer-encoding")
        if codings not in ([], [b"chunked"]):
            raise RemoteProtocolError("the transfer coding is not supported")
        self.status = status
        self.has_head = True
        self._num_bytes_beside_body = 0
        is_framed = codings or self._values(b"content-length") or status in _NO_BODY
        self._ends_with_connection = not is_framed
        names = b",".join(self._values(b"content-encoding")).split(b",")
        encodings = [name.strip() for name in names if name.strip() in _COMPRESSED | _UNREADABLE]
        if len(encodings) > 1 or not _UNREADABLE.isdisjoint(encodings):
            # Nobody asks for them. The body says nothing then, and the status does.
            self._decode = _unreadable
        elif encodings:
            self._decode = _Inflater(may_lack_head=encodings == [b"deflate"]).decompress
        if self._is_head_request:
            self.on_message_complete()

    def on_body(self, part: bytes) -> None:
        self._num_bytes_beside_body = 0
        if self.is_complete:
            self.can_reuse = False
        else:
            self._pieces.append(part)

    def on_message_complete(self) -> None:
        if self.has_head and not self.is_complete:
            self.is_complete = True
            llhttp = self._llhttp
            self.can_reuse = (
                llhttp.should_keep_alive()
                and llhttp.get_http_version() == "1.1"
                and self.status != 101
            )

    def _values(self, name: bytes) -> list[bytes]:
        return [value.lower() for each, value in self.headers if each == name]
